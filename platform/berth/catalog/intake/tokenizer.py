"""Tokenizer and chat template of a folder in the hub's layout: whether they are there, whole, and of believable size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from berth.catalog.intake.bounded import beginning, read_json, regular_size
from berth.catalog.intake.header import MAX_TEMPLATE_BYTES
from berth.catalog.intake.refused import Refused

MAX_TOKENIZER_BYTES: Final = 64 << 20
MAX_ADDED_TOKENS: Final = 200_000
MAX_TEMPLATES: Final = 16


class _Added(msgspec.Struct):
    id: int
    content: str


class _Tokenizer(msgspec.Struct):
    """Of a tokenizer.json only what is looked at; the rest is checked to be JSON and dropped."""

    model: msgspec.Raw
    added_tokens: list[_Added] = []


class Tokens(msgspec.Struct, frozen=True):
    """What is known of the special ones."""

    names: dict[str, str]  # "bos_token" -> "<s>"
    ids: dict[str, int]  # content of an added token -> its number


def read_tokenizer(files: Mapping[str, Path]) -> Tokens:
    """Raises Refused when there is no tokenizer or it is broken."""
    config = (
        read_json(files["tokenizer_config.json"], "tokenizer_config.json") if "tokenizer_config.json" in files else {}
    )
    names = {
        key: text for key in ("bos_token", "eos_token", "pad_token", "unk_token") if (text := _token(config.get(key)))
    }
    if "tokenizer.json" in files:
        return Tokens(names, _fast(files["tokenizer.json"]))
    if "tokenizer.model" in files:
        _sentencepiece(files["tokenizer.model"])
        return Tokens(names, {})
    if {"vocab.json", "merges.txt"} <= files.keys():
        read_json(files["vocab.json"], "vocab.json", most=MAX_TOKENIZER_BYTES, safe=False)
        return Tokens(names, {})
    if "vocab.txt" in files or any(each.endswith(".tiktoken") for each in files) or "tekken.json" in files:
        return Tokens(names, {})
    raise Refused(
        "tokenizer_missing",
        "The model has no tokenizer: neither tokenizer.json nor tokenizer.model nor vocab.json with merges.txt is among its files. "
        "Bring it too; tokenizer.save_pretrained(folder) writes it.",
        file="tokenizer.json",
    )


def _token(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and 0 < len(text) <= 256 else None


def _fast(path: Path) -> dict[str, int]:
    name = "tokenizer.json"
    size = regular_size(path, name)
    if size > MAX_TOKENIZER_BYTES:
        raise Refused(
            "json_too_large",
            f"it has {size:,} bytes; at most {MAX_TOKENIZER_BYTES:,} are possible.",
            file=name,
            size=size,
        )
    try:
        read = msgspec.json.decode(path.read_bytes(), type=_Tokenizer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refused(
            "tokenizer_broken", "it is no tokenizer in the form of the library `tokenizers`. Save it again.", file=name
        ) from None
    if len(read.added_tokens) > MAX_ADDED_TOKENS:
        raise Refused("tokenizer_broken", "it has more added tokens than any real one.", file=name)
    return {token.content: token.id for token in read.added_tokens}


def _sentencepiece(path: Path) -> None:
    """A protocol buffer that begins with its first piece. What is more is the library's business, in the engine's cage."""
    size = regular_size(path, "tokenizer.model")
    if size > MAX_TOKENIZER_BYTES or beginning(path, 1) not in (b"\x0a", b"I"):  # or Mistral's text of base64 lines
        raise Refused("tokenizer_broken", "it is no SentencePiece model.", file="tokenizer.model")


def templates_of(files: Mapping[str, Path]) -> dict[str, str]:
    """Chat templates by name; the one called "default" is used when nothing else is asked for. Raises Refused."""
    found: dict[str, str] = {}
    if "tokenizer_config.json" in files:
        found |= _listed(read_json(files["tokenizer_config.json"], "tokenizer_config.json").get("chat_template"))
    if "chat_template.json" in files:
        found |= _listed(read_json(files["chat_template.json"], "chat_template.json").get("chat_template"))
    if "chat_template.jinja" in files:
        found |= {"default": _text(files["chat_template.jinja"], "chat_template.jinja")}
    for text in found.values():
        if len(text.encode()) > MAX_TEMPLATE_BYTES:
            raise Refused(
                "chat_template_too_large",
                f"its chat template is larger than {MAX_TEMPLATE_BYTES} bytes, more than any real one.",
                file="tokenizer_config.json",
            )
    return found


def _listed(value: Any) -> dict[str, str]:
    if isinstance(value, str) and value:
        return {"default": value}
    if isinstance(value, list) and len(value) <= MAX_TEMPLATES:
        pairs = {str(each.get("name")): each.get("template") for each in value if isinstance(each, dict)}
        return {name[:64]: text for name, text in pairs.items() if isinstance(text, str)}
    return {}


def _text(path: Path, name: str) -> str:
    if regular_size(path, name) > MAX_TEMPLATE_BYTES:
        raise Refused("chat_template_too_large", f"it is larger than {MAX_TEMPLATE_BYTES} bytes.", file=name)
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise Refused("chat_template_encoding", "it is not UTF-8.", file=name) from None
