"""What an engine's error answer means. Its text is read for its class only, and never shown, logged or kept."""

from __future__ import annotations

from typing import Any

import msgspec

from berth_gateway.errors import Refusal

_BATCH_WORDS = "too large to process"
_MEDIA = {"image": "images", "audio": "audio", "video": "video"}  # as engines call it, and as we do
_CONTEXT_WORDS = ("maximum context length", "context size", "context window", "context length")


def read_refusal(status: int, body: bytes, prompt_field: str) -> Refusal | None:
    """The refusal a client gets if the request itself was wrong; None when the fault is the engine's or ours."""
    if status not in (400, 413, 422, 500):
        return None
    error = _error_object(body)
    message = error.get("message")
    words = message.lower() if isinstance(message, str) else ""
    for kind, called in _MEDIA.items():
        # llama.cpp calls it a fault of its own, and vLLM counts to 0.
        if f"{kind} input is not supported" in words or f"at most 0 {kind}" in words:
            return Refusal("unsupported_value", f"This model does not take {called}.", param=prompt_field)
    if status == 500:
        # llama.cpp calls it a fault of its own that a text to embed does not fit into one batch.
        return _too_long(error, prompt_field) if _BATCH_WORDS in words else None
    if error.get("type") == "exceed_context_size_error" or any(w in words for w in _CONTEXT_WORDS):
        return _too_long(error, prompt_field)
    return Refusal(
        "invalid_value",
        "The model's engine does not accept this request. Check the messages and parameters against the model's documentation.",
    )


def _too_long(error: dict[str, Any], param: str) -> Refusal:
    # Clients recognise these two phrases, so both stay whatever the numbers say.
    limit, asked = error.get("n_ctx"), error.get("n_prompt_tokens")
    longest = f"{limit} tokens" if type(limit) is int else "shorter than this request"
    size = f"{asked} tokens in the {param}" if type(asked) is int else f"too many tokens in the {param}"
    return Refusal(
        "context_length_exceeded",
        f"This model's maximum context length is {longest}. Your request has {size}, which exceeds the context window.",
        param=param,
    )


def _error_object(body: bytes) -> dict[str, Any]:
    """The engine's error in whichever of its shapes: {"error": {…}}, {"error": "text"}, or at the top level."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    if not isinstance(decoded, dict):
        return {}
    error = decoded.get("error", decoded)
    return error if isinstance(error, dict) else {}
