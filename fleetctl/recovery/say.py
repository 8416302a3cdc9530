"""The daemon's word to the next start of a run: written whole, and joined with what it said before."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from fleetctl.recovery.model import Action, Deed, Outcome
from fleetctl.recovery.order import Answer, run_of
from fleetctl.rundir import files
from fleetctl.rundir.history import BY_DAEMON
from fleetctl.rundir.store import RunDir
from fleetctl.rundir.words import WORD, Word, name_of, word_in, word_out

_MOST_SUSPECTS = 200  # the newest: older checkpoints are gone by the run's retention


def own_place(run: RunDir, task: int | None) -> Path:
    """Where a daemon with the user's rights says it."""
    return run.path / WORD if task is None else run.path / "tasks" / str(task) / WORD


def sites_place(folder: str, key: str, user: str) -> Path:
    """Where the site's daemon, which only reads users' folders, says it to a run of that user."""
    return Path(folder) / name_of(user, *run_of(key))


def say(path: Path, action: Action, attempts: int, wishes: int, at: datetime, user: str = "") -> Answer:
    """Write the word that the action asks for. `attempts`, `wishes` and `user` as in Word.

    :raises RunDirError: it could not be written, or not be read what was said before, which stands.
    """
    with files.explained(path, "write"):
        path.parent.mkdir(parents=True, exist_ok=True)
        word = word_of(action, read(path), attempts, wishes, at, user)
        files.replace_file(path, json.dumps(word_out(word), indent=1) + "\n")
    return see(path, action)


def word_of(action: Action, before: Word | None, attempts: int, wishes: int, at: datetime, user: str = "") -> Word:
    """What was said before and still counts is said again: a roll-back lifts no hold, nor the other way round."""
    run_id, task = run_of(action.key)
    is_of_this = before is not None and (before.run_id, before.task, before.user) == (run_id, task, user)
    stands = before if before and is_of_this and before.wishes >= wishes else None
    for_next = stands if stands and stands.attempts >= attempts else None
    steps = [action.at_most_step, for_next.at_most_step if for_next else None]
    suspects = dict.fromkeys((*(stands.suspects if stands else ()), *action.suspects))
    return Word(
        run_id=run_id,
        task=task,
        at=at,
        by=BY_DAEMON,
        why=action.why,
        attempts=attempts,
        wishes=wishes,
        hold=action.deed is Deed.HOLD or bool(for_next and for_next.hold),
        at_most_step=min((step for step in steps if step is not None), default=None),
        suspects=tuple(suspects)[-_MOST_SUSPECTS:],
        user=user,
    )


def read(path: Path) -> Word | None:
    """The word that lies there; None: none that is understood.

    :raises OSError: it is not known what lies there.
    """
    try:
        return word_in(files.read_json(str(path)))
    except ValueError:
        return None


def see(path: Path, action: Action) -> Answer:
    """Whether the word that lies there says what the action asks for, or more."""
    try:
        found = read(path)
    except OSError as error:
        return Answer(Outcome.FAILED, f"cannot read {path}: {error.strerror}")
    if found is None:
        return Answer(Outcome.FAILED, f"{path} holds no word")
    step = action.at_most_step
    stands = found.hold if action.deed is Deed.HOLD else _is_within(found.at_most_step, step)
    stands = stands and frozenset(action.suspects) <= frozenset(found.suspects)
    return Answer(Outcome.DONE if stands else Outcome.FAILED, f"{path} says {'so' if stands else 'something else'}")


def _is_within(said: int | None, wanted: int | None) -> bool:
    return wanted is None or (said is not None and said <= wanted)
