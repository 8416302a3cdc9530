"""`fleetctl ckpt gc`: remove the checkpoints that a retention policy lets go, or say which it would."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from fleetctl.cli.context import app
from fleetctl.cli.output import json_option, note, print_json, print_table

if TYPE_CHECKING:
    from fleetctl.checkpoint.retention import Keep, Plan, Verdict
    from fleetctl.cli.ckpt_place import Place

_COLUMNS = ("STEP", "AGE", "SIZE", "WHAT", "WHY", "NAME")


@click.command("gc")
@click.argument("target", metavar="RUN_OR_PATH")
@click.option("--task", type=int, metavar="I", help="Element I of a sweep.")
@click.option(
    "--keep", "last", type=click.IntRange(min=2), metavar="N", help="Keep the newest N, else as the spec says."
)
@click.option("--every", metavar="TIME", help="Of older ones keep one in every TIME, such as 6h.")
@click.option("--apply", "really", is_flag=True, help="Remove them; without it they are only listed.")
@json_option
def command(target: str, task: int | None, last: int | None, every: str | None, really: bool, as_json: bool) -> None:
    """Remove old checkpoints by the run's `checkpoint.keep`. Without --apply nothing is removed.

    The newest two valid ones always stay, and whatever is not valid, tagged (touch DIR/.keep/NAME) or in use. Of a
    folder that is named instead of a run it is not known which runs use it, or which checkpoints they have in use.

    \b
    Example:
      fleetctl ckpt gc RUN
      fleetctl ckpt gc RUN --apply
      fleetctl ckpt gc /scratch/me/checkpoints --keep 3 --every 12h
    """
    from fleetctl.checkpoint.prune import carry_out, plan_folder
    from fleetctl.checkpoint.retention import Shunned
    from fleetctl.cli.ckpt_place import examiner, find_place

    here = app()
    place = find_place(here, target, task)
    keep = _policy(place, last, every)
    made = plan_folder(
        examiner(place),
        place.directory,
        place.found,
        place.fence,
        keep,
        run_id="" if place.run is None else place.run.run_id,
        now=here.clock.now(),
        may_be_written=place.may_be_written,
        used=place.used,
        shunned=Shunned(place.suspects, place.passed_over, place.at_most_step),
    )
    gone: Collection[str] = ()
    if really:
        _journal(place, task, keep, made)
        gone = carry_out(place.directory, made, permit=lambda: _permit(place, task))
    _print(place, made, gone, really=really, as_json=as_json)


@contextlib.contextmanager
def _permit(place: Place, task: int | None) -> Iterator[bool]:
    """As long as no attempt has started since, or is still choosing: it may resume from anything that was there.

    :raises RunDirError: that is not known.
    """
    from fleetctl.rundir.attempts import Attempts

    if place.run is None:
        yield True
        return
    attempts = Attempts(place.run.attempts_dir(task))
    has_chosen = not place.may_be_written or (attempts.path(place.newest) / "resume.json").exists()
    yield has_chosen and attempts.newest() == place.newest


def _policy(place: Place, last: int | None, every: str | None) -> Keep:
    """The options, else the spec's.

    :raises UsageError: neither says what to keep, or a time is none.
    """
    from fleetctl.checkpoint.retention import Keep
    from fleetctl.errors import UsageError
    from fleetctl.units import Duration

    said = place.keep
    last = last if last is not None else said.last if said is not None else None
    if last is None:
        raise UsageError("nothing says which checkpoints to keep", remedy="--keep N, or `checkpoint.keep` in the spec")
    if every is None:
        return Keep(last, said.every if said is not None else None)
    try:
        return Keep(last, Duration.parse(every))
    except ValueError as error:
        raise UsageError(f"--every: {error}") from None


def _journal(place: Place, task: int | None, keep: Keep, made: Plan) -> None:
    """Written down before the deed."""
    from fleetctl.cli.runs import host_name, user_name
    from fleetctl.rundir.model import EventKind

    if place.run is None or not made.removed:
        return
    here = app()
    place.run.event_log(f"gc-{host_name()}").append(
        here.clock.now(),
        EventKind.RETENTION,
        submission=place.run.history().submission,
        task=task,
        by=f"user {user_name()}",
        keep=keep.last,
        names=[one.name for one in made.removed],
    )


def _print(place: Place, made: Plan, gone: Collection[str], *, really: bool, as_json: bool) -> None:
    from fleetctl.cli.ckpt_print import FOLDS, age_of, as_json_value, size_of

    if as_json:
        print_json([{**as_json_value(place, one.found), **_fate(one, gone)} for one in made.verdicts])
        return
    now = app().clock.now()
    if made.verdicts:
        print_table(
            _COLUMNS, [_row(one, gone, really, age_of(one.found.saved_at, now)) for one in made.verdicts], folds=FOLDS
        )
    meant = [one for one in made.removed if not really or one.name in gone]
    total = size_of(sum(one.size_bytes or 0 for one in meant))
    count = f"{len(meant)} checkpoint{'' if len(meant) == 1 else 's'}, {total}"
    if not made.removed:
        note("nothing to remove")
    elif not really:
        note(f"would remove {count}; nothing was: --apply does")
    elif len(meant) < len(made.removed):
        note(f"removed {count}; the others were written to meanwhile, or an attempt is starting: look again")
    else:
        note(f"removed {count}")


def _fate(one: Verdict, gone: Collection[str]) -> dict[str, object]:
    return {"goes": one.removed, "removed": one.found.name in gone, "why": one.reason}


def _row(one: Verdict, gone: Collection[str], really: bool, age: str) -> Sequence[str]:
    from fleetctl.cli.ckpt_print import size_of

    assert one.found.entry is not None, "a plan judges checkpoints only"
    goes = "removed" if one.found.name in gone else "not removed" if really else "goes"
    step, size = str(one.found.entry.training_step), size_of(one.found.size_bytes)
    return step, age, size, goes if one.removed else "stays", one.reason, one.found.name
