"""The tokenizer of a GGUF file as Hugging Face's `tokenizer.json`, cutting text exactly as llama.cpp does.

Transformers makes one too, but of a byte-level vocabulary it makes a mixture that cuts numbers otherwise, ends replies at the wrong token,
and is taken for SentencePiece by ONNX Runtime, which then finds no word in it.
"""

from __future__ import annotations

from typing import Any

from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

_CONTROL, _OWN = 3, 4  # types of tokens: special ones, and whole words that somebody added
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT4 = {digits: rf"{_ENDINGS}|{_WORDS}|\p{{N}}{digits}|{_REST}" for digits in ("", "{1,3}")}
# How text is cut before pairs are merged, by llama.cpp's names (`tokenizer.ggml.pre`): as GPT-2 did, with each digit alone before
# that, or as GPT-4 did with up to so many digits.
_GPT2 = ("default", "gpt-2", "phi-2", "jina-es", "jina-de", "roberta-bpe", "olmo", "jais")
_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b")
_UP_TO_THREE = ("llama3", "llama-v3", "llama-bpe", "dbrx", "smaug-bpe", "falcon3", "pixtral-bpe")
_WHOLE_WORDS_FIRST = ("llama3", "llama-v3", "llama-bpe", "falcon3")  # a word that is a token is not merged together
_ONE_BY_ONE = ("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez")
_COMPOSED = ("qwen2", "deepseek-r1-qwen", "megrez")  # NFC before anything else


def tokenizer_of(path: str) -> Any:
    """A Transformers tokenizer; None: the file's is of another kind than byte-level BPE, which Transformers reads well.

    Ends the program if text is cut in a way that has no counterpart here: a tokenizer that is nearly right spoils a model silently.
    """
    fields = GGUFReader(path).fields
    if _value(fields, "model") != "gpt2":
        return None
    tokens, types = _value(fields, "tokens"), _value(fields, "token_type")
    made = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=[tuple(pair.split(" ", 1)) for pair in _value(fields, "merges")],
            ignore_merges=_value(fields, "pre") in _WHOLE_WORDS_FIRST,
        )
    )
    _cut(made, _value(fields, "pre") or "default")
    made.decoder = decoders.ByteLevel()
    added = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (_CONTROL, _OWN)
    ]
    made.add_tokens(added)
    special = {
        name: tokens[number]
        for name, key in (
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("pad_token", "padding"),
            ("unk_token", "unknown"),
        )
        if (number := _value(fields, f"{key}_token_id")) is not None
    }
    if _value(fields, "add_bos_token") and "bos_token" in special:
        first = special["bos_token"]
        made.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(
                    single=f"{first} $A", pair=f"{first} $A {first} $B", special_tokens=[(first, tokens.index(first))]
                ),
            ]
        )
    else:
        made.post_processor = processors.ByteLevel(trim_offsets=False)
    template = _field(fields, "tokenizer.chat_template")
    return PreTrainedTokenizerFast(
        tokenizer_object=made, clean_up_tokenization_spaces=False, chat_template=template, **special
    )


def _cut(made: Any, pre: str) -> None:
    if pre in _GPT2:
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif pre in _SINGLE_DIGITS:
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif pre in _UP_TO_THREE or pre in _ONE_BY_ONE:
        pattern = Regex(_GPT4["{1,3}" if pre in _UP_TO_THREE else ""])
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(pattern, "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    else:
        raise SystemExit(
            f"TokenizerUnknown: this file cuts text in a way ({pre}) that cannot be written as safetensors' tokenizer"
        )
    if pre in _COMPOSED:
        made.normalizer = normalizers.NFC()


def _value(fields: Any, name: str) -> Any:
    return _field(fields, f"tokenizer.ggml.{name}")


def _field(fields: Any, name: str) -> Any:
    return fields[name].contents() if name in fields else None
