"""What a metric's name and unit mean: other files spell them otherwise. Pure text."""

from __future__ import annotations

import re
from typing import Final

_STATISTIC: Final = re.compile(r"(?:^|_)(median|mean|avg|average|p\d\d)(?:_|$)")
# In this order: the first pattern that is in the name decides. `{}`: the statistic, where the name has one.
_NAMES: Final = (
    (r"ttft|time_to_first_token|first_token", "ttft{}_ms"),
    (r"itl_(intercept|slope)", ""),
    (r"(^|_)itl(_|$)|inter_token|token_to_token", "itl{}_ms"),
    (r"tpot|time_per_output_token|ms_per_(output_)?token|token_latency|decode_latency|latency_per_token", "tpot{}_ms"),
    (r"mlperf|prompt_step_latency", ""),
    (r"e2e|end_to_end|request_latency|total_latency|^latency", "request{}_ms"),
    (r"req(uest)?s?(_per_s(ec(ond)?)?|_?/_?s|_s)$|request_throughput|^qps|^rps", "requests_per_s"),
    (r"prompt_plus_output", ""),
    (r"total_(token_)?(throughput|tok)|(throughput|tok(ens?)?_?(/|per_)?_?s(ec)?)_(in|input)_(and_)?(out|output)", "total_tok_s"),
    (r"prefill|prompt_(eval|processing|tok)|^pp_?\d*(_|$)|input_tok(en)?s?_(per_)?s|^pp\d*$", "prefill_tok_s"),
    (r"decode_tok_s|^tg_?\d*(_|$)|eval_rate|generation_(speed|rate|tok)", "decode_tok_s{batch}"),
    (r"(tok(en)?s?|throughput).*(per|/)_?(user|stream|request|client)|interactivity|output_speed", "output_tok_s_per_user"),
    (r"(tok(en)?s?|throughput).*(per|/)_?(gpu|device|accelerator|card)", "output_tok_s_per_gpu"),
    (r"output_(token_)?throughput|output_tok|generat\w+_throughput|tok(en)?s?_(per_)?s(ec|econd)?$|tok(en)?s?/s|^throughput|^tps$",
     "output_tok_s_total"),
    (r"max_(users|concurren\w+)_at_slo|users_at_s", "max_users_at_slo"),
    (r"max(imum)?_concurrency", "max_concurrency_at_max_model_len"),
    (r"gguf|file_size|download_size|size_on_disk|disk_size|checkpoint_size|model_size", "file_size"),
    (r"bits_per_weight|^bpw", "bits_per_weight"),
    (r"kv.*(per_token|/token|token_bytes)", "kv_bytes_per_token"),
    (r"kv_(cache_)?(blocks|num_blocks)|num_gpu_blocks", "kv_cache_blocks"),
    (r"kv.*(capacity|tokens)|max_num_tokens", "kv_cache_capacity"),
    (r"kv.*(memory|size|gib|gb|bytes|pool)|^kv_cache$", "kv_cache_memory_per_gpu"),
    (r"graph", "cuda_graph_memory_per_gpu"),
    (r"activation", "activation_peak_per_gpu"),
    (r"weight|model_(memory|load)", "weight_memory_per_gpu"),
    (r"^fits?$|^fits_|^oom|out_of_memory", "fits"),
    (r"vram|gpu_mem|memory_us|mem_us|peak_mem|max_mem|memory_gb|memory_gib|^memory$", "gpu_memory_used"),
    (r"usd|price|cost_per_hour", "on_demand_usd_per_gpu_hour"),
)  # fmt: skip
_SECONDS: Final = {
    "s": 1e-3,
    "sec": 1e-3,
    "second": 1e-3,
    "seconds": 1e-3,
    "us": 1e3,
    "µs": 1e3,
    "microseconds": 1e3,
    "min": 1 / 6e4,
}


def canonical(metric: str, known: frozenset[str], *, concurrent: bool) -> str:
    """The name under which the planner answers a metric. `known` names stay as they are; what no pattern fits stays too."""
    if metric in known:
        return metric
    text = re.sub(r"[\s\-]+", "_", metric.strip().lower())
    if text in known:
        return text
    statistic = _STATISTIC.search(text)
    told = {"avg": "mean", "average": "mean"}.get(statistic.group(1), statistic.group(1)) if statistic else ""
    for pattern, name in _NAMES:
        if re.search(pattern, text):
            name = name.replace("{batch}", "_total" if concurrent else "_per_user")
            return name.replace("{}", f"_{told}" if told else "") or metric
    return metric


def in_milliseconds(metric: str) -> bool:
    return metric.endswith("_ms")


def from_milliseconds(unit: str) -> float:
    """What milliseconds are multiplied with to be in the unit of a point."""
    return _SECONDS.get(unit.strip().lower(), 1.0)
