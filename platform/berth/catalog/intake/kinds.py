"""What a file is, by its content and its name together. A name promises; the content must keep the promise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from berth.catalog.intake.bounded import beginning
from berth.catalog.intake.refused import Refused

NAME_FORM: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
MAX_FILES: Final = 2_000

TO_SAFETENSORS: Final = (
    "Convert it where you trust it, and bring the result: "
    "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder, safe_serialization=True) writes safetensors."
)
# Suffixes that are never taken in, with what they are.
_PICKLES: Final = {
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
    ".pkl",
    ".pickle",
    ".nemo",
    ".npy",
    ".npz",
    ".h5",
    ".keras",
    ".joblib",
    ".mar",
}
_CODE: Final = {
    ".py",
    ".pyc",
    ".pyd",
    ".so",
    ".dll",
    ".dylib",
    ".sh",
    ".exe",
    ".js",
    ".jar",
    ".ipynb",
    ".bat",
    ".ps1",
    ".rb",
    ".php",
    ".pth",
}
_ENGINES: Final = {".engine", ".plan", ".trt"}
_ARCHIVES: Final = {".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar", ".whl"}

_TEXTS: Final = {".txt", ".md", ".jinja", ".model", ".merges", ".tiktoken", ".bpe", ".vocab", ".license", ""}


def check_name(name: str) -> None:
    if not NAME_FORM.fullmatch(name) or name in {".", ".."}:
        raise Refused(
            "file_name",
            "A file's name has 1 to 128 letters, digits, dots, dashes and underscores; no folders. Rename it.",
            file="A file" if not name.isprintable() or len(name) > 128 else name,
        )


def check_suffix(name: str) -> None:
    """Refuses by name alone, before anything is fetched."""
    suffix = Path(name).suffix.lower()
    if suffix in _PICKLES:
        raise Refused(
            "pickle", f"files of this kind run code when they are loaded (pickle). {TO_SAFETENSORS}", file=name
        )
    if suffix in _CODE:
        raise Refused(
            "code_file", "it is a program. Models are files of numbers and settings; leave it out.", file=name
        )
    if suffix in _ENGINES:
        raise Refused(
            "compiled_engine",
            "it is a compiled engine, which is code for one machine. Bring the model itself; engines are built here.",
            file=name,
        )
    if suffix in _ARCHIVES:
        raise Refused("archive", "archives are not unpacked here. Bring the files in it one by one.", file=name)


def sniff(path: Path) -> str:
    """ "gguf", "safetensors", "json", "text", "pickle", "archive", "code", "empty", "binary"."""
    head = beginning(path)
    if not head:
        return "empty"
    if head[:4] == b"GGUF":
        return "gguf"
    if (
        head[:4] == b"PK\x03\x04"
        or head[:3] == b"\x1f\x8b\x08"
        or head[:6] in (b"7z\xbc\xaf\x27\x1c", b"\xfd7zXZ\x00")
        or head[:4] == b"(\xb5/\xfd"
        or head[257:262] == b"ustar"
    ):
        return "archive"
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "pickle"
    if head[:4] in (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe") or head[:2] in (b"MZ", b"#!"):
        return "code"
    if head[:6] == b"\x93NUMPY" or head[:8] == b"\x89HDF\r\n\x1a\n":
        return "pickle"
    if len(head) > 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= 1 << 40:
        return "safetensors"
    if head.lstrip()[:1] in (b"{", b"["):
        return "json"
    return "binary" if b"\0" in head else "text"


def check_content(path: Path, name: str) -> str:
    """The file's kind. Raises Refused when it is something that is never taken in, or not what its name says."""
    check_suffix(name)
    kind = sniff(path)
    suffix = Path(name).suffix.lower()
    if kind == "pickle":
        raise Refused(
            "pickle", f"its content is a pickle, which runs code when it is loaded. {TO_SAFETENSORS}", file=name
        )
    if kind == "archive":
        raise Refused(
            "archive",
            f"its content is an archive (PyTorch's own files are zips with a pickle). {TO_SAFETENSORS}",
            file=name,
        )
    if kind == "code":
        raise Refused("code_file", "its content is a program. Models are files of numbers and settings.", file=name)
    if kind == "empty":
        raise Refused("file_empty", "it is empty. Upload or download it again.", file=name)
    expected = {".gguf": "gguf", ".safetensors": "safetensors", ".json": "json"}.get(suffix)
    if expected == "gguf" and kind != "gguf":
        raise Refused(
            "not_gguf", "It does not begin with GGUF's mark, so it is no GGUF file, whatever its name.", file=name
        )
    if expected == "safetensors" and kind != "safetensors":
        raise Refused(
            "not_safetensors",
            "it does not begin like a safetensors file, whatever its name. Download it again.",
            file=name,
        )
    if expected == "json" and kind != "json":
        raise Refused("json_broken", "it does not begin like JSON. Download it again.", file=name)
    if expected is None and kind == "binary" and suffix in _TEXTS - {".model"}:
        raise Refused("unknown_content", "it should be text and is not.", file=name)
    return kind
