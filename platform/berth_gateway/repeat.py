"""The last head of a connection. Clients send the same one again and again, but for the length of the body: then it need not be
read, nor its key looked up, a second time. Pure.

Only bytes that are equal are taken as known, so whatever the reader of heads would say of them it has said already.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from berth_gateway.admit import Caller
from berth_gateway.form import Form, form_of
from berth_gateway.head import MAX_LENGTH, RequestHead
from berth_gateway.paths import Place
from berth_gateway.snapshot import View

_MOST_DIGITS = 15


@dataclass(slots=True)
class Known:
    """A head that was judged good: its form, and what came of it.

    `view`: the one by which `caller` was found; under another, or after the key's end, it has to be found anew.
    """

    form: Form
    head: RequestHead
    place: Place
    caller: Caller
    view: View

    @property
    def is_usual(self) -> bool:
        """Whether requests with this head may come the short way (`fast`)."""
        head, endpoint = self.head, self.place.endpoint
        return head.minor == 1 and head.origin is None and endpoint is not None and endpoint.name == "chat/completions"

    def again_elsewhere(self) -> Known:
        """The same for a connection of its own."""
        return Known(self.form, self.head, self.place, self.caller, self.view)

    def caller_now(self, view: View, now: float) -> Caller | None:
        """Who calls, if that is still known."""
        expires = self.caller.key.expires_at
        return self.caller if view is self.view and (expires is None or now < expires) else None

    def again(self, data: bytes) -> RequestHead | None:
        """The head at the start of `data`, if it is this one but for the length of the body."""
        form, at = self.form, self.form.at
        if not data.startswith(form.before):
            return None
        end = data.find(b"\r", at, at + _MOST_DIGITS + 1)
        if end < 0 or not data.startswith(form.behind, end):
            return None
        digits = data[at:end]
        if not digits.isdigit() or (digits[0] == 48 and end - at > 1):
            return None
        length, head = int(digits), self.head
        if length == head.length:
            return head
        if length > MAX_LENGTH:
            return None
        return msgspec.structs.replace(head, length=length, consumed=end + form.skip)


def remember(data: bytes, head: RequestHead, place: Place, caller: Caller, view: View) -> Known | None:
    """What to know of a head at the start of `data`; None for one without a plain Content-Length."""
    if head.length < 0 or head.chunked or head.expects_continue or not head.keep_alive:
        return None
    form = form_of(data[: head.consumed], head.length)
    return None if form is None else Known(form, head, place, caller, view)
