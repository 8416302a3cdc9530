"""Submit a run again that Slurm cannot start any more: its next submission, by the road of `submit`.

  script -> INTENT -> REQUEUE (the wish) -> sbatch -> SUBMITTED
Only under the lock of its spec, and only where the job of the submission before is over and was not cancelled. After
the intent that job could not go on even if somebody started it: `launch` ends jobs of older submissions.
"""

from __future__ import annotations

import msgspec

from fleetctl.render.quote import sh_quote
from fleetctl.rundir import files
from fleetctl.rundir.history import History
from fleetctl.rundir.model import EventKind
from fleetctl.rundir.store import RunDir
from fleetctl.slurm.hosts import fold
from fleetctl.submission.decide_nodes import hosts
from fleetctl.submission.decide_requeue import Deed, cancelled
from fleetctl.submission.known import dependencies
from fleetctl.submission.look import Brought, Try, copied, rows, write_wish
from fleetctl.submission.plan import Dependencies, Plan, check_files, render_plan
from fleetctl.submission.send import announce, send


def submit_again(this: Try, history: History) -> Brought:
    """The next submission of the run.

    :raises UsageError: this is a copy of a run, its workdir is gone, or it was cancelled meanwhile.
    :raises SlurmRefused, SubmissionUnknown, SlurmUnreachable: as submission.send.
    """
    run, site, number = this.run, this.site, history.submission + 1
    _check_is_here(run, history.submission)
    check_files(this.plan)
    plan = _excluding(this.plan, this.wanted.exclude)
    needed = Dependencies() if history.attempts else dependencies(plan.spec.depends_on, site)
    announce(run, number, render_plan(plan, run, number, site.scripts, needed), this.log, site)
    write_wish(this, history, number)
    if run.history().cancelled_at is not None:
        text = "it was cancelled before it was sent"
        this.log.append(site.clock.now(), EventKind.REFUSED, submission=number, code=1, text=text)
        raise cancelled(history)
    send(run, number, plan.workdir, this.log, site)
    now = run.history()
    return this.brought(now, Deed.SUBMIT, rows(this, now) or ())


def _check_is_here(run: RunDir, submission: int) -> None:
    """Slurm has nothing to say about a forgotten job, but its script names its folder."""
    path = run.script(submission)
    with files.explained(path, "read"):
        text = path.read_text(errors="surrogateescape")
    if f"--run-dir {sh_quote(str(run.path))} " not in text:
        raise copied(run, f"{path} names another one")


def _excluding(plan: Plan, nodes: frozenset[str]) -> Plan:
    """The plan with more excluded nodes, in every component."""
    if not nodes:
        return plan
    replace, spec = msgspec.structs.replace, plan.spec

    def off(exclude: str | None) -> str:
        return fold(hosts(exclude or "") | nodes)

    groups = tuple(
        replace(group, resources=replace(group.resources, exclude=off(group.resources.exclude)))
        for group in spec.groups
    )
    own = replace(spec.resources, exclude=off(spec.resources.exclude))
    return replace(plan, spec=replace(spec, resources=own, groups=groups))
