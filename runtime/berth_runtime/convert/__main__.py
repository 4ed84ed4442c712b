"""`python -m berth_runtime.convert JOB.json`: makes one set of model files out of another, in the job's folder. For the exit
status see `running.run_job`."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from berth_runtime.convert.converters import run_converter
from berth_runtime.convert.job import JOB_FORMAT, ConversionJob, ConversionResult
from berth_runtime.convert.requantize import requantize
from berth_runtime.convert.running import run_job
from berth_runtime.convert.workdir import WorkDir
from berth_runtime.spec import ModelFile
from berth_runtime.verify import verify_files


def convert(job: ConversionJob, folder: WorkDir) -> None:
    """Does what is not done yet. Raises Failure, and Halt when it is told to stop."""
    if folder.result() is not None:
        return
    verify_files(
        job.files, folder.path / "verified.json", lambda done, total: folder.progress("verifying", done, total)
    )
    source = _format_of(job)
    if source == job.target_format == "gguf":
        folder.finish(requantize(job, folder))
    elif source == "safetensors" and job.target_format == "gguf" and job.target not in ("F16", "BF16", "Q8_0"):
        folder.finish(_by_way_of_f16(job, folder))
    else:
        folder.finish(run_converter(job, folder, source_format=source))


def _by_way_of_f16(job: ConversionJob, folder: WorkDir) -> ConversionResult:
    """Smaller mixtures are made of a 16-bit GGUF file, which is kept only until then."""
    half = folder.load("half.json", ConversionResult)
    if half is None:
        half = run_converter(msgspec.structs.replace(job, target="F16"), folder, source_format="safetensors")
        folder.store("half.json", half)
    files = tuple(ModelFile(str(folder.path / each.name), each.role, each.size, each.sha256) for each in half.files)
    result = requantize(msgspec.structs.replace(job, files=files), folder)
    for each in half.files:
        (folder.path / each.name).unlink()
    return result


def _format_of(job: ConversionJob) -> str:
    """By role and content, not by name."""
    if any(file.role.startswith("adapter") for file in job.files):
        return "lora"
    weights = [Path(file.path) for file in job.files if file.role == "weights"]
    return "gguf" if weights and all(_is_gguf(path) for path in weights) else "safetensors"


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


if __name__ == "__main__":
    sys.exit(run_job(sys.argv[1], ConversionJob, JOB_FORMAT, convert))
