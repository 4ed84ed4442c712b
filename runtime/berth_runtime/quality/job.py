"""What a quality check is told and what it leaves: JSON files with a format number."""

from __future__ import annotations

import msgspec

from berth_runtime.quality.measure import Quality
from berth_runtime.spec import ModelFile

JOB_FORMAT = 1


class QualityJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two artefacts of one model version, to be compared on the same text."""

    format: int
    reference: tuple[ModelFile, ...]
    measured: tuple[ModelFile, ...]
    work_dir: str
    threads: int = 1
    places: int = 400  # tokens compared; 400 take about a minute on one core with a model of 100 million parameters
    sample_file: str | None = (
        None  # a text of the organisation's own, measured beside the neutral one; read, never copied or kept
    )
    # A file in which what the reference says of the neutral text is kept for the next job; None: it is asked anew.
    reference_file: str | None = None
    lifeline: str | None = None  # lock file of the supervisor: when it is free, the job stops
    memory_limit: int | None = None  # bytes of address space growth allowed to the engine


class QualityReport(msgspec.Struct, frozen=True):
    """`quality.json`."""

    format: int
    text: str  # "neutral": what `quality` was measured on
    engine: str  # that predicted, with its version
    quality: Quality
    perplexity_change: float
    sample: Quality | None = None  # the same, on the organisation's own text
    sample_perplexity_change: float | None = None
