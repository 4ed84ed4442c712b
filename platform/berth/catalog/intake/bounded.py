"""JSON from files that nobody has checked: bounded in size, depth and number of things, and without names of code."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from berth.catalog.intake.refused import Refused

MAX_JSON_BYTES: Final = 4 << 20
MAX_OBJECTS: Final = 100_000
MAX_DEPTH: Final = 32
# Keys by which a configuration makes a library fetch or run code.
_CODE_KEYS: Final = {
    "auto_map", "custom_pipelines", "custom_generate", "code_revision", "remote_code", "custom_ops_library", "custom_code",
    "import_path", "module_path", "plugin", "plugins", "entry_point",
}  # fmt: skip
_TRUST_KEY: Final = "trust_remote_code"  # says no in many real files
# Texts for people and for the template engine, which is caged on its own.
_PROSE_KEYS: Final = {"chat_template", "content", "license_link", "base_model_name_or_path", "_name_or_path"}
_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_MODULE: Final = re.compile(r"(?:^|[\w.-]*--)[\w./-]+\.(?:py|so|dll|dylib)(?:$|[:#])|^[\w./-]+--[\w]+\.[\w.]+$")


class _Objects:
    """Counts while JSON is read, so that a bomb is noticed before it is whole."""

    def __init__(self, most: int, name: str) -> None:
        self.left, self.name = most, name

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self.left -= 1
        if self.left < 0:
            raise Refused("json_too_large", "its JSON has more objects than any real one.", file=self.name)
        made = dict(pairs)
        if len(made) != len(pairs):
            raise Refused("json_double_key", "a key stands twice in one object of its JSON.", file=self.name)
        return made


def read_json(path: Path, name: str, *, most: int = MAX_JSON_BYTES, safe: bool = True) -> dict[str, Any]:
    """The object in a JSON file. `safe`: refuse whatever names code. Raises Refused."""
    size = regular_size(path, name)
    if size > most:
        raise Refused(
            "json_too_large",
            f"it has {size:,} bytes; a file of this kind has at most {most:,}.",
            file=name,
            size=size,
            limit=most,
        )
    return parse_json(path.read_bytes(), name, safe=safe)


def parse_json(raw: bytes, name: str, *, safe: bool = True, objects: int = MAX_OBJECTS) -> dict[str, Any]:
    try:
        made = json.loads(raw.decode("utf-8"), object_pairs_hook=_Objects(objects, name), parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise Refused("json_broken", "it is not UTF-8 text.", file=name) from None
    except RecursionError:
        raise Refused("json_nesting", "its JSON is nested deeper than any real one.", file=name) from None
    except ValueError as error:
        position = getattr(error, "pos", None)
        where = "" if position is None else f" (at character {position})"
        raise Refused("json_broken", f"it is not valid JSON{where}. Upload or download it again.", file=name) from None
    if not isinstance(made, dict):
        raise Refused("json_broken", "its JSON is no object.", file=name)
    if safe:
        check_no_code(made, name)
    return made


def check_no_code(value: Any, name: str) -> None:
    """Raises Refused for whatever names code, a module or an address, at any depth."""
    for key, part in _walk(value, name, "", 0):
        if key in _CODE_KEYS and part not in (None, "", False, [], {}):
            raise Refused(
                "remote_code",
                f'it asks for code of the model\'s own to be run ("{key}"). Berth never runs such code. Use a model whose architecture '
                "the engine has built in, or remove the entry and the code if it has.",
                file=name,
                key=key,
            )
        if key == _TRUST_KEY and part is not False and part is not None:
            raise Refused(
                "remote_code", f'it asks for code to be trusted ("{key}"). Remove the entry.', file=name, key=key
            )
        if isinstance(part, str) and key not in _PROSE_KEYS and len(part) < 4096:
            if _ADDRESS.search(part):
                raise Refused(
                    "address_in_config",
                    f'"{_shown(key)}" holds an address of the network. Remove it: engines fetch nothing.',
                    file=name,
                )
            if _MODULE.search(part):
                raise Refused("remote_code", f'"{_shown(key)}" names a file or module of code. Remove it.', file=name)


def _walk(value: Any, name: str, key: str, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > MAX_DEPTH:
        raise Refused("json_nesting", "its JSON is nested deeper than any real one.", file=name)
    if isinstance(value, dict):
        for inner, part in value.items():
            yield inner, part
            yield from _walk(part, name, inner, depth + 1)
    elif isinstance(value, list):
        for part in value:
            if isinstance(part, str):
                yield key, part
            else:
                yield from _walk(part, name, key, depth + 1)


def _shown(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", key) else "an entry"


def _no_constant(_: str) -> float:
    raise ValueError("NaN and Infinity are no JSON")


def regular_size(path: Path, name: str) -> int:
    """Bytes of a regular file with one name. Raises Refused for links, devices and folders."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise Refused(
            "file_not_regular", "it is no regular file. Links, devices and folders are not taken in.", file=name
        )
    return found.st_size


def beginning(path: Path, count: int = 4096) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.read(descriptor, count)
    finally:
        os.close(descriptor)
