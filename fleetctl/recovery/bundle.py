"""Packs what is known of a run into one archive for a person who looks into it.

The folder may be another user's: each file is opened without following links, must be a plain file, and is bounded.
Nothing of what the training got as its environment is in it, and never the env_file.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import stat
import tarfile
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from fleetctl.errors import FleetctlError, RunDirError, UsageError
from fleetctl.recovery.redact import from_whole_line, redact, redact_spec
from fleetctl.rundir.model import attempt_number

MOST_BYTES = 64 << 20  # of all members: what an issue tracker or a mail takes after compression
_END_BYTES = 1 << 20  # of a log
_FILE_BYTES = 4 << 20  # of any other file
_MOST_FILES = 400
_ATTEMPTS = 5  # the newest
_LOGS = 6
_OF_RUN = ("run.json", "pulse.json", "word.json")
# head.json is left out: it says where agents find the head. env_file and script are no files of an attempt
_OF_ATTEMPT = ("owner.json", "claim.json", "resume.json", "seen.json", "interval.json", "progress.json", "load.json")
_LINES = ("saves.jsonl",)
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Member(Struct, frozen=True):
    """One file of the archive."""

    name: str
    data: bytes


class Rules(Struct, frozen=True):
    """Values that must not stand in a member, and to whom each file must belong: a folder's owner can give it a
    second name of anybody's file."""

    known: Collection[str]
    uid: int


class Unread(Struct, frozen=True):
    """What should be there and is not: why."""

    name: str
    why: str


def gather(run: Path, known: Collection[str]) -> Iterator[Member | Unread]:
    """What lies in the run's folder, without secrets. `known` are values that must not stand in it."""
    with run_folder(run) as root:
        yield from _of_folder(root, Rules(known, os.fstat(root).st_uid))


@contextlib.contextmanager
def run_folder(run: Path) -> Iterator[int]:
    """:raises RunDirError: it is no folder, or a link, or not for us."""
    try:
        root = os.open(run, _FLAGS | os.O_DIRECTORY)
    except OSError as error:
        raise RunDirError(f"cannot read {run}: {error.strerror}") from None
    try:
        yield root
    finally:
        os.close(root)


def _of_folder(root: int, rules: Rules) -> Iterator[Member | Unread]:
    for name in _OF_RUN:
        yield from _text(root, name, name, rules)
    yield from _spec(root, rules)
    yield from _each(root, "events", rules, _FILE_BYTES)
    yield from _each(root, "logs", rules, _END_BYTES, newest=_LOGS)
    yield from _attempts(root, "", rules)
    for index in sorted(_names(root, "tasks"), key=lambda name: (len(name), name))[:_MOST_FILES]:
        if index.isascii() and index.isdigit():
            with _below(root, f"tasks/{index}") as task:
                if task is not None:
                    yield from _text(task, "word.json", f"tasks/{index}/word.json", rules)
                    yield from _attempts(task, f"tasks/{index}/", rules)


def _attempts(folder: int, prefix: str, rules: Rules) -> Iterator[Member | Unread]:
    numbers = sorted(number for name in _names(folder, "attempts") if (number := attempt_number(name)) is not None)
    for number in numbers[-_ATTEMPTS:]:
        name = f"attempts/{number[0]}.{number[1]}"
        with _below(folder, name) as attempt:
            if attempt is None:
                continue
            for one in (*_OF_ATTEMPT, *_LINES):
                yield from _text(attempt, one, f"{prefix}{name}/{one}", rules)
            yield from _text(attempt, "output.log", f"{prefix}{name}/output.log", rules, _END_BYTES)
            yield from _each(attempt, "evidence", rules, _END_BYTES, prefix=f"{prefix}{name}/")


def _each(
    folder: int, name: str, rules: Rules, most: int, *, newest: int = _MOST_FILES, prefix: str = ""
) -> Iterator[Member | Unread]:
    """The files of a folder, of many the newest."""
    with _below(folder, name) as inner:
        if inner is None:
            return
        for one in _by_age(inner)[-newest:]:
            yield from _text(inner, one, f"{prefix}{name}/{one}", rules, most)


