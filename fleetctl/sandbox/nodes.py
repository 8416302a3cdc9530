"""The nodes: each slurmd is the first process of a pid namespace, so that a node can die as a whole.

Killing slurmd alone is not the death of a node: its steps and ranks live on and keep writing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from fleetctl.errors import SandboxError, UsageError
from fleetctl.sandbox import procs
from fleetctl.sandbox.procs import Proc, Stat
from fleetctl.sandbox.yard import Yard

KILLED, FROZEN, CUT = "killed", "frozen", "cut"
_SLURM_SIDE = ("slurmd", "slurmstepd")
_READY_S = 30.0
_GONE_S = 15.0
_STILL_S = 5.0
_SETTLED_S = 2.0
_POLL_S = 0.05
_NOT_READY = ("DOWN", "UNKNOWN", "*", "NOT_RESPONDING", "FUTURE")

# $1 the node's /etc/hosts, $2 `private` for a /tmp of its own, then slurmd. exec keeps the namespace's first pid;
# whoever is not the first process of a namespace would mount over the host's own folders.
_MOUNTS = (
    "test $$ -eq 1 && "
    "mount -t tmpfs -o mode=1777 tmpfs /dev/shm && "
    'mount --bind "$1" /etc/hosts && '
    'if [ "$2" = private ]; then mount -t tmpfs -o mode=1777 tmpfs /tmp; fi && '
    'shift 2 && exec "$@"'
)


def launch(yard: Yard, name: str) -> None:
    """Start the node's namespace and slurmd; Slurm learns of it later."""
    yard.path("spool", name).mkdir(exist_ok=True)
    yard.path("run", f"{name}.pid").unlink(missing_ok=True)  # its pid is one of the dead namespace: 1, like ours
    slurmd = ["slurmd", "-D", "-N", name, "-f", str(yard.path("etc", "slurm.conf"))]
    unshare = ["unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() == 0:
        tmp = "private" if yard.state.config.private_tmp else "shared"
        inside = ["sh", "-c", _MOUNTS, "sh", str(yard.path("etc", "hosts")), tmp, *slurmd]
    else:  # an ordinary user keeps its own uid, which slurmd must see, and so may not mount
        unshare += ["--user", "--map-current-user"]
        inside = slurmd
    yard.launch(name, [*unshare, *inside])


def await_ready(yard: Yard, names: Sequence[str], since: datetime) -> None:
    """Until Slurm says that each of them registered after `since` and can run jobs.

    :raises SandboxError: one died or did not register in time.
    """
    deadline_s = yard.clock.monotonic_s() + _READY_S
    waiting = list(names)
    while waiting:
        seen = slurm_view(yard) or {}
        waiting = [name for name in waiting if not _ready(seen.get(name), since)]
        for name in waiting:
            if not yard.alive(name):
                raise SandboxError(f"{name}: slurmd died while starting{yard.tail(name)}")
        if waiting and yard.clock.monotonic_s() >= deadline_s:
            state = seen[waiting[0]].get("State") if waiting[0] in seen else "unknown to Slurm"
            raise SandboxError(f"{waiting[0]} is {state} after {_READY_S:g} s{yard.tail(waiting[0])}")
        if waiting:
            yard.clock.sleep(_POLL_S)


def slurm_view(yard: Yard) -> dict[str, dict[str, str]] | None:
    """What slurmctld says of each node, field by field; None when it does not answer."""
    text = yard.ask(["scontrol", "--oneliner", "show", "nodes"], more_env={"TZ": "UTC"})
    if text is None:
        return None
    nodes = {}
    for line in text.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "NodeName" in fields:
            nodes[fields["NodeName"]] = fields
    return nodes


def _next_start(yard: Yard, name: str) -> datetime:
    """Now, but in a later second than the last start: Slurm tells starts of slurmd apart by the second."""
    last = _started((slurm_view(yard) or {}).get(name, {}))
    while last is not None and last >= yard.clock.now().replace(microsecond=0):
        yard.clock.sleep(_POLL_S)
    return yard.clock.now()


def _ready(fields: Mapping[str, str] | None, since: datetime) -> bool:
    if fields is None or any(bad in fields.get("State", "UNKNOWN") for bad in _NOT_READY):
        return False
    started = _started(fields)
    return started is not None and started >= since.replace(microsecond=0)


def _started(fields: Mapping[str, str]) -> datetime | None:
    """When the slurmd that Slurm knows started; None while it knows none."""
    try:
        return datetime.fromisoformat(fields.get("SlurmdStartTime", "")).replace(tzinfo=UTC)
    except ValueError:
        return None


class Node:
    """One node for fault tests. Every verb returns when its effect is there."""

    def __init__(self, yard: Yard, name: str) -> None:
        if name not in yard.state.config.node_names():
            raise UsageError(f"no node {name}: this sandbox has {', '.join(yard.state.config.node_names())}")
        self._yard = yard
        self.name = name

    def alive(self) -> bool:
        return self._yard.alive(self.name)

    def members(self) -> tuple[Stat, ...]:
        """Every living process of the node: slurmd, its steps, the ranks and whatever they started."""
        init = procs.child_of(self._yard.state.processes[self.name]) if self.alive() else None
        namespace = None if init is None else procs.pid_namespace(init.proc.pid)
        return () if namespace is None else procs.members(namespace)

    def kill(self) -> None:
        """The power fails: slurmd, steps and ranks are gone at once, daemonized ones too."""
        with self._yard.exclusive():
            self._order(KILLED)
            kill_all(self._yard, [self.name])

    def start(self, *, wait: bool = True) -> None:
        """Power on after kill; returns when Slurm uses the node again. Nothing happens to a node that runs."""
        with self._yard.exclusive():
            if self.alive():
                return
            since = _next_start(self._yard, self.name) if wait else self._yard.clock.now()
            launch(self._yard, self.name)
            self._order(None)
        if wait:
            await_ready(self._yard, [self.name], since)

    def freeze(self) -> None:
        """Everything on the node stands still, new forks included."""
        with self._yard.exclusive():
            self._must_run()
            self._order(FROZEN)
            self._still(lambda stat: True)

    def wake(self) -> None:
        """Undo freeze, and cut."""
        with self._yard.exclusive():
            self._must_run()
            self._continue(lambda stat: True)
            self._order(None)

    def cut(self) -> None:
        """Slurm reaches the node no more; its ranks run on and can write (to files: step output goes through Slurm)."""
        with self._yard.exclusive():
            self._must_run()
            if self._yard.state.orders.get(self.name) == FROZEN:
                raise SandboxError(f"{self.name} is frozen: nothing on it runs", remedy=f"wake {self.name} first")
            self._order(CUT)
            self._still(lambda stat: stat.name in _SLURM_SIDE)

    def heal(self) -> None:
        """Undo cut."""
        with self._yard.exclusive():
            self._must_run()
            if self._yard.state.orders.get(self.name) == FROZEN:
                raise SandboxError(f"{self.name} is frozen, not cut", remedy=f"wake {self.name} instead")
            self._continue(lambda stat: stat.name in _SLURM_SIDE)
            self._order(None)

    def dead(self) -> None:
        """Return when nothing of the node runs any more: what a site's fence command proves by its exit status 0.

        :raises SandboxError: it runs, frozen or cut off as it may be.
        """
        with self._yard.exclusive():  # a kill that is under way is over then
            if self.alive():
                raise SandboxError(f"{self.name} is not dead: {len(self.members())} processes of it run")

    def _must_run(self) -> None:
        if not self.alive():
            raise SandboxError(f"{self.name} is not running", remedy=f"start {self.name} first")

    def _order(self, order: str | None) -> None:
        self._yard.save(self._yard.state.ordered(self.name, order))

    def _still(self, chosen: Callable[[Stat], bool]) -> None:
        """Two scans in a row that find the same processes, all stopped: a fork between list and signal is seen then."""
        last: frozenset[Proc] = frozenset()

        def still() -> bool:
            nonlocal last
            stats = [stat for stat in self.members() if chosen(stat)]
            running = [stat for stat in stats if stat.state not in "Tt"]
            for stat in running:
                procs.send(stat.proc, signal.SIGSTOP)
            now = frozenset(stat.proc for stat in stats)
            settled, last = bool(now) and not running and now == last, now
            return settled

        if not procs.wait_until(still, self._yard.clock, within_s=_STILL_S):
            busy = ", ".join(f"{stat.name} ({stat.proc.pid})" for stat in self.members() if stat.state not in "Tt")
            raise SandboxError(f"{self.name} does not stand still after {_STILL_S:g} s: {busy}")

    def _continue(self, chosen: Callable[[Stat], bool]) -> None:
        for stat in self.members():
            if chosen(stat):
                procs.send(stat.proc, signal.SIGCONT)


def _settled(unshare: Proc) -> bool:
    """Its child runs another program: only from then on does it surely die with its parent."""
    child = procs.child_of(unshare)
    return not procs.alive(unshare) or (child is not None and child.name != "unshare")


def kill_all(yard: Yard, names: Sequence[str]) -> None:
    """Kill these nodes at once and wait until no process of theirs lives.

    :raises SandboxError: something outlived SIGKILL.
    """
    alive = [name for name in names if yard.alive(name)]
    unshares = [yard.state.processes[name] for name in alive]
    procs.wait_until(lambda: all(map(_settled, unshares)), yard.clock, within_s=_SETTLED_S)
    doomed = [stat.proc for name in alive for stat in Node(yard, name).members()]
    inits = [init.proc for init in map(procs.child_of, unshares) if init is not None]
    for proc in (*unshares, *inits):
        procs.send(proc, signal.SIGKILL)
    # the first process of a namespace becomes a zombie only after the kernel has killed and buried all others
    doomed += unshares + inits
    if not procs.wait_gone(doomed, yard.clock, within_s=_GONE_S):
        left = ", ".join(str(proc.pid) for proc in doomed if procs.alive(proc))
        raise SandboxError(f"processes {left} outlived SIGKILL for {_GONE_S:g} s", remedy="try again")
