"""What a model in safetensors or ONNX predicts at each place of the text on its standard input. Run by the converters' interpreter.

Its standard output, and no file, has the answer in JSON:
{"vocabulary": n, "places": [[actual token, [[token, log probability], ...]], ...]}.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

_NAMED = 1000


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--source", required=True, type=Path)
    parser.add_argument("--places", required=True, type=int)
    parser.add_argument("--window", required=True, type=int)
    given = parser.parse_args()
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no part of the answer
    text = sys.stdin.buffer.read().decode()
    onnx = (given.source / "genai_config.json").exists()
    tokens, logits = (_onnx if onnx else _torch)(given.source, text)
    places: list[Any] = []
    vocabulary = 0
    for actual, row in _rows(tokens, logits, given.window):
        if len(places) == given.places:
            break
        vocabulary = row.shape[0]
        named = torch.topk(torch.log_softmax(row.float(), dim=-1), min(_NAMED, vocabulary))
        pairs = zip(named.indices.tolist(), named.values.tolist(), strict=True)
        places.append([actual, [[token, value] for token, value in pairs]])
    with answer:
        json.dump({"vocabulary": vocabulary, "places": places}, answer)


def _rows(
    tokens: list[int], logits: Callable[[list[int]], torch.Tensor], window: int
) -> Iterator[tuple[int, torch.Tensor]]:
    """(token that follows, logits before it), window by window, each beginning afresh."""
    for start in range(0, len(tokens), window):
        part = tokens[start : start + window]
        if len(part) < 2:
            return
        yield from zip(part[1:], logits(part), strict=False)


def _torch(folder: Path, text: str) -> tuple[list[int], Callable[[list[int]], torch.Tensor]]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True, trust_remote_code=False)
    model.eval()

    def logits(part: list[int]) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = model(torch.tensor([part])).logits[0]
        return found

    return tokenizer(text, add_special_tokens=False)["input_ids"], logits


def _onnx(folder: Path, text: str) -> tuple[list[int], Callable[[list[int]], torch.Tensor]]:
    import onnxruntime_genai as og

    model = og.Model(str(folder))
    tokenizer = og.Tokenizer(model)

    def logits(part: list[int]) -> torch.Tensor:
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=len(part) + 1, do_sample=False)
        generator = og.Generator(model, params)
        rows = []
        for token in part:  # the library gives the last token's logits only
            generator.append_tokens([token])
            rows.append(torch.from_numpy(generator.get_output("logits").copy()).reshape(-1))
        return torch.stack(rows)

    return [int(token) for token in tokenizer.encode(text)], logits


if __name__ == "__main__":
    main()
