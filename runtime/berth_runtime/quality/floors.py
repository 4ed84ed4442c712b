"""When a quantization is too bad to go live.

Set from what Berth measured on the sample model (docs/conversion.md), whose 135M parameters are hurt more by quantization than those of
larger models: 8 bits lose 0.004 nats, Q5_K_M 0.010, Q4_K_M 0.05, Q2_K 0.38; a damaged file is off by whole nats. The divergence decides;
over a few hundred tokens perplexity and agreement are noisier, so that their bounds only catch what is far off.
"""

from __future__ import annotations

from typing import Final

import msgspec

from berth_runtime.quality.measure import Quality


class Floor(msgspec.Struct, frozen=True):
    """The most that may be lost."""

    divergence: float  # nats a token
    perplexity_change: float  # 0.1: 10 % worse
    agreement: float  # at least


FLOORS: Final[dict[str, Floor]] = {
    "best": Floor(0.03, 0.05, 0.90),
    "balanced": Floor(0.12, 0.15, 0.75),
    "economy": Floor(0.60, 0.60, 0.60),
}
# What a calibrated artefact has to keep on text that it was not calibrated with: well inside "balanced", so that it is elsewhere, too.
CALIBRATED: Final = Floor(0.10, 0.12, 0.78)
# Below this a file is broken, whatever anybody asked for.
BROKEN: Final = Floor(2.0, 4.0, 0.25)


def falls_short(quality: Quality, floor: Floor) -> str | None:
    """The first bound that is broken, as a sentence; None: good enough."""
    if quality.divergence > floor.divergence:
        return (
            f"Its predictions are {quality.divergence:.3f} nats a token away from the reference's; "
            f"at most {floor.divergence:g} is allowed."
        )
    if quality.perplexity_change > floor.perplexity_change:
        return (
            f"Its perplexity is {quality.perplexity_change:.1%} worse than the reference's; "
            f"at most {floor.perplexity_change:.0%} is allowed."
        )
    if quality.agreement < floor.agreement:
        return (
            f"It agrees with the reference about {quality.agreement:.1%} of the next tokens; "
            f"at least {floor.agreement:.0%} is asked for."
        )
    return None
