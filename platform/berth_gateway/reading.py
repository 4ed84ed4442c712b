"""Reads a body strictly. Every refusal names the field; none quotes a value."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from berth_gateway.endpoint import Body, Endpoint
from berth_gateway.errors import Refusal
from berth_gateway.multipart import read_form

_PATH = re.compile(r" - at `\$\.?([^`]*)`\Z")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `([a-z_]+)`")
_EXPECTED = re.compile(r"Expected `([^`]*)`(?: (?:of length )?(?:[<>]=?|==) -?[0-9.e+]+)?")
_ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def read(endpoint: Endpoint, data: bytes) -> Body:
    """Decodes a body. Raises Refusal."""
    if endpoint.multipart:
        return _read_form(endpoint, data)
    try:
        return Body(endpoint.decoder.decode(data), {})
    except msgspec.ValidationError as fault:
        text = str(fault)
    except (msgspec.DecodeError, RecursionError):
        repaired = _ESCAPES.sub(lambda m: b"\\ufffd" if m[1] else m[0], data) if b"\\u" in data else data
        if repaired != data:
            return read(endpoint, repaired)
        raise _bad_json() from None
    if _UNKNOWN.match(text) and not _PATH.search(text):
        return _read_with_extras(endpoint, data)
    raise _invalid(text)


def _read_form(endpoint: Endpoint, data: bytes) -> Body:
    """A form's fields by their names; lists are written `name[]`. Numbers come as text there."""
    known: dict[str, Any] = {}
    extras: dict[str, Any] = {}
    for part in read_form(data):
        name = part.name.removesuffix("[]")
        if name not in endpoint.fields:
            if part.filename is not None:
                raise Refusal("unknown_parameter", "The form has a file that is not called 'file'.", param="file")
            extras[name] = part.data.decode()
        elif (name == "file") != (part.filename is not None):
            raise Refusal("invalid_type", f"'{name}' has the wrong type.", param=name)
        elif part.filename is not None:
            known[name] = part
        elif part.name != name:
            known.setdefault(name, []).append(part.data.decode())
        else:
            known[name] = part.data.decode()
    try:
        return Body(msgspec.convert(known, endpoint.body, strict=False), extras)
    except msgspec.ValidationError as fault:
        text = str(fault)
    raise _invalid(text)


def _read_with_extras(endpoint: Endpoint, data: bytes) -> Body:
    """A body with fields outside the table: they are set aside until the deployment is known."""
    try:
        whole = msgspec.json.decode(data, type=dict[str, Any])
        extras = {name: whole.pop(name) for name in list(whole) if name not in endpoint.fields}
        return Body(msgspec.convert(whole, endpoint.body), extras)
    except msgspec.ValidationError as fault:
        text = str(fault)
    except (msgspec.DecodeError, RecursionError):
        raise _bad_json() from None
    raise _invalid(text)


def _bad_json() -> Refusal:
    return Refusal("invalid_json", "The body could not be read as JSON in UTF-8. Send one JSON object.")


def _invalid(text: str) -> Refusal:
    """The decoder's complaint in our words. Only names of our own fields and types are taken from it."""
    where = _PATH.search(text)
    path = where[1] if where else ""
    param = re.split(r"[.\[]", path, maxsplit=1)[0] or None
    missing = _MISSING.match(text)
    if missing:
        name = f"{path}.{missing[1]}" if path else missing[1]
        return Refusal(
            "missing_required_parameter", f"Missing required parameter: '{name}'.", param=param or missing[1]
        )
    if _UNKNOWN.match(text):
        return Refusal("unknown_parameter", f"'{path}' has a field that is not known here.", param=param)
    expected = _EXPECTED.match(text)
    if param is None:
        return Refusal("invalid_json", "The body must be one JSON object.")
    if expected is None:
        return Refusal(
            "invalid_value", f"Invalid value for '{path}': it is not one of the allowed values.", param=param
        )
    bounded = expected[0] != f"Expected `{expected[1]}`"
    wanted = expected[0].removeprefix("Expected ").replace("`", "")
    return Refusal(
        "invalid_value" if bounded else "invalid_type", f"Invalid value for '{path}': expected {wanted}.", param=param
    )
