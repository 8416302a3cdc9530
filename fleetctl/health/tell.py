"""Telling Slurm: a drain with our reason, and the end of a drain of ours. Nobody else's word is ever touched.

Two bounded calls to scontrol where one would do for a bare drain: without the look before it, an admin's reason would
be overwritten. All of it runs in a child that is abandoned in time.
"""

from __future__ import annotations

import os
import select
import signal
from enum import Enum
from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Optional, Tuple

from fleetctl.health.decide import PREFIX
from fleetctl.health.record import NamedTuple
from fleetctl.health.service import Return

if TYPE_CHECKING:
    from fleetctl.health.state import Drain

_MOST_BYTES = 1 << 18
_DYING_S = 0.05
_TICK_S = 0.01
# SLURM_CLUSTERS and the like would lead to another cluster: only what finds this one is passed on.
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_SACK_SOCKET", "SLURM_SACK_KEY", "LD_LIBRARY_PATH")
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
# slurmctld's own words for a node that it lost: they say nothing of a person's wish.
_NOBODYS = ("", "Not responding")
# And for a node whose prolog or epilog ended with 1, unless a reason stands there already.
_AFTER_OURS = ("Prolog error", "Epilog error")
_EARLY_S, _LATE_S = 60.0, 600.0  # two clocks differ a little; a slurmctld that was busy or away comes late
# Resuming would undo more than our drain: a node that is down, powered off, failing or about to be rebooted.
_BUSY = ("DOWN", "ERROR", "FAIL", "FUTURE", "POWER", "REBOOT", "UNKNOWN", "INVAL")


class Told(str, Enum):
    """What came of it."""

    TOLD = "told"  # Slurm did what we asked for
    OPEN = "open"  # nothing keeps jobs away
    OURS = "ours"  # a drain of ours stands already
    OWED = "owed"  # the node is drained by our exit status, and our reason did not get through
    THEIRS = "theirs"  # somebody else's drain stands: left alone
    REMARK = "remark"  # somebody else's reason stands on a node that is open: left alone
    UNKNOWN = "unknown"  # Slurm did not answer, or refused

    @property
    def closed(self) -> bool:
        """No job starts there now, as Slurm has said itself."""
        return self in (Told.TOLD, Told.OURS, Told.OWED, Told.THEIRS)


class Meant(NamedTuple):
    """A drain of ours that the state knows. `at` is when it was meant, in seconds since the epoch; None: in another
    boot, so that what slurmctld has written since is about something else."""

    reason: str
    at: Optional[float]


class Shown(NamedTuple):
    """What Slurm says of the node: `states` as in IDLE+DRAIN; the reason, and apart from it who set it and when, as in
    root@2025-11-30T15:45:00 (UTC)."""

    states: Tuple[str, ...]
    reason: str
    signed: str = ""

    @property
    def drained(self) -> bool:
        """No job starts there, or none will after the running ones."""
        return any(state.startswith("DRAIN") for state in self.states)

    @property
    def ours(self) -> bool:
        """The reason is one of fleetctl's."""
        return self.reason.startswith(PREFIX)

    @property
    def resumable(self) -> bool:
        """A resume would end the drain, and nothing else."""
        return self.drained and not any(state.endswith("*") or state.startswith(_BUSY) for state in self.states)


class Reply(NamedTuple):
    """`reason` is what stands in Slurm now, as far as it is known; `detail` says why nothing was done."""

    told: Told
    reason: Optional[str] = None
    detail: str = ""


class Ran(NamedTuple):
    """An exit status (None: killed at the deadline, or not started) and what was printed."""

    status: Optional[int]
    text: str


Run = Callable[[List[str]], Ran]


def ask(run: Run, node: str) -> Tuple[Optional[Shown], str]:
    """What Slurm says of the node, or why it did not."""
    ran = run(["show", "node", node])
    shown = parse_node(ran.text, node) if ran.status == 0 else None
    return shown, "" if shown is not None else _trouble("show node", ran)


def meant(drain: Optional[Drain], boot_id: str) -> Optional[Meant]:
    """The state's drain, if there is one, as a look in this boot compares it with Slurm's word."""
    if drain is None:
        return None
    return Meant(drain.reason, drain.at if boot_id and drain.boot_id == boot_id else None)


def standing(run: Run, node: str, known: Optional[Meant] = None) -> Reply:
    """Whose word stands: OPEN where we may write ours, OWED where we must."""
    shown, trouble = ask(run, node)
    if shown is None:
        return Reply(Told.UNKNOWN, None, trouble)
    if shown.ours and shown.drained:
        return Reply(Told.OURS, shown.reason)
    if _owed(shown, known):
        return Reply(Told.OWED, shown.reason)
    kept = f"somebody else's word stands and is kept: {shown.reason or 'drained'}"
    if shown.drained:
        return Reply(Told.THEIRS, shown.reason, kept)
    return Reply(Told.OPEN) if shown.ours or shown.reason in _NOBODYS else Reply(Told.REMARK, shown.reason, kept)


def drain(run: Run, node: str, reason: str, known: Optional[Meant] = None) -> Reply:
    """Drain the node, unless it is drained or has a reason that is not ours. Where a reason is owed, that one is
    written: jobs have been kept away for it since."""
    stands = standing(run, node, known)
    if stands.told is Told.OPEN:
        return _write(run, node, reason)
    if stands.told is Told.OWED and known is not None:
        return _write(run, node, known.reason)
    return stands


