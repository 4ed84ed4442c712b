"""Paths of engines that are closed, or open with the secret only."""

from __future__ import annotations

from typing import Final

# Control paths that an engine has or had; with the secret they must do nothing, without it they must be closed.
CLOSED: Final = (
    ("GET", "/slots"),
    ("POST", "/props"),
    ("POST", "/slots/0?action=save"),
    ("POST", "/slots/0?action=restore"),
    ("GET", "/"),
    ("GET", "/index.html"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/tools"),
    ("POST", "/tools"),
    ("GET", "/cors-proxy"),
    ("POST", "/models/load"),
    ("POST", "/models/unload"),
    ("POST", "/collective_rpc"),
    ("POST", "/update_weights"),
    ("POST", "/pause"),
    ("POST", "/sleep"),
    ("POST", "/invocations"),
    ("POST", "/inference/v1/generate"),
    ("POST", "/start_profile"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/api/create"),
    ("POST", "/api/push"),
    ("POST", "/api/generate"),
    ("DELETE", "/api/delete"),
)
GUARDED: Final = (
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/metrics"),
    ("GET", "/props"),
    ("POST", "/tokenize"),
    ("GET", "/v1/models"),
)
