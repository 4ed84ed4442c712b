from django.apps import AppConfig


class OrgsConfig(AppConfig):
    name = "berth.orgs"
    label = "orgs"
