"""`python -m berth_runtime.convert JOB.json`: makes one set of model files out of another, in the job's folder. For the exit
status see `running.run_job`."""

from __future__ import annotations

import sys
from pathlib import Path

from berth_runtime.convert.job import JOB_FORMAT, ConversionJob
from berth_runtime.convert.requantize import requantize
from berth_runtime.convert.running import run_job
from berth_runtime.convert.workdir import WorkDir
from berth_runtime.failure import Failure
from berth_runtime.verify import verify_files


def convert(job: ConversionJob, folder: WorkDir) -> None:
    """Does what is not done yet. Raises Failure, and Halt when it is told to stop."""
    if folder.result() is not None:
        return
    verify_files(
        job.files, folder.path / "verified.json", lambda done, total: folder.progress("verifying", done, total)
    )
    if job.target_format != "gguf" or not all(_is_gguf(Path(file.path)) for file in job.files):
        raise Failure("target_unknown", f"This runtime cannot make {job.target_format} {job.target} of these files.")
    folder.finish(requantize(job, folder))


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


if __name__ == "__main__":
    sys.exit(run_job(sys.argv[1], ConversionJob, JOB_FORMAT, convert))
