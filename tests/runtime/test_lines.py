"""The filter of an engine's output: known formats, numbers only."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_runtime.engines.llamacpp import LlamaCpp
from berth_runtime.lines import MAX_LINE, Kept, LineFilter, Rule

CANARY = "BC-QZ7WXK4MTR2HVD-canary"

# As llama.cpp printed them, with text of requests in them.
LEAKS = (
    '0.03.608.485 W srv    operator(): got exception: {"error":{"code":400,"message":"[json.exception.parse_error.101] '
    f"parse error at line 1, column 25: syntax error while parsing object - invalid literal; last read: '\\\"{CANARY}\\\" o'",
    f"root ::= {CANARY} ((",
    f"parse: error parsing grammar: expecting ')' at {CANARY}",
    f"0.00.000.001 E srv    send_error: task id = 16, error: {CANARY}",
    f"0.00.000.001 I srv          init: loading model '{CANARY}' and more",
    f"0.00.000.001 I srv          init: listening on http://{CANARY}:80",
    f"0.00.000.001 I srv    load_model: initializing, n_slots = {CANARY}, n_ctx_slot = 512, kv_unified = 'false'",
    f"{CANARY} listening on http://127.0.0.1:80",
    f"0.00.000.001 I slot launch_slot_: id  1 | task 2 | {CANARY}",
    CANARY,
)
# As it printed them while loading; what is kept of each.
KNOWN = {
    "0.00.004.058 I srv    load_model: loading model '/models/x.gguf'": "loading the model",
    "0.00.483.560 I cmn          init: llama threadpool init, n_threads = 1": "threads: 1",
    "0.00.543.795 I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 512, kv_unified = 'false'": (
        "slots: 2, context of each: 512 tokens"
    ),
    "0.00.546.463 I srv          init: listening on http://127.0.0.1:35997": "listening on port 35997",
    "listening on http://127.0.0.1:35997": "listening on port 35997",
    "0.00.432.661 E ggml_aligned_malloc: insufficient memory (attempted to allocate 180.00 MB)": (
        "out of memory: 180.00 MB more were needed at once"
    ),
    "0.00.004.203 E gguf_init_from_reader: invalid magic characters: 'junk', expected 'GGUF'": (
        "the file is not readable as GGUF"
    ),
}


def judge(chunks: list[bytes], rules: tuple[Rule, ...] = LlamaCpp.rules) -> tuple[list[Kept], int]:
    kept: list[Kept] = []
    withheld: list[int] = []
    lines = LineFilter(rules, kept.append, withheld.append)
    for chunk in chunks:
        lines.feed(chunk)
    lines.close()
    return kept, sum(withheld)


@pytest.mark.parametrize("line", LEAKS)
def test_text_of_requests_is_never_kept(line: str) -> None:
    kept, withheld = judge([line.encode() + b"\n"])
    assert not any(CANARY in word for entry in kept for word in (entry.text, *entry.numbers.values()))
    assert withheld in (0, len(line.encode()) + 1)


@pytest.mark.parametrize(("line", "text"), KNOWN.items())
def test_known_lines_are_rewritten(line: str, text: str) -> None:
    [kept], withheld = judge([line.encode() + b"\n"])
    assert kept.text == text
    assert withheld == 0


def test_lines_that_each_request_brings_are_not_kept_and_not_counted() -> None:
    line = "0.02.280.495 I slot print_timing: id  1 | task 2 | prompt eval time =      23.62 ms /     1 tokens\n"
    assert judge([line.encode()]) == ([], 0)


@given(
    lines=st.lists(st.sampled_from([*LEAKS, *KNOWN, "", "x" * 5000]), max_size=8),
    cuts=st.lists(st.integers(0, 40_000), max_size=12),
)
@settings(max_examples=150, deadline=None)
def test_however_the_bytes_are_cut_the_verdict_is_the_same(lines: list[str], cuts: list[int]) -> None:
    data = "".join(line + "\n" for line in lines).encode()
    marks = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(marks)]
    assert judge(pieces) == judge([data])


@given(st.binary(max_size=3 * MAX_LINE))
@settings(max_examples=150, deadline=None)
def test_every_byte_of_unknown_output_is_counted(data: bytes) -> None:
    kept, withheld = judge([data], rules=())
    blank = sum(len(line) + 1 for line in data.split(b"\n") if not line.decode("utf-8", "replace").strip())
    assert kept == []
    assert len(data) - blank <= withheld <= len(data)


def test_a_group_that_is_not_a_number_keeps_the_line_out() -> None:
    rule = Rule(r"name = (?P<name>.+)", "name: {name}")
    assert judge([f"name = {CANARY}\n".encode()], (rule,)) == ([], len(CANARY) + 8)
    assert judge([b"name = 12\n"], (rule,))[0][0].text == "name: 12"
