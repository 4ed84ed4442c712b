"""Anthropic's messages and messages/count_tokens: its table, and the chat request that an engine gets for it.

Every engine that chats serves them so, with the same template, the same bounds and the same exact counts as a chat.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from berth_gateway import schema
from berth_gateway.contract import Route
from berth_gateway.endpoint import Answers, Body, Endpoint, Prepared, make
from berth_gateway.errors import Refusal
from berth_gateway.fields import LLAMACPP, VLLM, Field, Json, Note, Use, number, text, whole
from berth_gateway.surfaces.blocks import (
    ImageBlock,
    OutputConfig,
    TextBlock,
    Thinking,
    ThinkingBlock,
    Tool,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
)
from berth_gateway.surfaces.common import (
    adapter_fields,
    admitted_extras,
    answer_limit,
    cache_fields,
    pass_fields,
    stream_options,
)

COUNTERS = {"llamacpp": "/v1/chat/completions/input_tokens", "vllm": "/tokenize"}  # of engines that count a chat

_PROMPT = (
    Field("model", str, Use.OWN, required=True),
    Field("messages", Annotated[list[Turn], Meta(min_length=1, max_length=10_000)], Use.OWN, required=True),
    Field("system", str | Annotated[list[TextBlock], Meta(max_length=1024)], Use.OWN),
    Field("tools", Annotated[list[Tool], Meta(max_length=128)], Use.OWN),
    Field("tool_choice", ToolChoice, Use.OWN),
    Field("thinking", Thinking, Use.OWN),
    Field("output_config", OutputConfig, Use.OWN),
    Field("cache_control", Json, Use.STRIP),
    Field("context_management", Json, Use.REFUSE),
    Field("mcp_servers", list[Any], Use.REFUSE),
)

MESSAGES = (
    *_PROMPT,
    Field("max_tokens", Annotated[int, Meta(ge=1)], Use.OWN, required=True),
    Field("stream", bool, Use.OWN),
    Field("stop_sequences", Annotated[list[Annotated[str, Meta(max_length=512)]], Meta(max_length=4)], Use.OWN),
    Field("temperature", number(0, 2)),
    Field("top_p", number(0, 1)),
    Field("top_k", whole(-1, 1_000_000)),
    # The usual samplers of the engines.
    Field("min_p", number(0, 1)),
    Field("seed", whole(-(1 << 63), (1 << 63) - 1)),
    Field("metadata", dict[str, Note | None], Use.STRIP),
    Field("service_tier", text(64), Use.STRIP),
    Field("inference_geo", text(64), Use.STRIP),
    Field("container", Json | str, Use.REFUSE),
)

COUNT = _PROMPT

_PASSED = ("temperature", "top_p", "top_k", "min_p", "seed")


def prepare(endpoint: Endpoint, body: Body, route: Route) -> Prepared:
    """A chat request that streams."""
    values = body.values
    extras = admitted_extras(body.extras, route)
    passed = pass_fields(endpoint, values, route)
    chat = _chat(values, passed, route)
    chat |= {name: getattr(values, name) for name in _PASSED if name in passed}
    if "stop_sequences" in passed and values.stop_sequences:
        chat["stop"] = values.stop_sequences
    limit, told = answer_limit(route, values.max_tokens, len(msgspec.json.encode(chat)))
    if told is not None:
        chat["max_tokens"] = told
    chat |= {"stream": True, "stream_options": stream_options(route, 1)}
    chat |= cache_fields(route) | adapter_fields(route) | extras
    if route.engine in LLAMACPP:
        chat["timings_per_token"] = True
    return Prepared(
        body=msgspec.json.encode(chat),
        stream=values.stream is True,
        include_usage=True,
        choices=1,
        most_tokens=limit,
        path="/v1/chat/completions",
    )


def prepare_count(endpoint: Endpoint, body: Body, route: Route) -> Prepared:
    """A question to the engine's own counter."""
    values = body.values
    extras = admitted_extras(body.extras, route)
    passed = pass_fields(endpoint, values, route)
    path = COUNTERS.get(route.engine)
    if path is None:
        raise Refusal("unsupported_endpoint", "This model's engine cannot count tokens beforehand.")
    chat = _chat(values, passed, route) | extras
    if route.engine in VLLM:
        chat["add_generation_prompt"] = True
        chat.pop("tool_choice", None)
    return Prepared(
        body=msgspec.json.encode(chat), stream=False, include_usage=False, choices=1, most_tokens=0, path=path
    )


