from django.apps import AppConfig


class KeysConfig(AppConfig):
    name = "berth.keys"
    label = "keys"
