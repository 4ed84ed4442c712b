"""Metering has no routes of its own: usage is shown with its cost and its names, which rooms above know (`berth.billing.api`)."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