def _chat(values: Any, passed: frozenset[str], route: Route) -> dict[str, Any]:
    """What of the request makes its prompt, as a chat says it."""
    messages: list[dict[str, Any]] = []
    if "system" in passed and values.system:
        system = values.system if isinstance(values.system, str) else _joined(values.system)
        messages.append({"role": "system", "content": system})
    for turn in values.messages:
        messages += _turn(turn)
    chat: dict[str, Any] = {"model": route.engine_model, "messages": messages}
    choice = _choice(values.tool_choice) if "tool_choice" in passed else {}
    if "tools" in passed and values.tools:
        chat |= {"tools": [_tool(tool) for tool in values.tools], **choice}
    if "output_config" in passed:
        chat |= _output(values.output_config)
    return chat


def _joined(blocks: list[TextBlock]) -> str:
    return "\n".join(block.text for block in blocks)


def _turn(turn: Turn) -> list[dict[str, Any]]:
    """Results of tools are turns of their own in a chat, and come before what the user says to them."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in turn.content:
        if isinstance(block, TextBlock):
            parts.append({"type": "text", "text": block.text})
        elif isinstance(block, ImageBlock):
            parts.append(_image(block))
        elif isinstance(block, ToolUseBlock):
            calls.append(_call(block))
        elif isinstance(block, ToolResultBlock):
            results.append(_result(block))
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
    said: dict[str, Any] = {"role": turn.role}
    if parts or not (results or calls):
        said["content"] = _content(parts)
    if calls:
        said["tool_calls"] = calls
    if thoughts and turn.role == "assistant":
        said["reasoning_content"] = "".join(thoughts)
    return [*results, said] if parts or calls or not results else results


def _content(parts: list[dict[str, Any]]) -> Any:
    """Text alone as a string, which every template knows."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _image(block: ImageBlock) -> dict[str, Any]:
    source = block.source
    if not source.data.isascii() or "," in source.data[:64]:
        raise Refusal("invalid_value", "Images must be sent inside the request, as base64.", param="messages")
    return {"type": "image_url", "image_url": {"url": f"data:{source.media_type};base64,{source.data}"}}


def _call(block: ToolUseBlock) -> dict[str, Any]:
    arguments = msgspec.json.encode(block.input).decode()
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _result(block: ToolResultBlock) -> dict[str, Any]:
    content: Any = block.content or ""
    if isinstance(content, list):
        content = _content(
            [
                {"type": "text", "text": part.text} if isinstance(part, TextBlock) else _image(part)
                for part in block.content or []
                if not isinstance(part, str)
            ]
        )
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _tool(tool: Tool) -> dict[str, Any]:
    _check(tool.input_schema, "tools")
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> dict[str, Any]:
    if choice.type == "tool":
        if choice.name is None:
            raise Refusal(
                "missing_required_parameter", "Missing required parameter: 'tool_choice.name'.", param="tool_choice"
            )
        chosen: Any = {"type": "function", "function": {"name": choice.name}}
    else:
        chosen = {"auto": "auto", "any": "required", "none": "none"}[choice.type]
    more = {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    return {"tool_choice": chosen, **more}


def _output(config: OutputConfig) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if config.effort is not None:
        out["reasoning_effort"] = "high" if config.effort in ("xhigh", "max") else config.effort
    if config.format is not None:
        _check(config.format.schema, "output_config")
        out["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "output", "strict": True, "schema": config.format.schema},
        }
    return out


def _check(value: Json, param: str) -> None:
    fault = schema.problem(value)
    if fault is not None:
        raise Refusal("invalid_value", f"A JSON schema in '{param}' {fault}.", param=param)


ENDPOINTS = (
    make("messages", MESSAGES, prepare, Answers.MESSAGE, id_prefix="msg_", prompt_field="messages"),
    make(
        "messages/count_tokens",
        COUNT,
        prepare_count,
        Answers.TOKEN_COUNT,
        served_as="messages",
        prompt_field="messages",
    ),
)
