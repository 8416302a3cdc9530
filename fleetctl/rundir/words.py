"""The daemon's word to the next start of a run: not before a person says so, not above a step, not from these. Pure.

RUN/word.json (RUN/tasks/I/word.json) where the daemon has the user's rights; else USER:RUN_ID.json (USER:RUN_ID.I.json)
in the folder FLEETCTL_WORDS, which the site's daemon alone can write: another user's run may have the same id.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from fleetctl.rundir.history import History, attempts_of
from fleetctl.rundir.model import SCHEMA_VERSION

WORD = "word.json"
FOLDER = "FLEETCTL_WORDS"
MOST_BYTES = 1 << 20  # of a word's file
_MOST_SUSPECTS = 1000
_MOST_NAME = 255  # NAME_MAX, limits.h
_MOST_CHARS = 1000  # of `why`: it becomes a line for people


class Word(Struct, frozen=True):
    """One word. It was said when the run had had `attempts` attempts and `wishes` requeues asked by persons: a later
    wish of a person lifts it. `hold` and `at_most_step` are for the next attempt alone, `suspects` for all that follow.
    `user`: whose run it is, in the site's folder; "" in the run's own, where nobody else's can lie.
    """

    run_id: str
    task: int | None
    at: datetime
    by: str
    why: str
    attempts: int
    wishes: int
    hold: bool = False
    at_most_step: int | None = None
    suspects: tuple[str, ...] = ()  # names of checkpoints
    user: str = ""


def name_of(user: str, run_id: str, task: int | None) -> str:
    """The file's name in the site's folder. No user's name has a colon in it (passwd(5)), so no two share a file."""
    return f"{user}:{run_id}.json" if task is None else f"{user}:{run_id}.{task}.json"


def word_out(word: Word) -> dict[str, Any]:
    """As JSON."""
    raw = {name: getattr(word, name) for name in Word.__struct_fields__}
    return {**raw, "schema": SCHEMA_VERSION, "at": word.at.isoformat(), "suspects": list(word.suspects)}


def word_in(raw: object) -> Word:
    """The word that JSON tells; fields that only a newer fleetctl knows are passed over.

    :raises ValueError: it is none that we understand whole.
    """
    if not isinstance(raw, Mapping):
        raise ValueError("it is no JSON object")
    if raw.get("schema") != SCHEMA_VERSION:
        raise ValueError(f"it is of schema {str(raw.get('schema'))[:20]}")
    try:
        found = msgspec.convert({name: raw[name] for name in Word.__struct_fields__ if name in raw}, Word)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    if found.at.tzinfo is None or min(found.attempts, found.wishes, found.at_most_step or 0) < 0:
        raise ValueError("a time without its zone, or a number below zero")
    if len(found.suspects) > _MOST_SUSPECTS or any(not _is_name(name) for name in found.suspects):
        raise ValueError("its suspects are not the names of checkpoints")
    return msgspec.structs.replace(found, by=_line(found.by), why=_line(found.why), at=found.at.astimezone(UTC))


def may_hold(raw: object) -> bool:
    """Whether a word that is not understood may be one that holds: only a plain no says that it is none."""
    return not (isinstance(raw, Mapping) and raw.get("hold") is False)


def heeded(word: Word, history: History, task: int | None) -> bool:
    """Whether the word counts: it is about this run, and no person has asked for a requeue since it was said."""
    of_this = word.run_id == history.record.run_id and word.task == task
    return of_this and history.asks.get(task, 0) <= word.wishes


def for_next(word: Word, history: History, task: int | None) -> bool:
    """Whether its `hold` and `at_most_step` are for the attempt to come: it was said after the newest one. A reader
    that does not see that one yet must heed it too."""
    return heeded(word, history, task) and attempts_of(history.attempts, task) <= word.attempts


def _is_name(name: str) -> bool:
    return 0 < len(name) <= _MOST_NAME and "/" not in name and name not in (".", "..")


def _line(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:_MOST_CHARS])
