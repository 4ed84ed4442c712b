"""How the quality of an artefact is shown."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class SampleQualityOut(serializers.Serializer[Any]):
    """The same figures, over the text that the organisation gave."""

    tokens = serializers.IntegerField()
    perplexity = serializers.FloatField()
    reference_perplexity = serializers.FloatField()
    perplexity_change = serializers.FloatField()
    divergence = serializers.FloatField()
    divergence_p99 = serializers.FloatField()
    agreement = serializers.FloatField()


class QualityOut(serializers.Serializer[Any]):
    """How far its predictions are from those of what it was made of, measured with the engine that serves it."""

    tokens = serializers.IntegerField(help_text="places of the text that were compared")
    perplexity = serializers.FloatField()
    reference_perplexity = serializers.FloatField()
    perplexity_change = serializers.FloatField(help_text="0.02: 2 % worse than the reference")
    divergence = serializers.FloatField(help_text="Kullback-Leibler, nats a token; 0: the same predictions")
    divergence_p99 = serializers.FloatField()
    agreement = serializers.FloatField(help_text="share of places with the same likeliest next token")
    text = serializers.ChoiceField(choices=["neutral", "sample"], help_text="which text the figures above are of")
    sample = SampleQualityOut(allow_null=True, default=None, help_text="null: no text was given")
    engine = serializers.CharField()
    reference = serializers.CharField(help_text="quantization of the artefact that it was compared with")
    measured_at = serializers.DateTimeField()
