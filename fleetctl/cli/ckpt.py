"""`fleetctl ckpt`: which checkpoints there are, which are whole, and which one a restart takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fleetctl.cli.ckpt_gc import command as gc
from fleetctl.cli.ckpt_interval import command as interval
from fleetctl.cli.ckpt_print import SHOWN, print_choice, print_found
from fleetctl.cli.context import app
from fleetctl.cli.output import json_option, note
from fleetctl.cli.runs import complete_run

if TYPE_CHECKING:
    from fleetctl.checkpoint.eyes import Memory
    from fleetctl.checkpoint.model import Checked, Choice, Entry, Level
    from fleetctl.cli.ckpt_place import Place

Command = TypeVar("Command", bound=Callable[..., Any])


def _where(command: Command) -> Command:
    """RUN_OR_PATH and --task, the same on every command."""
    command = click.option("--task", type=int, metavar="I", help="Element I of a sweep.")(command)
    return click.argument("target", metavar="RUN_OR_PATH", shell_complete=complete_run)(command)


@click.group()
def command() -> None:
    """Look at checkpoints: which are there, which are whole, which one a restart takes.

    Only `gc --apply` changes anything.

    RUN_OR_PATH is a run, a folder of checkpoints, or one checkpoint.

    \b
    Example:
      fleetctl ckpt ls RUN
      fleetctl ckpt verify /scratch/me/checkpoints
    """


command.add_command(gc)
command.add_command(interval)


@command.command("ls")
@_where
@click.option("--all", "everything", is_flag=True, help=f"Also those beyond the newest {SHOWN}, and other names.")
@json_option
def list_them(target: str, task: int | None, everything: bool, as_json: bool) -> None:
    """List checkpoints, newest first. Manifests and headers are read, not the content.

    Exit code 0: one is valid, and not weights alone unless it was named itself; 11: none is; 3: cannot tell.

    \b
    Example:
      fleetctl ckpt ls RUN
      fleetctl ckpt ls RUN --json | jq '.[] | select(.validity == "valid")'
    """
    from fleetctl.checkpoint import select
    from fleetctl.checkpoint.model import Checked, Level
    from fleetctl.cli.ckpt_end import conclude
    from fleetctl.cli.ckpt_place import as_they_are, find_place, with_links

    place = find_place(app(), target, task)
    entries, passed = select.acceptable(place.found, place.fence, place.at_most_step)
    unread = (*passed, *place.staged)
    others = sorted((one for one in unread if one.reason == select.NOT_KNOWN), key=lambda one: one.name)
    wanted = _newest_first(entries, [one for one in unread if one.reason != select.NOT_KNOWN])
    shown = wanted if everything else wanted[:SHOWN]
    looked = [one if isinstance(one, Checked) else _check(place, one, Level.STRUCTURE) for one in shown]
    found = as_they_are(place, looked, app().clock.now())
    listed = with_links(place, others) if everything or as_json else ()
    print_found(place, (*found, *listed), as_json=as_json)
    if len(wanted) > len(shown):
        note(f"{len(wanted) - len(shown)} more: --all")
    if len(others) > len(listed):
        note(f"{len(others)} other name{'s' if len(others) > 1 else ''}: --all")
    conclude(place, found)


@command.command()
@_where
@click.option(
    "--level",
    "level_name",
    type=click.Choice(("names", "structure", "content")),
    default="content",
    show_default=True,
    help="How deep to look.",
)
@click.option("--step", type=int, metavar="N", help="Only the checkpoint of training step N. [default: all]")
@click.option("--resume", is_flag=True, help="Go on where a verification was interrupted.")
@json_option
def verify(target: str, task: int | None, level_name: str, step: int | None, resume: bool, as_json: bool) -> None:
    """Check every checkpoint that counts, down to each byte unless --level says less.

    What was read and found right is noted in ~/.cache/fleetctl until all is done. With --resume it is not read again,
    unless its file was written to since.

    Exit code 0: one is valid, and not weights alone unless it was named itself; 11: none is; 3: cannot tell.

    \b
    Example:
      fleetctl ckpt verify RUN --step 1200
      fleetctl ckpt verify RUN --level structure --json
    """
    from fleetctl.checkpoint import select
    from fleetctl.checkpoint.model import Level
    from fleetctl.cli.ckpt_end import conclude, list_of
    from fleetctl.cli.ckpt_place import as_they_are, find_place
    from fleetctl.errors import NoValidCheckpoint

    place = find_place(app(), target, task)
    entries = select.acceptable(place.found, place.fence, None)[0]
    chosen = [entry for entry in entries if step in (None, entry.training_step)]
    if step is not None and not chosen:
        raise NoValidCheckpoint(f"there is no checkpoint of step {step}", remedy=list_of(target))
    level = Level[level_name.upper()]
    notes = [_notes(place, entry, level, trusted=resume) for entry in chosen]
    looked = _look_at_all(place, chosen, level, notes)
    _forget(zip(looked, notes, strict=True))
    found = as_they_are(place, [_as_deep(one, level) for one in looked], app().clock.now())
    print_found(place, found, as_json=as_json)
    _note_what_is_not_as_asked(found, level)
    conclude(place, found)


@command.command()
@_where
@json_option
def resolve(target: str, task: int | None, as_json: bool) -> None:
    """Print the checkpoint that a restart would take now, and why it takes no newer one.

    Exit code 0: there is one; 11: there is none; 3: cannot tell.

    \b
    Example:
      fleetctl ckpt resolve RUN
    """
    from fleetctl.checkpoint.model import Outcome
    from fleetctl.cli.ckpt_end import fail, list_of
    from fleetctl.cli.ckpt_place import as_they_are, choose, find_place

    place = find_place(app(), target, task)
    choice = choose(place, place.at_most_step)
    passed = as_they_are(place, _with_staged(place, choice), app().clock.now())
    print_choice(place, choice, passed, as_json=as_json)
    if choice.outcome is not Outcome.RESUME:
        fail(place, choice.passed_over, choice.reason, f"`{list_of(target)}` lists them all")


def _check(
    place: Place,
    entry: Entry,
    level: Level,
    watch: Callable[[int], None] | None = None,
    memory: Memory | None = None,
) -> Checked:
    from fleetctl.checkpoint import select

    found = place.eyes.examine(
        place.directory,
        entry,
        level,
        wanted=place.format,
        ranks=place.needs.ranks,
        pulse=watch or (lambda _: None),
        memory=memory,
    )
    return select.as_suspect(found, place.suspects)


def _look_at_all(place: Place, entries: Sequence[Entry], level: Level, notes: Sequence[Memory | None]) -> list[Checked]:
    """One after the other, with a bar where that may take long."""
    from fleetctl.checkpoint.model import Level
    from fleetctl.cli.ckpt_watch import progress

    if level is not Level.CONTENT:
        return [_check(place, entry, level) for entry in entries]
    with progress(place.eyes.storage, place.directory, entries) as watch:
        return [_check(place, entry, level, watch(entry), memory) for entry, memory in zip(entries, notes, strict=True)]


def _note_what_is_not_as_asked(found: Sequence[Checked], level: Level) -> None:
    bad = sum(one.validity.value != "valid" for one in found)
    if bad:
        note(f"{bad} of {len(found)} not valid")
    bare = sum(one.validity.value == "valid" and one.deepest < level for one in found)
    if bare:
        note(f"{bare} {'has' if bare == 1 else 'have'} parts without any checksum: structure is the deepest there")


def _notes(place: Place, entry: Entry, level: Level, *, trusted: bool) -> Memory | None:
    """Where it is noted what of its content was right; None where nothing is noted."""
    from fleetctl.checkpoint.eyes import Memory
    from fleetctl.checkpoint.model import Level
    from fleetctl.checkpoint.verified import folder_of, path_of

    folder = folder_of(app().environ)
    if level is not Level.CONTENT or folder is None:
        return None
    return Memory(str(path_of(folder, place.directory / entry.name)), trusted)


def _forget(done: Iterable[tuple[Checked, Memory | None]]) -> None:
    """Whoever was not interrupted begins anew the next time; what could not be read keeps its notes."""
    from fleetctl.checkpoint.verified import forget

    for found, memory in done:
        if memory is not None and found.validity.value != "unknown":
            forget(memory.path)


def _as_deep(found: Checked, asked: Level) -> Checked:
    """What was looked at less deep than asked, and than its format allows, is not known."""
    from msgspec.structs import replace

    from fleetctl.checkpoint.model import Level, Validity

    reached = found.level or Level.NAMES
    if found.validity is not Validity.VALID or reached >= max(Level.STRUCTURE, min(asked, found.deepest)):
        return found
    return replace(found, validity=Validity.UNKNOWN, reason=found.reason or "only its names were looked at")


def _newest_first(entries: Sequence[Entry], unread: Sequence[Checked]) -> list[Entry | Checked]:
    """All of them, those without a training step last; nothing is looked into for it."""
    known: list[tuple[Any, Entry | Checked]] = [(entry.age_order, entry) for entry in entries]
    known += [(one.entry.age_order, one) for one in unread if one.entry is not None]
    foreign = sorted((one for one in unread if one.entry is None), key=lambda one: one.name)
    return [one for _, one in sorted(known, key=lambda pair: pair[0], reverse=True)] + [*foreign]


def _with_staged(place: Place, choice: Choice) -> tuple[Checked, ...]:
    """Newer saves under way belong to the answer, although no restart can take them."""
    from fleetctl.checkpoint.select import newest_first

    chosen = choice.chosen.entry if choice.chosen is not None else None
    newer = [
        one
        for one in place.staged
        if one.entry is not None and (chosen is None or one.entry.training_step > chosen.training_step)
    ]
    return newest_first((*choice.passed_over, *newer))
