"""`python -m berth_runtime.convert JOB.json`: makes one set of model files out of another, in the job's folder.

Exit status 0: `result.json` is there; 1: `failure.json` says why not; 2: the job cannot be read; 3: it was told to stop, and
the same call goes on from there.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

from berth_runtime.convert.job import JOB_FORMAT, ConversionJob
from berth_runtime.convert.requantize import requantize
from berth_runtime.convert.workdir import WorkDir
from berth_runtime.failure import Failure, Halt
from berth_runtime.verify import verify_files

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_BAD_JOB: Final = 2
EXIT_STOPPED: Final = 3


def main() -> int:
    """See the module."""
    os.umask(0o077)
    try:
        job = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ConversionJob)
    except (IndexError, OSError, msgspec.DecodeError) as error:
        sys.stderr.write(f"The job cannot be read ({type(error).__name__}).\n")
        return EXIT_BAD_JOB
    if job.format != JOB_FORMAT:
        sys.stderr.write(f"The job has format {job.format}; this runtime reads format {JOB_FORMAT}.\n")
        return EXIT_BAD_JOB
    signal.signal(signal.SIGTERM, _stop)
    folder = WorkDir(Path(job.work_dir))
    try:
        return convert(job, folder)
    except Halt:
        return EXIT_STOPPED
    except Failure as failure:
        folder.fail(failure)
    except MemoryError:
        folder.fail(
            Failure("out_of_memory", "The conversion needs more memory than it may have. Give it a larger machine.")
        )
    except OSError as error:
        folder.fail(Failure("disk_trouble", f"The conversion could not write its files: {error.strerror}."))
    return EXIT_FAILED


def convert(job: ConversionJob, folder: WorkDir) -> int:
    """Does what is not done yet. Raises Failure, and Halt when it is told to stop."""
    if folder.result() is not None:
        return EXIT_DONE
    verify_files(
        job.files, folder.path / "verified.json", lambda done, total: folder.progress("verifying", done, total)
    )
    if job.target_format != "gguf" or not all(_is_gguf(Path(file.path)) for file in job.files):
        raise Failure("target_unknown", f"This runtime cannot make {job.target_format} {job.target} of these files.")
    folder.finish(requantize(job, folder))
    return EXIT_DONE


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _stop(_number: int, _frame: object) -> None:
    raise Halt


if __name__ == "__main__":
    sys.exit(main())
