"""What bash, shellcheck and sbatch say of our scripts, and whether hostile values survive all three."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetctl.render.script import Context, render
from fleetctl.render.steps import Style
from fleetctl.sandbox.cluster import Sandbox
from fleetctl.spec.model import Launcher, Resources, Spec, Sweep
from fleetctl.submission.templates import template_environment

GOLDEN = sorted((Path(__file__).parent.parent / "golden" / "scripts").glob("*.sh"))
# sbatch refuses more than 4 MB (slurm.conf.5, max_script_size); a value of a few words shows all there is to see
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
LINE = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=30)
NAME = st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: (
        not name.startswith(("SLURM", "BASH", "LC_")) and name not in ("RANK", "UID", "EUID", "PPID", "IFS", "_")
    )
)
SHELL_OWN = (
    "GROUPS",
    "DIRSTACK",
    "FUNCNAME",
    "PIPESTATUS",
    "SECONDS",
    "RANDOM",
    "SRANDOM",
    "LINENO",
    "HISTCMD",
    "OPTIND",
)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_bash_and_shellcheck_accept_it(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)
    # SC2016: $ in single quotes is meant for the tasks' shells
    done = subprocess.run(["shellcheck", "-e", "SC2016", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.slurm
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_sbatch_understands_every_directive(path: Path, slurm_env: dict[str, str], tmp_path: Path) -> None:
    """What names things that this cluster lacks is refused for that, and for nothing else."""
    script = tmp_path / "script.sh"
    # Jobs that no other test on this cluster has made: not every job there may be a dependency
    script.write_text(path.read_text().replace("afterany:41:42", "afterany:60000041:60000042"))
    done = subprocess.run(
        ["sbatch", "--test-only", str(script)], env=slurm_env, capture_output=True, text=True, check=False
    )
    if path.stem.startswith("everything"):
        assert "allocation failure: Invalid partition name specified" in done.stderr, done
    else:
        assert done.returncode == 0, done


def dumped(spec: Spec, folder: Path, environ: dict[str, str]) -> dict[str, object]:
    """Run the script with a stand-in for the job side that tells what it was given."""
    dump = folder / "dump it"
    if not dump.exists():
        dump.write_text(
            f"#!{sys.executable}\nimport json, os, sys\n"
            "print(json.dumps({'argv': sys.argv[1:], 'env': dict(os.environ)}))\n"
        )
        dump.chmod(0o755)
    context = Context(
        run_id="r", run_dir=str(folder), submission=1, comment="c", python=str(dump), workdir=str(folder), version="0"
    )
    script = folder / "script.sh"
    script.write_bytes(render(spec, context, Style(), template_environment(())).encode("utf-8", "surrogateescape"))
    done = subprocess.run(["bash", str(script)], env=environ, capture_output=True, check=True)
    value: dict[str, object] = json.loads(done.stdout)
    return value


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    env=st.dictionaries(NAME.filter(lambda name: name not in SHELL_OWN), TEXT, max_size=4),
    command=st.lists(TEXT, min_size=1, max_size=4),
    values=st.lists(TEXT, min_size=1, max_size=3),
    task=st.integers(0, 2),
)
def test_hostile_values_reach_the_job_unchanged(
    tmp_path: Path, env: dict[str, str], command: list[str], values: list[str], task: int
) -> None:
    spec = Spec(
        name="n",
        launch=Launcher.COMMAND,
        command=tuple(command),
        env=env,
        sweep=Sweep(parameters={"fleet_value": tuple(values)}),
    )
    told = dumped(spec, tmp_path, {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "SLURM_ARRAY_TASK_ID": str(task)})
    seen = told["env"]
    assert isinstance(seen, dict)
    assert {name: seen[name] for name in env} == env
    assert seen["fleet_value"] == values[task % len(values)]
    argv = told["argv"]
    assert isinstance(argv, list)
    assert argv[-len(command) - 4 :] == ["--step", "train", "0", str(len(command)), *command]


@pytest.mark.slurm
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=LINE, comment=LINE, folder=LINE, run_dir=LINE.filter(lambda text: "\\" not in text))
def test_hostile_values_reach_slurm_unchanged(
    sandbox: Sandbox, tmp_path: Path, name: str, comment: str, folder: str, run_dir: str
) -> None:
    context = Context(
        run_id="r",
        run_dir=f"/{run_dir}",
        submission=1,
        comment=comment,
        python="/bin/true",
        workdir=f"/{folder}",
        version="0",
    )
    spec = Spec(name=name, command="true", resources=Resources())
    script = tmp_path / "script.sh"
    script.write_text(render(spec, context, Style(), template_environment(())))
    environ = sandbox.environment(os.environ)
    submit = ["sbatch", "--hold", "--parsable", str(script)]
    done = subprocess.run(submit, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    mark = "\x1f|\x1f"
    query = ["squeue", "--noheader", f"--jobs={job}", f"--format=%j{mark}%k{mark}%Z{mark}"]
    seen = subprocess.run(query, env=environ, capture_output=True, text=True, check=True).stdout
    shown = subprocess.run(["scontrol", "show", "job", job], env=environ, capture_output=True, text=True, check=True)
    subprocess.run(["scancel", job], env=environ, check=True)
    assert seen.split(mark)[:3] == [name, comment, f"/{folder}"]
    # scontrol of 22.05 shows a doubled % as it is; the node writes to the right file (test_submit.py)
    assert f"StdOut=/{run_dir.replace('%', '%%')}/logs/slurm-{job}.out\n" in shown.stdout
