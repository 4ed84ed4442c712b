"""What the type of a body cannot say: media only inline, schemas within bounds, one prompt a request. Raises Refusal."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from berth_gateway import schema
from berth_gateway.contract import Route
from berth_gateway.errors import Refusal
from berth_gateway.fields import VLLM, AudioPart, ImagePart

MANY_PROMPTS = VLLM  # engines whose usage adds up over prompts and choices
MAX_PROMPTS = 256


def check_messages(messages: list[Any]) -> None:
    for message in messages:
        if message.annotations is not None:
            message.annotations = None
        if isinstance(message.content, list):
            for part in message.content:
                if isinstance(part, ImagePart) and not part.image_url.url.startswith("data:image/"):
                    raise Refusal(
                        "invalid_value", "Images must be sent inside the request, as a data: URL.", param="messages"
                    )
                if isinstance(part, AudioPart) and "://" in part.input_audio.data[:32]:
                    raise Refusal(
                        "invalid_value", "Audio must be sent inside the request, as base64.", param="messages"
                    )


def check_chat(values: Any, route: Route) -> None:
    if values.modalities is not UNSET and values.modalities != ["text"]:
        raise Refusal("unsupported_value", "This model answers in text only.", param="modalities")
    if values.top_logprobs is not UNSET and values.logprobs is not True:
        raise Refusal("invalid_value", "'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    if values.tools is not UNSET:
        for tool in values.tools:
            _check_schema(tool.function.parameters, "tools")
    wanted = values.response_format
    if wanted is not UNSET and wanted.json_schema is not None:
        _check_schema(wanted.json_schema.schema, "response_format")
    if values.chat_template_kwargs is not UNSET:
        for name in values.chat_template_kwargs:
            if f"chat_template_kwargs.{name}" not in route.extra_fields:
                raise Refusal(
                    "unknown_parameter",
                    "This model does not take that template argument.",
                    param="chat_template_kwargs",
                )


def _check_schema(value: object, param: str) -> None:
    fault = schema.problem(value)
    if fault is not None:
        raise Refusal("invalid_value", f"A JSON schema in '{param}' {fault}.", param=param)


def check_prompt(values: Any) -> int:
    """One string, one list of token ids, or a list of either. How many prompts that is."""
    prompt = values.prompt
    if isinstance(prompt, str):
        return 1
    if not prompt:
        raise Refusal("invalid_value", "'prompt' must not be empty.", param="prompt")
    if all(type(item) is int and 0 <= item < 1 << 31 for item in prompt):
        return 1
    texts = all(isinstance(item, str) for item in prompt)
    if not texts and not all(
        isinstance(item, list) and item and all(type(i) is int and 0 <= i < 1 << 31 for i in item) for item in prompt
    ):
        raise Refusal("invalid_type", "'prompt' must be a string, strings, or lists of token ids.", param="prompt")
    if len(prompt) == 1:
        values.prompt = prompt[0]
        return 1
    if len(prompt) > MAX_PROMPTS:
        raise Refusal("invalid_value", f"'prompt' must not have more than {MAX_PROMPTS} items.", param="prompt")
    return len(prompt)
