"""Which matrices of a quantized model stay in 16 bits: those that lose most, until the model predicts nearly what it did before."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

_STEPS = (0.0, 0.03, 0.06, 0.09, 0.125, 0.1875, 0.25, 0.375, 0.5)  # share of the quantized weights that stays
_ADDED = ("quantization_scheme", "quantization_status", "quantization_enabled")
_SCALES = ("weight_scale", "weight_zero_point", "weight_g_idx", "weight_global_scale")


@dataclass
class Bounds:
    """The most that may be lost."""

    divergence: float  # nats a token
    perplexity: float  # 0.15: 15 % worse
    agreement: float  # share of the same likeliest tokens, at least


@dataclass
class Unit:
    """Matrices that read the same values. Engines join these into one, so they are quantized together or not at all."""

    names: list[str] = field(default_factory=list)
    size: int = 0  # weights
    lost: float = 0.0  # energy of the difference in what comes out
    whole: float = 0.0  # energy of what comes out

    @property
    def loss(self) -> float:
        return self.lost / max(self.whole, 1e-30)


def predicted(model: Any, windows: list[list[int]]) -> torch.Tensor:
    """(places, vocabulary), logarithms, in 32 bits; the last place of a window has nothing to be compared with."""
    with torch.no_grad():
        rows = [torch.log_softmax(model(_batch(model, window)).logits[0].float(), dim=-1) for window in windows]
    return torch.cat([each[:-1] for each in rows]).cpu()


def spare(
    model: Any,
    plain: Callable[[], Any] | None,
    windows: list[list[int]],
    exact: torch.Tensor,
    bounds: Bounds,
) -> list[dict[str, Any]]:
    """Frees matrices from quantization until `bounds` hold on the windows; what was freed, for people.

    `plain`: loads the model as it was; None: the quantized one still holds its weights in 16 bits, and rounds them as it goes.
    """
    actual = torch.tensor([token for window in windows for token in window[1:]])[:, None]
    if _holds(exact, predicted(model, windows), actual, bounds):
        return []
    before = plain() if plain else model
    units = _units(model, before, windows)
    ranked = sorted(units, key=lambda each: -each.loss)
    freed = 0
    for share in _STEPS[1:]:
        wanted = _first(ranked, share)
        for unit in ranked[freed:wanted]:
            for name in unit.names:
                _free(model.get_submodule(name), before.get_submodule(name))
        freed = wanted
        if _holds(exact, predicted(model, windows), actual, bounds):
            break
    return _told(model, ranked[:freed])


def _batch(model: Any, window: list[int]) -> torch.Tensor:
    return torch.tensor([window], device=model.device)


def _holds(exact: torch.Tensor, measured: torch.Tensor, actual: torch.Tensor, bounds: Bounds) -> bool:
    divergence = float((exact.exp() * (exact - measured)).sum(-1).mean())
    surprise = float((exact.gather(1, actual) - measured.gather(1, actual)).mean())
    agreement = float((exact.argmax(-1) == measured.argmax(-1)).float().mean())
    worse = math.expm1(surprise)
    return not (divergence > bounds.divergence or worse > bounds.perplexity or agreement < bounds.agreement)


def _units(model: Any, before: Any, windows: list[list[int]]) -> list[Unit]:
    """All quantized matrices, and what each loses of what goes through it."""
    found: dict[str, Unit] = {}
    last: dict[str, Any] = {"input": None, "unit": None}

    def hook(name: str) -> Callable[..., None]:
        weight = before.get_submodule(name).weight

        def seen(module: Any, given: tuple[Any, ...], out: torch.Tensor) -> None:
            if last["input"] is not given[0]:
                last["input"], last["unit"] = given[0], name
            unit = found.setdefault(_joined(name, last["unit"]), Unit())
            if name not in unit.names:
                unit.names.append(name)
                unit.size += weight.numel()
            whole = torch.nn.functional.linear(given[0], weight, module.bias).float()
            unit.lost += float((whole - out.float()).square().sum())
            unit.whole += float(whole.square().sum())

        return seen

    hooks = [
        module.register_forward_hook(hook(name))
        for name, module in model.named_modules()
        if getattr(module, "quantization_scheme", None) is not None and hasattr(module, "weight")
    ]
    try:
        predicted(model, windows)
    finally:
        for each in hooks:
            each.remove()
    return list(found.values())


def _joined(name: str, first: str) -> str:
    """The unit's name: of experts all, which engines keep in one piece; of others the first that reads the same values."""
    return f"{name.split('.experts.', 1)[0]}.experts" if ".experts." in name else first


def _first(ranked: list[Unit], share: float) -> int:
    """How many of them hold no more than this share of all weights; one at least."""
    most, taken = share * sum(each.size for each in ranked), 0
    for number, each in enumerate(ranked):
        taken += each.size
        if taken > most + 1:
            return max(1, number)
    return len(ranked)


def _free(module: Any, before: Any) -> None:
    """Its weights as they were, and no trace of a quantization: the library then lists it among those that it leaves alone."""
    module.weight.data = before.weight.data.clone().to(module.weight.dtype)
    for name in _ADDED:
        if hasattr(module, name):
            delattr(module, name)
    for name in _SCALES:
        if name in module._parameters:
            del module._parameters[name]
    module.__dict__.pop("forward", None)  # the one that rounds, which hides the class's own


def _told(model: Any, units: list[Unit]) -> list[dict[str, Any]]:
    """By the length of their rows."""
    rows: dict[int, list[str]] = {}
    for unit in units:
        for name in unit.names:
            rows.setdefault(model.get_submodule(name).in_features, []).append(name)
    return [
        {"wanted": "4 bits", "given": "16 bits", "row": row, "tensors": len(names), "examples": sorted(names)[:3]}
        for row, names in sorted(rows.items())
    ]
