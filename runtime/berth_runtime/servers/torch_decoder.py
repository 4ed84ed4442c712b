"""transformers on PyTorch as a decoder: 32 bits, one sequence a forward pass, no approximation anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
import transformers

from berth_runtime.servers.openai.decoder import Drawn, Refusal, Sampling, SequenceFailed, TextStream

_PREFILL: Final = 256  # prompt tokens of a turn


def load(folder: Path, context: int, threads: int) -> TorchDecoder:
    """Raises whatever the library raises. No code of the model is run, and no pickle is read."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    safe = {"trust_remote_code": False, "local_files_only": True}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, use_safetensors=True, attn_implementation="eager", **safe
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **safe)
    return TorchDecoder(model.eval(), tokenizer, context)


class _Text:
    """Decodes all tokens so far each time, and gives out what cannot change any more."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._shown = ""

    def push(self, token: int) -> str:
        self._tokens.append(token)
        whole = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        if whole.endswith("\ufffd"):  # a character of which tokens are missing
            return ""
        return self._give(whole)

    def finish(self) -> str:
        return self._give(self._tokenizer.decode(self._tokens, skip_special_tokens=True).rstrip("\ufffd"))

    def _give(self, whole: str) -> str:
        text, self._shown = whole[len(self._shown) :], whole
        return text


class TorchDecoder:
    """See `Decoder`."""

    guides = False

    def __init__(self, model: Any, tokenizer: Any, context: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        trained = getattr(model.config, "max_position_embeddings", None) or context
        self.context = min(context, int(trained))
        self.vocabulary = int(model.config.vocab_size)
        ends = model.generation_config.eos_token_id if model.generation_config.eos_token_id is not None else []
        self.ends = frozenset(ends if isinstance(ends, list) else [ends])

    def encode(self, text: str, *, template: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=not template))

    def render(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
            )
        except Exception:  # noqa: BLE001 - the template's own words quote the request
            raise Refusal("The model's chat template does not take these messages.", "messages") from None

    def text(self) -> TextStream:
        return _Text(self._tokenizer)

    def show(self, token: int) -> str:
        return str(self._tokenizer.decode([token]))

    def start(self, prompt: Sequence[int], sampling: Sampling) -> _Sequence:
        return _Sequence(self._model, prompt, sampling, self.ends)


class _Sequence:
    def __init__(self, model: Any, prompt: Sequence[int], sampling: Sampling, ends: frozenset[int]) -> None:
        self._model = model
        self._waiting = list(prompt)
        self._seen = list(prompt)
        self._sampling = sampling
        self._ends = ends
        self._cache: Any = None
        self._random = torch.Generator()
        if sampling.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(sampling.seed)

    def step(self) -> Drawn | None:
        try:
            with torch.inference_mode():
                return self._step()
        except Exception:  # noqa: BLE001 - the library's words may quote the request
            raise SequenceFailed from None

    def _step(self) -> Drawn | None:
        part, self._waiting = self._waiting[:_PREFILL], self._waiting[_PREFILL:]
        out = self._model(input_ids=torch.tensor([part]), past_key_values=self._cache, use_cache=True)
        self._cache = out.past_key_values
        if self._waiting:
            return None
        logits = out.logits[0, -1].double()
        scores = torch.log_softmax(logits, dim=-1)
        token = self._draw(logits)
        self._waiting = [token]
        self._seen.append(token)
        end = token in self._ends and not self._sampling.ignore_eos
        if self._sampling.logprobs is None:
            return Drawn(token, end)
        values, places = scores.topk(self._sampling.logprobs)
        top = tuple((int(place), float(value)) for place, value in zip(places, values, strict=True))
        return Drawn(token, end, float(scores[token]), top)

    def _draw(self, logits: torch.Tensor) -> int:
        sampling = self._sampling
        if sampling.ignore_eos:
            logits[list(self._ends)] = -torch.inf
        if sampling.repetition_penalty != 1:
            seen = torch.tensor(sorted(set(self._seen)))
            chosen = logits[seen]
            logits[seen] = torch.where(
                chosen > 0, chosen / sampling.repetition_penalty, chosen * sampling.repetition_penalty
            )
        if sampling.temperature == 0:
            return int(logits.argmax())
        logits /= sampling.temperature
        if sampling.top_k:
            least = logits.topk(min(sampling.top_k, logits.numel())).values[-1]
            logits[logits < least] = -torch.inf
        chances, places = logits.softmax(-1).sort(descending=True)
        if sampling.top_p < 1:
            chances[chances.cumsum(-1) - chances > sampling.top_p] = 0
        return int(places[torch.multinomial(chances, 1, generator=self._random)])

    def close(self) -> None:
        self._cache = None
