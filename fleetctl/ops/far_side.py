"""What `fleetctl node install` runs on a node: this text and far_trust's are sent there, to the node's own Python.

Standard library only, Python 3.9 and newer. stdin has one line of JSON, the order, then the packed files; the answer
is one line on stdout after MARK. Whatever happens to it, `current` names a whole release or nothing.
"""

from __future__ import annotations

import base64
import compileall
import contextlib
import fcntl
import hashlib
import json
import os
import py_compile
import re
import shutil
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from fleetctl.ops.far_trust import Refused, check_login, check_owners, try_script

MARK = "fleetctl-far-side "
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_SCRIPT = re.compile(r"(prolog|epilog)/fleetctl-[a-z]+\.sh")  # what Slurm is told to run
_MODES = (0o644, 0o755)
NAME_DIGITS = 16  # of a digest, in the name of its release: enough to tell a site's releases apart
SHOWN_TEXTS = ("site.json", "profile.json", "python")  # what people write
_MOST_TEXT = 1 << 18

File = tuple[str, int, bytes]  # path inside the bundle, mode, content


def digest_of(files: Iterable[File]) -> str:
    """SHA-256 over paths, modes and contents, in hex."""
    rows = sorted((path, mode, hashlib.sha256(content).hexdigest()) for path, mode, content in files)
    text = "".join(f"{mode:o} {sha} {path}\n" for path, mode, sha in rows)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def unpack(packed: bytes) -> list[File]:
    """:raises Refused: cut off, or a path that leads out of the bundle."""
    try:
        rows = json.loads(zlib.decompress(packed))
        files = [(str(path), int(mode), base64.b64decode(content)) for path, mode, content in rows]
    except (ValueError, TypeError, zlib.error):
        raise Refused("the bundle did not arrive whole") from None
    for path, mode, _ in files:
        if _NAME.fullmatch(path) is None or mode not in _MODES:
            raise Refused(f"the bundle holds {path!r} with mode {mode:o}")
    return files


def files_in(folder: str) -> list[File]:
    """The files of a release, without what Python compiled; links and other oddities count, so that they show."""
    files = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names + [name for name in folders if os.path.islink(os.path.join(place, name))]:
            path = os.path.join(place, name)
            mode, content = os.lstat(path).st_mode, b""
            if stat.S_ISREG(mode):
                with open(path, "rb") as file:
                    mode, content = stat.S_IMODE(mode), file.read()
            files.append((os.path.relpath(path, folder), mode, content))
    return files


def look(prefix: str) -> dict[str, Any]:
    """What is installed: the names of `current` and `previous`, and what current's files are."""
    current = _linked(prefix, "current")
    files = files_in(os.path.join(prefix, "releases", current)) if current else []
    return {
        "current": current,
        "previous": _linked(prefix, "previous"),
        "digest": digest_of(files) if current else None,
        "files": {path: hashlib.sha256(content).hexdigest() for path, _, content in files},
        "texts": {
            path: content.decode("utf-8", "replace")
            for path, _, content in files
            if path in SHOWN_TEXTS and len(content) <= _MOST_TEXT
        },
    }


def install(prefix: str, digest: str, packed: bytes, python: str, keep: int) -> dict[str, Any]:
    """Make the bundle a release and switch `current` to it, unless it is there already.

    :raises Refused: nothing was switched.
    """
    check_owners(python)
    check_owners(prefix)
    releases = os.path.join(prefix, "releases")
    os.makedirs(releases, exist_ok=True)
    with _locked(prefix):
        check_owners(releases)
        _sweep(releases)
        before = _linked(prefix, "current")
        if before and before.startswith(digest[:NAME_DIGITS]) and _is(releases, before, digest):
            return {"outcome": "same", "before": before, "after": before}
        name = _ready(releases, digest)
        if name is None:
            name = _free_name(releases, digest)
            _write_release(releases, name, digest, unpack(packed))
        os.utime(os.path.join(releases, name))  # the newest now
        _switch(prefix, before, name)
        _prune(prefix, releases, keep)
        return {"outcome": "installed", "before": before, "after": name}


def roll_back(prefix: str) -> dict[str, Any]:
    """Switch `current` to what it was before; again, and it goes forward.

    :raises Refused: there is no whole release to go back to.
    """
    check_owners(prefix)
    with _locked(prefix):
        before, name = _linked(prefix, "current"), _linked(prefix, "previous")
        if name is None or name == before:
            raise Refused("there is no earlier release to go back to")
        folder = os.path.join(prefix, "releases", name)
        if not digest_of(files_in(folder)).startswith(name.partition(".")[0]):
            raise Refused(f"the earlier release {name} is damaged", "install the wanted one instead")
        _switch(prefix, before, name)
        return {"outcome": "rolled_back", "before": before, "after": name}


