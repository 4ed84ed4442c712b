from django.apps import AppConfig


class OutboxConfig(AppConfig):
    name = "berth.outbox"
    label = "outbox"
