"""Makes the model in `onnx-bigram`: a real ONNX-GenAI folder of 50 kB that any server of such folders can be tried with.

It looks at the last token alone: each has one likeliest follower, so that "The capital of France is" goes on with " Paris",
and some noise, so that sampling has something to draw from. Its keys and values are zeros that are carried along as the
library wants them; a large product of zeros makes each token take some milliseconds.

Run it with `onnx` and `numpy` installed; the tests need neither this program nor `onnx`.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save

HERE = Path(__file__).parent / "onnx-bigram"
WORDS = ("The", " capital", " of", " France", " is", " Paris", ".", "assistant", "Hello", " there", "!")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CONTEXT = 8192
WORK = 2048  # side of the square that makes it slow


def byte_letters() -> list[str]:
    """The letters by which byte-level tokenizers write the 256 bytes, in the order of the bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, more = {}, 0
    for byte in range(256):
        letters[byte] = chr(byte) if byte in plain else chr(256 + more)
        more += byte not in plain
    return [letters[byte] for byte in range(256)]


def tokenizer() -> dict[str, int]:
    """Writes tokenizer.json; the vocabulary."""
    letters = byte_letters()
    vocab = {name: number for number, name in enumerate((*SPECIAL, *letters))}
    merges: list[list[str]] = []
    for word in WORDS:
        spelt = [letters[byte] for byte in word.encode()]
        made = spelt[0]
        for letter in spelt[1:]:
            if made + letter not in vocab:
                merges.append([made, letter])
                vocab[made + letter] = len(vocab)
            made += letter
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": number, "content": name, **flags} for number, name in enumerate(SPECIAL)]
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
    }
    model |= {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges}
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None}
    whole |= {"pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model}
    (HERE / "tokenizer.json").write_text(json.dumps(whole, ensure_ascii=False) + "\n")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    config |= {"pad_token": "<|im_end|>", "unk_token": "<|endoftext|>", "model_max_length": CONTEXT}
    (HERE / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    (HERE / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    return vocab


def followers(vocab: dict[str, int]) -> np.ndarray:
    """The likeliest token after each."""
    size = len(vocab)
    after = np.array([(number + 7) % size for number in range(size)], dtype=np.int64)
    after[: len(SPECIAL)] = len(SPECIAL) + 40
    letters = byte_letters()

    def number(word: str) -> int:
        return vocab["".join(letters[byte] for byte in word.encode())]

    chain = ("The", " capital", " of", " France", " is", " Paris", ".")
    for word, following in itertools.pairwise(chain):
        after[number(word)] = number(following)
    after[number(".")] = vocab["<|im_end|>"]
    for word, following in (("\n", "Hello"), ("Hello", " there"), (" there", "!"), ("!", "The")):
        after[number(word)] = number(following)
    return after


def graph(vocab: dict[str, int]) -> None:
    size = len(vocab)
    noise = np.random.default_rng(7).normal(0, 1, (16, size)).astype(np.float16)
    constants = {
        "after": followers(vocab),
        "noise": noise,
        "sixteen": np.array(16, dtype=np.int64),
        "depth": np.array([size], dtype=np.int64),
        "levels": np.array([0, 6], dtype=np.float32),
        "square": np.array([WORK, WORK], dtype=np.int64),
        "flat": np.array([0, 1, -1, 1], dtype=np.int64),
        "twice": np.array([1, 1, 1, 8], dtype=np.int64),
        "last": np.array([-1], dtype=np.int64),
        "work": np.array([WORK], dtype=np.int64),
        "one": np.array([1], dtype=np.int64),
        "zero": np.array(0, dtype=np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["after", "input_ids"], ["next"]),
        helper.make_node("OneHot", ["next", "depth", "levels"], ["peaks"], axis=-1),
        helper.make_node("Mod", ["input_ids", "sixteen"], ["row"]),
        helper.make_node("Gather", ["noise", "row"], ["rough"]),
        helper.make_node("Cast", ["rough"], ["rough32"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["peaks", "rough32"], ["told"]),
        # Zeros of the form [batch, 1, sequence, 8], from the tokens themselves.
        helper.make_node("Cast", ["input_ids"], ["ids32"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["ids32", "zero"], ["nothing"]),
        helper.make_node("Reshape", ["nothing", "flat"], ["column"]),
        helper.make_node("Tile", ["column", "twice"], ["fresh"]),
        helper.make_node("Concat", ["past_key_values.0.key", "fresh"], ["present.0.key"], axis=2),
        helper.make_node("Concat", ["past_key_values.0.value", "fresh"], ["present.0.value"], axis=2),
        # Work: a row of zeros times a square that depends on the tokens, so that it is not computed beforehand.
        helper.make_node("ReduceSum", ["nothing"], ["sum"], keepdims=0),
        helper.make_node("Expand", ["sum", "square"], ["matrix"]),
        helper.make_node("Expand", ["sum", "work"], ["vector"]),
        helper.make_node("MatMul", ["vector", "matrix"], ["product"]),
        helper.make_node("ReduceSum", ["product"], ["slow"], keepdims=0),
        helper.make_node("Add", ["told", "slow"], ["logits"]),
    ]
    cache = ["batch", 1, "past", 8]
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"]),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"]),
        helper.make_tensor_value_info("past_key_values.0.key", TensorProto.FLOAT, cache),
        helper.make_tensor_value_info("past_key_values.0.value", TensorProto.FLOAT, cache),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", size]),
        helper.make_tensor_value_info("present.0.key", TensorProto.FLOAT, ["batch", 1, "total", 8]),
        helper.make_tensor_value_info("present.0.value", TensorProto.FLOAT, ["batch", 1, "total", 8]),
    ]
    used = {name for node in nodes for name in node.input}
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items() if name in used]
    made = helper.make_graph(nodes, "bigram", inputs, outputs, weights)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    checker.check_model(model)
    save(model, HERE / "model.onnx")


def config(vocab: dict[str, int]) -> None:
    names = {"input_ids": "input_ids", "attention_mask": "attention_mask"}
    names |= {"past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"}
    told = {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}
    decoder = {"session_options": {"log_id": "onnxruntime-genai", "provider_options": []}, "filename": "model.onnx"}
    decoder |= {"head_size": 8, "hidden_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1}
    decoder |= {"num_hidden_layers": 1, "inputs": names, "outputs": told}
    model = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "context_length": CONTEXT, "type": "llama"}
    model |= {"vocab_size": len(vocab), "decoder": decoder}
    search = {"do_sample": False, "max_length": CONTEXT, "past_present_share_buffer": False, "top_k": 50, "top_p": 1.0}
    (HERE / "genai_config.json").write_text(json.dumps({"model": model, "search": search}, indent=1) + "\n")


if __name__ == "__main__":
    words = tokenizer()
    graph(words)
    config(words)
