"""What the commands about runs share: naming a run, asking Slurm about it, and the keys that are printed."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fleetctl.cli.context import App
from fleetctl.cli.output import note

if TYPE_CHECKING:
    from fleetctl.rundir.history import History
    from fleetctl.rundir.store import RunDir, Store
    from fleetctl.rundir.view import Queue, RunView
    from fleetctl.slurm.port import Slurm
    from fleetctl.slurm.profile import ClusterProfile

Command = TypeVar("Command", bound=Callable[..., Any])


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    root = ctx.find_root().params.get("runs_root") or os.environ.get("FLEETCTL_RUNS") or "~/fleetctl-runs"
    folder = os.path.expanduser(root)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(name for name in names if name.startswith(incomplete) and not name.startswith("."))


def run_argument(command: Command) -> Command:
    """The RUN argument: an id, the start of one, or a job id."""
    return click.argument("run", metavar="RUN", shell_complete=complete_run)(command)


def user_name() -> str:
    """Who we are for Slurm; never taken from the environment."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def host_name() -> str:
    """The short name of this machine, for event files."""
    return os.uname().nodename.partition(".")[0] or "host"


def store_of(app: App) -> Store:
    from fleetctl.rundir.store import Store

    return Store(app.runs_root)


def slurm_of(app: App) -> Slurm:
    """Slurm by the command line; --debug shows every call."""
    from fleetctl.slurm.connect import connect

    return connect(app.environ, app.clock, note if app.debug else None)


def profile_of(app: App, slurm: Slurm) -> ClusterProfile:
    """The profile of the cluster that answers now: the cached one, else probed without a test job and kept.

    Where SLURM_CONF is not set, two clusters share one cached profile, so its name is compared with the answer's.
    :raises SlurmUnreachable: the controller does not answer.
    """
    from contextlib import suppress

    from fleetctl.slurm import profile

    path = profile.profile_path(app.runs_root, app.environ)
    found = profile.load_profile(path, app.environ, app.clock.now())
    if found is None or found.cluster_name != cluster_of(slurm):
        found = profile.probe(slurm, app.clock.now(), path)
        with suppress(OSError):  # only a cache; a run root that cannot be written is told where it matters
            profile.save_profile(path, found)
    return found


def cluster_of(slurm: Slurm) -> str:
    """The name of the cluster that answers.

    :raises SlurmUnreachable: none does.
    """
    return slurm.config().get("ClusterName", "")


def ask(slurm: Slurm, user: str) -> Queue:
    """What Slurm says about `user`'s jobs, by one query.

    :raises SlurmUnreachable: nothing is known.
    """
    from fleetctl.rundir.view import queue_of

    return queue_of(cluster_of(slurm), user_name(), slurm.jobs(user=user))


def see(history: History, run: RunDir, queue: Queue | None) -> RunView:
    """The run as its own record and an answer of Slurm (None: not heard) show it."""
    from fleetctl.rundir.model import RunKind
    from fleetctl.rundir.view import jobs_of, view

    shown = history.attempts and history.record.kind is not RunKind.SWEEP  # one element's step tells nothing of a sweep
    newest = history.attempts[-1] if shown else None
    progress = run.progress(newest.name, newest.task) if newest is not None else None
    return view(history, progress, jobs_of(history, str(run.path), queue))


def look(app: App, run: RunDir, *, heard_or_raise: bool = False) -> RunView:
    """Ask Slurm about one run; an unreachable Slurm gives a view that says so. An end that only Slurm knows is kept.

    :raises CannotTell: with `heard_or_raise`, when Slurm answers and can say nothing of this run, now or later.
    """
    from fleetctl.errors import CannotTell
    from fleetctl.rundir.view import jobs_of

    history = run.history()
    queue = None
    if history.job_id is not None:
        try:
            queue = ask(slurm_of(app), history.record.user)
        except CannotTell as error:
            note(f"{error.message}: showing what the run directory tells")
    if heard_or_raise and queue is not None and jobs_of(history, str(run.path), queue) is None:
        raise CannotTell(
            f"cluster {queue.cluster} tells {queue.asker} nothing of run {run.run_id}",
            remedy=f"ask as {history.record.user}, on cluster {history.cluster}",
        )
    seen = see(history, run, queue)
    keep_end(app, run, history, seen)
    return seen


def keep_end(app: App, run: RunDir, history: History, seen: RunView) -> None:
    """Write down an end that only Slurm tells: it forgets a job after MinJobAge (300 s by default)."""
    from fleetctl.errors import RunDirError
    from fleetctl.rundir.model import EventKind
    from fleetctl.rundir.view import RunState, view

    if not seen.state.is_finished or seen.state in (RunState.NOT_SUBMITTED, RunState.LOST):
        return
    if seen.state.value == history.observed_end or view(history, None, None).state is seen.state:
        return  # the record tells it already
    try:
        run.event_log(f"seen-{host_name()}").append(
            app.clock.now(),
            EventKind.OBSERVED_END,
            submission=history.submission,
            state=seen.state.value,
            attempts=len(history.attempts),
        )
    except RunDirError as error:  # looking must work on a full disk, and in somebody else's run
        note(error.message)


def as_json(seen: RunView) -> dict[str, Any]:
    """The stable keys of a run; docs/json.md describes them."""
    from datetime import datetime

    raw = {name: getattr(seen, name) for name in type(seen).__struct_fields__}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in raw.items()}


def step_text(seen: RunView) -> str:
    """`120/300`, `120`, or nothing."""
    if seen.training_step is None:
        return ""
    return f"{seen.training_step}/{seen.target_step}" if seen.target_step else str(seen.training_step)


def exit_code_of(seen: RunView) -> int:
    """0 completed, 3 cannot tell, 1 any other end."""
    from fleetctl.rundir.view import RunState

    if seen.state is RunState.COMPLETED:
        return 0
    unknown = (RunState.LOST, RunState.UNKNOWN, RunState.SUBMISSION_UNKNOWN)
    return 3 if seen.state in unknown else 1


def word_lines(app: App, run: RunDir, history: History) -> list[str]:
    """What the recovery daemon has said to the run's next start, which has not read it yet; of no sweep's elements."""
    from fleetctl.launch.words import said_to
    from fleetctl.rundir.timeline import word_text
    from fleetctl.rundir.words import word_out

    said = said_to(run.path, history, None, app.environ)
    return [*(word_text(word_out(word)) for word in said.words), *([said.unread] if said.unread else [])]
