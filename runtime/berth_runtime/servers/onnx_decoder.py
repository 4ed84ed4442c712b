"""onnxruntime_genai as a decoder: one Generator a sequence, or the library's own batching Engine."""

from __future__ import annotations

import contextlib
import json
import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime_genai as og

from berth_runtime.servers.openai.decoder import Decoder, Drawn, Refusal, Sampling, SequenceFailed, TextStream

_PREFILL: Final = 128  # prompt tokens of a turn, so that a long prompt does not hold up the others
_EVENTS: Final = 64
_BARE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_PROVIDERS: Final = frozenset({"cpu", "cuda", "rocm", "dml", "webgpu", "nvtensorrtrtx", "openvino", "qnn"})


class BadConfig(Exception):
    """`genai_config.json` asks for something that a model may not ask for."""


def load(folder: Path, context: int, slots: int, threads: int) -> Decoder:
    """Raises BadConfig, and whatever the library raises."""
    config = json.loads((folder / "genai_config.json").read_bytes())
    check(config)
    og.disable_telemetry_events()
    made = og.Config(str(folder))
    batching = "dynamic_batching" in config.get("engine", {})
    made.overlay(json.dumps(_overlay(slots, threads, batching)))
    model = og.Model(made)
    trained = int(config["model"].get("context_length", context))
    kind = BatchingDecoder if batching else TurnDecoder
    return kind(model, min(context, trained), int(config["model"]["vocab_size"]))


def check(config: Any) -> None:
    """Files by bare names only, no libraries, no unknown execution provider. Raises BadConfig."""
    if isinstance(config, list):
        for item in config:
            check(item)
    if not isinstance(config, dict):
        return
    for key, value in config.items():
        if key == "provider_options":
            _check_providers(value)
        if "filename" in key and value and not (isinstance(value, str) and _BARE.fullmatch(value)):
            raise BadConfig("a file is named by a path")
        if "library" in key or "custom_op" in key:
            raise BadConfig("a library is named")
        check(value)


def _check_providers(options: Any) -> None:
    names = [str(name).lower() for item in options if isinstance(item, dict) for name in item]
    if not set(names) <= _PROVIDERS:
        raise BadConfig("an execution provider is unknown")


