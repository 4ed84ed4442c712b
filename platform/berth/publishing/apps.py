from django.apps import AppConfig


class PublishingConfig(AppConfig):
    name = "berth.publishing"
    label = "publishing"
