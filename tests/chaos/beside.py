"""`fleetctl daemon run --act` beside a run that is being played, and what happens to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from types import TracebackType

from tests.chaos.scenario import Fault, Planned
from tests.chaos.stage import Did, Missed, Stage, chosen
from tests.support import BIN

OWN = frozenset({Fault.TWO_DAEMONS, Fault.DAEMON_KILLED, Fault.DAEMON_STOPPED})  # faults of the daemon
_EVERY = "2s"
_END_S = 30.0


class Daemons:
    """The daemons of one run, each a process; they share a database. None where the scenario has none."""

    def __init__(self, stage: Stage, *, count: int) -> None:
        self.stage, self.count = stage, count
        self.running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Daemons:
        for _ in range(self.count):
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for daemon in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(daemon.pid, signal.SIGCONT)
            daemon.terminate()
        for daemon in self.running:
            try:
                daemon.wait(_END_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def start(self) -> None:
        log = self.stage.folder / "daemon.log"
        database = str(self.stage.folder / "fleetctl.db")
        with open(log, "ab") as file:
            self.running.append(
                subprocess.Popen(
                    [str(BIN / "fleetctl"), "daemon", "run", "--act", "--every", _EVERY, "--database", database],
                    env=self.stage.training.cli.environ,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                )
            )

    def do(self, planned: Planned) -> Did | None:
        """A fault of the daemon's; None: it is none."""
        if planned.fault is Fault.TWO_DAEMONS:
            self.start()
            return Did("a second daemon is there")
        if planned.fault is Fault.DAEMON_KILLED:
            victim = self._alive(planned)
            victim.kill()
            return Did(f"daemon {victim.pid} is dead", self.start)
        if planned.fault is Fault.DAEMON_STOPPED:
            victim = self._alive(planned)
            os.kill(victim.pid, signal.SIGSTOP)
            return Did(f"daemon {victim.pid} stands still", lambda: _go_on(victim))
        return None

    def _alive(self, planned: Planned) -> subprocess.Popen[bytes]:
        alive: Sequence[subprocess.Popen[bytes]] = [daemon for daemon in self.running if daemon.poll() is None]
        if not alive:
            raise Missed("no daemon runs")
        return chosen(alive, planned.pick)


def _go_on(daemon: subprocess.Popen[bytes]) -> None:
    if daemon.poll() is None:
        os.kill(daemon.pid, signal.SIGCONT)
