"""Accelerators and processors by name. Data: data/hardware.csv, with sources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Final

import msgspec

from berth.planner.tables import rows

GIB: Final = 1 << 30


# Dense half-precision operations of a multiprocessor in a clock, by compute capability (NVIDIA's architecture white papers).
_PER_CLOCK: Final = (
    (12.0, 1024),
    (11.0, 2048),
    (10.0, 8192),
    (9.0, 4096),
    (8.6, 1024),
    (8.0, 2048),
    (7.0, 1024),
    (5.0, 256),
)


class Gpu(msgspec.Struct, frozen=True):
    """One device. A CPU is one too: what counts is memory, bandwidth and arithmetic."""

    key: str
    vendor: str
    kind: str  # its memory: hbm, gddr, unified, apple, amd-gddr, intel-gddr, cpu-server, cpu, cpu-small …
    memory: int  # bytes as sold
    usable: int  # bytes that a process can see
    bandwidth: float  # bytes a second
    flops: Mapping[str, float]  # dense operations a second by element type; absent: not in hardware
    capability: float  # NVIDIA compute capability; 0: not NVIDIA
    link: str
    link_bandwidth: float  # bytes a second, each way
    halved: bool = False  # a consumer card, whose tensor cores accumulate in FP32 at half the rate

    def peak(self, kind: str) -> float:
        """The rate for an element type; what the hardware lacks is computed in half precision."""
        return self.flops.get(kind) or self.flops["fp16"]

    @property
    def clocks(self) -> float | None:
        """Multiprocessors x clock (per second) of an NVIDIA device: its tensor rate over what one of them does in a clock. None: another
        maker's, or not known."""
        each = next((rate for least, rate in _PER_CLOCK if self.capability >= least), None)
        return None if not each else self.flops["fp16"] / (each / 2 if self.halved else each)

    @property
    def is_cpu(self) -> bool:
        return self.kind.startswith("cpu")


@cache
def all_gpus() -> Mapping[str, Gpu]:
    return {row["key"]: _read(row) for row in rows("hardware.csv")}


@cache
def _names() -> Mapping[str, str]:
    names: dict[str, str] = {}
    for row in rows("hardware.csv"):
        for name in (row["key"], *row["aliases"].split("|")):
            if name:
                names[_plain(name)] = row["key"]
    return names


_NOISE: Final = re.compile(
    r"\b(nvidia|geforce|amd|radeon|intel|tesla|gpu|apple|instinct|graphics|cpu|edition|x\d+|\d+gb|custom|pc|aws|generation|hbm\de?|gddr\dx?"
    r"|workstation|server|r|tm|accelerator|card|processor|macbook|air|mac|studio|mini|node|dual|quadro|dgx|hgx|oam|nvl\d+)\b"
)
# What follows a name and makes it another device.
_VARIANT: Final = re.compile(
    r"^ (?:max|pro|ultra|ti|super|xt|xtx|gre|ada|blackwell|nvl|laptop|mobile|d|x3d)\b(?! \d*gb)"
)


def _plain(name: str) -> str:
    """Words apart by one space each: "RTX4090" and "RTX-4090" are the same, and so are "8x H100 SXM5 80G" and "H100 SXM 80GB"."""
    text = re.sub(r"[‑–—]", "-", name.lower().replace("(r)", " ").replace("(tm)", " "))
    text = re.sub(r"[\[\]()-]", " ", text)
    text = re.sub(r"\b\d{1,3}\s*[x×*]\s*(?=[a-z]|\d{4})|\s*[x×*]\s*\d{1,3}\s*$", " ", text)
    text = re.sub(r"\b([a-z]+\d\w*)\.\w*(?:large|metal)\b", r"\1", text)
    text = re.sub(r"\bsxm\d?\b", "sxm", text)
    text = re.sub(r"\b(\d{1,3})\s*g(?:i?b)?\b", r"\1gb", text)
    text = re.sub(r"(\d)[ -]core", r"\1core", text)
    text = re.sub(r"\b(rtx|gtx|rx|arc|mi|epyc|xeon|gaudi|ryzen)(\d)", _apart, text)
    text = re.sub(r"\b(\d{3,4})(ti|super|xtx|xt|gre)\b", r"\1 \2", text)
    text = re.sub(r"\b(ti)(super)\b", r"\1 \2", text)
    return " ".join(re.sub(r"[-_,/+]", " ", text).split())


def _apart(match: re.Match[str]) -> str:
    stem, digit = match.groups()
    return stem + digit if stem == "mi" else f"{stem} {digit}"


@cache
def gpu_by_name(name: str) -> Gpu | None:
    """From "NVIDIA H200-SXM-141GB", "4090 24GB", "M2 Ultra 76-Core GPU 192GB". A GPU goes before the CPU beside it, unless the text ends in
    [CPU]; of several the longest name wins. A name that goes on ("M5 Max" after "M5") is another device. None: not known."""
    text = _plain(name)
    names = _names()
    bare = " ".join(_NOISE.sub(" ", text).split())
    if text in names:
        return all_gpus()[names[text]]
    found = _contained(text) | _contained(bare)
    if not found or (len({names[known] for known in found}) > 1 and " or " in text):
        return None
    on_cpu = "[cpu]" in name.lower()
    best = max(found, key=lambda known: (all_gpus()[names[known]].is_cpu == on_cpu, len(known), known))
    return all_gpus()[names[best]]


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((known, re.compile(_pattern(known))) for known in _names())


def _pattern(known: str) -> str:
    """ "#" is any digit, after which a letter may follow; words may stand between a name and its memory."""
    stem, space, memory = known.rpartition(" ")
    if not re.fullmatch(r"\d+gb", memory):
        stem, space, memory = known, "", ""
    text = re.escape(stem).replace(r"\#", r"\d") + (r"[a-z]{0,2}" if "#" in stem else "")
    return rf"(?:^| ){text}" + (rf"(?: \S+){{0,2}} {memory}" if space else "") + r"(?= |$)"


def _contained(text: str) -> set[str]:
    found = set()
    for known, pattern in _patterns():
        match = pattern.search(text)
        if match and not _VARIANT.match(text[match.end() :]):
            found.add(known)
    return found


def _read(row: Mapping[str, str]) -> Gpu:
    held = float(row.get("sustained") or 1.0)  # of the peak clock, where the power limit leaves much less under load
    rates = {kind: float(row[kind]) * held * 1e12 for kind in ("fp16", "fp8", "int8", "fp4") if float(row[kind]) > 0}
    return Gpu(
        key=row["key"],
        vendor=row["vendor"],
        kind=row["class"],
        memory=int(float(row["memory_gb"]) * 1e9),
        usable=int(float(row["usable_gib"]) * GIB),
        bandwidth=float(row["bandwidth"]) * 1e9,
        flops=rates,
        capability=float(row["cc"]),
        link=row["link"],
        link_bandwidth=float(row["link_gbs"]) * 1e9,
        halved=row["source"] == "nv-gf" or row["key"] == "a10g",
    )
