"""One look at a node: every reader in a child, all at once, none waited for beyond the deadline.

"nvml" asks the driver. "files" reads what the kernel and our own disk have: each part of it stands alone, so that one
that fails does not take the others along. Every mount that the site names has a child of its own, because it may hang.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from fleetctl.health import state as remembered
from fleetctl.health.apart import Done, Task
from fleetctl.health.model import Answer, Event, Host, Mount, Nvml, PciDevice, Port, Readings
from fleetctl.health.record import NamedTuple
from fleetctl.health.state import State
from fleetctl.health.wire import all_from_wire, from_wire, to_wire

Apart = Callable[[Sequence[Task]], Dict[str, Done]]
MOST_KEPT = remembered.MOST_EVENTS
# Unknown is not empty: a node without such devices answers with an empty list.
_UNLISTED = "their folder cannot be listed"


class Kept(NamedTuple):
    """What our own disk knows: the state as it counts in this boot, and the text of the site's profile."""

    state: State
    profile: Optional[str]
    notes: Tuple[str, ...]


class Readers(NamedTuple):
    """What reads the node; each runs in a child and may raise, hang or die. `log` is given the kernel log's cursor and
    returns the newer events, folded, and the new cursor. `merge` is pure."""

    nvml: Callable[[], Nvml]
    devices: Callable[[], Optional[Tuple[PciDevice, ...]]]
    ports: Callable[[], Optional[Tuple[Port, ...]]]
    host: Callable[[], Host]
    kept: Callable[[], Kept]
    log: Callable[[Optional[int]], Tuple[Optional[Tuple[Event, ...]], Optional[int]]]
    mount: Callable[[str], Mount]
    merge: Callable[[Sequence[Event], Sequence[Event]], Tuple[Event, ...]]


class Where(NamedTuple):
    """Which node is looked at, in which boot, and when: `at` since the epoch, `uptime_s` CLOCK_MONOTONIC."""

    node: str
    boot_id: str
    at: float
    uptime_s: float
    mounts: Tuple[str, ...] = ()


class Gathered(NamedTuple):
    """`fresh` are the events that the log had beyond the state's cursor; `readings.events` are all that still count.
    `notes` say what went wrong on the way, one line each."""

    readings: Readings
    state: State = State()
    fresh: Tuple[Event, ...] = ()
    cursor: Optional[int] = None
    profile: Optional[str] = None
    notes: Tuple[str, ...] = ()


def gather(readers: Readers, where: Where, deadline_s: float, apart: Apart) -> Gathered:
    """Read everything within `deadline_s`."""
    tasks = [
        Task("nvml", lambda: to_wire(readers.nvml()), deadline_s),
        Task("files", lambda: _files(readers), deadline_s),
        *(_mount_task(readers, path, number, deadline_s) for number, path in enumerate(where.mounts)),
    ]
    done = apart(tasks)
    failed: Dict[str, Answer] = {}
    notes: List[str] = []
    nvml = _nvml(done["nvml"])
    files = _answered("files", done["files"], failed, notes)
    gathered = Gathered(Readings(where.node, where.boot_id, where.at, where.uptime_s, nvml=nvml), State())
    if files is not None:
        gathered = _with_files(gathered, files, failed, notes)
    host = gathered.readings.host
    if where.mounts:
        mounts = tuple(_mount(path, done[_mount_name(number)]) for number, path in enumerate(where.mounts))
        host = (host or Host())._replace(mounts=mounts)
    readings = gathered.readings._replace(host=host, failed=failed)
    return gathered._replace(readings=readings, notes=(*gathered.notes, *notes))


