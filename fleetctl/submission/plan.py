"""From a spec file to what would be submitted: validated, with its workdir, digest and script, and nothing done yet."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from fleetctl.errors import UsageError
from fleetctl.render.script import Context, parts, render, sweep_size
from fleetctl.render.steps import Style
from fleetctl.rundir import files
from fleetctl.rundir.model import RunKind, RunRecord, comment_of
from fleetctl.rundir.store import RunDir
from fleetctl.spec.compose import decode
from fleetctl.spec.load import load_spec
from fleetctl.spec.model import Spec
from fleetctl.spec.record import record_as_yaml, spec_as_said
from fleetctl.submission.templates import template_environment
from fleetctl.version import VERSION

# What sbatch reads from the environment (sbatch.1, INPUT ENVIRONMENT VARIABLES) and a spec can say. The rest is
# dropped: a variable that somebody set months ago must not silently change a run.
_SBATCH_DEFAULTS = {
    "SBATCH_ACCOUNT": "resources.account",
    "SBATCH_PARTITION": "resources.partition",
    "SBATCH_QOS": "resources.qos",
    "SBATCH_RESERVATION": "resources.reservation",
    "SBATCH_CONSTRAINT": "resources.constraint",
    "SBATCH_TIMELIMIT": "resources.time",
}


class Plan(Struct, frozen=True):
    """A valid spec and where it came from."""

    spec: Spec
    text: str
    source: Path
    workdir: Path


def read_plan(source: Path, overrides: Sequence[str], environ: Mapping[str, str]) -> Plan:
    """Read and check a spec file.

    :raises SpecError: everything that is wrong with it.
    :raises UsageError: it, its workdir or its env_file cannot be read.
    """
    try:
        raw = source.read_bytes()
    except OSError as error:
        raise UsageError(f"{source}: {error.strerror}") from None
    text = decode(raw, str(source))
    spec = load_spec(text, str(source), overrides, sbatch_defaults(environ))
    folder = source.absolute().parent
    workdir = folder / spec.workdir if spec.workdir is not None else folder
    return Plan(spec, text, source.absolute(), workdir)


def recorded_plan(run: RunDir, record: RunRecord) -> Plan:
    """What was submitted as this run: spec.json, whatever has become of the user's file since.

    :raises RunDirError: spec.json is missing or cannot be read.
    :raises SpecError: it is not valid for this version.
    """
    path = run.path / "spec.json"
    with files.explained(path, "read"):
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    return Plan(load_spec(record_as_yaml(text), str(path)), text, Path(record.spec_source), Path(record.workdir))


def spec_digest(plan: Plan, user: str) -> str:
    """Names the same spec, in the same folder, by the same user: whatever the cluster, it writes the same files."""
    identity = {"spec": spec_as_said(plan.spec), "workdir": str(plan.workdir), "user": user}
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


def check_files(plan: Plan) -> None:
    """What must exist on this machine before a job is worth submitting.

    :raises UsageError: the workdir is no folder, or the env_file cannot be used.
    """
    if not plan.workdir.is_dir() or not os.access(plan.workdir, os.X_OK):
        raise UsageError(
            f"workdir {plan.workdir} is no folder that you can enter here", remedy="it must be on a shared file system"
        )
    if (path := env_file_path(plan)) is not None:
        from fleetctl.spec.env_file import read_env_file

        read_env_file(path)


def env_file_path(plan: Plan) -> Path | None:
    """The env_file, relative to the spec's folder."""
    return plan.source.parent / plan.spec.env_file if plan.spec.env_file is not None else None


def sbatch_defaults(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """SBATCH_* variables as defaults of the spec: path -> (value, where it comes from)."""
    found = {path: (environ[name], name) for name, path in _SBATCH_DEFAULTS.items() if environ.get(name)}
    if "resources.time" in found:
        value, name = found["resources.time"]
        found["resources.time"] = (f"{value}m" if value.isdigit() else value, name)  # Slurm's bare number: minutes
    return found


def ignored_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """SBATCH_* variables that have no effect here, for a note to the user."""
    return tuple(sorted(n for n in environ if n.startswith("SBATCH_") and n not in _SBATCH_DEFAULTS))


def unused_parts(spec: Spec) -> tuple[str, ...]:
    """Parts of a spec that are checked and that nothing acts on yet: their user must not rely on them."""
    return ("health",) if spec.health.checks else ()


def run_kind(spec: Spec) -> RunKind:
    if spec.groups:
        return RunKind.HETJOB
    return RunKind.SWEEP if spec.sweep else RunKind.PLAIN


def total_nodes(spec: Spec) -> int:
    """Nodes of one start of the run: all components of a hetjob, one element of a sweep."""
    return sum(part.resources.nodes for part in parts(spec))


class Dependencies(Struct, frozen=True):
    """Job ids that Slurm waits for, and run directories whose record must say that they finished well."""

    after: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


class Scripts(Struct, frozen=True):
    """How scripts are made here: the interpreter of the job side, the cluster's flags and limits, the templates."""

    python: str
    style: Style
    max_array_size: int
    template_dirs: tuple[Path, ...]


def render_plan(plan: Plan, run: RunDir, submission: int, scripts: Scripts, needed: Dependencies) -> str:
    """The batch script of one submission.

    :raises UsageError: a template is broken, or the cluster cannot take this spec.
    """
    from jinja2 import TemplateError

    size = sweep_size(plan.spec)
    if plan.spec.sweep and size > scripts.max_array_size:
        raise UsageError(
            f"the sweep has {size} combinations and this cluster takes arrays of {scripts.max_array_size} at most",
            remedy="split the parameters over several specs",
        )
    env_file = env_file_path(plan)
    context = Context(
        run_id=run.run_id,
        run_dir=str(run.path),
        submission=submission,
        comment=comment_of(run.run_id, submission),
        python=scripts.python,
        workdir=str(plan.workdir),
        version=VERSION,
        env_file=str(env_file) if env_file is not None else None,
        after=needed.after,
        needs=needed.needs,
    )
    try:
        return render(plan.spec, context, scripts.style, template_environment(scripts.template_dirs))
    except TemplateError as error:
        where = f"{getattr(error, 'name', None) or 'template'}:{getattr(error, 'lineno', '?')}"
        remedy = "mend the template, or move it out of the way"
        raise UsageError(f"{where}: {error.message}", remedy=remedy) from None
