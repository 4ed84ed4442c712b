"""Reading a LaunchSpec and refusing whatever could mean something else to an engine's command line."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from berth_runtime.spec import LAUNCH_FORMAT, Adapter, LaunchSpec, ModelFile

# Names start with a letter or digit, so that none can be read as an option; a comma would split llama.cpp's alias list.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ALIAS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,255}")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}|[0-9a-fA-F:.]{0,44}))?")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_MAX_SPEC_BYTES: Final = 1 << 20

_Rule = tuple[str, Callable[[LaunchSpec], bool]]

_RULES: tuple[_Rule, ...] = (
    (f"format must be {LAUNCH_FORMAT}", lambda s: s.format == LAUNCH_FORMAT),
    ("replica must be a name of letters, digits, '.', '_' and '-'", lambda s: _NAME.fullmatch(s.replica) is not None),
    ("org_id must be a plain name", lambda s: _NAME.fullmatch(s.org_id) is not None),
    ("deployment_id must be a plain name", lambda s: _NAME.fullmatch(s.deployment_id) is not None),
    ("revision must be at least 1", lambda s: s.revision >= 1),
    ("engine must be a plain name", lambda s: _NAME.fullmatch(s.engine) is not None),
    ("files must name at least one file with role 'weights'", lambda s: any(f.role == "weights" for f in s.files)),
    ("model_alias has characters that are not allowed", lambda s: _ALIAS.fullmatch(s.model_alias) is not None),
    ("context_length must be between 1 and 16777216", lambda s: 1 <= s.context_length <= 1 << 24),
    ("slots must be between 1 and 512", lambda s: 1 <= s.slots <= 512),
    ("threads must be between 1 and 1024", lambda s: 1 <= s.threads <= 1024),
    ("secret_file must be an absolute path", lambda s: _plain_path(s.secret_file)),
    ("state_dir must be an absolute path", lambda s: _plain_path(s.state_dir)),
    ("lifeline must be an absolute path", lambda s: s.lifeline is None or _plain_path(s.lifeline)),
    ("host must be an IP address", lambda s: _is_address(s.host)),
    ("port must be between 0 and 65535", lambda s: 0 <= s.port <= 65535),
    ("memory_limit must be at least 1 MiB", lambda s: s.memory_limit is None or s.memory_limit >= 1 << 20),
    ("start_deadline_seconds must be between 1 and 86400", lambda s: 1 <= s.start_deadline_seconds <= 86400),
    ("drain_seconds must be between 0 and 86400", lambda s: 0 <= s.drain_seconds <= 86400),
    ("tensor_parallel must be between 1 and 64", lambda s: 1 <= s.tensor_parallel <= 64),
    ("pipeline_parallel must be between 1 and 64", lambda s: 1 <= s.pipeline_parallel <= 64),
    ("quantization must be a plain word", lambda s: _word(s.quantization)),
    ("kv_dtype must be a plain word", lambda s: _word(s.kv_dtype)),
    ("tool_parser must be a plain word", lambda s: _word(s.tool_parser)),
    ("reasoning_parser must be a plain word", lambda s: _word(s.reasoning_parser)),
    (
        "memory_fraction must be between 0.05 and 1",
        lambda s: s.memory_fraction is None or 0.05 <= s.memory_fraction <= 1,
    ),
    ("kv_cache_bytes must be at least 1 MiB", lambda s: s.kv_cache_bytes is None or s.kv_cache_bytes >= 1 << 20),
    (
        "max_batched_tokens must be between 1 and 16777216",
        lambda s: s.max_batched_tokens is None or 1 <= s.max_batched_tokens <= 1 << 24,
    ),
    ("cache_dir must be an absolute path", lambda s: s.cache_dir is None or _plain_path(s.cache_dir)),
    ("cache_bytes must be at least 1 MiB", lambda s: s.cache_bytes is None or s.cache_bytes >= 1 << 20),
    ("restarts must be between 0 and 1000", lambda s: 0 <= s.restarts <= 1000),
    ("gpus must be between 0 and 64", lambda s: 0 <= s.gpus <= 64),
    ("nodes must be between 1 and 64", lambda s: 1 <= s.nodes <= 64),
    ("node_rank must be below nodes", lambda s: 0 <= s.node_rank < s.nodes),
    ("leader must be a plain name or address", lambda s: _HOST.fullmatch(s.leader) is not None),
    ("model_format must be a plain word", lambda s: _word(s.model_format)),
    ("liveness_seconds must be between 0 and 86400", lambda s: 0 <= s.liveness_seconds <= 86400),
    ("adapters must be at most 64", lambda s: len(s.adapters) <= 64),
    ("adapters and the model must each have a name of their own", lambda s: _distinct_names(s)),
)


class BadSpec(Exception):
    """The spec cannot be run. `str(error)` is one sentence."""


def load_spec(path: Path) -> LaunchSpec:
    """The validated spec in a file. Raises BadSpec."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadSpec(f"The spec {path} cannot be read: {error.strerror}.") from None
    if len(raw) > _MAX_SPEC_BYTES:
        raise BadSpec(f"The spec {path} is larger than {_MAX_SPEC_BYTES} bytes.")
    try:
        spec = msgspec.json.decode(raw, type=LaunchSpec)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadSpec(f"The spec {path} is not a valid launch spec: {error}.") from None
    check_spec(spec, path)
    return spec


