"""The `fleetctl` command: finds the asked-for command, imports only that one, and turns errors into exit codes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

import click

from fleetctl.cli.lazy import Lazy
from fleetctl.errors import INTERRUPTED_EXIT_CODE, FleetctlError, SpecError, UsageError
from fleetctl.version import VERSION

_INTERNAL_EXIT_CODE = 70  # sysexits.h, EX_SOFTWARE: our own fault
_MOST_COLUMNS = 80  # longer lines are hard to read; click's own default

# name -> (module with a click command named `command`, help line): `--help` imports none of them
_COMMANDS = {
    "submit": ("fleetctl.cli.submit", "Submit a run, exactly once."),
    "ls": ("fleetctl.cli.ls", "List runs and where they are."),
    "show": ("fleetctl.cli.show", "Everything about one run."),
    "logs": ("fleetctl.cli.logs", "Print or follow what a run prints."),
    "wait": ("fleetctl.cli.wait", "Wait for the end of a run."),
    "why": ("fleetctl.cli.why", "Why a run is not running, in words."),
    "cancel": ("fleetctl.cli.cancel", "Cancel a run."),
    "requeue": ("fleetctl.cli.requeue", "Bring a run back."),
    "resolve": ("fleetctl.cli.resolve", "Find out what became of a submission without answer."),
    "ckpt": ("fleetctl.cli.ckpt", "Which checkpoints there are, and which one a restart takes."),
    "cluster": ("fleetctl.cli.cluster", "What this cluster's Slurm wants and can."),
    "node": ("fleetctl.cli.node", "Check nodes, install the checks on them, read what they found."),
    "daemon": ("fleetctl.cli.daemon", "Watch runs, bring them back after failures, explain every decision."),
    "bundle": ("fleetctl.cli.bundle", "Pack what is known of a run for a person who looks into it."),
    "account": ("fleetctl.cli.account", "What was used, by whom, at what price, and what took the rest."),
    "db": ("fleetctl.cli.db", "The schema of the accounting database."),
    "doctor": ("fleetctl.cli.doctor", "What in this cluster's configuration will hurt long runs."),
    "sandbox": ("fleetctl.cli.sandbox", "A real Slurm cluster on this machine, to try things on."),
    "schema": ("fleetctl.cli.schema", "The JSON Schema of train.yaml."),
    "completion": ("fleetctl.cli.completion", "Tab completion for your shell."),
}


@click.command(cls=Lazy, table=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, message="fleetctl %(version)s")
@click.option("--runs", "runs_root", type=click.Path(), help="Folder of all runs [env FLEETCTL_RUNS].")
@click.option("--debug", is_flag=True, help="Show tracebacks and every call to Slurm.")
@click.pass_context
def cli(ctx: click.Context, runs_root: str | None, debug: bool) -> None:
    """Keeps long GPU training runs on Slurm making progress.

    \b
    Example:
      fleetctl submit train.yaml
      fleetctl logs -f RUN
    """
    from pathlib import Path  # not before a command runs: `--help` has no use for it

    from fleetctl.cli.context import App
    from fleetctl.clock import SystemClock

    environ = dict(os.environ)
    chosen = Path(runs_root or environ.get("FLEETCTL_RUNS") or Path.home() / "fleetctl-runs")
    ctx.obj = App(SystemClock(), environ, Path.cwd(), chosen.absolute(), debug)


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code; every error is one line on stderr."""
    try:
        width = min(_columns(), _MOST_COLUMNS) - 2
        result = cli.main(args=list(args), prog_name="fleetctl", standalone_mode=False, terminal_width=width)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("fleetctl: interrupted; runs go on", err=True)
        return INTERRUPTED_EXIT_CODE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the exit's flush is quiet
        return 0
    except Exception as error:  # the last line of defence: a bug is one line, too
        if "--debug" in args and not isinstance(error, click.ClickException):
            raise
        return _report(error, as_json="--json" in args)


def _report(error: Exception, *, as_json: bool) -> int:
    """One line, or one JSON object, and the exit code."""
    if isinstance(error, click.ClickException) and not as_json:
        error.show()
        return error.exit_code
    if isinstance(error, click.ClickException):
        error, code = UsageError(error.format_message()), error.exit_code
        error.exit_code = code  # `node check` has another one
    if isinstance(error, OSError):
        error = FleetctlError(str(error))
    if not isinstance(error, FleetctlError):
        click.echo(f"fleetctl: internal error: {type(error).__name__}: {error} (--debug shows where)", err=True)
        return _INTERNAL_EXIT_CODE
    _complain(error, as_json=as_json)
    return error.exit_code


def _columns() -> int:
    """As shutil.get_terminal_size, which click would import for it, with three compression libraries."""
    try:
        return int(os.environ.get("COLUMNS", "")) or _MOST_COLUMNS
    except ValueError:
        pass
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns if sys.__stdout__ else _MOST_COLUMNS
    except OSError:  # a pipe
        return _MOST_COLUMNS


def _complain(error: FleetctlError, *, as_json: bool) -> None:
    if as_json:
        import json

        click.echo(json.dumps({"error": error.message, "remedy": error.remedy, "exit_code": error.exit_code}), err=True)
        return
    prefix = "" if isinstance(error, SpecError) else "fleetctl: "  # file:line:col first, as editors expect it
    click.echo(prefix + error.message, err=True)
    if error.remedy:
        click.echo(f"  {error.remedy}", err=True)


def main() -> None:
    """One command line of this process; its end skips the taking apart of modules, a twentieth of a command's CPU."""
    code = run(sys.argv[1:])
    with contextlib.suppress(OSError):  # a full disk or a closed pipe behind stdout: what could be written is written
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
