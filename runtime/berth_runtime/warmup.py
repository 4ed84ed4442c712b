"""The trial start, the last steps before READY: a real generation by the model and each adapter, one chat through the model's own
template where it has one, and the settings that are in effect. Who fails here never gets a request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from berth_runtime.engines.engine import TEMPLATE_FAILS, Call, Engine
from berth_runtime.failure import Failure
from berth_runtime.probe import Probe
from berth_runtime.spec import LaunchSpec
from berth_runtime.wake import Wake

CHAT_SECONDS: Final = (
    120.0  # for one turn and one token, after the weights have been read: a template that takes longer hangs
)


class Questions:
    """Asks the engine from a thread, so that signals, the lifeline and the engine's end are noticed meanwhile."""

    def __init__(self, probe: Probe, seconds: float, pause: Callable[[], None], wake: Wake) -> None:
        """`pause` waits a little and raises what ends the replica."""
        self._probe = probe
        self._seconds = seconds
        self._pause = pause
        self._wake = wake

    def ask(self, call: Call, most: float | None = None) -> tuple[int, bytes]:
        """Status and body; 0 if there is no answer in time. `most`: seconds, where less is enough than what is left."""
        seconds = self._seconds if most is None else min(most, self._seconds)
        result: list[tuple[int, bytes]] = []

        def work() -> None:
            try:
                result.append(self._probe.ask(call, seconds))
            except OSError:
                result.append((0, b""))
            self._wake.up()

        thread = threading.Thread(target=work, name="question", daemon=True)
        thread.start()
        while thread.is_alive() and not result:
            self._pause()
        return result[0] if result else (0, b"")


def warm(engine: Engine, spec: LaunchSpec, questions: Questions) -> None:
    """Raises Failure if one of them generates nothing, or if the engine runs with other settings than the spec's."""
    for number, model in enumerate((spec.model_alias, *(adapter.name for adapter in spec.adapters))):
        status, answer = questions.ask(engine.first_token(spec, model))
        if status != 200 or engine.tokens_in(answer) < 1:
            what = f"adapter {number}" if number else "model"
            raise Failure("no_first_token", f"The engine loaded the {what} but generated nothing (status {status}).")
    if spec.chat and spec.pooling is None:
        _chat(engine, spec, questions)
    if engine.settings_path:
        _, answer = questions.ask(Call("GET", engine.settings_path))
        difference = engine.difference(spec, answer)
        if difference:
            raise Failure("settings_not_effective", difference)


def _chat(engine: Engine, spec: LaunchSpec, questions: Questions) -> None:
    """Raises Failure: the intake renders templates with a library of its own, engines with theirs."""
    status, answer = questions.ask(engine.first_chat(spec), CHAT_SECONDS)
    if status == 200 and engine.tokens_in(answer) >= 1:
        return
    how = (
        "gave no answer in time"
        if status == 0
        else "generated nothing"
        if status == 200
        else f"answered with status {status}"
    )
    raise Failure(
        TEMPLATE_FAILS,
        f"The engine loaded the model but {how} when its chat template was to render one user turn. Deploy a version with a template that "
        "this engine renders.",
    )