def resume(run: Run, node: str, known: Meant, may: Callable[[str], Return]) -> Reply:
    """End the drain that the state knows, if it is the one that stands in Slurm now and the rules allow it.

    OURS: it stands still, and `detail` says why. THEIRS: what stands there, if anything, is something else.
    """
    shown, trouble = ask(run, node)
    if shown is None:
        return Reply(Told.UNKNOWN, None, trouble)
    if _owed(shown, known):
        wrote = _write(run, node, known.reason)
        return wrote if wrote.told is Told.UNKNOWN else Reply(Told.OURS, known.reason, f"it said only {shown.reason}")
    if not shown.drained or shown.reason != known.reason:
        return Reply(Told.THEIRS, shown.reason)
    verdict = may(shown.reason)
    if not verdict.back:
        return Reply(Told.OURS, shown.reason, verdict.why)
    if not shown.resumable:
        return Reply(Told.OURS, shown.reason, f"Slurm shows it as {'+'.join(shown.states)}")
    ran = run(["update", f"nodename={node}", "state=resume"])
    return Reply(Told.TOLD) if ran.status == 0 else Reply(Told.UNKNOWN, shown.reason, _trouble("update", ran))


def _owed(shown: Shown, known: Optional[Meant]) -> bool:
    """slurmctld has drained the node in its own words right after a phase that meant to drain it ended with 1. Sooner
    or later than that, or with nothing meant, the words are about somebody else's prolog."""
    if known is None or known.at is None or not shown.drained or not shown.reason.startswith(_AFTER_OURS):
        return False
    at = _signed_at(shown.signed)
    return at is not None and -_EARLY_S <= at - known.at <= _LATE_S


def _signed_at(signed: str) -> Optional[float]:
    """When the reason was set, in seconds since the epoch."""
    from calendar import timegm  # slow to import, and seldom needed
    from time import strptime

    try:
        return float(timegm(strptime(signed.rpartition("@")[2], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None


def _write(run: Run, node: str, reason: str) -> Reply:
    ran = run(["update", f"nodename={node}", "state=drain", f"reason={reason}"])
    if ran.status != 0:
        return Reply(Told.UNKNOWN, reason, _trouble("update", ran))
    return Reply(Told.TOLD, reason)


def parse_node(text: str, node: str) -> Optional[Shown]:
    """The answer of `scontrol show node N`; None: it is not about this node, or makes no sense."""
    states: Tuple[str, ...] = ()
    reason, signed, named = "", "", False
    for line in (line.strip() for line in text.splitlines()):
        if line.startswith("NodeName="):
            named = line.split()[0] == f"NodeName={node}"
        elif line.startswith("State=") and not states:
            states = tuple(line.split()[0][len("State=") :].split("+"))
        elif line.startswith("Reason=") and not reason:
            reason, signed = _unsigned(line[len("Reason=") :])
    return Shown(states, reason, signed) if named and states and states[0] else None


def _unsigned(reason: str) -> Tuple[str, str]:
    """Apart: the reason, and the `root@2025-11-30T15:45:00` of the ` [...]` that scontrol puts behind it."""
    cut = reason.rfind(" [")
    if cut >= 0 and reason.endswith("]") and "@" in reason[cut:]:
        return reason[:cut].strip(), reason[cut + 2 : -1]
    return reason.strip(), ""


def _trouble(verb: str, ran: Ran) -> str:
    if ran.status is None:
        return f"scontrol {verb}: {ran.text or 'no answer in time'}"
    said = " ".join(ran.text.split())[-160:]
    return f"scontrol {verb} ended with {ran.status}: {said}"


def environment(environ: Mapping[str, str]) -> Dict[str, str]:
    """What scontrol is started with: the way to this cluster, and nothing that a job could have set. Its times are UTC,
    wherever the node is."""
    kept = {key: environ[key] for key in _KEPT if key in environ}
    return {**kept, "PATH": _PATH, "LC_ALL": "C", "TZ": "UTC"}


def bounded(scontrol: str, environ: Mapping[str, str], until: float, monotonic: Callable[[], float]) -> Run:
    """Runs scontrol so that all calls together end at `until`. For a child: it starts processes and waits for them."""

    def run(arguments: List[str]) -> Ran:
        if until - monotonic() <= 0:
            return Ran(None, "")
        read, write = os.pipe()
        try:
            actions = [(os.POSIX_SPAWN_DUP2, write, 1), (os.POSIX_SPAWN_DUP2, write, 2)]
            pid = os.posix_spawn(scontrol, [scontrol, *arguments], environ, file_actions=actions)
        except OSError as error:
            os.close(read)
            return Ran(None, f"{scontrol}: {error.strerror}")
        finally:
            os.close(write)
        try:
            text = _all_of(read, until, monotonic)
        finally:
            os.close(read)
        return Ran(_status_of(pid, until, monotonic), text)

    return run


def _all_of(read: int, until: float, monotonic: Callable[[], float]) -> str:
    heard = b""
    while len(heard) < _MOST_BYTES:
        left = until - monotonic()
        if left <= 0 or not select.select([read], [], [], left)[0]:
            break
        more = os.read(read, 1 << 16)
        if not more:
            break
        heard += more
    return heard.decode("utf-8", "replace")


def _status_of(pid: int, until: float, monotonic: Callable[[], float]) -> Optional[int]:
    """Its exit status; None: it had to be killed."""
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if monotonic() >= until:
            break
        select.select([], [], [], _TICK_S)
    os.kill(pid, signal.SIGKILL)
    end = monotonic() + _DYING_S
    while not os.waitpid(pid, os.WNOHANG)[0] and monotonic() < end:
        select.select([], [], [], _TICK_S)
    return None
