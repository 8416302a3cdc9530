"""A run's folder, read as something that its user may have written in any way.

No link below it is followed, nothing that waits is opened, only plain files of its owner count, and the amount of files
and bytes has a limit. A run that is well costs two operations: its pulse is read, and the folder of its events asked
for its time of change. All of this happens in a process that may hang (reader.py).
"""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fleetctl.health.store import Foreign, read_bounded
from fleetctl.recovery.bounded import FILE, below, ends, folder, names, plain, stat_of, words_of
from fleetctl.recovery.facts import facts_in
from fleetctl.recovery.read_signs import is_full, moved
from fleetctl.recovery.read_wire import AskLog, AskRun, RunRead, ToldLog, ToldRun
from fleetctl.rundir.history import History, add_up, ended_well, last_attempts
from fleetctl.rundir.model import Claim, Event, EventKind, RunKind, attempt_number
from fleetctl.rundir.parse import claim_in, events_in, record_in
from fleetctl.rundir.pulse import PULSE, Pulse, pulse_in
from fleetctl.submission.decide_requeue import Past, past_of

READER = "1"  # part of each digest: raise it when more is made of what is read
NO_RECORD = "it has no run.json"
MOST_PULSE_BYTES = 1 << 20  # a head writes some kilobytes
MOST_EVENT_BYTES = 16 << 20  # some 50,000 events
MOST_SPEC_BYTES = 8 << 20
MOST_FILES = 20_000  # of events, and of submissions
_SMALL_BYTES = 1 << 20
_FIRST_YEAR, _LAST_YEAR = 2000, 2200

_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_EVENTS = re.compile(r".{1,200}\.jsonl")

NameOf = Callable[[int], str]
Open = Callable[[tuple[bytes, ...]], int]


class _Seen(Struct, frozen=True):
    """The files that make a history: path below the folder -> size, and one text for all of their stats."""

    uid: int
    sizes: Mapping[tuple[str, ...], int]
    digest: str


def name_of(uid: int) -> str:
    """The user's name; a number where the system has none, which is no user of Slurm's."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def read_run(ask: AskRun, owner_name: NameOf = name_of) -> ToldRun:
    """The answer. Never raises for what lies there."""
    try:
        if not (ask.thorough or ask.signs) and ask.state and (told := _glance(ask)) is not None:
            return told
        with folder(ask.path) as here:
            troubles: list[str] = []
            uid = os.fstat(here).st_uid
            if stat_of(here, "run.json") is None:
                raise Foreign(NO_RECORD)
            pulses = tuple(_pulses(lambda path: _opened_below(here, path), ask.tasks, uid, troubles))
            state = _state(os.stat("events", dir_fd=here, follow_symlinks=False), pulses)
            seen = _look(here)
            read = _read(here, seen, ask, owner_name) if seen.digest != ask.digest else None
            real = os.fsencode(os.path.realpath(ask.path)) if read is not None else b""
            told = ToldRun(ask.path, pulses, state, seen.digest, uid, read, "; ".join(troubles), real)
            if not ask.signs:
                return told
            return replace(told, moved=tuple(moved(here, pulses, uid)), is_full=is_full(here))
    except Exception as error:  # noqa: BLE001 - whatever a user put there, the others go on
        return ToldRun(ask.path, trouble=words_of(error))


def _glance(ask: AskRun) -> ToldRun | None:
    """The answer where nothing but the pulses has changed. By paths: links on the way lead to no harm, since only a
    plain file of the owner that was found before counts."""
    troubles: list[str] = []
    pulses = tuple(_pulses(lambda path: os.open(b"/".join((ask.path, *path)), FILE), ask.tasks, ask.uid, troubles))
    try:
        state = _state(os.stat(ask.path + b"/events", follow_symlinks=False), pulses)
    except OSError:
        return None
    if state != ask.state:
        return None
    return ToldRun(ask.path, pulses, state, ask.digest, ask.uid, trouble="; ".join(troubles))


def read_log(ask: AskLog, owner_name: NameOf = name_of) -> ToldLog:
    """The beginning and the end of an attempt's output.log. Never raises for what lies there."""
    try:
        if attempt_number(ask.attempt) is None:
            raise Foreign(f"{ask.attempt[:80]!r} is no attempt's name")
        with folder(ask.path) as here:
            uid = os.fstat(here).st_uid
            if owner_name(uid) != ask.owner:
                raise Foreign(f"its folder belongs to {owner_name(uid)}, not to {ask.owner}")
            inside = () if ask.task is None else ("tasks", str(ask.task))
            with below(here, (*inside, "attempts", ask.attempt)) as there:
                data, is_whole = ends(there, "output.log", ask.first_bytes, ask.last_bytes, uid)
                return ToldLog(ask.path, data, is_whole)
    except Exception as error:  # noqa: BLE001 - as above
        return ToldLog(ask.path, None, trouble=words_of(error))


def _pulses(
    opened: Open, tasks: Sequence[int | None], uid: int, troubles: list[str]
) -> Iterator[tuple[int | None, Pulse]]:
    """What the heads say. One that cannot be read says nothing."""
    for task in tasks:
        inside = () if task is None else (b"tasks", str(task).encode())
        try:
            pulse = pulse_in(json.loads(plain(opened((*inside, PULSE.encode())), MOST_PULSE_BYTES, uid)))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError, Foreign) as error:
            troubles.append(f"{PULSE}: {words_of(error)}")
            continue
        if pulse is not None:
            yield task, pulse


def _opened_below(here: int, path: tuple[bytes, ...]) -> int:
    with below(here, tuple(map(os.fsdecode, path[:-1]))) as there:
        return os.open(path[-1], FILE, dir_fd=there)