def check_spec(spec: LaunchSpec, path: Path) -> None:
    """Raises BadSpec."""
    problem = next(_problems(spec), None)
    if problem:
        raise BadSpec(f"The spec {path} cannot be run: {problem}.")


def _problems(spec: LaunchSpec) -> Iterator[str]:
    for text, holds in _RULES:
        if not holds(spec):
            yield text
    for file in all_files(spec):
        yield from _file_problems(file)
    for group in (spec.files, *(adapter.files for adapter in spec.adapters)):
        names = [file.name for file in group if file.name]
        if len(set(names)) < len(names):
            yield "each file of a model must have a name of its own"
    for adapter in spec.adapters:
        yield from _adapter_problems(adapter)


def all_files(spec: LaunchSpec) -> tuple[ModelFile, ...]:
    """The model's files and those of its adapters."""
    return (*spec.files, *(file for adapter in spec.adapters for file in adapter.files))


def _adapter_problems(adapter: Adapter) -> Iterator[str]:
    if not _ALIAS.fullmatch(adapter.name):
        yield "an adapter's name has characters that are not allowed"
    if not adapter.files:
        yield "each adapter must have files"
    if not 1 <= adapter.rank <= 1024:
        yield "each adapter's rank must be between 1 and 1024"


def _file_problems(file: ModelFile) -> Iterator[str]:
    if not (_plain_path(file.path) or (file.url and not file.path)):
        yield "each file's path must be absolute"
    if file.name and not _FILE_NAME.fullmatch(file.name):
        yield "each file's name must be a bare name of letters, digits, '.', '_' and '-'"
    if file.url is not None and not _is_url(file.url):
        yield "each file's url must begin with https:// or http:// and name a host, without user or password"
    if file.size < 0:
        yield "each file's size must not be negative"
    if not _DIGEST.fullmatch(file.sha256):
        yield "each file's sha256 must be 64 lower-case hexadecimal digits"


def _plain_path(text: str) -> bool:
    return text.startswith("/") and text.isprintable() and ".." not in text.split("/")


def _word(text: str | None) -> bool:
    return text is None or _NAME.fullmatch(text) is not None


def _distinct_names(spec: LaunchSpec) -> bool:
    names = [spec.model_alias, *(adapter.name for adapter in spec.adapters)]
    return len(set(names)) == len(names)


def _is_url(text: str) -> bool:
    if not (text.isascii() and text.isprintable() and " " not in text and len(text) <= 8192):
        return False
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        return False
    plain = url.username is None and url.password is None and port != 0
    return plain and url.scheme in ("https", "http") and bool(url.hostname)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
