from django.apps import AppConfig


class BillingConfig(AppConfig):
    name = "berth.billing"
    label = "billing"
