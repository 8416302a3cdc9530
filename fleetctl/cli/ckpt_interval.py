"""`fleetctl ckpt interval`: how often to save, what that costs, and where each number comes from."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import click

from fleetctl.cli.context import app
from fleetctl.cli.output import json_option, print_fields, print_json
from fleetctl.cli.runs import complete_run

if TYPE_CHECKING:
    from fleetctl.reliability.estimate import Observed, Plan

_FRACTION = r"(\d{1,9}\.\d{1,6})([dhms])"  # a measured time is rarely whole: 0.06s, 3.69h
_UNIT_S = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


_LEAST_RATE, _MOST_RATE = 1e-9, 1e3  # of failures of a node in a day; beyond it is a slip of the keys


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A time above 0, as seconds."""
    from fleetctl.units import Duration

    if value is None:
        return None
    try:
        match = re.fullmatch(_FRACTION, value.strip(), re.ASCII)
        found = float(match[1]) * _UNIT_S[match[2]] if match else float(Duration.parse(value).seconds)
    except ValueError as error:
        raise click.BadParameter(f"expected {error}, not {value!r}", ctx, param) from None
    if not found:
        raise click.BadParameter(f"expected a time above 0, not {value!r}", ctx, param)
    return found


def _rate(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not _LEAST_RATE <= value <= _MOST_RATE:
        raise click.BadParameter(f"expected a number from {_LEAST_RATE:g} to {_MOST_RATE:g}, not {value!r}", ctx, param)
    return value


@click.command("interval")
@click.argument("run", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option("--task", type=int, metavar="I", help="Element I of a sweep.")
@click.option("--cost", "cost_s", callback=_seconds, metavar="TIME", help="What the training waits for one save.")
@click.option("--mtbf", "mtbf_s", callback=_seconds, metavar="TIME", help="Mean time between two failures of the job.")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes of the job; else those of RUN, or 1.")
@click.option(
    "--failures-per-node-day",
    "rate",
    type=float,
    callback=_rate,
    metavar="X",
    help="How often one node fails in a day.",
)
@click.option("--restart", "restart_s", callback=_seconds, metavar="TIME", help="From a failure to the next step.")
@json_option
def command(
    run: str | None,
    task: int | None,
    cost_s: float | None,
    mtbf_s: float | None,
    nodes: int | None,
    rate: float | None,
    restart_s: float | None,
    as_json: bool,
) -> None:
    """Print how often to save, and what that costs. Nothing is changed.

    What is given counts, then what RUN has measured, then what is assumed; each number says which it is.

    \b
    Example:
      fleetctl ckpt interval RUN
      fleetctl ckpt interval --cost 37s --mtbf 3.69h
      fleetctl ckpt interval --cost 0.5s --nodes 128 --failures-per-node-day 0.004 --json
    """
    from fleetctl.errors import UsageError
    from fleetctl.launch.interval import keys_of
    from fleetctl.reliability.estimate import Observed, make_plan

    if mtbf_s is not None and (nodes is not None or rate is not None):
        raise UsageError("--mtbf says what --nodes and --failures-per-node-day lead to: give one of them")
    if run is None and task is not None:
        raise UsageError("--task chooses an element of a sweep: name the run")
    run_id, seen = (None, Observed()) if run is None else _observed(run, task)
    plan = make_plan(
        seen, nodes or seen.nodes, cost_s=cost_s, mtbf_s=mtbf_s, restart_s=restart_s, failures_per_node_day=rate
    )
    if as_json:
        print_json({"run_id": run_id, "task": task, **keys_of(plan)})
    else:
        print_fields(_fields(plan))


def _observed(name: str, task: int | None) -> tuple[str, Observed]:
    """The run's id, and what it has measured.

    :raises RunUnknown, UsageError: there is no such run or element.
    :raises RunDirError: it cannot be read.
    """
    from fleetctl.cli.runs import store_of
    from fleetctl.errors import RunUnknown, UsageError
    from fleetctl.launch.interval import observe
    from fleetctl.rundir.attempts import Attempts
    from fleetctl.rundir.model import RunKind

    try:
        run = store_of(app()).find(name)
    except RunUnknown:
        if name and "/" not in name and not (app().cwd / name).is_dir():
            raise
        remedy = "`fleetctl ls --all` shows what runs there are"
        raise UsageError(f"`ckpt interval` takes a run, not {name!r}", remedy=remedy) from None
    history = run.history()
    tasks = range(history.record.tasks) if history.record.kind is RunKind.SWEEP else range(0)
    if tasks and task is None:
        raise UsageError(f"run {run.run_id} is a sweep of {len(tasks)}", remedy="choose one: --task I")
    if task is not None and task not in tasks:
        raise UsageError(f"run {run.run_id} has no task {task}")
    return run.run_id, observe(Attempts(run.attempts_dir(task)), history, task, app().clock.now())


def _fields(plan: Plan) -> list[tuple[str, str]]:
    from fleetctl.reliability.estimate import span
    from fleetctl.reliability.interval import HOUR_S

    taken_s = plan.auto_s
    saves, lost = plan.save_share(taken_s), plan.overhead(taken_s) - plan.save_share(taken_s)
    fields = [
        ("interval", f"{span(taken_s)} from the start of one save to the next{_bound(plan)}"),
        ("formulas", f"Young {span(plan.young_s)}; Daly {span(plan.daly_s)} after the end of the one before"),
        ("overhead", f"{plan.overhead(taken_s):.2%}: {saves:.2%} for saves, {lost:.2%} for work that failures take"),
        ("restarts", f"{plan.restart_share:.2%}, whatever the interval"),
        ("effective", f"{plan.effective(taken_s):.2%} of the time is progress that stays"),
        ("hourly", f"{plan.overhead(HOUR_S):.2%} overhead instead"),
        ("save cost", str(plan.cost)),
        ("a failure", f"every {plan.mtbf}"),
        ("a restart", str(plan.restart)),
    ]
    return fields + [("" if number else "if only", text) for number, text in enumerate(plan.assumptions)]


def _bound(plan: Plan) -> str:
    """Where the interval is not the formula's."""
    if math.isclose(plan.auto_s, plan.young_s):
        return ""
    return f", the {'longest' if plan.auto_s < plan.young_s else 'shortest'} that fleetctl takes"
