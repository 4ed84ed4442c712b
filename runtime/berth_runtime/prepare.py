"""All that comes before an engine: its files are here, are what they should be, and lie in folders under their names."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from berth_runtime.failure import Failure
from berth_runtime.fetch import Fetcher
from berth_runtime.inert import require_inert
from berth_runtime.log import ReplicaLog
from berth_runtime.spec import LaunchSpec, ModelFile, Phase
from berth_runtime.specfile import all_files
from berth_runtime.status import StatusBoard
from berth_runtime.verify import remember, verify_files


def bring_files(
    spec: LaunchSpec, board: StatusBoard, log: ReplicaLog, progress: Callable[[int, int], None]
) -> LaunchSpec:
    """Fetches what is not on this machine, checks everything, and makes the engine's folders; the spec with the files' places.

    `progress(done, total)` is called with bytes, and may raise to end the work. Raises Failure.
    """
    memory = Path(spec.state_dir) / "verified.json"
    files = all_files(spec)
    if any(file.url for file in files):
        board.enter(Phase.FETCHING)
        fetcher = Fetcher(spec, progress)
        files = fetcher.bring(files)
        spec = with_files(spec, files)
        with suppress(OSError):  # then they are read once more
            remember(tuple(file for file in files if file.sha256 in fetcher.fetched), memory)
        log.say("all files are here")
        board.enter(Phase.VERIFYING)
    verify_files(files, memory, progress)
    require_inert(files)
    lay_out(spec)
    return spec


def model_folder(spec: LaunchSpec) -> Path:
    """Where `lay_out` puts the model."""
    return Path(spec.state_dir) / "model"


def work_folder(spec: LaunchSpec) -> Path:
    """Where an engine may write: its home, its temporary files, its socket."""
    return Path(spec.state_dir) / "work"


def adapter_folder(spec: LaunchSpec, number: int) -> Path:
    """Where `lay_out` puts the adapter of this number. Its name is nowhere in the path."""
    return Path(spec.state_dir) / f"adapter-{number}"


def lay_out(spec: LaunchSpec) -> None:
    """Makes the folders anew. A model of one file without a name needs none. Raises Failure."""
    _folder(work_folder(spec), ())
    if len(spec.files) > 1 or spec.files[0].name:
        _folder(model_folder(spec), spec.files, together=spec.model_format == "onnx")
    for number, adapter in enumerate(spec.adapters):
        _folder(adapter_folder(spec, number), adapter.files)


def with_files(spec: LaunchSpec, files: tuple[ModelFile, ...]) -> LaunchSpec:
    """The spec with other places for its files, which come in the order of `all_files`."""
    rest = iter(files)
    model = tuple(next(rest) for _ in spec.files)
    adapters = tuple(
        msgspec.structs.replace(adapter, files=tuple(next(rest) for _ in adapter.files)) for adapter in spec.adapters
    )
    return msgspec.structs.replace(spec, files=model, adapters=adapters)


def name_of(file: ModelFile) -> str:
    """What the engine sees the file called."""
    return file.name or Path(file.path).name


def _folder(folder: Path, files: tuple[ModelFile, ...], *, together: bool = False) -> None:
    """Links, not second names: those would change the times by which `verify` knows a file that it has read. `together`: for a library
    that follows links and then wants to find the files beside one another (ONNX Runtime), second names after all, or copies."""
    try:
        if folder.is_symlink():
            folder.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        for file in files:
            (_second_name if together else _link)(Path(file.path), folder / name_of(file))
    except OSError as error:
        reason = "disk_full" if error.errno == errno.ENOSPC else "file_unreadable"
        raise Failure(reason, f"The model's folder cannot be made: {error.strerror}.") from None


def _link(file: Path, name: Path) -> None:
    name.symlink_to(file)


def _second_name(file: Path, name: Path) -> None:
    try:
        name.hardlink_to(file.resolve())
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copyfile(file, name)
        name.chmod(0o600)
