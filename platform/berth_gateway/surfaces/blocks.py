"""What a request in Anthropic's form is made of, strictly typed. Data, no behaviour."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from berth_gateway.fields import Json, Name


class _Block(Struct, forbid_unknown_fields=True, tag_field="type"):
    """A part of a message. `cache_control` is accepted and dropped: prefixes are kept without being asked."""

    cache_control: Json | None = None


class TextBlock(_Block, tag="text"):
    text: str = ""
    citations: list[Any] | None = None


class InlineSource(Struct, forbid_unknown_fields=True):
    type: Literal["base64"]
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
    data: str


class ImageBlock(_Block, tag="image", kw_only=True):
    source: InlineSource


class ToolUseBlock(_Block, tag="tool_use", kw_only=True):
    id: Annotated[str, Meta(max_length=256)]
    name: Name
    input: Json
    caller: Json | None = None


class ToolResultBlock(_Block, tag="tool_result", kw_only=True):
    tool_use_id: Annotated[str, Meta(max_length=256)]
    content: str | Annotated[list[TextBlock | ImageBlock], Meta(max_length=1024)] | None = None
    is_error: bool | None = None


class ThinkingBlock(_Block, tag="thinking"):
    thinking: str = ""
    signature: str | None = None


class RedactedThinkingBlock(_Block, tag="redacted_thinking"):
    data: str | None = None


Blocks = Annotated[
    list[TextBlock | ImageBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock],
    Meta(max_length=1024),
]


class Turn(Struct, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class Tool(Struct, forbid_unknown_fields=True):
    name: Name
    input_schema: Json
    type: Literal["custom"] | None = None
    description: Annotated[str, Meta(max_length=16_384)] | None = None
    strict: bool | None = None
    cache_control: Json | None = None
    eager_input_streaming: bool | None = None


class ToolChoice(Struct, forbid_unknown_fields=True):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, forbid_unknown_fields=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=1)] | None = None
    display: Annotated[str, Meta(max_length=32)] | None = None


class OutputFormat(Struct, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: Json


class OutputConfig(Struct, forbid_unknown_fields=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
