"""ASGI entry point of the control plane."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "berth.settings")
application = get_asgi_application()

from berth.publishing import here  # noqa: E402  (after Django is set up)

here.enable()
