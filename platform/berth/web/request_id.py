"""Every request has an id of ours; it is in the answer's header, in errors and in log lines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import uuid_utils
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

GetResponse = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]


def request_id(request: object) -> str:
    """The id given by the middleware; "req_unknown" only for requests made by hand in tests."""
    inner = getattr(request, "_request", request)
    return str(getattr(inner, "berth_request_id", "req_unknown"))


class RequestIdMiddleware:
    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        request.berth_request_id = f"req_{uuid_utils.uuid7().hex}"  # type: ignore[attr-defined]
        if self.is_async:
            return self._answer(request)
        return self._mark(request, cast(HttpResponseBase, self.get_response(request)))

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        return self._mark(request, await cast(Awaitable[HttpResponseBase], self.get_response(request)))

    @staticmethod
    def _mark(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        response.headers["X-Request-Id"] = request_id(request)
        return response
