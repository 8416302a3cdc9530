"""Tell a framework in its own way which checkpoint to load: words of its command line, or the pointer that it reads.

A pointer is a file beside the checkpoints that names one of them. It is replaced whole and its old text kept; where no
checkpoint may be loaded it is moved away, since a framework would follow it. Never through a link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from fleetctl.spec.model import CheckpointFormat, CheckpointTell

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_BYTES = 4096  # of a pointer: a name
_MOST_KEPT = 1000  # old pointers that lie beside it

# As each framework's own parser of arguments has them. Lightning's is LightningCLI's.
_PATH_OPTIONS: Mapping[str, str] = {
    CheckpointFormat.HUGGINGFACE: "--resume_from_checkpoint",
    CheckpointFormat.ACCELERATE: "--resume_from_checkpoint",
    CheckpointFormat.LIGHTNING: "--ckpt_path",
}
_STEP_OPTIONS: Mapping[str, str] = {
    CheckpointFormat.MEGATRON: "--ckpt-step",
    CheckpointFormat.TORCHTITAN: "--checkpoint.load_step",
}
_POINTERS: Mapping[str, str] = {
    CheckpointFormat.DEEPSPEED: "latest",
    CheckpointFormat.MEGATRON: "latest_checkpointed_iteration.txt",
}


class Chosen(Struct, frozen=True):
    """The checkpoint that an attempt resumes from, of its spec's format."""

    path: str
    training_step: int


class Pointer(Struct, frozen=True):
    """What becomes of a pointer. `text` None: it is moved away. `before` None: there is none yet; `kept` is where its
    old text goes."""

    name: str
    text: str | None
    before: str | None
    kept: str | None


def arguments(tell: str, form: str, chosen: Chosen | None) -> tuple[str, ...]:
    """What is appended to the words of the command; nothing for a start from scratch."""
    if tell != CheckpointTell.ARGUMENTS or chosen is None:
        return ()
    if form in _PATH_OPTIONS:
        return _PATH_OPTIONS[form], chosen.path
    return (_STEP_OPTIONS[form], str(chosen.training_step)) if form in _STEP_OPTIONS else ()


def plan_pointer(tell: str, form: str, directory: Path, chosen: Chosen | None, attempt: str) -> Pointer | None:
    """What must be done before attempt `attempt` starts; None when the pointer is right.

    :raises OSError: it cannot be read, or is something that is not written to.
    """
    name = _POINTERS.get(form)
    if tell != CheckpointTell.POINTER or name is None:
        return None
    text = None if chosen is None else _text(form, chosen)
    try:
        with _opened(directory) as folder:
            before = _read(folder, name)
            if (before is None and text is None) or (before is not None and before.strip() == text):
                return None
            kept = None if before is None else _free_name(folder, f"{name}.before-fleetctl-{attempt}")
    except FileNotFoundError:  # no folder: nothing points anywhere
        return None
    return Pointer(name, text, before, kept)


def set_pointer(directory: Path, pointer: Pointer) -> None:
    """Do what was planned: the old text is safe on disk before the pointer changes.

    :raises OSError: it could not be done. The pointer is whole: the old one or the new one.
    """
    with _opened(directory) as folder:
        if pointer.kept is not None:
            assert pointer.before is not None, "only what is there is kept"
            _write_new(folder, pointer.kept, pointer.before)
            os.fsync(folder)
        if pointer.text is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(pointer.name, dir_fd=folder)
        else:
            staged = f".{pointer.name}.fleetctl-{secrets.token_hex(8)}"
            try:
                _write_new(folder, staged, pointer.text)
                os.rename(staged, pointer.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(staged, dir_fd=folder)
                raise
        os.fsync(folder)


def _text(form: str, chosen: Chosen) -> str:
    """As the framework itself writes it: Megatron-LM the number, DeepSpeed the name of the folder."""
    if form == CheckpointFormat.MEGATRON:
        return str(chosen.training_step)
    name = chosen.path.rpartition("/")[2]
    if name != name.strip() or not name.isprintable():
        raise OSError(errno.EINVAL, "the checkpoint's name has a character that it cannot hold")
    return name


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    handle = os.open(directory, _FOLDER)
    try:
        yield handle
    finally:
        os.close(handle)


def _read(folder: int, name: str) -> str | None:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is a link, or no file")
    handle = os.open(name, _READ, dir_fd=folder)
    try:
        raw = os.read(handle, _MOST_BYTES + 1)
    finally:
        os.close(handle)
    if len(raw) > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {_MOST_BYTES} bytes")
    return raw.decode("utf-8", "surrogateescape")


def _free_name(folder: int, wanted: str) -> str:
    """Two runs in one folder may have attempts of one number: nothing that was kept is ever overwritten."""
    for name in (wanted, *(f"{wanted}-{number}" for number in range(2, _MOST_KEPT))):
        try:
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return name
    raise OSError(errno.EEXIST, f"{_MOST_KEPT} old ones lie beside it already")


def _write_new(folder: int, name: str, text: str) -> None:
    """On disk when this returns. FileExistsError if it is there."""
    handle = os.open(name, _NEW, 0o666, dir_fd=folder)
    with open(handle, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
