"""What may be a checkpoint, by the names in a folder; nothing is looked into where the name says enough."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from fleetctl.checkpoint import known
from fleetctl.checkpoint.format import Format
from fleetctl.checkpoint.formats import torch
from fleetctl.checkpoint.look import Ledger, Look
from fleetctl.checkpoint.model import Checked, Entry, Level, Survey, entry_of
from fleetctl.checkpoint.remove import KEPT
from fleetctl.checkpoint.storage import Kind, Storage
from fleetctl.train import layout

_OURS = frozenset({layout.STAGING, layout.TRASH, KEPT})
FILES = (".ckpt", ".pt", ".pth")  # what a checkpoint in one file is called
_NUMBER = re.compile(r"[0-9]{1,18}")


def survey_names(names: Iterable[str], wanted: str, peek: Callable[[str], int | None] = lambda _: None) -> Survey:
    """Sort the names of a folder. `peek` is asked for the training step where a name says none."""
    entries, foreign = list[Entry](), list[str]()
    for name in dict.fromkeys(names):  # a folder that changes while NFS lists it may show a name twice
        if name in _OURS:
            continue
        entry = _entry(name, wanted, peek)
        if entry is not None:
            entries.append(entry)
        else:
            foreign.append(name)
    return Survey(tuple(entries), tuple(foreign))


def survey(storage: Storage, directory: Path, wanted: str) -> Survey:
    """What is in the folder now; nothing when it is missing.

    :raises CannotTell: it cannot be listed; an unread folder is never an empty one.
    """
    return survey_names(storage.names(directory), wanted, lambda name: _peek(storage, directory, name, wanted))


def _entry(name: str, wanted: str, peek: Callable[[str], int | None]) -> Entry | None:
    own = entry_of(name)
    if own is not None:
        return own if wanted in (known.AUTO, "own") else None
    if wanted == "own" or name.startswith("."):
        return None
    step = next((step for one in known.of(wanted) if (step := one.step_named(name)) is not None), None)
    if step is None:
        step = peek(name)
    return None if step is None else Entry(name, step)


def _peek(storage: Storage, directory: Path, name: str, wanted: str) -> int | None:
    """The training step of what has a name of its user's choice: from inside, else the last number in the name."""
    look = Look(storage, directory, (name,), Ledger(lambda _: None))
    try:
        if look.kind() is Kind.FILE and not name.endswith(FILES):
            return None
        form = known.recognise(look, wanted)
    except OSError:  # not readable now: what is called a checkpoint may be one, and no start must take it for nothing
        return _last_number(name) if name.endswith(FILES) else None
    if form is None:
        return None
    step = _step_inside(look, form)
    if step is None and form.name == torch.FORMAT.name and _is_whole(look, form):
        return None
    return _last_number(name) if step is None else step


def is_guess(found: Checked) -> bool:
    """Whether its training step may be no more than some number in a name of its user's choice."""
    entry = found.entry
    if entry is None or entry.is_own or found.training_step is not None:
        return False
    known_name = any(form.step_named(entry.name) is not None for form in known.FORMATS)
    return not known_name and entry.training_step == _last_number(entry.name)


def _is_whole(look: Look, form: Format) -> bool:
    """A file of torch that is whole, and has no step inside and no name of a checkpoint, is somebody's weights, put
    there to begin with. The number in resnet50.pt is no step."""
    with look.judging(""):
        form.examine(look, Level.STRUCTURE)
    return not look.ledger.faults


def single(storage: Storage, path: Path, kind: Kind) -> Entry | None:
    """The checkpoint that this is itself, as any file is taken to be; None for a folder of checkpoints."""
    if (own := entry_of(path.name)) is not None:
        return own
    look, form, holds = Look(storage, path.parent, (path.name,), Ledger(lambda _: None)), None, False
    with contextlib.suppress(OSError):  # whoever looks at it says so
        form = known.recognise(look, known.AUTO) if path.name else None
        holds = form is not None and kind is Kind.FOLDER and _holds_checkpoints(look.names(), form.name)
    if kind is Kind.FOLDER and (form is None or holds):
        return None
    step = None if form is None else form.step_named(path.name)
    if step is None and form is not None:
        step = _step_inside(look, form)
    return Entry(path.name, _last_number(path.name) if step is None else step)


def _holds_checkpoints(names: frozenset[str], form: str) -> bool:
    """Trainers leave their last state beside their checkpoints: the folder of them is meant then. A checkpoint of one
    format may well hold one of another."""
    return any(survey_names(names, known.AUTO if form == "safetensors" else form).entries)


def _step_inside(look: Look, form: Format) -> int | None:
    with look.judging(""):  # what is wrong inside is told by whoever looks at it
        return form.peek(look)
    return None


def _last_number(name: str) -> int:
    numbers = _NUMBER.findall(name)
    return int(numbers[-1]) if numbers else 0
