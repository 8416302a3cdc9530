"""Whether root may run on this node what an install brings: who owns it, and whether it starts. Sent with far_side.

Standard library only, Python 3.9 and newer.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import stat
import time
from collections.abc import Callable

_TRY_S = 20.0  # a script that says its version: a busy node takes a second
_MOST_SAID = 4096
_VERSION = re.compile(r"fleetctl [0-9]\S*\n")


class Refused(Exception):
    """Nothing was switched; the words say why, `remedy` what to do."""

    def __init__(self, words: str, remedy: str = "") -> None:
        super().__init__(words)
        self.words, self.remedy = words, remedy


def check_login() -> None:
    """:raises Refused: Slurm runs as root what would belong to somebody else."""
    if os.geteuid() != 0:
        words = f"this login is user {os.geteuid()}, but Slurm runs the checks as root, and only from files of root"
        raise Refused(words, "--user root; there is no way by sudo")


def check_owners(path: str) -> None:
    """:raises Refused: somebody else could put code of his own where this path leads: root would run it."""
    for seen in sorted({os.path.abspath(path), os.path.realpath(path)}):
        _check_owner(seen, stat.S_ISLNK)
        while seen != os.path.dirname(seen):
            seen = os.path.dirname(seen)
            # In a sticky folder, such as /tmp, nobody renames what is another's
            _check_owner(seen, lambda mode: stat.S_ISLNK(mode) or bool(mode & stat.S_ISVTX))


def _check_owner(path: str, may_be_writable: Callable[[int], bool]) -> None:
    if not os.path.lexists(path):
        return
    status = os.lstat(path)
    if status.st_uid not in (0, os.geteuid()):
        raise Refused(f"{path} belongs to user {status.st_uid}, who could change what root runs", f"chown root {path}")
    if status.st_mode & 0o022 and not may_be_writable(status.st_mode):
        raise Refused(f"others can write {path}, and so change what root runs", f"chmod go-w {path}")


def try_script(folder: str, name: str) -> None:
    """Run a script as Slurm would, without PATH and environment, to say its version only.

    :raises Refused: it cannot be run there, or had anything else to say. Slurm drains a node whose prolog cannot run.
    """
    path = os.path.join(folder, name)
    try:
        ended, said = _run(path)
    except OSError as error:
        is_barred = isinstance(error, PermissionError)
        mounted = "is it mounted with noexec? --prefix names another place" if is_barred else ""
        raise Refused(f"{name} cannot be run in {os.path.dirname(folder)}: {error.strerror}", mounted) from None
    if ended != 0 or _VERSION.fullmatch(said) is None:
        lines = [line.strip() for line in said.splitlines() if line.strip()] or [_end(ended)]
        raise Refused(f"{name} does not run here: {lines[0][:300]}".replace(folder, "its release"))


def _run(path: str) -> tuple[int | None, str]:
    """Its wait status, None where it did not end in time, and what it printed."""
    reader, writer = os.pipe()
    try:
        with open(os.devnull, "rb") as nothing:
            onto = [(os.POSIX_SPAWN_DUP2, nothing.fileno(), 0)]
            onto += [(os.POSIX_SPAWN_DUP2, writer, number) for number in (1, 2)]
            child = os.posix_spawn(path, [path, "--version"], {}, file_actions=onto, setpgroup=0)
        os.close(writer)
        writer = -1
        said = _read(reader, time.monotonic() + _TRY_S)
        if said is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        ended = os.waitpid(child, 0)[1]
        return (None, "") if said is None else (ended, said.decode("utf-8", "replace"))
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)


def _read(reader: int, deadline: float) -> bytes | None:
    """All that comes until the end; None where that is not in time."""
    said = b""
    while select.select([reader], [], [], max(deadline - time.monotonic(), 0))[0]:
        part = os.read(reader, _MOST_SAID)
        if not part:
            return said
        said = (said + part)[:_MOST_SAID]
    return None


def _end(ended: int | None) -> str:
    if ended is None:
        return f"it did not end within {_TRY_S:g} s"
    return f"a signal ended it ({os.WTERMSIG(ended)})" if os.WIFSIGNALED(ended) else f"status {os.WEXITSTATUS(ended)}"
