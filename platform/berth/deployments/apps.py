from django.apps import AppConfig


class DeploymentsConfig(AppConfig):
    name = "berth.deployments"
    label = "deployments"
