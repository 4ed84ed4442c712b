"""A route to a LoRA adapter reaches it in its engine's own way, on every way of asking; a client cannot choose one by itself."""

from __future__ import annotations

from typing import Any

import pytest

from berth_gateway.surface import ENDPOINTS
from tests.gateway.harness import World
from tests.gateway.test_surface import CHAT, COMPLETIONS, MESSAGES, chat, refused, sent

ASKS = (
    (CHAT, chat()),
    (COMPLETIONS, {"model": "m", "prompt": "x"}),
    (ENDPOINTS["/v1/messages"], {"model": "m", "messages": MESSAGES, "max_tokens": 5}),
    (ENDPOINTS["/v1/responses"], {"model": "m", "input": "x"}),
)


@pytest.mark.threat("M8")
@pytest.mark.parametrize(("endpoint", "data"), ASKS, ids=lambda value: getattr(value, "name", None))
def test_each_way_of_asking_reaches_the_adapter(endpoint: Any, data: dict[str, Any]) -> None:
    world = World()
    adapter = world.route("acme/lora", 1, engine="llamacpp", adapter=1)
    assert sent(dict(data), endpoint, adapter)["lora"] == [{"id": 1, "scale": 1.0}]
    assert "lora" not in sent(dict(data), endpoint, world.route("acme/base", 1, engine="llamacpp"))
    # Beside adapters the base is asked for without any, in words: else it might go on from a prefix read with one.
    carrying = world.route("acme/carrying", 1, engine="llamacpp", carries=True)
    assert sent(dict(data), endpoint, carrying)["lora"] == [{"id": 0, "scale": 0.0}]
    assert "lora" not in sent(dict(data), endpoint, world.route("acme/named", 1, engine="vllm", carries=True))
    # vLLM looks at the name, which is the route's own.
    named = world.route("acme/other", 1, engine="vllm", adapter=0, engine_model="acme/other")
    assert "lora" not in sent(dict(data), endpoint, named)
    assert sent(dict(data), endpoint, named)["model"] == "acme/other"


@pytest.mark.threat("M8")
def test_a_client_cannot_choose_an_adapter() -> None:
    route = World().route("acme/base", 1, engine="llamacpp", extra_fields=("lora",))
    assert refused(chat(lora=[{"id": 0, "scale": 1.0}]), route=route).param == "lora"