def _write_release(releases: str, name: str, digest: str, files: list[File]) -> None:
    """A whole, compiled, tried and synced release under its name, or none."""
    folder = os.path.join(releases, f"{name}.tmp-{os.getpid()}")
    os.mkdir(folder)
    try:
        for path, mode, content in files:
            _write(os.path.join(folder, path), mode, content)
        if digest_of(files_in(folder)) != digest:
            raise Refused("the bundle did not arrive whole")
        _compile(folder, os.path.join(releases, name))
        for script in sorted(path for path, mode, _ in files if _SCRIPT.fullmatch(path) and mode == 0o755):
            try_script(folder, script)
        for place, _, names in os.walk(folder):
            for path in [place] + [os.path.join(place, name) for name in names]:
                _sync(path)
        os.rename(folder, os.path.join(releases, name))
        _sync(releases)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write(path: str, mode: int, content: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(fd, "wb") as file:
        os.fchmod(fd, mode)
        file.write(content)


def _compile(folder: str, later: str) -> None:
    """Once here, not in each prolog. A release never changes, so that nobody need compare with the source."""
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    if not compileall.compile_dir(folder, quiet=2, stripdir=folder, prependdir=later, invalidation_mode=unchecked):
        raise Refused("the node checks do not compile with this Python")


def _switch(prefix: str, before: str | None, name: str) -> None:
    if before is not None and before != name:
        _point(prefix, "previous", before)
    _point(prefix, "current", name)


def _point(prefix: str, link: str, name: str) -> None:
    """By rename(2): whoever looks sees the old release or the new one."""
    fresh = os.path.join(prefix, f".{link}.new")
    with contextlib.suppress(FileNotFoundError):  # left by one that was killed
        os.unlink(fresh)
    os.symlink(os.path.join("releases", name), fresh)
    os.rename(fresh, os.path.join(prefix, link))
    _sync(prefix)


def _linked(prefix: str, link: str) -> str | None:
    """The name of the release that a link points to; None where there is none."""
    try:
        name = os.path.basename(os.readlink(os.path.join(prefix, link)))
    except OSError:
        return None
    return name if os.path.isdir(os.path.join(prefix, "releases", name)) else None


def _ready(releases: str, digest: str) -> str | None:
    """A whole release of this digest that is there from earlier."""
    names = (name for name in sorted(os.listdir(releases)) if name.partition(".")[0] == digest[:NAME_DIGITS])
    return next((name for name in names if _is(releases, name, digest)), None)


def _is(releases: str, name: str, digest: str) -> bool:
    return digest_of(files_in(os.path.join(releases, name))) == digest


def _free_name(releases: str, digest: str) -> str:
    """The digest, with a number where a damaged release has that name: `current` may point there."""
    plain, number = digest[:NAME_DIGITS], 0
    while os.path.lexists(os.path.join(releases, plain if number == 0 else f"{plain}.{number}")):
        number += 1
    return plain if number == 0 else f"{plain}.{number}"


def _sweep(releases: str) -> None:
    """Halves of installs that were killed. The lock says that none is at work."""
    for name in os.listdir(releases):
        if ".tmp-" in name:
            shutil.rmtree(os.path.join(releases, name), ignore_errors=True)


def _prune(prefix: str, releases: str, keep: int) -> None:
    """Keep the newest `keep`, with those that the links name."""
    named = {_linked(prefix, "current"), _linked(prefix, "previous")}
    others = [name for name in os.listdir(releases) if name not in named]
    others.sort(key=lambda name: os.lstat(os.path.join(releases, name)).st_mtime, reverse=True)
    for name in others[max(keep - len(named - {None}), 0) :]:
        shutil.rmtree(os.path.join(releases, name), ignore_errors=True)


@contextlib.contextmanager
def _locked(prefix: str) -> Iterator[None]:
    """One install at a time on a node. The lock ends with its process.

    :raises Refused: another is at work, or nothing was ever installed.
    """
    try:
        fd = os.open(os.path.join(prefix, "releases"), os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        raise Refused(f"nothing is installed in {prefix}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Refused("another install is at work on this node", "try again when it is done") from None
    finally:
        os.close(fd)


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def obey(order: dict[str, Any], packed: bytes) -> dict[str, Any]:
    """Carry out one order; a refusal is an answer, too."""
    os.umask(0o022)
    try:
        if order["verb"] == "look":
            return look(order["prefix"])
        check_login()
        if order["verb"] == "roll_back":
            return roll_back(order["prefix"])
        return install(order["prefix"], order["digest"], packed, sys.executable, order["keep"])
    except Refused as refusal:
        return {"error": refusal.words, "remedy": refusal.remedy}
    except OSError as error:
        return {"error": f"{error.filename or order['prefix']}: {error.strerror}", "remedy": ""}


def main(stdin: BinaryIO) -> None:
    """What a node runs."""
    order = json.loads(stdin.readline())
    sys.stdout.write("\n" + MARK + json.dumps(obey(order, stdin.read())) + "\n")
