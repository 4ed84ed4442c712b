"""Idempotency keys: a creating POST that is sent again answers what it answered before, and creates nothing twice.

    class Deployments(OrgView):
        @idempotent
        def post(self, request: Request, org: str) -> Response:
            ...                                    # one service call
            return Response(content, status=201)

A client sends `Idempotency-Key: <8 to 128 visible ASCII characters>`, best a random UUID. It counts for this user, this address
and this method for 24 hours:

- same key, same body → the same status and answer, with the header `Idempotency-Replayed: true`;
- same key, other body → 409 `idempotency_mismatch`;
- while the first is still at work → 409 `idempotency_in_progress`;
- an error is not kept: the next try runs. Without the header the view runs as always.

How it holds: the view runs inside one transaction that keeps a lock on the key's row, and the answer is written in that very
transaction. So the effect and the answer are there together or not at all, and a process that dies lets go of the lock at once.
What asks for work outside (publishing, tasks) belongs into `transaction.on_commit`, where it is anyway.

Answers can hold a secret that is shown once, so **every** answer is sealed (AES-GCM) with a key derived from the client's
idempotency key and ours. The idempotency key itself is kept only as a digest: whoever has the database, even with our secret key,
cannot open an answer; only the client that sends the same key again can.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from django.conf import settings
from django.db import transaction
from django.utils import timezone
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from berth.orgs.models import IdempotentAnswer, User
from berth.web.errors import ApiError, Conflict

KEPT = timedelta(hours=24)
_FORM = re.compile(r"[\x21-\x7e]{8,128}")

P = ParamSpec("P")
V = TypeVar("V", bound=APIView)


def idempotent(
    view: Callable[Concatenate[V, Request, P], Response],
) -> Callable[Concatenate[V, Request, P], Response]:
    """Decorates a view's `post`. See the module's text."""

    @functools.wraps(view)
    def wrapped(self: V, request: Request, *args: P.args, **kwargs: P.kwargs) -> Response:
        key = request.headers.get("Idempotency-Key")
        if key is None:
            return view(self, request, *args, **kwargs)
        if not _FORM.fullmatch(key):
            raise ApiError(
                "idempotency_key_invalid",
                "Idempotency-Key must be 8 to 128 visible ASCII characters. A random UUID is best.",
            )
        scope = f"{request.user.pk}\n{request.method}\n{request.path}\n{key}"
        body = _digest("body", json.dumps(request.data, sort_keys=True, separators=(",", ":"), default=str))
        row_id = _claim(_digest("scope", scope), request)
        with transaction.atomic():
            row = _lock(row_id)
            if row.answer is not None:
                return _replay(row, body, scope)
            response = view(self, request, *args, **kwargs)
            if response.status_code >= 400:
                transaction.set_rollback(True)
                return response
            content = JSONRenderer().render(response.data)
            row.answer = _seal(scope, response.status_code.to_bytes(2) + content)
            row.body_digest = body
            row.save(update_fields=["answer", "body_digest"])
        return response

    wrapped.idempotent = True  # type: ignore[attr-defined]  # told in the schema
    return cast("Callable[Concatenate[V, Request, P], Response]", wrapped)


def _claim(digest: bytes, request: Request) -> int:
    """The id of the row for this key, made if need be; committed at once, so that a second request meets it."""
    user = cast(User, request.user)
    IdempotentAnswer.objects.filter(created_at__lt=timezone.now() - KEPT, user=user).delete()
    row, _ = IdempotentAnswer.objects.get_or_create(digest=digest, defaults={"user": user})
    return row.pk


def _lock(row_id: int) -> IdempotentAnswer:
    row = IdempotentAnswer.objects.select_for_update(skip_locked=True).filter(pk=row_id).first()
    if row is None:
        raise Conflict(
            "idempotency_in_progress",
            "A request with this Idempotency-Key is still being worked on. Ask again shortly.",
        )
    return row


def _replay(row: IdempotentAnswer, body: bytes, scope: str) -> Response:
    if not hmac.compare_digest(bytes(row.body_digest or b""), body):
        raise Conflict(
            "idempotency_mismatch",
            "This Idempotency-Key was used with another body. Use a new key for a new request.",
        )
    try:
        plain = _unseal(scope, bytes(row.answer or b""))
    except InvalidTag:
        raise Conflict(
            "idempotency_mismatch", "The earlier answer to this Idempotency-Key cannot be read any more. Use a new key."
        ) from None
    data: Any = json.loads(plain[2:]) if plain[2:] else None
    return Response(data, status=int.from_bytes(plain[:2]), headers={"Idempotency-Replayed": "true"})


def _digest(purpose: str, text: str) -> bytes:
    key = f"berth idempotency {purpose}:{settings.SECRET_KEY}".encode()
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def _seal(scope: str, plain: bytes) -> bytes:
    nonce = os.urandom(12)
    return nonce + AESGCM(_digest("seal", scope)).encrypt(nonce, plain, None)


def _unseal(scope: str, sealed: bytes) -> bytes:
    return AESGCM(_digest("seal", scope)).decrypt(sealed[:12], sealed[12:], None)
