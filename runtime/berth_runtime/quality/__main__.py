"""`python -m berth_runtime.quality JOB.json`: compares a quantized artefact with its reference, in the job's folder.

Exit status 0: `quality.json` is there; 1: `failure.json` says why not; 2: the job cannot be read; 3: it was told to stop.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

from berth_runtime.convert.workdir import WorkDir
from berth_runtime.engines.catalogue import engine_named
from berth_runtime.failure import Failure, Halt
from berth_runtime.quality.job import JOB_FORMAT, QualityJob, QualityReport
from berth_runtime.quality.llamacpp import predictions
from berth_runtime.quality.measure import Prediction, compare
from berth_runtime.spec import ModelFile

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_BAD_JOB: Final = 2
EXIT_STOPPED: Final = 3
_NEUTRAL: Final = Path(__file__).parent / "sample.txt"
_MAX_SAMPLE_BYTES: Final = 1 << 20


def main() -> int:
    """See the module."""
    os.umask(0o077)
    try:
        job = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=QualityJob)
    except (IndexError, OSError, msgspec.DecodeError) as error:
        sys.stderr.write(f"The job cannot be read ({type(error).__name__}).\n")
        return EXIT_BAD_JOB
    if job.format != JOB_FORMAT:
        sys.stderr.write(f"The job has format {job.format}; this runtime reads format {JOB_FORMAT}.\n")
        return EXIT_BAD_JOB
    signal.signal(signal.SIGTERM, _stop)
    folder = WorkDir(Path(job.work_dir))
    try:
        folder.store("quality.json", check(job, folder))
    except Halt:
        return EXIT_STOPPED
    except Failure as failure:
        folder.fail(failure)
        return EXIT_FAILED
    return EXIT_DONE


def check(job: QualityJob, folder: WorkDir) -> QualityReport:
    """Asks both models about the same text. Raises Failure."""
    text, origin = _text(job)
    told = 2 * job.places

    def asked(files: tuple[ModelFile, ...], before: int) -> list[Prediction]:
        return predictions(
            files,
            text,
            threads=job.threads,
            places=job.places,
            memory_limit=job.memory_limit,
            said=lambda done, _: folder.progress("measuring", before + done, told),
        )

    reference, measured = asked(job.reference, 0), asked(job.measured, job.places)
    try:
        quality = compare(reference, measured)
    except ValueError as error:
        raise Failure("not_comparable", f"The artefact cannot be compared with its reference: {error}.") from None
    llamacpp = engine_named("llamacpp")
    version = llamacpp.version() if llamacpp else ""
    return QualityReport(JOB_FORMAT, origin, version, quality, quality.perplexity_change)


def _text(job: QualityJob) -> tuple[str, str]:
    if job.sample_file is None:
        return _NEUTRAL.read_text(encoding="utf-8"), "neutral"
    try:
        with Path(job.sample_file).open("rb") as file:
            return file.read(_MAX_SAMPLE_BYTES).decode("utf-8"), "sample"
    except (OSError, UnicodeDecodeError):
        raise Failure("sample_unreadable", "The sample text cannot be read. It must be UTF-8.") from None


def _stop(_number: int, _frame: object) -> None:
    raise Halt


if __name__ == "__main__":
    sys.exit(main())
