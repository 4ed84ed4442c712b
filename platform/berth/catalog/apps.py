from django.apps import AppConfig


class CatalogConfig(AppConfig):
    name = "berth.catalog"
    label = "catalog"
