"""Conversions that need PyTorch: each is a script run by an interpreter that has it, apart from what serves.

Their packages contradict one another and weigh gigabytes, so they live in an environment of their own (`make converters`), which
`BERTH_CONVERTER_PYTHON` names. The scripts import nothing of Berth's and are given folders.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

import msgspec

from berth_runtime.config import CONVERTER_PYTHON, read
from berth_runtime.convert.job import RESULT_FORMAT, ConversionJob, ConversionResult, Fallback, MadeFile
from berth_runtime.convert.workdir import WorkDir
from berth_runtime.failure import Failure
from berth_runtime.quality.floors import CALIBRATED, Floor
from berth_runtime.spec import ModelFile

_SCRIPTS: Final = Path(__file__).parent / "scripts"
# Not the text of the quality check, which nothing may have been made to fit.
_CALIBRATION: Final = Path(__file__).parent / "calibration.txt"
_POLL_SECONDS: Final = 0.5
_USUAL_GROUP: Final = 128
_ROLES: Final = {
    ".safetensors": "weights", ".gguf": "weights", ".onnx": "weights", ".data": "data", ".index.json": "index", ".jinja": "template",
    "generation_config.json": "generation", "genai_config.json": "config", "config.json": "config",
}  # fmt: skip
_NOT_KEPT: Final = ("notes.json", "README.md", ".gitattributes")


def python_of_converters() -> Path | None:
    """The interpreter to run, or None: there is none."""
    named = read(CONVERTER_PYTHON)
    if named:
        return Path(named)
    beside = Path(__file__).resolve().parents[3] / ".venv-converters" / "bin" / "python"
    return beside if beside.exists() else None


def run_converter(job: ConversionJob, folder: WorkDir, *, source_format: str) -> ConversionResult:
    """Makes the files and says what they are. Raises Failure."""
    out, given = folder.path / "made", laid_out(job.files, folder.path / "given")
    shutil.rmtree(out, ignore_errors=True)  # these converters cannot go on in the middle
    command, environment = _command(job, source_format, given, out, folder.path)
    folder.progress("converting", 0, 0)
    _run(command, environment, folder)
    files = _kept(out, folder)
    return ConversionResult(format=RESULT_FORMAT, files=files, fallbacks=_fallbacks(out), tool=_tool(job))


def _command(
    job: ConversionJob, source_format: str, given: Path, out: Path, work: Path
) -> tuple[list[str], dict[str, str]]:
    python = python_of_converters()
    if python is None:
        raise Failure(
            "converter_missing",
            f"Making {job.target_format} {job.target} needs PyTorch, and this machine's converters are not installed. "
            "Run `make converters`, or name their interpreter in BERTH_CONVERTER_PYTHON.",
        )
    environment = {
        "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(work), "TMPDIR": str(work),
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(work / "hub"),
        "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": str(job.threads),
    }  # fmt: skip
    kind = (source_format, job.target_format, job.target)
    own = [str(python), "-B"]
    match kind:
        case ("gguf", "safetensors", "BF16"):
            source = next(iter(sorted(given.glob("*.gguf"))))
            own += [str(_SCRIPTS / "gguf_to_safetensors.py"), "--source", str(source), "--out", str(out)]
        case ("safetensors", "gguf", "F16" | "BF16" | "Q8_0" as outtype):
            out.mkdir()
            library = python.parent.parent / "hf2gguf"
            environment["PYTHONPATH"] = str(library)
            file = out / f"model-{outtype}.gguf"
            own += [str(library / "convert_hf_to_gguf.py"), str(given)]
            own += ["--outfile", str(file), "--outtype", outtype.lower()]
        case ("safetensors", "safetensors", "INT4 W4A16" | "AWQ-INT4" | "INT8 W8A8" | "FP8" as scheme):
            own += [str(_SCRIPTS / "compress.py"), "--source", str(given), "--out", str(out)]
            own += ["--scheme", scheme, *_calibration(CALIBRATED)]
        case ("safetensors", "onnx", "INT4 W4A16"):
            own += [str(_SCRIPTS / "onnx_int4.py"), "--source", str(given), "--out", str(out)]
            own += ["--work", str(work / "onnx"), *_calibration(CALIBRATED)]
        case ("safetensors", "onnx", "F16"):
            own += ["-m", "onnxruntime_genai.models.builder", "-i", str(given), "-o", str(out), "-e", "cpu"]
            own += ["-p", "fp16", "-c", str(work / "cache")]
        case ("lora", "safetensors", "BF16"):
            own += [str(_SCRIPTS / "merge_lora.py"), "--source", str(given), "--adapter", str(given / "adapter")]
            own += ["--out", str(out)]
        case _:
            raise Failure(
                "target_unknown", f"{job.target_format} {job.target} cannot be made of {source_format} files."
            )
    return own, environment


def _calibration(floor: Floor) -> list[str]:
    """The text, and how near to the 16 bits what is made of it has to be on a part of it that was kept apart."""
    told = ["--text", str(_CALIBRATION), "--divergence", str(floor.divergence)]
    return [*told, "--perplexity", str(floor.perplexity_change), "--agreement", str(floor.agreement)]


def _run(command: list[str], environment: dict[str, str], folder: WorkDir) -> None:
    """Until it ends. What it prints stays in the folder, which is removed in the end: it could quote the model's files."""
    with (folder.path / "converter.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=folder.path, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            while process.poll() is None:
                folder.progress("converting", 0, 0)
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    if process.returncode != 0:
        raise Failure("converter_failed", _why(folder.path / "converter.log", process.returncode))


def _why(log: Path, status: int) -> str:
    if status == -9:
        return "The converter was ended from outside, most likely because memory ran out. Use a machine with more."
    last = log.read_text("utf-8", "replace").strip().rsplit("\n", 1)[-1]
    word = last.split(":", 1)[0]
    kind = word if word.isidentifier() else f"status {status}"
    return (
        f"The converter cannot read this model ({kind}). Its architecture may be too new for the installed converters."
    )


def laid_out(files: tuple[ModelFile, ...], folder: Path) -> Path:
    """A folder in which the files have their own names; an adapter's are in a folder of their own."""
    shutil.rmtree(folder, ignore_errors=True)
    for file in files:
        adapter = file.role.startswith("adapter")
        place = folder / "adapter" if adapter else folder
        place.mkdir(parents=True, exist_ok=True)
        (place / (file.name or Path(file.path).name)).symlink_to(file.path)
    return folder


def _kept(out: Path, folder: WorkDir) -> tuple[MadeFile, ...]:
    found = sorted(path for path in out.iterdir() if path.is_file() and path.name not in _NOT_KEPT)
    total, done, made = sum(path.stat().st_size for path in found), 0, []
    for path in found:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = path.stat().st_size
        path.replace(folder.path / path.name)
        done += size
        folder.progress("hashing", done, total)
        made.append(MadeFile(path.name, _role(path.name), size, digest))
    return tuple(made)


def _role(name: str) -> str:
    return next((role for end, role in _ROLES.items() if name.endswith(end)), "tokenizer")


class _Notes(msgspec.Struct):
    """`notes.json`, which a script may leave beside what it made."""

    group_size: int | None = _USUAL_GROUP  # weights that share a scale; None: a whole row
    fallbacks: tuple[Fallback, ...] = ()


def _fallbacks(out: Path) -> tuple[Fallback, ...]:
    """Tensors that got more bits than the name says, and the group size that was chosen where it is not the usual one."""
    try:
        notes = msgspec.json.decode((out / "notes.json").read_bytes(), type=_Notes)
    except (OSError, msgspec.DecodeError):
        return ()
    group = notes.group_size
    if group == _USUAL_GROUP:
        return notes.fallbacks
    given = f"groups of {group}" if group else "one scale for each row"
    return (Fallback(f"groups of {_USUAL_GROUP}", given, group or 0, 0, ()), *notes.fallbacks)


def _tool(job: ConversionJob) -> str:
    return f"converters for {job.target_format}"
