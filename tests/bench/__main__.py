"""`./dev bench`: the cost of fleetctl's commands beside a peer's, on a real Slurm that it starts."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from fleetctl.clock import SystemClock
from fleetctl.rundir.model import EventKind, RunKind, RunRecord, comment_of
from fleetctl.rundir.store import Store
from fleetctl.sandbox import cluster
from fleetctl.sandbox.model import SandboxConfig
from tests.bench import accounting, checkpoint, checkpoint_content, checkpoint_structure, node_checks, observe, recovery
from tests.bench.launch import bench_launch
from tests.bench.measure import Row, alternate, cpu_ms, table
from tests.support import ROOT, Cli

_RUNS, _JOBS, _SWEEP = 2_000, 5_000, 1_000
# As submitit's own README does it
_SUBMITIT = """
import sys, submitit

def add(a, b):
    return a + b

executor = submitit.AutoExecutor(folder=sys.argv[1])
executor.update_parameters(timeout_min=1, slurm_partition="main")
executor.submit(add, 5, 7)
"""
# What any reader must at least do: open and read every file of every run, once
_READ_ALL = """
import os, sys
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        with open(f"{folder}/{name}", "rb") as file:
            file.read()
"""


@contextmanager
def a_cluster() -> Iterator[tuple[Cli, Path]]:
    """A sandbox and an empty folder for runs."""
    folder = Path(tempfile.mkdtemp(prefix="fb-", dir="/tmp"))
    settings = (("MaxJobCount", "20000"), ("MaxArraySize", "2000"))
    started = cluster.up(SandboxConfig(nodes=2, gpus=0, settings=settings), folder / "slurm", SystemClock())
    try:
        cli = Cli(started.environment(os.environ), folder / "runs")
        # No job starts: what is measured is submitting, and running jobs would compete for the same two cores.
        cli.slurm("scontrol", "update", "NodeName=ALL", "State=DRAIN", "Reason=bench")
        yield cli, folder
    finally:
        cluster.down(folder / "slurm", SystemClock())
        shutil.rmtree(folder, ignore_errors=True)


def bench_help(cli: Cli) -> Row:
    fleetctl = shutil.which("fleetctl", path=cli.environ["PATH"]) or "fleetctl"
    peer, ours = alternate(
        lambda: cpu_ms([sys.executable, "-c", "import click"], cli.environ),
        lambda: cpu_ms([fleetctl, "--help"], cli.environ),
        41,
    )
    return Row("--help", 'python -c "import click"', peer, ours, 1.4)


def bench_submit(cli: Cli, folder: Path) -> Row:
    spec = folder / "plain.yaml"
    spec.write_text("name: plain\nresources: {nodes: 1, time: 1m}\ncommand: echo hello\n")
    logs = folder / "submitit"
    peer, ours = alternate(
        lambda: cpu_ms([sys.executable, "-c", _SUBMITIT, str(logs)], cli.environ),
        lambda: cpu_ms(["fleetctl", "submit", str(spec), "--again"], cli.environ),
        25,
    )
    return Row("submit one plain job", "submitit 1.5.4 submitting one function", peer, ours, 1.3)


def bench_sweep(cli: Cli, folder: Path) -> Row:
    plain, sweep = folder / "dry-plain.yaml", folder / "dry-sweep.yaml"
    values = ", ".join(f"'{number}'" for number in range(_SWEEP))
    plain.write_text("name: sweep\ncommand: echo $LR\n")
    sweep.write_text(f"name: sweep\ncommand: echo $LR\nsweep: {{parameters: {{LR: [{values}]}}}}\n")
    calls = folder / "calls"
    path = cli.shadow(folder / "bin", "sbatch", f'echo call >>{calls}\nexec $REAL "$@"')
    assert cli("submit", str(sweep), PATH=path).returncode == 0
    assert calls.read_text().splitlines() == ["call"], "a sweep is one sbatch call"
    environ = {**cli.environ, "BENCH_PLAIN": str(plain), "BENCH_SWEEP": str(sweep)}
    peer, ours = alternate(
        lambda: render_ms(plain, environ),
        lambda: render_ms(sweep, environ),
        15,
    )
    return Row(f"render a sweep of {_SWEEP} more than one", "the same spec without its sweep", 0, ours - peer, 5.0)


def render_ms(spec: Path, environ: dict[str, str]) -> float:
    """CPU of rendering alone, of an already loaded spec, best of many: microseconds matter here."""
    code = (
        "import sys, time\n"
        "from tests.golden.test_scripts import script_of, Style\n"
        "from fleetctl.render.script import Context, render\n"
        "from fleetctl.spec.load import load_spec\n"
        "from fleetctl.submission.templates import template_environment\n"
        "spec = load_spec(open(sys.argv[1]).read(), 'x')\n"
        "context = Context('r', '/r', 1, 'c', '/py', '/w', '0')\n"
        "def once():\n"
        "    began = time.process_time()\n"
        "    render(spec, context, Style(), template_environment(()))\n"
        "    return time.process_time() - began\n"
        "print(min(once() for _ in range(20)) * 1000)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(spec)], env=environ, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def bench_ls(cli: Cli) -> Row:
    shutil.rmtree(cli.runs)
    fill(cli)
    query = ["squeue", "--noheader", "--all", "--states=all", "--user=root", f"--format={'%i|' * 20}"]
    squeue, ours = alternate(
        lambda: cpu_ms(query, cli.environ) + cpu_ms([sys.executable, "-c", _READ_ALL, str(cli.runs)], cli.environ),
        lambda: cpu_ms(["fleetctl", "ls", "--all"], cli.environ),
        5,
    )
    return Row(f"ls, {_RUNS} runs, {_JOBS} jobs", "one squeue + reading the run files once", squeue, ours, 6.0)


def fill(cli: Cli) -> None:
    """Runs half pending in Slurm, half finished; and as many other queued jobs as it takes."""
    store, now = Store(cli.runs), datetime.now(UTC)
    store.ensure()
    cluster_name = cli.json("cluster", "probe", "--no-test-job")["cluster_name"]

    def queued(number: int) -> str:
        comment = comment_of(f"run-{number:06}", 1) if number < _RUNS // 2 else "other"
        argv = ["sbatch", "--parsable", "--hold", f"--comment={comment}", "--output=/dev/null", "--wrap", "true"]
        return cli.slurm(*argv).strip()

    with ThreadPoolExecutor(4) as pool:
        jobs = list(pool.map(queued, range(_JOBS)))
    for number in range(_RUNS):
        run_id = f"run-{number:06}"
        record = RunRecord(run_id, "run", "root", now, RunKind.PLAIN, "d", "/s", "/w", 1, 1, cluster_name, "0")
        assert store.reserve(run_id)
        run = store.fill(record, "name: run\n", {"name": "run"})
        login, facts = run.event_log("submit"), {"submission": 1, "attempt": "1.0", "task": None, "job_id": "1"}
        login.append(now, EventKind.INTENT, submission=1)
        login.append(now, EventKind.SUBMITTED, submission=1, job_id=jobs[number] if number < _RUNS // 2 else "999999")
        if number >= _RUNS // 2:
            job = run.event_log("job")
            job.append(now, EventKind.ATTEMPT_STARTED, **facts, host="n")
            job.append(now, EventKind.ATTEMPT_ENDED, **facts, exit_code=0)


def main() -> int:
    """0 when every ratio holds."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed fleetctl has its bytecode, and so has the peer
    compileall.compile_dir(str(ROOT / "fleetctl"), quiet=1)
    with a_cluster() as (cli, folder):
        cli("cluster", "probe", "--no-test-job")
        rows = [bench_help(cli), bench_submit(cli, folder), bench_sweep(cli, folder), bench_launch(cli, folder)]
        rows.append(bench_ls(cli))
    rows += checkpoint.rows()
    rows += checkpoint_structure.rows()
    rows += checkpoint_content.rows()
    rows += node_checks.rows()
    rows += accounting.rows()
    rows += observe.rows()
    rows += recovery.rows()
    print(table(rows))
    print("CPU of the whole process with its children, medians of runs in turns; `most` is the ratio allowed.")
    print("Checkpoints, launch, accounting, recovery and what hangs: time of the wall clock.")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