def _overlay(slots: int, threads: int, batching: bool) -> dict[str, Any]:
    overlay: dict[str, Any] = {"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}
    if batching:
        overlay["engine"] = {"dynamic_batching": {"max_batch_size": slots}}
    return overlay


class _Text:
    """The library holds a character back until its last token has come."""

    def __init__(self, tokenizer: Any) -> None:
        self._stream = tokenizer.create_stream()

    def push(self, token: int) -> str:
        return str(self._stream.decode(token))

    def finish(self) -> str:
        return ""


class _OnnxDecoder:
    """What is the same for both ways."""

    guides = True
    batching = ""

    def __init__(self, model: Any, context: int, vocabulary: int) -> None:
        self.context = context
        self.vocabulary = vocabulary
        self._model = model
        self._tokenizer = og.Tokenizer(model)
        self._template = og.Tokenizer(model)  # for text in which the template has written the special tokens itself
        with contextlib.suppress(Exception):  # a tokenizer that adds none knows no such option
            self._template.update_options(add_special_tokens="false")
        self._ends = frozenset(int(token) for token in self._tokenizer.eos_token_ids)

    def encode(self, text: str, *, template: bool) -> list[int]:
        tokenizer = self._template if template else self._tokenizer
        return [int(token) for token in tokenizer.encode(text)]

    def render(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        if options:
            raise Refusal("This engine's template takes no options.", "chat_template_kwargs", "unsupported_parameter")
        try:
            return str(self._tokenizer.apply_chat_template(json.dumps(messages), add_generation_prompt=True))
        except Exception:  # noqa: BLE001 - the template's own words quote the request
            raise Refusal("The model's chat template does not take these messages.", "messages") from None

    def text(self) -> TextStream:
        return _Text(self._tokenizer)

    def show(self, token: int) -> str:
        return str(self._tokenizer.decode(np.array([token], dtype=np.int32)))


class TurnDecoder(_OnnxDecoder):
    """A Generator a sequence."""

    batching = "turns"

    def start(self, prompt: Sequence[int], sampling: Sampling) -> _Turns:
        try:
            return _Turns(self._model, prompt, sampling, self._ends)
        except Exception:  # noqa: BLE001 - a grammar that cannot be read, above all; the words quote it
            raise Refusal(_what_is_wrong(sampling), "response_format" if sampling.guidance else None) from None


class _Turns:
    def __init__(self, model: Any, prompt: Sequence[int], sampling: Sampling, ends: frozenset[int]) -> None:
        self._prompt = deque(prompt[at : at + _PREFILL] for at in range(0, len(prompt), _PREFILL))
        self._ends = frozenset() if sampling.ignore_eos else ends
        self._logprobs = sampling.logprobs
        params = og.GeneratorParams(model)
        params.set_search_options(**_search(sampling, len(prompt)))
        if sampling.guidance:
            params.set_guidance(*sampling.guidance)
        self._generator: Any = og.Generator(model, params)

    def step(self) -> Drawn | None:
        try:
            return self._step()
        except Exception:  # noqa: BLE001 - the library's words may quote the request
            raise SequenceFailed from None

    def _step(self) -> Drawn | None:
        if self._prompt:
            self._generator.append_tokens(np.array(self._prompt.popleft(), dtype=np.int32))
            if self._prompt:
                return None
        logits = None if self._logprobs is None else np.array(self._generator.get_logits()[0, -1], dtype=np.float64)
        self._generator.generate_next_token()
        token = int(self._generator.get_next_tokens()[0])
        if logits is None:
            return Drawn(token, token in self._ends)
        return _with_logprobs(token, token in self._ends, logits, self._logprobs or 0)

    def close(self) -> None:
        self._generator = None


class BatchingDecoder(_OnnxDecoder):
    """The library's Engine: all sequences advance in one step."""

    batching = "dynamic"

    def __init__(self, model: Any, context: int, vocabulary: int) -> None:
        super().__init__(model, context, vocabulary)
        self._engine = og.Engine(model)
        self._buffer = self._engine.create_event_buffer(_EVENTS)
        self._sequences: dict[int, _Batched] = {}

    def start(self, prompt: Sequence[int], sampling: Sampling) -> _Batched:
        if sampling.logprobs is not None:
            raise Refusal("This model gives no log probabilities.", "logprobs", "unsupported_parameter")
        options = og.RequestOptions()
        options.set_max_session_tokens(len(prompt) + sampling.max_tokens)
        request = self._engine.create_request(options=options)
        try:
            turn = og.TurnOptions(request)
            _configure(turn, sampling)
            number = request.begin_turn(np.array(prompt, dtype=np.int32), turn)
        except Exception:  # noqa: BLE001 - see above
            request.close()
            raise Refusal(_what_is_wrong(sampling), "response_format" if sampling.guidance else None) from None
        sequence = _Batched(self, request, number, frozenset() if sampling.ignore_eos else self._ends)
        self._sequences[id(request)] = sequence
        return sequence

    def advance(self) -> None:
        """One step of everything, or what the last one left over."""
        for event in self._engine.run(self._buffer) or ():
            flags = int(event.flags)
            request = event.request
            if flags & int(og.EngineEventFlags.FAILED) and request is None:
                raise RuntimeError("the engine failed")
            sequence = next((s for s in self._sequences.values() if s.is_for(request)), None)
            if sequence:
                sequence.take(event, flags)

    def forget(self, request: Any) -> None:
        self._sequences.pop(id(request), None)


class _Batched:
    def __init__(self, decoder: BatchingDecoder, request: Any, turn: int, ends: frozenset[int]) -> None:
        self._decoder = decoder
        self._request = request
        self._turn = turn
        self._ends = ends
        self._drawn: deque[Drawn | None] = deque()  # None: it failed

    def is_for(self, request: Any) -> bool:
        return bool(self._request is request or self._request == request)

    def take(self, event: Any, flags: int) -> None:
        if flags & int(og.EngineEventFlags.FAILED):
            self._drawn.append(None)
        elif flags & int(og.EngineEventFlags.TOKEN):
            token = int(event.token)
            self._drawn.append(Drawn(token, token in self._ends))
        elif flags & int(og.EngineEventFlags.TURN_FINISHED) and event.finish_reason == og.FinishReason.EOS:
            self._drawn.append(Drawn(next(iter(self._ends), 0), end=True))

    def step(self) -> Drawn | None:
        if not self._drawn:
            self._decoder.advance()
        if not self._drawn:
            return None
        drawn = self._drawn.popleft()
        if drawn is None:
            raise SequenceFailed
        return drawn

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._request.cancel_turn(self._turn)
        self._request.close()
        self._decoder.forget(self._request)


def _search(sampling: Sampling, prompt: int) -> dict[str, Any]:
    """The Generator's options."""
    options: dict[str, Any] = {
        "max_length": prompt + sampling.max_tokens,
        "min_length": prompt + sampling.max_tokens if sampling.ignore_eos else 0,
        "do_sample": sampling.temperature > 0,
        "repetition_penalty": float(sampling.repetition_penalty),
    }
    if sampling.temperature > 0:
        options |= {
            "temperature": float(sampling.temperature),
            "top_p": float(sampling.top_p),
            "top_k": sampling.top_k,
        }
        if sampling.seed is not None:
            options["random_seed"] = sampling.seed
    return options


def _configure(turn: Any, sampling: Sampling) -> None:
    """The Engine's options."""
    turn.set_max_generated_tokens(sampling.max_tokens)
    turn.set_repetition_penalty(sampling.repetition_penalty)
    if sampling.ignore_eos:
        turn.set_min_generated_tokens(sampling.max_tokens)
    turn.set_do_sample(sampling.temperature > 0)
    if sampling.temperature > 0:
        turn.set_temperature(sampling.temperature)
        turn.set_top_p(sampling.top_p)
        turn.set_top_k(sampling.top_k)
        if sampling.seed is not None:
            turn.set_seed(sampling.seed)
    if sampling.guidance:
        turn.set_guidance(*sampling.guidance)


def _with_logprobs(token: int, end: bool, logits: Any, count: int) -> Drawn:
    """Log probabilities before temperature and truncation, as OpenAI gives them."""
    highest = logits.max()
    scores = logits - highest - np.log(np.exp(logits - highest).sum())
    best = np.argsort(scores)[::-1][:count]
    return Drawn(token, end, float(scores[token]), tuple((int(id_), float(scores[id_])) for id_ in best))


def _what_is_wrong(sampling: Sampling) -> str:
    if sampling.guidance:
        return "The engine cannot hold an answer to this schema."
    return "The engine does not take this request."
