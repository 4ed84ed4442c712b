from django.apps import AppConfig


class PrivacyConfig(AppConfig):
    name = "berth.privacy"
    label = "privacy"
