"""Why a prediction may be far from a measurement: what the point leaves open, or what is known to be odd about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from berth.planner.answers import Answer
from berth.planner.measurements import Measurement


def oddity(point: Measurement, found: Answer) -> str:
    if found.assumed:
        return "; ".join(found.assumed)
    if found.low is not None and found.high is not None and found.low <= point.value <= found.high:
        return "inside the range that the start of the load decides"
    for applies, why in _KNOWN:
        if applies(point):
            return why
    return "not explained by the planner's physics"


_KNOWN: Final[tuple[tuple[Callable[[Measurement], Any], str], ...]] = (
    (
        lambda p: p.metric == "output_tok_s_per_gpu" and p.output and p.output >= 2048,
        "the source does not say whether it is per GPU",
    ),
    (lambda p: not p.quant and p.engine.startswith("llamacpp"), "the source does not say the quantization"),
    (lambda p: p.runtime.lower().startswith("ollama or"), "the source does not say which engine"),
    (
        lambda p: p.version.endswith("2023") and p.metric == "gguf_file_size",
        "mixtures of 2023 chose other types for some tensors",
    ),
    (lambda p: p.version.endswith("2023"), "an engine of 2023, before its kernels were rewritten"),
    (
        lambda p: p.metric == "prefill_tok_s" and p.quant == "F16" and "SXM" in p.gpu,
        "an outlier of its own table: F16 is a tenth of Q4 there",
    ),
    (
        lambda p: "interactive" in p.metric or "server" in p.metric,
        "the limits that a submitter tuned for are not in the point",
    ),
    (lambda p: p.id in ("QW25-208", "QW25-213"), "a slow outlier of its own table, as the data's README says"),
    (
        lambda p: "agg_4000x1000_c_" in p.quote,
        "the row leaves its concurrency out: the batch size that stands for it is not the load",
    ),
    (lambda p: "PP8" in p.notes, "eight stages need more requests in flight than an unstated load may have had"),
    (
        lambda p: p.unlimited and "MoE" in p.notes,
        "how attention and experts were spread over the devices is not stated",
    ),
    (
        lambda p: "B60" in p.gpu and p.metric == "ttft_ms",
        "one burst of prompts; whether any client asked twice is not stated",
    ),
    (lambda p: p.kind == "quality", "within the scatter of benchmark scores"),
    (lambda p: "-gb" in p.gpu.lower() or not p.gpu, "the hardware is not stated"),
)
