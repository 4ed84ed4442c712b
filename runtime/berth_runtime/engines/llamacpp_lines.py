"""Which lines of llama.cpp's output may be kept."""

from __future__ import annotations

from typing import Final

from berth_runtime.engines.engine import LISTENING, MODEL_UNREADABLE, OUT_OF_MEMORY, TEMPLATE_FAILS
from berth_runtime.lines import Rule

_STAMP: Final = r"(?:\d+\.\d+\.\d+\.\d+ )?[IWED]? ?\w+ +[~\w]+: "
_ANYWHERE: Final = r"(?:\d+\.\d+\.\d+\.\d+ )?[IWED]? ?"

RULES: Final = (
    Rule(_STAMP + r"loading model(?: '.*')?", "loading the model"),
    Rule(_STAMP + r"model loaded", "model loaded"),
    Rule(
        _STAMP
        + r"initializing,(?: slots)? n_slots = (?P<slots>\d+), n_ctx_slot = (?P<context>\d+), kv_unified = '\w+'",
        "slots: {slots}, context of each: {context} tokens",
    ),
    Rule(_STAMP + r"llama threadpool init, n_threads = (?P<threads>\d+)", "threads: {threads}"),
    Rule(
        rf"(?:{_STAMP})?(?:server is )?listening on http://(?:127\.0\.0\.1|0\.0\.0\.0|\[?[0-9a-fA-F:.]+\]?):(?P<port>\d+)",
        "listening on port {port}",
        LISTENING,
    ),
    Rule(
        r".*exceeds the training context of the model \((?P<context>\d+)\) - capping",
        "the context of a slot is cut to what the model was trained for: {context} tokens",
    ),
    Rule(_ANYWHERE + r"llama_model_load: error loading model: std::bad_alloc", "out of memory", OUT_OF_MEMORY),
    Rule(
        _ANYWHERE + r"ggml_aligned_malloc: insufficient memory \(attempted to allocate +(?P<mb>[\d.]+) MB\)",
        "out of memory: {mb} MB more were needed at once",
        OUT_OF_MEMORY,
    ),
    Rule(
        _ANYWHERE + r"\w+: failed to allocate (?:\w+ )?buffer of size (?P<size>\d+)",
        "out of memory: a buffer of {size} bytes was refused",
        OUT_OF_MEMORY,
    ),
    Rule(_ANYWHERE + r"gguf_init_from_\w+: .*", "the file is not readable as GGUF", MODEL_UNREADABLE),
    Rule(
        _ANYWHERE
        + r"llama_model_load: error loading model: .*(?:corrupted or incomplete|unknown model architecture).*",
        "the model file is damaged or of a kind that this llama.cpp does not know",
        MODEL_UNREADABLE,
    ),
    Rule(_STAMP + r"init: chat template parsing error: .*", "it cannot use the model's chat template", TEMPLATE_FAILS),
    Rule(_STAMP + r"exiting due to model loading error", "the model could not be loaded"),
    Rule(r"terminate called after throwing an instance of 'std::bad_alloc'", "out of memory", OUT_OF_MEMORY),
    # What every request brings: numbers only, and not worth the space.
    Rule(_ANYWHERE + r"slot +\w+: id +\d+ \| task -?\d+ \| [a-z ,_]+(?:=? *[\d.]+.*)?", None),
    Rule(_ANYWHERE + r"srv +operator\(\): unauthorized: Invalid API Key", None),
)