def _text(folder: int, name: str, shown: str, rules: Rules, most: int = _FILE_BYTES) -> Iterator[Member | Unread]:
    """A file's end, as text without secrets; nothing where there is none."""
    try:
        raw, is_cut = read_end(folder, name, most, rules.uid)
    except FileNotFoundError:
        return
    except OSError as error:
        yield Unread(shown, error.strerror or str(error))
        return
    text = raw.decode("utf-8", "surrogateescape")
    text = redact(from_whole_line(text) if is_cut else text, rules.known)
    yield Member(shown, text.encode("utf-8", "surrogateescape"))


def _spec(root: int, rules: Rules) -> Iterator[Member | Unread]:
    """spec.json, not the file as its user wrote it: there environment variables can stand anywhere."""
    try:
        spec = redact_spec(json.loads(read_end(root, "spec.json", _FILE_BYTES, rules.uid)[0]), rules.known)
        yield Member("spec.json", (json.dumps(spec, indent=1) + "\n").encode())
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError) as error:
        yield Unread("spec.json", str(error))


def read_end(folder: int, name: str, most: int, uid: int) -> tuple[bytes, bool]:
    """The last bytes of a plain file of this owner, in a folder that is open, and whether more stand before them.

    :raises OSError: it is not there, is a link or no plain file, is somebody else's, or cannot be read.
    """
    handle = os.open(name, _FLAGS, dir_fd=folder)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{name} is no plain file")
        if found.st_uid != uid:
            raise OSError(f"it belongs to uid {found.st_uid}, and the run's folder to uid {uid}")
        os.lseek(handle, max(0, found.st_size - most), os.SEEK_SET)
        parts, left = list[bytes](), most
        while left > 0 and (part := os.read(handle, min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts), found.st_size > most
    finally:
        os.close(handle)


def read_object(root: int, name: str) -> dict[str, Any]:
    """A JSON object of a run's folder that is open; {}: there is none that can be read."""
    try:
        found = json.loads(read_end(root, name, _FILE_BYTES, os.fstat(root).st_uid)[0])
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def _below(folder: int, path: str) -> Iterator[int | None]:
    """A folder below, through no link; None: it is not there, or not for us."""
    here = _opened(folder, path)
    try:
        yield here
    finally:
        if here is not None:
            os.close(here)


def _opened(folder: int, path: str) -> int | None:
    here = os.dup(folder)
    for part in path.split("/"):
        try:
            inner = os.open(part, _FLAGS | os.O_DIRECTORY, dir_fd=here)
        except OSError:
            return None
        finally:
            os.close(here)
        here = inner
    return here


def _names(folder: int, name: str) -> list[str]:
    with _below(folder, name) as inner:
        return [] if inner is None else sorted(os.listdir(inner))


def _by_age(folder: int) -> list[str]:
    """The newest last; names that cannot be looked at are left out."""
    found = list[tuple[float, str]]()
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            found.append((os.lstat(name, dir_fd=folder).st_mtime, name))
    return [name for _, name in sorted(found)]


def document(name: str, value: object, known: Collection[str]) -> Member:
    """A member that we made, as JSON."""
    return Member(name, redact(json.dumps(value, indent=1, default=str) + "\n", known).encode("ascii", "replace"))


def pack(path: Path, folder: str, found: Iterable[Member | Unread], at: datetime) -> tuple[list[str], list[Unread]]:
    """Write the archive: whole or not at all, for its owner alone. What is in it, and what is not.

    :raises UsageError: the file is there already.
    :raises FleetctlError: it cannot be written.
    """
    staged = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    names, unread, left = list[str](), list[Unread](), MOST_BYTES
    try:
        handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for one in found:
                if isinstance(one, Unread):
                    unread.append(one)
                elif len(one.data) > left:
                    unread.append(Unread(one.name, "the bundle is full"))
                else:
                    left -= len(one.data)
                    names.append(one.name)
                    _add(archive, f"{folder}/{one.name}", one.data, at)
            told = "".join(f"{one.name}: {one.why}\n" for one in unread) or "nothing\n"
            _add(archive, f"{folder}/LEFT_OUT", told.encode("utf-8", "surrogateescape"), at)
        os.link(staged, path)  # unlike a rename, never over what is there
    except FileExistsError:
        raise UsageError(f"{path} is there already", remedy="-o FILE names another one") from None
    except OSError as error:
        raise FleetctlError(f"cannot write {path}: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(staged)
    return names, unread


def _add(archive: tarfile.TarFile, name: str, data: bytes, at: datetime) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(data), 0o600, int(at.timestamp())
    archive.addfile(info, io.BytesIO(data))
