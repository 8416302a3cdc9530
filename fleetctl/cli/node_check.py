"""`fleetctl node check` and `node learn`: look at this node by hand."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleetctl.cli.context import app
from fleetctl.cli.output import json_option, note, print_fields, print_json, print_table
from fleetctl.errors import CannotTell, FleetctlError

if TYPE_CHECKING:
    from fleetctl.health.check import Checked
    from fleetctl.health.model import Finding
    from fleetctl.health.site import Site

_STATUS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")  # of Nagios, by exit code
_NO_RIGHT = (os.strerror(errno.EACCES), os.strerror(errno.EPERM))  # as readers say it: of files, of /dev/kmsg
_AS_ROOT = "as root it sees the kernel log and the node's state, too"
_INSTALLED = "/opt/fleetctl/current"  # `node install` puts the node's own site.json there


class _Unknown(click.UsageError):
    """A mistake on the command line."""

    exit_code = 3


class _Nagios(click.Command):
    """Whatever goes wrong with the command itself is UNKNOWN: 2, the code of a usage error, would say CRITICAL."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except click.UsageError as error:
            raise _Unknown(error.format_message(), error.ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FleetctlError as error:
            raise CannotTell(error.message, remedy=error.remedy) from None
        except (click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            if app().debug:
                raise
            raise CannotTell(
                f"internal error: {type(error).__name__}: {error}", remedy="--debug shows where"
            ) from error


def _site_option(command: Any) -> Any:
    said = f"site.json. [default: {_INSTALLED}/site.json, then /etc/fleetctl/site.json]"
    return click.option("--site", type=click.Path(path_type=Path), metavar="FILE", help=said)(command)


@click.command("check", cls=_Nagios)
@click.option(
    "--phase",
    "phase_name",
    type=click.Choice(("hand", "prolog", "epilog", "periodic", "boot")),
    default="hand",
    show_default=True,
    help="Judge as this phase would.",
)
@click.option("--explain", is_flag=True, help="Also what passed, with the values seen and expected.")
@_site_option
@json_option
def command(phase_name: str, explain: bool, site: Path | None, as_json: bool) -> int:
    """Look at this node now. Nothing is drained, killed or written, and Slurm is not asked.

    For a prolog or an epilog SLURM_JOB_GPUS says which GPUs; without, it is all of them.

    Exit codes are those of Nagios. 0 OK, 1 WARNING: worth a look; 2 CRITICAL: no job should start here; 3 UNKNOWN:
    the check itself could not run, a mistake on the command line included.

    \b
    Example:
      fleetctl node check --explain
      SLURM_JOB_GPUS=0,1 fleetctl node check --phase prolog --json
    """
    from fleetctl.health.check import check, nagios_code
    from fleetctl.health.model import Phase

    checked = _for_login(check(_site(site), Phase(phase_name), app().environ), os.geteuid())
    code = nagios_code(checked.verdict)
    if as_json:
        print_json(_value(checked, code, explain=explain))
    else:
        _print(checked, code, explain=explain)
    return code


@click.command()
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Where to write it. [default: stdout]")
@click.option("--anyway", is_flag=True, help="Also from a node with faults, or without GPUs.")
@_site_option
@json_option
def learn(out: Path | None, anyway: bool, site: Path | None, as_json: bool) -> None:
    """Write profile.json from this node, which should be a good one: what its like should have.

    Read it before you install it (`node install --profile`): a part that is missing here would be missed nowhere.

    \b
    Example:
      fleetctl node learn --out profile.json
    """
    from fleetctl.health.check import check
    from fleetctl.health.decide import closes
    from fleetctl.health.learn import learn as profile_of
    from fleetctl.health.model import Outcome
    from fleetctl.health.profile import device_ids, dump_profile

    checked = _for_login(check(_site(site), environ=app().environ), os.geteuid())
    for finding in _told(checked):
        note(_line(finding))
    for trouble in checked.notes:
        note(f"fleetctl: {trouble}")
    if any(closes(one) for one in checked.findings) and not anyway:
        raise FleetctlError("this node has faults: its profile would call them normal", remedy="--anyway writes it")
    if not device_ids(checked.readings) and not anyway:
        raise FleetctlError(
            "no GPU is seen here: its profile would miss none anywhere",
            remedy="--anyway, if its like have none",
        )
    if any(one.outcome is Outcome.CANNOT_TELL for one in _told(checked)):
        note("what could not be read is not in the profile")
    text = dump_profile(profile_of(checked.readings))
    if out is not None:
        out.write_text(text, encoding="utf-8")
        note(f"wrote {out}: read it before you install it")
    if as_json:
        print_json({"out": out and str(out), "profile": text})
    elif out is None:
        click.echo(text, nl=False)


def _site(given: Path | None) -> Site:
    from fleetctl.cli.node_install import read_file
    from fleetctl.cli.runs import host_name
    from fleetctl.health.site import find_site, load_site, node_name, with_profile

    if given is not None:
        read_file(given)
    path = find_site(None if given is None else str(given), _INSTALLED)
    return with_profile(load_site(path, node_name(app().environ, host_name())), _INSTALLED)


def _for_login(checked: Checked, uid: int) -> Checked:
    """What only root may read is no fault of the node: for others one note says that it was not looked at."""
    from fleetctl.health.decide import decide
    from fleetctl.health.model import Care, Outcome

    if uid == 0:
        return checked
    notes = tuple(text for text in checked.notes if not _is_barred(text))
    log_is_barred = any(_is_barred(text) for text in checked.notes if text.startswith("log:"))
    findings = tuple(
        one._replace(care=Care.IGNORE) if _needs_root(one, log_is_barred=log_is_barred) else one
        for one in checked.findings
    )
    if (findings, notes) == (checked.findings, checked.notes):
        return checked
    choice = decide(findings)
    kept = tuple(one for one in findings if one.outcome is not Outcome.PASS and one.care is not Care.IGNORE)
    verdict = checked.verdict._replace(decision=choice.decision, reason=choice.reason, findings=kept)
    return checked._replace(verdict=verdict, findings=findings, notes=(*notes, _AS_ROOT))


def _is_barred(words: str) -> bool:
    return any(text in words for text in _NO_RIGHT)


def _needs_root(finding: Finding, *, log_is_barred: bool) -> bool:
    from fleetctl.health.model import Outcome

    if finding.check == "spool":
        return _is_barred(finding.words)
    is_of_log = finding.outcome is Outcome.CANNOT_TELL and "log could not be read" in finding.words
    return is_of_log and (log_is_barred or finding.check != "files")


def _print(checked: Checked, code: int, *, explain: bool) -> None:
    verdict, told = checked.verdict, _told(checked)
    words = [verdict.reason.removeprefix("fleetctl: ")] if verdict.reason else [_line(one) for one in told[:1]]
    said = words[0] if code and words else f"{verdict.passed} checks passed"
    print_fields([(f"{_STATUS[code]}:", f"{said} ({verdict.node}, {verdict.phase.value}, {verdict.took_s:.1f} s)")])
    if explain:
        columns = ("OUTCOME", "CARE", "CHECK", "PART", "VALUE", "EXPECTED", "WORDS")
        print_table(columns, [_row(one) for one in _ordered(checked)], folds=("WORDS",))
    else:
        print_fields([("", _line(one)) for one in told])
    for trouble in checked.notes:
        note(f"fleetctl: {trouble}")


def _told(checked: Checked) -> list[Finding]:
    """What did not pass and is not normal, the worst first."""
    return sorted((one for one in checked.verdict.findings if one.care > 0), key=lambda one: -one.care)


def _ordered(checked: Checked) -> list[Finding]:
    """Those that did not pass first, the worst at the top."""
    from fleetctl.health.model import Outcome

    return sorted(checked.findings, key=lambda one: (one.outcome is Outcome.PASS, -one.care, one.check, one.part))


def _row(finding: Finding) -> tuple[str, ...]:
    shown = [
        "-" if value is None else f"{value} {finding.unit}".rstrip() for value in (finding.value, finding.expected)
    ]
    return (finding.outcome.value, finding.care.name.lower(), finding.check, finding.subject, *shown, finding.words)


def _line(finding: Finding) -> str:
    from fleetctl.cli.node_print import finding_line

    return finding_line(finding)


def _value(checked: Checked, code: int, *, explain: bool) -> dict[str, Any]:
    from fleetctl.cli.node_print import finding_value

    verdict = checked.verdict
    shown = _ordered(checked) if explain else verdict.findings
    return {
        "status": _STATUS[code],
        "code": code,
        "node": verdict.node,
        "phase": verdict.phase.value,
        "decision": verdict.decision.value,
        "reason": verdict.reason or None,
        "job_id": verdict.job_id,
        "passed": verdict.passed,
        "took_s": verdict.took_s,
        "notes": list(checked.notes),
        "findings": [finding_value(one) for one in shown],
    }
