"""How far a quantized model's predictions are from its reference's: perplexity, Kullback-Leibler divergence, agreement.

Both models read the same text and say at each place how likely each next token is. Engines give the likeliest ones only; what is
left is one bucket, so the divergence is a lower bound of the true one (merging outcomes never raises it: the data-processing
inequality, Cover & Thomas, Elements of Information Theory, 2.8).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

_FLOOR: Final = 1e-12  # of a probability, so that one impossible token does not make everything infinite


class Prediction(msgspec.Struct, frozen=True):
    """What a model says before one token of the text."""

    actual: int  # the token that the text goes on with
    logprobs: Mapping[int, float]  # of the likeliest tokens, natural logarithms
    vocabulary: int  # tokens that the model knows

    @property
    def rest(self) -> float:
        """The probability of all tokens that were not named."""
        return max(_FLOOR, 1.0 - math.fsum(map(math.exp, self.logprobs.values())))

    def probability(self, token: int) -> float:
        """Tokens that were not named share the rest evenly, which is the best guess about them."""
        named = self.logprobs.get(token)
        unnamed = max(1, self.vocabulary - len(self.logprobs))
        return max(_FLOOR, math.exp(named) if named is not None else self.rest / unnamed)

    def likeliest(self) -> int:
        return max(self.logprobs, key=lambda token: (self.logprobs[token], -token))


class Quality(msgspec.Struct, frozen=True):
    """Measured on the same places of the same text."""

    tokens: int  # places compared
    perplexity: float  # of the quantized model
    reference_perplexity: float
    divergence: float  # mean, nats a token; 0: the same predictions
    divergence_p99: float
    agreement: float  # share of places with the same likeliest token (a greedy reply's first token)

    @property
    def perplexity_change(self) -> float:
        """0.02: 2 % worse than the reference."""
        return self.perplexity / self.reference_perplexity - 1


def compare(reference: Iterable[Prediction], measured: Iterable[Prediction]) -> Quality:
    """Raises ValueError if the two do not speak of the same places of the same text."""
    pairs = list(zip(reference, measured, strict=True))
    if not pairs:
        raise ValueError("there is nothing to compare")
    if any(one.actual != other.actual for one, other in pairs):
        raise ValueError("the two models cut the text into different tokens")
    divergences = sorted(_divergence(one, other) for one, other in pairs)
    return Quality(
        tokens=len(pairs),
        perplexity=_perplexity(other for _, other in pairs),
        reference_perplexity=_perplexity(one for one, _ in pairs),
        divergence=math.fsum(divergences) / len(pairs),
        divergence_p99=divergences[min(len(pairs) - 1, math.ceil(len(pairs) * 0.99) - 1)],
        agreement=sum(one.likeliest() == other.likeliest() for one, other in pairs) / len(pairs),
    )


def _perplexity(predictions: Iterable[Prediction]) -> float:
    surprises = [-math.log(each.probability(each.actual)) for each in predictions]
    return math.exp(math.fsum(surprises) / len(surprises))


def _divergence(reference: Prediction, measured: Prediction) -> float:
    """Sum of p log(p/q) over the tokens that both name, and over the rest as one."""
    both = reference.logprobs.keys() & measured.logprobs.keys()
    p_rest = max(_FLOOR, 1.0 - math.fsum(math.exp(reference.logprobs[token]) for token in both))
    q_rest = max(_FLOOR, 1.0 - math.fsum(math.exp(measured.logprobs[token]) for token in both))
    terms = [
        math.exp(reference.logprobs[token]) * (reference.logprobs[token] - measured.logprobs[token]) for token in both
    ]
    return max(0.0, math.fsum(terms) + p_rest * math.log(p_rest / q_rest))
