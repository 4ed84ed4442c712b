"""What every artefact has to show on its engine: it is made and measured, deployed, answers through the gateway, is metered, and stops when
its reader leaves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import openai
import psycopg

from tests.e2e.conftest import Platform

MODEL = "smollm2-135m-instruct"
ORG = "/api/v1/orgs/my-org"
PROMPT, ANSWER = "The capital of France is", " Paris"
ASKED, MOST = 4, 800  # tokens: of the question, and of the reply that is left in the middle


@dataclass(frozen=True)
class Row:
    format: str
    quantization: str
    engine: str

    @property
    def name(self) -> str:
        return f"{self.format}-{self.quantization}".lower().replace(" ", "-").replace("_", "-")


@dataclass
class Seen:
    """One row as it went, for people."""

    row: Row
    made: dict[str, Any] = field(default_factory=dict)
    size: int = 0  # bytes of the artefact
    parameters: int = 0
    answer: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""
    began: float = field(default_factory=time.monotonic)
    marks: list[float] = field(default_factory=list)  # when it was made, when it was served

    def mark(self) -> None:
        self.marks.append(time.monotonic())

    def line(self) -> str:
        """One of a Markdown table; `HEAD` is above it."""
        quality = self.made.get("quality") or {}
        loss = (f"{quality['divergence']:.4f}", f"{quality['agreement']:.1%}") if quality else ("", "")
        kept = "; ".join(
            f"{each['tensors']} x {each['given']}" if each["tensors"] else each["given"]
            for each in self.made.get("fallbacks", [])
        )
        size = (f"{self.size / 1e6:.0f}", f"{self.size * 8 / self.parameters:.1f}") if self.parameters else ("", "")
        metered = ", ".join(str(each["completion_tokens"]) for each in self.events[:2])
        left = f"after {self.events[2]['completion_tokens']} of {MOST}" if len(self.events) == 3 else ""
        took = " + ".join(f"{end - start:.0f} s" for start, end in pairwise([self.began, *self.marks]))
        cells = (
            self.row.format,
            self.row.quantization,
            self.row.engine,
            *size,
            *loss,
            repr(self.answer) if self.events else self.note,
        )
        return "| " + " | ".join((*cells, metered, left, took, kept)) + " |"


HEAD = """
| format | quantization | engine | MB | bits a weight | KL, nats | agrees | answer | metered | who left | made + served | fallbacks |
|---|---|---|---|---|---|---|---|---|---|---|---|"""


def converted(platform: Platform, row: Row, model: str = MODEL, *, seconds: float = 600) -> dict[str, Any]:
    """The conversion, done. What the version has already stays as it is."""
    session = platform.sign_in()
    wish = {"format": row.format, "quantization": row.quantization}
    asked = session.post(f"{ORG}/models/{model}/versions/1/conversions", json=wish)
    assert asked.status_code == 202, asked.text
    place = f"{ORG}/conversions/{asked.json()['id']}"

    def ended() -> dict[str, Any] | None:
        shown: dict[str, Any] = session.get(place).json()
        return shown if shown["finished_at"] else None

    done = platform.wait_for(ended, seconds=seconds)
    assert done["state"] == "done", done
    return done


def weigh(platform: Platform, seen: Seen, model: str = MODEL) -> None:
    """Notes the size of what was made."""
    shown = platform.sign_in().get(f"{ORG}/models/{model}").raise_for_status().json()["versions"][0]
    artefacts = {each["id"]: each["size"] for each in shown["artefacts"]}
    seen.size, seen.parameters = artefacts[seen.made["artefact"]], shown["facts"]["parameters"]


def served(platform: Platform, seen: Seen, model: str = MODEL, *, seconds: float = 300) -> None:
    """Deploys what was made on its engine and holds it to everything; what was seen stays on `seen`. The deployment goes again."""
    session, name = platform.sign_in(), f"{model[:12]}-{seen.row.name}"
    pins = {
        "artefact_id": seen.made["artefact"],
        "engine": seen.row.engine,
        "context_length": MOST + 2 * ASKED + 100,
        "slots": 2,
    }
    answer = session.post(f"{ORG}/deployments", json={"name": name, "model": model, "pins": pins})
    assert answer.status_code == 201, answer.text
    try:
        _until_ready(platform, name, seconds)
        with openai.OpenAI(
            base_url=platform.demo["api_base"], api_key=platform.demo["api_key"], max_retries=0, timeout=900
        ) as client:
            seen.answer, streamed = _asked(client, f"my-org/{name}")
            _left_in_the_middle(client, f"my-org/{name}")
        seen.events = platform.wait_for(_metered(platform, answer.json()["id"]), seconds=60)
    finally:
        session.delete(f"{ORG}/deployments/{name}").raise_for_status()
    assert ANSWER in seen.answer
    assert ANSWER in streamed
    plain, stream, left = seen.events
    assert (plain["completion_tokens"], plain["stream"]) == (ASKED, False)
    assert (stream["completion_tokens"], stream["stream"]) == (ASKED, True)
    assert plain["prompt_tokens"] == stream["prompt_tokens"] > 0
    assert 0 < left["completion_tokens"] < MOST, "who left was served to the end"


def _until_ready(platform: Platform, name: str, seconds: float) -> None:
    def ready() -> bool:
        shown = platform.sign_in().get(f"{ORG}/deployments/{name}").json()
        assert shown["state"] != "failed", shown
        return bool(shown["state"] == "ready")

    platform.wait_for(ready, seconds=seconds)


def _asked(client: openai.OpenAI, model: str) -> tuple[str, str]:
    """Plain and streamed."""
    wish: dict[str, Any] = {"model": model, "prompt": PROMPT, "max_tokens": ASKED, "temperature": 0}
    plain = client.completions.create(**wish)
    chunks = list(client.completions.create(**wish, stream=True, stream_options={"include_usage": True}))
    assert plain.usage is not None
    assert chunks[-1].usage is not None
    assert plain.usage.prompt_tokens == chunks[-1].usage.prompt_tokens
    assert plain.usage.completion_tokens == chunks[-1].usage.completion_tokens == ASKED
    return plain.choices[0].text, "".join(choice.text for chunk in chunks for choice in chunk.choices)


def _left_in_the_middle(client: openai.OpenAI, model: str) -> None:
    stream = client.completions.create(model=model, prompt=PROMPT, max_tokens=MOST, stream=True, temperature=0)
    for _ in zip(range(3), stream, strict=False):
        pass
    stream.close()


def _metered(platform: Platform, deployment_id: str) -> Callable[[], list[dict[str, Any]] | None]:
    """The three usage events of the three requests, in their order."""

    def events() -> list[dict[str, Any]] | None:
        with psycopg.connect(platform.database_url, row_factory=psycopg.rows.dict_row) as connection:
            found = connection.execute(
                "select stream, outcome, prompt_tokens, completion_tokens from metering_usageevent"
                " where deployment_id = %s order by accepted_at",
                [deployment_id],
            ).fetchall()
        assert len(found) <= 3, found
        return found if len(found) == 3 else None

    return events
