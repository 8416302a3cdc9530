"""A sandbox as a whole: up, down, status. Whatever happened before, `up` and `down` find a way out."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fleetctl.clock import Clock
from fleetctl.errors import SandboxError
from fleetctl.sandbox import daemons, nodes, procs, site, state
from fleetctl.sandbox.daemons import MARIADBD, MUNGED, SLURMCTLD, SLURMDBD, Daemon
from fleetctl.sandbox.model import SandboxConfig, checked
from fleetctl.sandbox.nodes import Node
from fleetctl.sandbox.yard import Yard

_WIPE_S = 15.0
_SLURM_VARIABLES = ("SLURM", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SACCT_")
Say = Callable[[str], None]
_CORE = (SLURMCTLD, SLURMDBD, MARIADBD, MUNGED)  # in the order in which they end, after and around the nodes


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """`slurmd` is running, killed, frozen, cut or died; `slurm` is slurmctld's word, None when it does not answer."""

    name: str
    slurmd: str
    slurm: str | None


@dataclass(frozen=True, slots=True)
class Status:
    """`dead` names the daemons that ended although nobody asked."""

    slurm_conf: str
    nodes: tuple[NodeStatus, ...]
    dead: tuple[str, ...]
    answers: bool


class Sandbox:
    """A running sandbox. Several processes may hold it, one thread of each."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self.directory = yard.directory
        self.slurm_conf = yard.path("etc", "slurm.conf")
        self.config = yard.state.config
        self.ctld = Daemon(yard, SLURMCTLD)
        self.dbd = Daemon(yard, SLURMDBD)

    def node(self, name: str) -> Node:
        return Node(self._yard, name)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` pointed at this sandbox, free of any other Slurm's variables."""
        kept = {key: value for key, value in base.items() if not key.startswith(_SLURM_VARIABLES)}
        return {**kept, "SLURM_CONF": str(self.slurm_conf)}

    def status(self) -> Status:
        self._yard.refresh()
        view = nodes.slurm_view(self._yard)
        rows = tuple(self._node_status(name, view) for name in self.config.node_names())
        dead = tuple(name for name in _core(self.config) if not self._yard.alive(name))
        dead += tuple(row.name for row in rows if row.slurmd == "died")
        return Status(str(self.slurm_conf), rows, dead, view is not None)

    def _node_status(self, name: str, view: Mapping[str, Mapping[str, str]] | None) -> NodeStatus:
        order = self._yard.state.orders.get(name)
        gone = "killed" if order == nodes.KILLED else "died"
        slurmd = (order or "running") if self._yard.alive(name) else gone
        return NodeStatus(name, slurmd, None if view is None else view.get(name, {}).get("State"))

    def down(self) -> None:
        """End every process of the sandbox and remove all but its logs."""
        with self._yard.exclusive():
            _sweep(self._yard)


def up(config: SandboxConfig, directory: Path, clock: Clock, say: Say = lambda line: None) -> Sandbox:
    """Start a sandbox in `directory`, or find the one that runs there.

    :raises SandboxError: something is missing or died; whatever had been started is ended.
    :raises UsageError: no sandbox can be like that.
    """
    checked(config)
    directory = site.checked_directory(directory, config)
    version = site.slurm_version(config)
    site.claim_directory(directory)
    with state.locked(directory, clock):
        found = state.load(directory)
        if found is not None:
            running = _running(Yard(directory, clock, found), config, say)
            if running is not None:
                return running
        _wipe(directory, clock)
        where = site.survey(config, directory, version)
        yard = Yard(directory, clock, state.State(procs.boot_id(), state.STARTING, config, where))
        try:
            _start(yard, say)
        except BaseException:
            _sweep(yard, keep_files=True)
            raise
        return Sandbox(yard)


def find(directory: Path, clock: Clock) -> Sandbox:
    """The sandbox that runs in `directory`.

    :raises SandboxError: none does.
    """
    directory = directory.absolute()
    found = state.load(directory)
    if found is None:
        raise SandboxError(f"no sandbox is up in {directory}", remedy="fleetctl sandbox up")
    yard = Yard(directory, clock, found)
    if found.phase != state.UP or not any(map(yard.alive, _core(found.config))):
        raise SandboxError(
            f"the sandbox in {directory} was not taken down cleanly", remedy="fleetctl sandbox up, or down"
        )
    return Sandbox(yard)


def down(directory: Path, clock: Clock) -> bool:
    """End whatever a sandbox left running in `directory`, however it came about. False: there was none."""
    directory = directory.absolute()
    if state.load(directory) is None:
        return False
    with state.locked(directory, clock):
        found = state.load(directory)
        if found is not None:
            _sweep(Yard(directory, clock, found))
    return True


def _running(yard: Yard, config: SandboxConfig, say: Say) -> Sandbox | None:
    """The sandbox found here when it is whole and as asked; None after what a crash left was cleaned up."""
    core = _core(yard.state.config)
    alive = [name for name in core if yard.alive(name)]
    if yard.state.phase != state.UP or not alive:
        say(f"Cleaning up a sandbox in {yard.directory} that was not taken down.")
        _sweep(yard)
        return None
    if len(alive) < len(core):
        dead = next(name for name in core if name not in alive)
        raise SandboxError(
            f"the sandbox in {yard.directory} lost its {dead}{yard.tail(dead)}", remedy="take it down first"
        )
    if yard.state.config != config:
        raise SandboxError(
            f"another sandbox is up in {yard.directory}, with other options", remedy="take it down first, or use --dir"
        )
    say(f"The sandbox in {yard.directory} is up already.")
    return Sandbox(yard)


def _core(config: SandboxConfig) -> tuple[str, ...]:
    return _CORE if config.accounting else (SLURMCTLD, MUNGED)


def _start(yard: Yard, say: Say) -> None:
    config = yard.state.config
    site.write_files(config, yard.state.site)
    yard.save(yard.state)
    daemons.start_munged(yard)
    if config.accounting:
        say("Starting MariaDB and slurmdbd.")
        daemons.start_mariadbd(yard)
        daemons.start_slurmdbd(yard)
        daemons.register_cluster(yard)
    say(f"Starting slurmctld and {len(config.node_names())} nodes.")
    since = yard.clock.now()
    daemons.start_slurmctld(yard)
    for name in config.node_names():
        nodes.launch(yard, name)
    nodes.await_ready(yard, config.node_names(), since)
    yard.save(replace(yard.state, phase=state.UP))


def _sweep(yard: Yard, *, keep_files: bool = False) -> None:
    """End all that runs, in the order that lets each say its farewell; then forget it."""
    daemons.end(yard, SLURMCTLD)
    nodes.kill_all(yard, yard.state.config.node_names())
    for name in (SLURMDBD, MARIADBD, MUNGED):
        daemons.end(yard, name)
    state.forget(yard.directory)
    if not keep_files:
        _wipe(yard.directory, yard.clock, but=("log",))


def _wipe(directory: Path, clock: Clock, *, but: tuple[str, ...] = ()) -> None:
    """Remove our folders; again while something writes there still (a crashed `up` leaves a set-up step running)."""
    folders = [directory / name for name in site.FOLDERS if name not in but]

    def gone() -> bool:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        return not any(folder.exists() for folder in folders)

    if not procs.wait_until(gone, clock, within_s=_WIPE_S):
        raise SandboxError(f"{directory} cannot be emptied", remedy="remove it by hand")
