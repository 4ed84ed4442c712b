from django.apps import AppConfig


class MeteringConfig(AppConfig):
    name = "berth.metering"
    label = "metering"
