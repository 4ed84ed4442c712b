"""Security headers on every answer (docs/security.md)."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin


def content_security_policy() -> str:
    """Scripts and styles from this origin only; the playground may also talk to the API's origin."""
    api = urlsplit(settings.API_BASE)
    connect = {f"{api.scheme}://{api.netloc}"}
    if api.hostname == "127.0.0.1":
        connect.add(f"{api.scheme}://localhost:{api.port}")
    return (
        f"default-src 'self'; connect-src 'self' {' '.join(sorted(connect))}; img-src 'self' data:; object-src 'none'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )


class SecurityHeadersMiddleware(MiddlewareMixin):
    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        response.headers.setdefault("Content-Security-Policy", content_security_policy())
        response.headers.setdefault("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
        response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        response.headers.setdefault("X-Frame-Options", "DENY")
        if request.path.startswith("/api/"):
            response.headers["Cache-Control"] = "no-store"
        return response
