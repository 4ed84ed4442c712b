"""The dashboard: a single page for every address that is not the API's."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse


def dashboard(request: HttpRequest) -> HttpResponse:
    """The built index page. 503 with a sentence when the dashboard has not been built."""
    index = settings.FRONTEND_DIST / "index.html"
    if request.method not in {"GET", "HEAD"}:
        return HttpResponse(status=405, headers={"Allow": "GET, HEAD"})
    if not index.is_file():
        text = "The dashboard has not been built. Run `make up`, or `npm ci && npm run build` in frontend/.\n"
        return HttpResponse(text, status=503, content_type="text/plain; charset=utf-8")
    return HttpResponse(
        index.read_bytes(), content_type="text/html; charset=utf-8", headers={"Cache-Control": "no-store"}
    )
