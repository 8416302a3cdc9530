"""The one place that starts subprocesses.

A program is an argument vector, never a shell line. A run that did not end in time raises; a program that is
missing raises; an exit status is a value.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fleetctl.errors import ProcessTimeout, ProgramMissing

Child = subprocess.Popen  # for annotations elsewhere: subprocess itself is banned there


@dataclass(frozen=True, slots=True)
class Completed:
    """A program that ended by itself; text is decoded as UTF-8, foreign bytes kept as surrogates."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
) -> Completed:
    """Run `argv` to its end in a session of its own, so that a terminal's Ctrl-C does not reach it.

    :raises ProgramMissing: no such program.
    :raises ProcessTimeout: not ended after `timeout_s`; its process group was killed.
    """
    child = _start(
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        out, err = child.communicate(None if stdin is None else stdin.encode(), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _kill_session(child)
        raise ProcessTimeout(f"{argv[0]} did not end within {timeout_s:g} s") from None
    except BaseException:
        _kill_session(child)
        raise
    return Completed(tuple(argv), child.returncode, _text(out), _text(err))


def run_into_files(argv: Sequence[str], *, stdout: Path, stderr: Path, env: Mapping[str, str], cwd: Path) -> int:
    """Run `argv` to its end in its own session, writing straight into files.

    What it printed survives our own death, and our death or Ctrl-C does not end it: the caller bounds it
    (coreutils `timeout`). Returns the exit status, negative for a signal.
    """
    with open(stdout, "xb") as out, open(stderr, "xb") as err:
        child = _start(argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    return child.wait()


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: Path | None = None,
    stdin: Path | None = None,
    session: bool = True,
) -> subprocess.Popen[bytes]:
    """Start `argv` and return at once; output is appended to `log`, or shared with ours when None. It reads `stdin`.

    `session=False` keeps the child in our process group, so that the group's signals reach it too.
    """
    with open(stdin or os.devnull, "rb") as source:
        if log is None:
            return _start(argv, env=env, cwd=cwd, stdin=source, stdout=None, stderr=None, session=session)
        with open(log, "ab") as out:
            return _start(argv, env=env, cwd=cwd, stdin=source, stdout=out, stderr=out, session=session)


class Piped:
    """A child in a session of its own that reads lines and writes lines. It may hang for ever: nobody waits for it."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child

    @property
    def pid(self) -> int:
        return self._child.pid

    def send(self, line: bytes) -> None:
        """:raises OSError: it has ended."""
        assert self._child.stdin is not None, "start_piped makes it"
        self._child.stdin.write(line)

    def receive(self, timeout_s: float) -> bytes:
        """What it wrote since; b"" when it has ended.

        :raises ProcessTimeout: nothing for `timeout_s`.
        """
        assert self._child.stdout is not None, "start_piped makes it"
        ready = select.poll()
        ready.register(self._child.stdout, select.POLLIN)
        if not ready.poll(timeout_s * 1000):
            raise ProcessTimeout(f"{self._child.args!r} wrote nothing for {timeout_s:g} s")
        return os.read(self._child.stdout.fileno(), _PIPE_BYTES)

    def end(self, grace_s: float = 0.0) -> int | None:
        """Kill it, unless it ends by itself within `grace_s`. Its status, negative for a signal.

        None where it cannot die now, held up in the kernel: it ends with what holds it up, a zombie until we end.
        """
        status = self._status(grace_s) if grace_s else None
        if status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            status = self._status(_DYING_S)
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        if status is None:
            self._child.returncode = -signal.SIGKILL  # or its destructor would complain
        return status

    def _status(self, timeout_s: float) -> int | None:
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None


def start_piped(argv: Sequence[str], env: Mapping[str, str] | None = None) -> Piped:
    """Start a child to talk with. What it writes to stderr is lost.

    :raises ProgramMissing: no such program.
    """
    pipe, lost = subprocess.PIPE, subprocess.DEVNULL
    return Piped(_start(argv, env=env, cwd=None, stdin=pipe, stdout=pipe, stderr=lost, unbuffered=True))


_PIPE_BYTES = 1 << 16  # what a pipe of Linux holds
_DYING_S = 0.5  # milliseconds, unless the kernel holds it


class Detached:
    """A daemon-to-be: forked, in a session of its own, no child of ours, waiting to be allowed to run."""

    def __init__(self, pid: int, gate_fd: int) -> None:
        self.pid = pid
        self._gate_fd = gate_fd

    def release(self) -> None:
        """Let it run. Write down its pid first: if we die before this call, the program never starts."""
        try:
            os.write(self._gate_fd, b"go\n")
        finally:
            os.close(self._gate_fd)

    def abandon(self) -> None:
        """It ends without having run; so it does when we die before `release`."""
        os.close(self._gate_fd)


def start_detached(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path) -> Detached:
    """Fork a program that outlives us, held back until `release`; its pid is known before it does anything.

    The holding shell becomes the program by exec, so pid and start time stay. Output is appended to `log`.
    """
    gate_read, gate_write = os.pipe()
    held = ["setsid", "--fork", "sh", "-c", _HELD, "sh", *argv]
    try:
        with open(log, "ab") as out:
            child = _start(held, env=env, cwd=cwd, stdin=gate_read, stdout=subprocess.PIPE, stderr=out, session=False)
    except BaseException:
        os.close(gate_write)
        raise
    finally:
        os.close(gate_read)
    first, _ = child.communicate()
    return Detached(int(first), gate_write)


_HELD = 'echo $$; exec >&2; read -r go || exit 1; exec "$@" </dev/null'


def _start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None,
    cwd: Path | None,
    stdin: int | IO[bytes] | None,
    stdout: int | IO[bytes] | None,
    stderr: int | IO[bytes] | None,
    session: bool = True,
    unbuffered: bool = False,
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(argv),
            env=None if env is None else dict(env),
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=session,
            bufsize=0 if unbuffered else -1,
        )
    except (FileNotFoundError, PermissionError) as error:
        if error.filename != argv[0]:
            raise
        raise ProgramMissing(f"{argv[0]}: {error.strerror}") from None


def _kill_session(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
