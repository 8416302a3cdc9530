"""What the daemon said to this start of a run: read, written down as heeded, done.

A user may write anything into RUN/word.json, which is then his own word to his own run. In the site's folder only the
site's daemon writes: what somebody else could have put there is no word of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from fleetctl.errors import JobSideError
from fleetctl.health.store import Foreign, read_bounded
from fleetctl.launch.model import JobIdentity, Order
from fleetctl.rundir.history import History, attempts_of
from fleetctl.rundir.model import EventKind
from fleetctl.rundir.store import EventLog, RunDir
from fleetctl.rundir.words import FOLDER, MOST_BYTES, WORD, Word, for_next, heeded, may_hold, name_of, word_in

if TYPE_CHECKING:
    from fleetctl.launch.lead import World

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_WRITABLE_BY_OTHERS = 0o022
_UNKNOWN = "it is not known whether the daemon holds this run"


class Said(Struct, frozen=True):
    """What lies in the places for words. `unread`: a word may be there that says not to start, and why it is not known;
    `passed_over`: why something there is no word."""

    words: tuple[Word, ...] = ()
    unread: str = ""
    passed_over: tuple[str, ...] = ()


class _Place(Struct, frozen=True):
    folder: str
    name: str
    owner: int | None  # of the run, where the place is the site's; None: the run's own place

    @property
    def is_the_sites(self) -> bool:
        return self.owner is not None


def heed(run: RunDir, order: Order, job: JobIdentity, log: EventLog, world: World, history: History) -> History:
    """The history, with what the daemon said to the coming attempt written down in it.

    :raises JobSideError: the daemon holds the run, or it is not known whether it does.
    :raises RunDirError: it could not be written down.
    """
    said = said_to(run.path, history, job.task, world.environ)
    for text in said.passed_over:
        world.say(f"fleetctl: {text}")
    if said.unread:
        raise JobSideError(said.unread, remedy="mend what it names, or remove that file")
    if not said.words:
        return history
    attempts, wishes = attempts_of(history.attempts, job.task), history.asks.get(job.task, 0)
    for word in said.words:
        holds = word.hold and for_next(word, history, job.task)
        log.append(
            world.clock.now(),
            EventKind.WORD,
            submission=order.submission,
            task=job.task,
            attempts=attempts,
            wishes=wishes,
            by=word.by,
            why=word.why,
            hold=holds,
            at_most_step=word.at_most_step if for_next(word, history, job.task) else None,
            suspects=list(word.suspects),
        )
        if holds:
            _hold(order, job, log, world, f"{word.by}: {word.why}", attempts)
    return run.history()


def said_to(run_path: Path, history: History, task: int | None, environ: Mapping[str, str]) -> Said:
    """What the daemon has said that still counts and was not heeded yet. Never raises."""
    folder = run_path if task is None else run_path / "tasks" / str(task)
    places, unread = [_Place(str(folder), WORD, None)], ""
    if environ.get(FOLDER):
        try:  # the folder's owner, not the record's: that one is text
            owner = os.stat(run_path).st_uid
            places.append(_Place(environ[FOLDER], name_of(user_of(owner), history.record.run_id, task), owner))
        except OSError as error:
            unread = f"{_UNKNOWN}: cannot read {run_path}: {error.strerror}"
    words: list[Word] = []
    passed_over: list[str] = []
    for place in places:
        found = _read(place)
        if isinstance(found, Word):
            words += [found] if _is_news(found, history, task) else []
        elif isinstance(found, _Unread):
            unread = unread or found.why
        elif found:
            passed_over.append(found)
    return Said(tuple(words), unread, tuple(passed_over))


def _is_news(word: Word, history: History, task: int | None) -> bool:
    if not heeded(word, history, task):
        return False
    if for_next(word, history, task) and (word.hold or word.at_most_step is not None):
        return True
    known = history.heeded.get(task)
    return not frozenset(word.suspects) <= (known.suspects if known is not None else frozenset())


def user_of(uid: int) -> str:
    """The user's name, as the daemon knows it (recovery.read_run.name_of)."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


class _Unread(Struct, frozen=True):
    why: str


def _read(place: _Place) -> Word | _Unread | str:
    """The word; or why what is there is none, "" if nothing is."""
    path = f"{place.folder}/{place.name}"
    if place.is_the_sites and not os.path.isabs(place.folder):
        return _Unread(f"{_UNKNOWN}: {FOLDER} names {place.folder}, which is no absolute path")
    try:
        data = _bytes(place)
    except (FileNotFoundError, NotADirectoryError):
        # A file system that is not mounted holds nobody's words: that is not the same as no word
        missing = place.is_the_sites and (os.path.islink(place.folder) or not os.path.isdir(place.folder))
        return _Unread(f"{_UNKNOWN}: {FOLDER} names {place.folder}, which is no folder here") if missing else ""
    except Foreign as error:
        why = f"{path} is no word of the daemon: {error}"
        return why if place.is_the_sites else _Unread(why)
    except OSError as error:
        return _Unread(f"{_UNKNOWN}: cannot read {path}: {error.strerror}")
    raw = _json(data)
    try:
        word = word_in(raw)
    except ValueError as error:
        why = f"{path} is damaged: {error}"
        return _Unread(f"{_UNKNOWN}: {why}") if may_hold(raw) else why
    if place.owner is not None and word.user != user_of(place.owner):
        return f"{path} is no word about this run: it is about one of {word.user or 'nobody'}"
    return word


def _bytes(place: _Place) -> bytes:
    """:raises OSError, Foreign: it is not there, cannot be read, or may be of somebody else."""
    with _opened(place.folder, os.O_NOFOLLOW if place.is_the_sites else 0) as here:
        if place.owner is not None:
            file = os.stat(place.name, dir_fd=here, follow_symlinks=False)
            _check_is_the_sites(os.fstat(here), file, place.owner)
        return read_bounded(here, place.name, MOST_BYTES, ours=False)


def _check_is_the_sites(folder: os.stat_result, file: os.stat_result, owner: int) -> None:
    """Only root, or a service account that is not the run's own user, can have written it.

    :raises Foreign: somebody else can.
    """
    if (folder.st_mode | file.st_mode) & _WRITABLE_BY_OTHERS:
        raise Foreign("it, or its folder, can be written by others")
    if folder.st_uid != 0 and folder.st_uid == owner:
        raise Foreign("its folder belongs to the user of the run")
    if file.st_uid not in (0, folder.st_uid):
        raise Foreign(f"it belongs to uid {file.st_uid}, and its folder to uid {folder.st_uid}")


@contextlib.contextmanager
def _opened(folder: str, more: int) -> Iterator[int]:
    here = os.open(folder, _FLAGS | more)
    try:
        yield here
    finally:
        os.close(here)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _hold(order: Order, job: JobIdentity, log: EventLog, world: World, why: str, attempts: int) -> None:
    """As launch.leave.hold: from now on it is the run's own record that says so, and `fleetctl requeue` ends it.

    :raises JobSideError: always.
    """
    log.append(
        world.clock.now(),
        EventKind.HELD,
        submission=order.submission,
        task=job.task,
        attempts=attempts,
        why=why,
    )
    raise JobSideError(f"the run is held: {why}", remedy="`fleetctl requeue` starts it again")
