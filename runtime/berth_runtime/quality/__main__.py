"""`python -m berth_runtime.quality JOB.json`: compares a quantized artefact with its reference and leaves `quality.json` in the job's
folder. For the exit status see `convert.running.run_job`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from berth_runtime.convert.running import run_job
from berth_runtime.convert.workdir import WorkDir
from berth_runtime.engines.catalogue import engine_named
from berth_runtime.failure import Failure
from berth_runtime.quality import llamacpp, scripted
from berth_runtime.quality.job import JOB_FORMAT, QualityJob, QualityReport
from berth_runtime.quality.measure import Prediction, Quality, compare
from berth_runtime.quality.remembered import remembered
from berth_runtime.spec import ModelFile

_NEUTRAL: Final = Path(__file__).parent / "sample.txt"
_MAX_SAMPLE_BYTES: Final = 1 << 20


def check(job: QualityJob, folder: WorkDir) -> QualityReport:
    """Asks both models about the same texts. Raises Failure."""
    texts = [_NEUTRAL.read_text(encoding="utf-8"), *([] if job.sample_file is None else [_sample(job.sample_file)])]
    told = 2 * job.places * len(texts)
    found = [
        _compared(job, text, partial(_counted, folder, 2 * job.places * number, told), keep=number == 0)
        for number, text in enumerate(texts)
    ]
    neutral, sample = found[0], found[1] if len(found) > 1 else None
    engine = engine_named("llamacpp") if all(map(_is_gguf, job.measured)) else None
    return QualityReport(
        JOB_FORMAT,
        "neutral",
        engine.version() if engine else "the format's own library",
        neutral,
        neutral.perplexity_change,
        sample,
        sample.perplexity_change if sample else None,
    )


def _counted(folder: WorkDir, before: int, told: int, done: int) -> None:
    folder.progress("measuring", before + done, told)


def _compared(job: QualityJob, text: str, said: Callable[[int], None], *, keep: bool) -> Quality:
    """`keep`: the text is the bundled one, so that what the reference says of it may be kept."""

    def asked(files: tuple[ModelFile, ...], before: int) -> list[Prediction]:
        def counted(done: int, _all: int) -> None:
            said(before + done)

        if not all(map(_is_gguf, files)):
            return scripted.predictions(files, text, threads=job.threads, places=job.places, said=counted)
        return llamacpp.predictions(
            files, text, threads=job.threads, places=job.places, memory_limit=job.memory_limit, said=counted
        )

    def reference_said() -> list[Prediction]:
        return asked(job.reference, 0)

    engine = engine_named("llamacpp") if keep and all(map(_is_gguf, job.reference)) else None
    if engine is None or job.reference_file is None:
        reference = reference_said()
    else:
        place = Path(job.reference_file)
        reference = remembered(place, job.reference, text, job.places, engine.version(), reference_said)
    measured = asked(job.measured, job.places)
    try:
        return compare(reference, measured)
    except ValueError as error:
        raise Failure("not_comparable", f"The artefact cannot be compared with its reference: {error}.") from None


def _is_gguf(file: ModelFile) -> bool:
    with Path(file.path).open("rb") as opened:
        return opened.read(4) == b"GGUF"


def _sample(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(_MAX_SAMPLE_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        raise Failure("sample_unreadable", "The sample text cannot be read. It must be UTF-8.") from None


if __name__ == "__main__":
    sys.exit(
        run_job(
            sys.argv[1], QualityJob, JOB_FORMAT, lambda job, folder: folder.store("quality.json", check(job, folder))
        )
    )
