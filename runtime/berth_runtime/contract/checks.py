"""The checks. Each takes a replica that is ready and idle, and leaves it so. Raises Broken, or Missing for what is not claimed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from berth_runtime.contract.paths import CLOSED, GUARDED
from berth_runtime.contract.replica import Broken, Missing, Replica, events, eventually, require
from berth_runtime.spec import EngineMetrics

Check = Callable[[Replica], None]

_MESSAGES: Final = [{"role": "user", "content": "Say hello."}]


def chats(replica: Replica) -> None:
    """A chat gets an answer with its usage."""
    answer = replica.generate("chat/completions", messages=_MESSAGES, max_tokens=8)
    message = answer["choices"][0]["message"]
    require(message["role"] == "assistant" and isinstance(message["content"], str), "no assistant message")
    require(1 <= answer["usage"]["completion_tokens"] <= 8, "the usage tells more tokens than were allowed, or none")
    require(answer["usage"]["prompt_tokens"] > 1, "the usage tells no prompt")


def completes(replica: Replica) -> None:
    """A text is continued, and no longer than was asked."""
    answer = replica.generate("completions", prompt="One two three four", max_tokens=3, ignore_eos=True)
    require(answer["usage"]["completion_tokens"] == 3, "three tokens were asked for, and others were told")
    require(answer["choices"][0]["finish_reason"] == "length", "an answer that was cut does not say so")


def streams_with_usage(replica: Replica) -> None:
    """A stream comes as events, and its usage once, at the end."""
    options = {"include_usage": True}
    chunks = events(
        replica.stream(
            "chat/completions", messages=_MESSAGES, max_tokens=6, temperature=0, ignore_eos=True, stream_options=options
        ).rest()
    )
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    require(text, "the stream has no text")
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    require(len(usages) == 1 and not chunks[-1]["choices"], "the usage is not told exactly once, at the end")
    require(1 <= usages[0]["completion_tokens"] <= 6, "the usage of the stream is wrong")


def running_usage(replica: Replica) -> None:
    """A stream tells its tokens as they come, for what breaks off."""
    if not replica.can.running_usage:
        raise Missing
    options = {"include_usage": True, "continuous_usage_stats": True}
    more: dict[str, Any] = (
        {"timings_per_token": True} if replica.spec.engine == "llamacpp" else {"stream_options": options}
    )
    chunks = events(
        replica.stream(prompt="The capital of France is", max_tokens=12, temperature=0, ignore_eos=True, **more).rest()
    )
    told = [chunk for chunk in chunks if chunk.get("usage") or chunk.get("timings")]
    require(len(told) > 2, "running counts were asked for, and do not come")


def stops_at_strings(replica: Replica) -> None:
    """An answer ends before a stop string, which is not shown."""
    asked: dict[str, Any] = {
        "prompt": "The capital of France is",
        "max_tokens": 12,
        "temperature": 0,
        "ignore_eos": True,
    }
    whole = replica.generate("completions", **asked)["choices"][0]["text"]
    stop = whole[len(whole) // 2 :][:2]
    require(stop, "nothing was generated")
    choice = replica.generate("completions", **asked, stop=[stop])["choices"][0]
    require(choice["text"] == whole[: whole.index(stop)], "the answer does not end right before the stop string")
    require(choice["finish_reason"] == "stop", "an answer that was stopped does not say so")


def refuses_what_is_too_long(replica: Replica) -> None:
    """A prompt beyond the context is refused as that, and nothing of it is computed."""
    if not replica.can.refuses_overlong:
        raise Missing
    long = "word " * (replica.spec.context_length + 64)
    status, raw, _ = replica.ask(
        "POST", "/v1/completions", {"model": replica.spec.model_alias, "prompt": long, "max_tokens": 1}
    )
    words = raw.decode().lower()
    require(status == 400, f"a prompt beyond the context was answered with {status}")
    require(any(word in words for word in ("context length", "context size", "context window")), "it does not say why")


def tells_probabilities(replica: Replica) -> None:
    """Log probabilities come with the tokens."""
    if not replica.can.logprobs:
        raise Missing
    answer = replica.generate(
        "chat/completions",
        messages=_MESSAGES,
        max_tokens=2,
        temperature=0,
        ignore_eos=True,
        logprobs=True,
        top_logprobs=2,
    )
    content = answer["choices"][0]["logprobs"]["content"]
    require(content and content[0]["logprob"] <= 0 and len(content[0]["top_logprobs"]) == 2, "no log probabilities")


def keeps_to_a_schema(replica: Replica) -> None:
    """An answer to a JSON schema is of it, as far as it goes."""
    if not replica.can.json_schema:
        raise Missing
    schema = {
        "type": "object",
        "properties": {"n": {"enum": ["a", "b"]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    answer = replica.generate(
        "chat/completions", messages=_MESSAGES, max_tokens=48, response_format=wanted, temperature=0
    )
    text = answer["choices"][0]["message"]["content"].lstrip()
    require(text.startswith("{"), "the answer does not keep to the schema")
    if answer["choices"][0]["finish_reason"] == "stop":
        require(json.loads(text)["n"] in ("a", "b"), "the answer is not of the schema")


def names_its_models(replica: Replica) -> None:
    """The model and each adapter are listed by the names that were given, and nothing else is."""
    status, raw, _ = replica.ask("GET", "/v1/models")
    require(status == 200, f"/v1/models answered {status}")
    require(replica.engine.lists(replica.spec, raw), "other models are listed than the one and its adapters")


def serves_each_adapter(replica: Replica) -> None:
    """An adapter answers under its own name."""
    if not replica.spec.adapters:
        raise Missing
    for adapter in replica.spec.adapters:
        named = replica.engine.address(replica.spec, adapter.name)
        answer = replica.generate("completions", **named, prompt="One two", max_tokens=2, ignore_eos=True)
        require(answer["usage"]["completion_tokens"] == 2, f"the adapter {adapter.name} does not answer")


def keeps_strangers_out(replica: Replica) -> None:
    """Without the secret nothing is served, and the answer does not give it away."""
    for method, path in GUARDED:
        for secret in (None, "wrong", replica.secret[:-1]):
            status, raw, _ = replica.ask(method, path, {} if method == "POST" else None, secret=secret)
            require(status == 401, f"{method} {path} answered {status} to somebody without the secret")
            require(replica.secret.encode() not in raw, f"{method} {path} gives the secret away")


def has_no_control_paths(replica: Replica) -> None:
    """What would change the engine or read it out is closed, also for who has the secret."""
    for method, path in CLOSED:
        status, _, _ = replica.ask(method, path, {} if method == "POST" else None)
        require(status in (401, 403, 404, 405, 501), f"{method} {path} answered {status}")


def runs_as_told(replica: Replica) -> None:
    """The settings that are in effect are those of the spec."""
    path = replica.engine.settings_path
    if path is None:
        raise Missing
    _, raw, _ = replica.ask("GET", path)
    difference = replica.engine.difference(replica.spec, raw)
    require(difference is None, difference or "")


def lets_no_other_origin_in(replica: Replica) -> None:
    """No web page of elsewhere may call it."""
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    for method in ("POST", "OPTIONS"):
        for secret in (None, ""):
            _, _, headers = replica.ask(method, "/v1/completions", {}, secret=secret, headers=asked)
            require(not headers.get("access-control-allow-origin"), f"{method} lets another origin in")
            require(
                headers.get("access-control-allow-credentials") in (None, "false"), f"{method} takes its credentials"
            )


def stops_when_its_client_leaves(replica: Replica) -> None:
    """A stream whose client is gone is not computed further."""
    stream = replica.stream(prompt="Once", max_tokens=400, ignore_eos=True)
    require(replica.metrics().running == 1, "a running request is not counted")
    stream.leave()
    _becomes_idle(replica)


def stops_without_a_stream_too(replica: Replica) -> None:
    """The same where the answer was to come in one piece."""
    if not replica.can.stops_on_disconnect:
        raise Missing
    leave = replica.leave("completions", prompt="Once", max_tokens=400, ignore_eos=True)
    eventually(lambda: replica.metrics().running == 1, "a running request is not counted")
    before = replica.metrics().completion_tokens
    leave()
    _becomes_idle(replica)
    after = replica.metrics().completion_tokens
    require(before is None or after is None or after - before < 400, "the whole answer was computed for nobody")


def queues_what_is_too_much(replica: Replica) -> None:
    """More clients than slots have their turn all the same."""
    streams = [replica.stream(prompt="One", max_tokens=60, ignore_eos=True) for _ in range(replica.spec.slots)]
    answer = replica.generate("completions", prompt="Two", max_tokens=2, ignore_eos=True)
    require(answer["usage"]["completion_tokens"] == 2, "a request that had to wait was not answered whole")
    for stream in streams:
        events(stream.rest())


def counts_under_our_names(replica: Replica) -> None:
    """What it claims to count it counts."""
    before = _idle(replica)
    replica.generate("completions", prompt="One two three", max_tokens=3, ignore_eos=True)
    after = _idle(replica)
    for name in replica.can.metrics:
        require(getattr(after, name) is not None, f"{name} is claimed, and not told")
    if before.completion_tokens is not None and after.completion_tokens is not None:
        require(after.completion_tokens == before.completion_tokens + 3, "generated tokens are counted wrongly")
    if before.ttft_count is not None and after.ttft_count is not None:
        require(after.ttft_count == before.ttft_count + 1, "first tokens are counted wrongly")


def _idle(replica: Replica) -> EngineMetrics:
    """The metrics once nothing runs: an answer may be here before its end is counted."""
    eventually(
        lambda: replica.metrics().running == 0 and not replica.metrics().queued, "an idle engine counts requests"
    )
    return replica.metrics()


def _becomes_idle(replica: Replica) -> None:
    eventually(lambda: replica.metrics().running == 0, "the engine goes on for a client that has left")
    produced = replica.metrics().completion_tokens
    time.sleep(0.3)
    require(replica.metrics().completion_tokens == produced, "the engine goes on for a client that has left")


CHECKS: Final[tuple[Check, ...]] = (
    chats,
    completes,
    streams_with_usage,
    running_usage,
    stops_at_strings,
    refuses_what_is_too_long,
    tells_probabilities,
    keeps_to_a_schema,
    names_its_models,
    serves_each_adapter,
    keeps_strangers_out,
    has_no_control_paths,
    runs_as_told,
    lets_no_other_origin_in,
    stops_when_its_client_leaves,
    stops_without_a_stream_too,
    queues_what_is_too_much,
    counts_under_our_names,
)

__all__ = ["CHECKS", "Broken", "Check", "Missing"]