def _state(events: os.stat_result, pulses: Sequence[tuple[int | None, Pulse]]) -> str:
    """Changes with whatever a head says to have written, and with each new file of events."""
    told = [(task, one.attempt, one.job_id, one.restart_count, one.events, one.over) for task, one in pulses]
    return f"{events.st_ino}.{events.st_mtime_ns}.{blake2b(repr(told).encode(), digest_size=8).hexdigest()}"


def _look(here: int) -> _Seen:
    """:raises OSError, Foreign: something in it is not as fleetctl makes it."""
    uid = os.fstat(here).st_uid
    found = dict(_files(here))
    run = found.get(("run.json",))
    if run is None:
        raise Foreign(NO_RECORD)
    if run.st_uid != uid:
        raise Foreign(f"its run.json belongs to uid {run.st_uid}, and its folder to uid {uid}")
    if strangers := sorted("/".join(path) for path, one in found.items() if one.st_uid not in (uid, 0)):
        raise Foreign(f"{strangers[0]} belongs to neither its owner nor root")
    events_bytes = sum(one.st_size for path, one in found.items() if path[0] == "events")
    if events_bytes > MOST_EVENT_BYTES:
        raise Foreign(f"its events have more than {MOST_EVENT_BYTES} bytes")
    seen = blake2b(f"{READER} {uid}".encode(), digest_size=8)
    for path, one in sorted(found.items()):
        seen.update(repr((path, one.st_ino, one.st_size, one.st_mtime_ns, one.st_mode)).encode())
    return _Seen(uid, {path: one.st_size for path, one in found.items()}, seen.hexdigest())


def _files(here: int) -> Iterator[tuple[tuple[str, ...], os.stat_result]]:
    for name in ("run.json", "spec.json"):
        if (one := stat_of(here, name)) is not None:
            yield (name,), one
    with below(here, ("events",)) as events:
        for name in names(events, _EVENTS, MOST_FILES):
            if (one := stat_of(events, name)) is not None:
                yield ("events", name), one
    with below(here, ("submissions",)) as submissions:
        for name in names(submissions, _NUMBER, MOST_FILES):
            try:
                with below(submissions, (name,)) as inside:
                    one = stat_of(inside, "claim.json")
            except FileNotFoundError:
                continue
            if one is not None:
                yield ("submissions", name, "claim.json"), one


def _read(here: int, seen: _Seen, ask: AskRun, owner_name: NameOf) -> RunRead:
    record = record_in(_json(_bytes(here, seen, ("run.json",), _SMALL_BYTES)), "run.json")
    owner = owner_name(seen.uid)
    if record.run_id != ask.run_id:
        raise Foreign(f"it says that it is run {str(record.run_id)[:80]!r}")
    if record.user != owner:
        raise Foreign(f"it says that it is {str(record.user)[:80]!r}'s, and its folder belongs to {owner}")
    events: list[Event] = []
    claims: dict[int, Claim] = {}
    for path in sorted(seen.sizes):
        if path[0] == "events":
            events += events_in(_bytes(here, seen, path, MOST_EVENT_BYTES))
        elif path[0] == "submissions":
            raw = _json(_bytes(here, seen, path, _SMALL_BYTES))
            if raw is not None:
                claims[int(path[1])] = claim_in(raw)
    _check_times([record.created_at, *(one.time for one in events), *(one.time for one in claims.values())])
    history = add_up(record, tuple(events), claims)
    spec = _json(_bytes(here, seen, ("spec.json",), MOST_SPEC_BYTES))
    pasts = tuple(_pasts(events, history))
    return RunRead(owner, facts_in(spec, history), pasts, tuple(_lost(events, history)))


def _check_times(times: Iterable[datetime]) -> None:
    """Others compare and add to them.

    :raises Foreign: one has no zone, or is of no time in which fleetctl wrote anything.
    """
    for at in times:
        if at.utcoffset() is None or not _FIRST_YEAR <= at.astimezone(UTC).year <= _LAST_YEAR:
            raise Foreign(f"it names a time that cannot be: {at.isoformat()}")


def _pasts(events: Sequence[Event], history: History) -> Iterator[tuple[int | None, Past]]:
    """Of the tasks that may be brought back; a whole sweep has none of its own."""
    of_task: dict[Any, list[Event]] = {}
    for event in events:
        of_task.setdefault(event.data.get("task"), []).append(event)
    newest = last_attempts(history)
    tasks: set[int | None] = {None} if history.record.kind is not RunKind.SWEEP else set(newest)
    for task in tasks:
        if task not in newest or not ended_well(newest[task]):
            job_id = history.job_id or ""
            element = job_id if task is None else f"{job_id}_{task}"
            yield task, past_of(of_task.get(task, ()), history, element, task)


def _lost(events: Sequence[Event], history: History) -> Iterator[tuple[int | None, str, str]]:
    """An event of a lost node names its attempt, since heads write it so; an older one is of the attempt then."""
    for event in events:
        if event.kind is not EventKind.NODE_LOST:
            continue
        task, attempt = event.data.get("task"), event.data.get("attempt")
        if not isinstance(attempt, str):
            before = [one.name for one in history.attempts if one.task == task and one.started_at <= event.time]
            attempt = before[-1] if before else ""
        yield task, attempt, str(event.data["node"])[:200]


def _bytes(here: int, seen: _Seen, path: tuple[str, ...], most: int) -> bytes:
    """Nothing where it was not there. :raises OSError, Foreign: it cannot be read."""
    if path not in seen.sizes:
        return b""
    with below(here, path[:-1]) as there:
        return read_bounded(there, path[-1], most, ours=False)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