def look_again(gathered: Gathered, readers: Readers, deadline_s: float, apart: Apart) -> Gathered:
    """The same with NVML and the ports read anew: what changes within seconds.

    NVML has answered just now: no answer the second time is noted, and the first one stands.
    """
    done = apart(
        [
            Task("nvml", lambda: to_wire(readers.nvml()), deadline_s),
            Task("ports", lambda: to_wire(readers.ports()), deadline_s),
        ]
    )
    failed = {name: answer for name, answer in gathered.readings.failed.items() if name != "ports"}
    notes: List[str] = []
    raw = _answered("ports", done["ports"], failed, notes)
    if raw is None and "ports" not in failed:
        failed["ports"] = Answer.FAILED
        notes.append(f"ports: {_UNLISTED}")
    nvml: Optional[Nvml] = _nvml(done["nvml"])
    if done["nvml"].answer in (Answer.HUNG, Answer.BUSY):
        nvml = gathered.readings.nvml
        notes.append(f"nvml, asked again: {done['nvml'].answer.value}: {done['nvml'].detail}")
    readings = gathered.readings._replace(nvml=nvml, ports=_many(Port, raw), failed=failed)
    return gathered._replace(readings=readings, notes=(*gathered.notes, *notes))


def _files(readers: Readers) -> Dict[str, Any]:
    """In the child: all that is read from files, as JSON can carry it. What fails is named, the rest stays."""
    failed: Dict[str, str] = {}

    def part(name: str, read: Callable[[], Any]) -> Any:
        try:
            found = read()
        except Exception as error:  # noqa: BLE001 - one part's bug must not cost the others
            failed[name] = f"{type(error).__name__}: {error}"
            return None
        if found is None:
            failed[name] = _UNLISTED
        return found

    kept = part("state", readers.kept) or Kept(State(), None, ())
    log = part("log", lambda: readers.log(kept.state.cursor)) or (None, None)
    if log[0] is None:
        failed.setdefault("log", "it cannot be read")
    return {
        "state": remembered.to_text(kept.state),
        "profile": kept.profile,
        "notes": list(kept.notes),
        "devices": part("devices", lambda: to_wire(readers.devices())),
        "ports": part("ports", lambda: to_wire(readers.ports())),
        "host": part("host", lambda: to_wire(readers.host())),
        "events": None if log[0] is None else to_wire(log[0]),
        "cursor": log[1],
        "failed": failed,
        "merged": None if log[0] is None else to_wire(readers.merge(kept.state.events, log[0])),
    }


def _with_files(gathered: Gathered, raw: Mapping[str, Any], failed: Dict[str, Answer], notes: List[str]) -> Gathered:
    state, complaints = remembered.from_text(raw["state"])
    for name, detail in raw["failed"].items():
        failed[name] = Answer.FAILED
        notes.append(f"{name}: {detail}")
    readings = gathered.readings._replace(
        devices=_many(PciDevice, raw["devices"]),
        ports=_many(Port, raw["ports"]),
        host=None if raw["host"] is None else from_wire(Host, raw["host"]),
        events=_many(Event, raw["merged"]),
    )
    return gathered._replace(
        readings=readings,
        state=state,
        fresh=_many(Event, raw["events"]) or (),
        cursor=raw["cursor"],
        profile=raw["profile"],
        notes=(*raw["notes"], *complaints),
    )


def _many(kind: Any, raw: Optional[Sequence[Any]]) -> Any:
    return None if raw is None else all_from_wire(kind, raw)


def _nvml(done: Done) -> Nvml:
    if done.answer is Answer.ANSWERED:
        nvml: Nvml = from_wire(Nvml, done.value)
        return nvml
    return Nvml(done.answer, detail=done.detail, took_s=done.took_s)


def _answered(name: str, done: Done, failed: Dict[str, Answer], notes: List[str]) -> Any:
    if done.answer is Answer.ANSWERED:
        return done.value
    failed[name] = done.answer
    notes.append(f"{name}: {done.answer.value}: {done.detail}")
    return None


def _mount_name(number: int) -> str:
    return f"mount-{number}"


def _mount_task(readers: Readers, path: str, number: int, deadline_s: float) -> Task:
    return Task(_mount_name(number), lambda: to_wire(readers.mount(path)), deadline_s)


def _mount(path: str, done: Done) -> Mount:
    if done.answer is Answer.ANSWERED:
        mount: Mount = from_wire(Mount, done.value)
        return mount
    return Mount(path, "hung" if done.answer in (Answer.HUNG, Answer.BUSY) else "failed", done.detail)
