"""The bodies of usual chats: plain texts and the fields that nearly every client sends, and no other.

A body that is none of these is not wrong: the endpoint's own type (`fields`) reads it, and refuses what has to be refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from berth_gateway.fields import CHAT, StreamOptions

_NAMES = (
    "stream",
    "temperature",
    "top_p",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "stop",
    "max_tokens",
    "max_completion_tokens",
)


class Text(Struct, forbid_unknown_fields=True, gc=False):
    role: Literal["system", "developer", "user", "assistant"]
    content: str


_Messages = Annotated[list[Text], Meta(min_length=1, max_length=10_000)]

# The fields stand as they do in the table, so that encoding them gives what encoding the table's type gives.
UsualChat: Any = msgspec.defstruct(
    "UsualChat",
    [
        ("model", str),
        ("messages", _Messages),
        *(
            (field.name, (StreamOptions if field.name == "stream_options" else field.type) | UnsetType, UNSET)
            for field in CHAT
            if field.name in (*_NAMES, "stream_options")
        ),
    ],
    forbid_unknown_fields=True,
    gc=False,
)

decode = msgspec.json.Decoder(UsualChat).decode
UNUSUAL = (msgspec.DecodeError, RecursionError)
