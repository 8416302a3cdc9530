"""The daemons of a sandbox besides its nodes: each is started, then asked until it answers."""

from __future__ import annotations

import os
import signal

from fleetctl.errors import SandboxError
from fleetctl.sandbox import procs
from fleetctl.sandbox.yard import Yard

MUNGED, MARIADBD, SLURMDBD, SLURMCTLD = "munged", "mariadbd", "slurmdbd", "slurmctld"
ACCOUNT = "sandbox"
_KEY_BYTES = 128
_START_S = 30.0
_TERM_S = 10.0
_KILL_S = 5.0


def start_munged(yard: Yard) -> None:
    key, socket = yard.path("etc", "munge.key"), str(yard.path("run", "munge.sock"))
    with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(os.urandom(_KEY_BYTES))
    argv = ["munged", "--foreground", "--force", f"--socket={socket}", f"--key-file={key}", "--num-threads=10"]
    argv += [f"--pid-file={yard.path('run', 'munged.pid')}", f"--log-file={yard.path('log', 'munged.log')}"]
    yard.launch(MUNGED, [*argv, f"--seed-file={yard.path('run', 'munged.seed')}"])

    def answers() -> bool:
        credential = yard.ask(["munge", "--no-input", "--socket", socket])
        return credential is not None and yard.ask(["unmunge", "--socket", socket], stdin=credential) is not None

    yard.await_answer(MUNGED, answers, within_s=_START_S)


def start_mariadbd(yard: Yard) -> None:
    """A database of our own that only our user can enter, by its socket; there is no password and no port."""
    user, data = yard.state.site.user, yard.path("db")
    as_root = ["--user=root"] if os.geteuid() == 0 else []
    if not data.joinpath("mysql").is_dir():
        install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--skip-test-db", *as_root]
        method = ["--auth-root-authentication-method=socket", f"--auth-root-socket-user={user}"]
        # Each removes what others left in its temporary folder: two that begin at once would meet in /tmp
        yard.must([*install, *method], timeout_s=60, more_env={"TMPDIR": str(yard.path("run"))})
    socket = yard.path("run", "mysql.sock")
    argv = ["mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={socket}", "--skip-networking", *as_root]
    argv += [f"--pid-file={yard.path('run', 'mariadbd.pid')}", f"--log-error={yard.path('log', 'mariadbd.log')}"]
    yard.launch(MARIADBD, [*argv, f"--tmpdir={yard.path('run')}"])
    query = ["mariadb", "--no-defaults", f"--socket={socket}", f"--user={user}", "--execute=SELECT 1"]
    yard.await_answer(MARIADBD, lambda: yard.ask(query) is not None, within_s=_START_S)


def start_slurmdbd(yard: Yard) -> None:
    yard.launch(SLURMDBD, ["slurmdbd", "-D"])
    listing = ["sacctmgr", "--noheader", "--immediate", "list", "cluster"]
    yard.await_answer(SLURMDBD, lambda: yard.ask(listing) is not None, within_s=_START_S)


def register_cluster(yard: Yard) -> None:
    """The cluster, an account and our user as its administrator: what a site's admin does once."""
    cluster, user = yard.state.site.cluster, yard.state.site.user
    add = ["sacctmgr", "--immediate", "add"]
    yard.must([*add, "cluster", cluster], timeout_s=10)
    yard.must([*add, "account", ACCOUNT, f"cluster={cluster}"], timeout_s=10)
    # root is a user of every database from its birth, so it can only be modified into an administrator
    yard.must([*add, "user", user, f"account={ACCOUNT}", "adminlevel=Administrator"], timeout_s=10)
    modify = ["sacctmgr", "--immediate", "modify", "user", user, "set", f"defaultaccount={ACCOUNT}"]
    yard.must([*modify, "adminlevel=Administrator"], timeout_s=10)


def start_slurmctld(yard: Yard) -> None:
    yard.launch(SLURMCTLD, ["slurmctld", "-D"])
    yard.await_answer(SLURMCTLD, lambda: ctld_answers(yard), within_s=_START_S)


def ctld_answers(yard: Yard) -> bool:
    return "is UP" in (yard.ask(["scontrol", "ping"]) or "")


_START = {MUNGED: start_munged, MARIADBD: start_mariadbd, SLURMDBD: start_slurmdbd, SLURMCTLD: start_slurmctld}


class Daemon:
    """One daemon for fault tests: stop and cont are SIGSTOP and SIGCONT."""

    def __init__(self, yard: Yard, name: str) -> None:
        self._yard = yard
        self.name = name

    def alive(self) -> bool:
        return self._yard.alive(self.name)

    def stop(self) -> None:
        """Hang it; returns when it really stands still."""
        with self._yard.exclusive():
            proc = self._signal(signal.SIGSTOP)
        if not procs.wait_until(lambda: procs.stopped(proc), self._yard.clock, within_s=_KILL_S):
            raise SandboxError(f"{self.name} did not stop within {_KILL_S:g} s")

    def cont(self) -> None:
        with self._yard.exclusive():
            self._signal(signal.SIGCONT)

    def kill(self) -> None:
        with self._yard.exclusive():
            proc = self._signal(signal.SIGKILL)
        if not procs.wait_gone([proc], self._yard.clock, within_s=_KILL_S):
            raise SandboxError(f"{self.name} outlived SIGKILL for {_KILL_S:g} s")

    def start(self) -> None:
        """Start it again after kill, on the state that it left; nothing happens when it runs."""
        with self._yard.exclusive():
            if not self.alive():
                _START[self.name](self._yard)

    def _signal(self, number: signal.Signals) -> procs.Proc:
        proc = self._yard.state.processes.get(self.name)
        if proc is None or not self.alive() or not procs.send(proc, number):
            raise SandboxError(f"{self.name} is not running{self._yard.tail(self.name)}")
        return proc


def end(yard: Yard, name: str) -> None:
    """TERM, then KILL; a process that is not the one we started is left alone.

    :raises SandboxError: it outlived SIGKILL.
    """
    if yard.alive(name) and not procs.end(yard.state.processes[name], yard.clock, term_s=_TERM_S, kill_s=_KILL_S):
        raise SandboxError(f"{name} (pid {yard.state.processes[name].pid}) outlived SIGKILL", remedy="try down again")
