"""llama.cpp's own server in a process of its own, by xllamacpp, with everything off that Berth does not use.

Takes the part of llama-server's command line that differs between replicas; the rest is decided here. Run as a file in
isolated mode, so that it imports nothing but the standard library and xllamacpp.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

import xllamacpp

_POOLING = {
    "mean": xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN,
    "cls": xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_CLS,
    "last": xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_LAST,
    "rank": xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK,
}
_KV_TYPES = {
    "f16": xllamacpp.ggml_type.GGML_TYPE_F16,
    "bf16": xllamacpp.ggml_type.GGML_TYPE_BF16,
    "q8_0": xllamacpp.ggml_type.GGML_TYPE_Q8_0,
    "q4_0": xllamacpp.ggml_type.GGML_TYPE_Q4_0,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("model", "host", "alias", "api-key-file"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("port", "parallel", "ctx-size", "threads", "threads-batch", "threads-http"):
        parser.add_argument(f"--{name}", required=True, type=int)
    parser.add_argument("--embeddings", action="store_true")
    parser.add_argument("--reranking", action="store_true")
    for name in ("batch-size", "ubatch-size"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--pooling", choices=list(_POOLING))
    parser.add_argument("--lora", action="append", default=[])
    parser.add_argument("--cache-type-k", choices=list(_KV_TYPES))
    parser.add_argument("--cache-type-v", choices=list(_KV_TYPES))
    return parser.parse_args()


def _params(given: argparse.Namespace) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.model_alias = {given.alias}
    params.hostnames = [given.host]
    params.port = given.port
    params.n_parallel = given.parallel
    params.n_ctx = given.ctx_size
    params.cpuparams.n_threads = given.threads
    params.cpuparams_batch.n_threads = given.threads_batch
    params.n_threads_http = given.threads_http
    # One secret per replica. It comes from a file: an argument would be readable by every user of the machine.
    params.api_keys = [Path(given.api_key_file).read_text().strip()]
    params.use_jinja = True
    params.embedding = given.embeddings or given.reranking
    if given.batch_size and given.ubatch_size:
        params.n_batch, params.n_ubatch = given.batch_size, given.ubatch_size
    if given.pooling:
        params.pooling_type = _POOLING[given.pooling]
    # Without weight: a request that asks for none gets none.
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, 0.0) for path in given.lora]
    if given.cache_type_k and given.cache_type_v:
        params.cache_type_k, params.cache_type_v = _KV_TYPES[given.cache_type_k], _KV_TYPES[given.cache_type_v]
    params.fit_params = False  # it would shrink the context without a word
    params.endpoint_metrics = True
    _close_what_is_not_used(params)
    _keep_nothing(params)
    return params


def _close_what_is_not_used(params: xllamacpp.CommonParams) -> None:
    params.endpoint_slots = False
    params.endpoint_props = False
    params.ui = False
    params.ui_mcp_proxy = False
    params.server_tools = []
    params.mcp_servers_config = ""
    params.mcp_servers_json = ""
    params.media_path = ""
    params.models_autoload = False
    params.offline = True
    params.cors_origins = ""
    params.cors_methods = ""
    params.cors_headers = ""
    params.cors_credentials = False


def _keep_nothing(params: xllamacpp.CommonParams) -> None:
    """No copy of a prompt outlives its slot, in memory or on disk."""
    params.cache_ram_mib = 0
    params.cache_idle_slots = False
    params.n_ctx_checkpoints = 0
    params.slot_save_path = ""
    params.path_prompts_log_dir = ""
    params.path_prompt_cache = ""
    params.verbose_prompt = False
    params.verbosity = 3  # "info": the lines of loading; what it prints of requests is dropped by the agent's filter


def main() -> int:
    """Serves until it is told to end. Exit status 1: the model could not be loaded."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    given = _arguments()
    try:
        server = xllamacpp.Server(_params(given))
    except Exception as error:  # noqa: BLE001 - C++ exceptions arrive as any type, and their text may hold anything
        sys.stderr.write(f"server not started: {type(error).__name__}\n")
        return 1
    sys.stderr.write(f"listening on {server.listening_address}\n")
    sys.stderr.flush()
    signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
