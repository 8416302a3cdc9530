"""`fleetctl submit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleetctl.cli.context import App, app
from fleetctl.cli.output import json_option, note, print_json
from fleetctl.cli.runs import store_of
from fleetctl.cli.site import dry_script, site_of

if TYPE_CHECKING:
    from fleetctl.submission.plan import Plan


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Print the batch script and do nothing. Needs no Slurm.")
@click.option("--set", "overrides", metavar="PATH=VALUE", multiple=True, help="Change one value of the spec.")
@click.option("--again", is_flag=True, help="Start another run although one of this spec is unfinished.")
@click.option("--wait", "wait_for_end", is_flag=True, help="Wait for the end; the exit code is the run's.")
@click.option(
    "--templates",
    "template_dirs",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    multiple=True,
    help="Folder with templates that replace the shipped ones.",
)
@json_option
def command(
    spec: Path,
    dry_run: bool,
    overrides: tuple[str, ...],
    again: bool,
    wait_for_end: bool,
    template_dirs: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Submit the run that SPEC describes, exactly once.

    While a run of the same spec is unfinished, submitting it again prints that run. A lost answer is never retried
    blindly: submitting again, or `fleetctl resolve RUN`, first finds out what became of it.

    \b
    Example:
      fleetctl submit train.yaml
      fleetctl submit train.yaml --set resources.nodes=8 --set env.LR=0.1
      fleetctl submit train.yaml --dry-run
    """
    from fleetctl.submission.plan import ignored_variables, read_plan, unused_parts

    here = app()
    plan = read_plan(spec, overrides, here.environ)
    if ignored := ignored_variables(here.environ):
        note(f"ignored: {', '.join(ignored)} (say it in the spec)")
    if unused := unused_parts(plan.spec):
        note(f"only checked by this version, nothing acts on it yet: {', '.join(unused)}")
    if dry_run:
        script = dry_script(plan, here, template_dirs)
        if as_json:
            print_json({"script": script})
        else:
            click.echo(script, nl=False)
        return 0
    return _submit(plan, here, template_dirs, again=again, wait_for_end=wait_for_end, as_json=as_json)


def _submit(
    plan: Plan, here: App, template_dirs: tuple[Path, ...], *, again: bool, wait_for_end: bool, as_json: bool
) -> int:
    from fleetctl.submission.submit import submit

    done = submit(plan, site_of(here, template_dirs), again=again)
    if as_json and not wait_for_end:
        print_json({"run_id": done.run_id, "job_id": done.job_id, "created": done.created, "state": done.state})
    elif not as_json:
        click.echo(f"run {done.run_id}  job {done.job_id}  {'submitted' if done.created else done.state}")
        if not done.created:
            note("this spec is already submitted; --again starts another run of it")
        note(f"follow it: fleetctl logs -f {done.run_id}")
    if not wait_for_end:
        return 0
    from fleetctl.cli.wait import wait_for

    return wait_for(here, store_of(here).find(done.run_id), timeout_s=None, as_json=as_json)
