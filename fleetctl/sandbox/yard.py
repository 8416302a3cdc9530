"""A sandbox directory at work: starts programs so that each is written down before it runs, and asks them questions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from fleetctl import process
from fleetctl.clock import Clock
from fleetctl.errors import ProcessTimeout, SandboxError
from fleetctl.sandbox import procs, state
from fleetctl.sandbox.procs import Proc
from fleetctl.sandbox.site import search_path

_PROBE_POLL_S = 0.05
_ASK_TIMEOUT_S = 5.0
_TAIL_LINES = 4
_TAIL_BYTES = 8192


class Yard:
    """The directory, the clock and the current state, which is saved with every change."""

    def __init__(self, directory: Path, clock: Clock, current: state.State) -> None:
        self.directory = directory
        self.clock = clock
        self.state = current
        self._refusal = ""

    def save(self, changed: state.State) -> None:
        state.save(self.directory, changed)
        self.state = changed

    def refresh(self) -> None:
        """Read what another fleetctl changed meanwhile.

        :raises SandboxError: the sandbox was taken down.
        """
        found = state.load(self.directory)
        if found is None:
            raise SandboxError(f"no sandbox is up in {self.directory}", remedy="fleetctl sandbox up")
        self.state = found

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Change something: alone, and knowing what others did before."""
        with state.locked(self.directory, self.clock):
            self.refresh()
            yield

    def path(self, *parts: str) -> Path:
        return self.directory.joinpath(*parts)

    def env(self) -> dict[str, str]:
        return {
            "PATH": search_path(),
            "HOME": str(self.directory),
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(self.path("etc", "slurm.conf")),
            "MYSQL_UNIX_PORT": str(self.path("run", "mysql.sock")),
        }

    def launch(self, name: str, argv: list[str]) -> Proc:
        """Start a daemon that outlives us; it runs only after its pid is on disk."""
        held = process.start_detached(argv, env=self.env(), cwd=self.directory, log=self.path("log", f"{name}.out"))
        try:
            stat = procs.stat_of(held.pid)
            if stat is None:
                raise SandboxError(f"{name} died before it ran{self.tail(name)}")
            self.save(self.state.started(name, stat.proc))
        except BaseException:
            held.abandon()
            raise
        held.release()
        return stat.proc

    def ask(
        self, argv: list[str], *, stdin: str | None = None, more_env: Mapping[str, str] | None = None
    ) -> str | None:
        """What a client program printed; None when it failed or did not answer in time."""
        env = {**self.env(), **(more_env or {})}
        try:
            done = process.run(argv, timeout_s=_ASK_TIMEOUT_S, env=env, cwd=self.directory, stdin=stdin)
        except ProcessTimeout as error:
            self._refusal = error.message
            return None
        self._refusal = "" if done.returncode == 0 else f"{argv[0]} says: {_ending(done.stderr or done.stdout)}"
        return done.stdout if done.returncode == 0 else None

    def must(self, argv: list[str], *, timeout_s: float, more_env: Mapping[str, str] | None = None) -> None:
        """Run a set-up step to its end.

        :raises SandboxError: it failed; its own words are in the message.
        """
        done = process.run(argv, timeout_s=timeout_s, env={**self.env(), **(more_env or {})}, cwd=self.directory)
        if done.returncode != 0:
            words = _ending(done.stderr or done.stdout)
            raise SandboxError(f"{' '.join(argv[:3])} failed with {done.returncode}: {words}")

    def alive(self, name: str) -> bool:
        """False also when the machine was booted since: every pid of then is another's now."""
        proc = self.state.processes.get(name)
        return proc is not None and self.state.boot_id == procs.boot_id() and procs.alive(proc)

    def await_answer(self, name: str, probe: Callable[[], bool], *, within_s: float) -> None:
        """Ask until the probe says yes.

        :raises SandboxError: the daemon died, or the time is over; the end of its log is in the message.
        """
        deadline_s = self.clock.monotonic_s() + within_s
        while not probe():
            if not self.alive(name):
                raise SandboxError(f"{name} died while starting{self.tail(name)}")
            if self.clock.monotonic_s() >= deadline_s:
                raise SandboxError(f"{name} did not answer within {within_s:g} s ({self._refusal}){self.tail(name)}")
            self.clock.sleep(_PROBE_POLL_S)

    def tail(self, name: str) -> str:
        """`; FILE ends: line | line` of the daemon's log, or of its output while it has no log."""
        for path in (self.path("log", f"{name}.log"), self.path("log", f"{name}.out")):
            words = _ending(_last_text(path))
            if words:
                return f"; {path} ends: {words}"
        return f"; it wrote nothing to {self.path('log')}"


def _ending(text: str) -> str:
    """The last lines as one."""
    return " | ".join(text.strip().splitlines()[-_TAIL_LINES:])


def _last_text(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
