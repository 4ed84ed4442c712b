"""ASGI entry point of the control plane."""

import os

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.db import connections

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "berth.settings")
_django = get_asgi_application()

from berth.publishing import here  # noqa: E402  (after Django is set up)
from berth.web.gate import Gate  # noqa: E402

# Each request has a thread of its own here, so a connection that was kept would serve nobody any more, and they would add up.
connections.settings["default"]["CONN_MAX_AGE"] = 0
application = Gate(
    _django,
    most_body=settings.DATA_UPLOAD_MAX_MEMORY_SIZE,
    large=settings.UPLOAD_PART_PATH,
    most_large=settings.UPLOAD_PART_BYTES,
)

here.enable()
