"""The tokenizer that is written for a GGUF file cuts text exactly as llama.cpp does, and knows where a reply ends."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from berth_runtime.convert.converters import python_of_converters
from berth_runtime.quality import llamacpp
from tests.runtime.agents import model_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(python_of_converters() is None, reason="the converters are not installed: make converters"),
]
SCRIPTS = Path(llamacpp.__file__).parents[1] / "convert" / "scripts"
TEXTS = [
    (Path(llamacpp.__file__).parent / "sample.txt").read_text(encoding="utf-8"),
    "In 2024 I paid 1,234.56€ — it's 三 Äpfel\n\n\t  foo(bar)  <|im_start|>user\nHi<|im_end|>\n",
    "x = 12345;\r\n  y='don\\'t'",
    "½ ² Ⅷ ٣٤ 𝟙𝟚",
]
ASK = """
import json, sys
sys.path.insert(0, sys.argv[1])
from gguf_tokenizer import tokenizer_of
made = tokenizer_of(sys.argv[2])
texts = json.load(sys.stdin)
cut = [made(text, add_special_tokens=False)["input_ids"] for text in texts]
print(json.dumps({"cut": cut, "back": [made.decode(ids) for ids in cut], "end": made.eos_token}))
"""


def test_it_cuts_as_llama_cpp_does() -> None:
    with llamacpp._serving((model_file(),), 1, None) as ask:
        wanted = [ask("/tokenize", {"content": text, "parse_special": True})["tokens"] for text in TEXTS]
    done = subprocess.run(
        [str(python_of_converters()), "-B", "-c", ASK, str(SCRIPTS), model_file().path],
        input=json.dumps(TEXTS), capture_output=True, text=True, check=True,
    )  # fmt: skip
    made = json.loads(done.stdout)
    assert made["cut"] == wanted
    assert made["back"] == TEXTS
    assert made["end"] == "<|im_end|>"
