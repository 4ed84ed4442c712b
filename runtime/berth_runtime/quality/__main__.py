"""`python -m berth_runtime.quality JOB.json`: compares a quantized artefact with its reference and leaves `quality.json` in the job's
folder. For the exit status see `convert.running.run_job`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from berth_runtime.convert.running import run_job
from berth_runtime.convert.workdir import WorkDir
from berth_runtime.engines.catalogue import engine_named
from berth_runtime.failure import Failure
from berth_runtime.quality import llamacpp, scripted
from berth_runtime.quality.job import JOB_FORMAT, QualityJob, QualityReport
from berth_runtime.quality.measure import Prediction, compare
from berth_runtime.spec import ModelFile

_NEUTRAL: Final = Path(__file__).parent / "sample.txt"
_MAX_SAMPLE_BYTES: Final = 1 << 20


def check(job: QualityJob, folder: WorkDir) -> QualityReport:
    """Asks both models about the same text. Raises Failure."""
    text, origin = _text(job)
    told = 2 * job.places

    def asked(files: tuple[ModelFile, ...], before: int) -> list[Prediction]:
        def said(done: int, _all: int) -> None:
            folder.progress("measuring", before + done, told)

        if not all(map(_is_gguf, files)):
            return scripted.predictions(files, text, threads=job.threads, places=job.places, said=said)
        return llamacpp.predictions(
            files, text, threads=job.threads, places=job.places, memory_limit=job.memory_limit, said=said
        )

    reference, measured = asked(job.reference, 0), asked(job.measured, job.places)
    try:
        quality = compare(reference, measured)
    except ValueError as error:
        raise Failure("not_comparable", f"The artefact cannot be compared with its reference: {error}.") from None
    engine = engine_named("llamacpp") if all(map(_is_gguf, job.measured)) else None
    version = engine.version() if engine else "the format's own library"
    return QualityReport(JOB_FORMAT, origin, version, quality, quality.perplexity_change)


def _is_gguf(file: ModelFile) -> bool:
    with Path(file.path).open("rb") as opened:
        return opened.read(4) == b"GGUF"


def _text(job: QualityJob) -> tuple[str, str]:
    if job.sample_file is None:
        return _NEUTRAL.read_text(encoding="utf-8"), "neutral"
    try:
        with Path(job.sample_file).open("rb") as file:
            return file.read(_MAX_SAMPLE_BYTES).decode("utf-8"), "sample"
    except (OSError, UnicodeDecodeError):
        raise Failure("sample_unreadable", "The sample text cannot be read. It must be UTF-8.") from None


if __name__ == "__main__":
    sys.exit(
        run_job(
            sys.argv[1], QualityJob, JOB_FORMAT, lambda job, folder: folder.store("quality.json", check(job, folder))
        )
    )
