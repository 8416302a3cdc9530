"""From `fleetctl submit` to the end of the run, on a real Slurm, as its user sees it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from fleetctl.sandbox.cluster import Sandbox
from fleetctl.spec.load import load_spec
from tests.support import EXAMPLES, Cli, wait_until, write_spec

pytestmark = pytest.mark.slurm


@pytest.fixture
def cli(sandbox: Sandbox, tmp_path: Path) -> Cli:
    return Cli(sandbox.environment(os.environ), tmp_path / "runs")


def end_of(cli: Cli, run_id: str) -> str:
    cli("wait", run_id)
    return str(cli.json("show", run_id)["state"])


def test_the_example_trains_to_its_end(cli: Cli) -> None:
    answer = cli.json("submit", str(EXAMPLES / "train.yaml"))
    followed = cli("logs", "-f", answer["run_id"])
    losses = [float(loss) for loss in re.findall(r"^training step +\d+ +loss ([\d.]+)", followed.stdout, re.MULTILINE)]
    assert losses[-1] < losses[0] / 2, followed
    shown = cli.json("show", answer["run_id"])
    assert shown["state"] == "completed"
    assert shown["training_step"] == shown["target_step"] >= 200
    assert shown["loss"] == pytest.approx(losses[-1], abs=1e-4)
    assert [attempt["attempt"] for attempt in shown["attempts"]] == ["1.0"]
    assert shown["attempts"][0]["exit_code"] == 0


def test_a_hetjob_runs_both_groups(cli: Cli) -> None:
    answer = cli.json("submit", str(EXAMPLES / "hetjob.yaml"))
    assert end_of(cli, answer["run_id"]) == "completed"
    printed = cli("logs", answer["run_id"]).stdout
    assert "parameters sha256" in printed, "the trainer"
    assert "best loss so far" in printed, "the evaluator"
    shown = cli.json("show", answer["run_id"])
    assert shown["nodes"] == 3
    assert shown["job_id"] == answer["job_id"]


def test_a_sweep_is_one_array_with_every_combination(cli: Cli) -> None:
    answer = cli.json("submit", str(EXAMPLES / "sweep.yaml"))
    spec = load_spec((EXAMPLES / "sweep.yaml").read_text(), "sweep.yaml")
    assert spec.sweep is not None
    assert end_of(cli, answer["run_id"]) == "completed"
    shown = cli.json("show", answer["run_id"])
    assert shown["tasks_by_state"] == {"completed": 4}
    assert sorted(attempt["task"] for attempt in shown["attempts"]) == [0, 1, 2, 3]
    printed = {cli("logs", answer["run_id"], "--task", str(task)).stdout for task in range(4)}
    assert len(printed) == 4, "four different trainings"


def test_each_element_has_its_own_values(cli: Cli, tmp_path: Path) -> None:
    spec = write_spec(
        tmp_path,
        'name: values\ncommand: printf \'%s|\' "$SLURM_ARRAY_TASK_ID" "$A" "$B"\n'
        "sweep: {parameters: {A: [x, 'two words', \"it's\"], B: ['1', '$HOME']}}\n",
    )
    run_id = cli.json("submit", str(spec))["run_id"]
    assert end_of(cli, run_id) == "completed"
    printed = [cli("logs", run_id, "--task", str(task)).stdout for task in range(6)]
    assert printed == ["0|x|1|", "1|x|$HOME|", "2|two words|1|", "3|two words|$HOME|", "4|it's|1|", "5|it's|$HOME|"]


def test_a_run_root_with_an_odd_name(cli: Cli, tmp_path: Path) -> None:
    odd = tmp_path / "50% of 'it' %j #1 \"$HOME\""
    spec = write_spec(tmp_path, "name: odd\ncommand: echo $FLEETCTL_RUN_DIR\n")
    run_id = cli.json("--runs", str(odd), "submit", str(spec))["run_id"]
    assert cli("--runs", str(odd), "wait", run_id).returncode == 0
    assert cli("--runs", str(odd), "logs", run_id).stdout == f"{odd}/{run_id}\n"
    assert [path.parent.name for path in odd.rglob("slurm-*.out")] == ["logs"], "Slurm's log lies there too"
    refused = cli("--runs", str(tmp_path / "back\\slash"), "submit", str(spec))
    assert refused.returncode == 2
    assert "choose another run root" in refused.stderr


def test_a_failing_run_says_so_everywhere(cli: Cli, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, "name: fails\nscript: |\n  echo before\n  exit 7\n")
    waited = cli("submit", str(spec), "--wait")
    assert waited.returncode == 1
    (run,) = cli.json("ls")
    assert (run["state"], run["exit_code"]) == ("failed", 7)
    assert "before\n" in cli("logs", run["run_id"]).stdout


def test_the_environment_of_a_task(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "secret.env").write_text("TOKEN=hunter2\n")
    (tmp_path / "secret.env").chmod(0o600)
    spec = write_spec(
        tmp_path,
        "name: env\nresources: {nodes: 2, gpus_per_node: 2}\nenv: {COLOUR: blue}\nenv_file: secret.env\n"
        "command: env -0 > task.$RANK\n",
    )
    inherited = {"SLURM_CPU_BIND": "map_cpu:0", "SLURM_CPUS_PER_TASK": "3", "SBATCH_EXCLUSIVE": "true"}
    done = cli("submit", str(spec), "--json", **inherited)
    run_id = json.loads(done.stdout)["run_id"]
    assert "ignored: SBATCH_EXCLUSIVE" in done.stderr
    assert end_of(cli, run_id) == "completed"
    tasks = [dict(line.split("=", 1) for line in path.read_text().split("\0")[:-1]) for path in tmp_path.glob("task.*")]
    assert sorted(task["RANK"] for task in tasks) == ["0", "1", "2", "3"], "one task per GPU"
    assert {task["WORLD_SIZE"] for task in tasks} == {"4"}
    assert sorted(task["LOCAL_RANK"] for task in tasks) == ["0", "0", "1", "1"]
    for task in tasks:
        assert (task["COLOUR"], task["TOKEN"], task["FLEETCTL_RUN_ID"]) == ("blue", "hunter2", run_id)
        assert len(task["CUDA_VISIBLE_DEVICES"].split(",")) == 2
        assert len({task["MASTER_ADDR"], task["MASTER_PORT"]} | {tasks[0]["MASTER_PORT"]}) == 2
    run_dir = Path(cli.json("show", run_id)["run_dir"])
    written = "".join(path.read_text() for path in run_dir.rglob("*") if path.is_file() and path.name != "output.log")
    assert "hunter2" not in written, "a secret is in no file that fleetctl wrote"
    assert cli("submit", str(spec), SBATCH_PARTITION="nowhere").returncode == 10, "it becomes a default of the spec"


def test_a_run_waits_for_the_run_that_it_depends_on(cli: Cli, tmp_path: Path) -> None:
    first = write_spec(tmp_path, "name: first\ncommand: sleep 2\n", "first.yaml")
    failing = write_spec(tmp_path, "name: failing\ncommand: sleep 1; exit 3\n", "failing.yaml")
    good, bad = cli.json("submit", str(first))["run_id"], cli.json("submit", str(failing))["run_id"]
    after_good = write_spec(tmp_path, f"name: second\ncommand: 'true'\ndepends_on: [{good}]\n", "second.yaml")
    second = cli.json("submit", str(after_good))["run_id"]
    why = cli.json("why", second)
    assert why["slurm_reason"] in ("Dependency", "None"), why
    assert end_of(cli, second) == "completed"
    end_of(cli, bad)
    after_bad = write_spec(tmp_path, f"name: third\ncommand: 'true'\ndepends_on: [{bad}]\n", "third.yaml")
    refused = cli("submit", str(after_bad))
    assert refused.returncode == 2
    assert f"run {bad} is failed" in refused.stderr


def test_a_run_that_was_stopped_has_not_finished_well_even_if_it_exits_with_0(cli: Cli, tmp_path: Path) -> None:
    """A training that saves when Slurm tells it to end exits with 0; what depends on it must not start."""
    started = tmp_path / "started"
    saves = f"name: saves\nlaunch: command\nscript: |\n  trap 'exit 0' TERM\n  touch {started}\n  sleep 300 & wait\n"
    first = cli.json("submit", str(write_spec(tmp_path, saves, "saves.yaml")))["run_id"]
    next_spec = f"name: next\ncommand: touch {tmp_path}/ran\ndepends_on: [{first}]\n"
    second = cli.json("submit", str(write_spec(tmp_path, next_spec, "next.yaml")))["run_id"]
    wait_until(started.exists, "the first run started")
    assert cli.json("cancel", first)["cancelled"]
    assert end_of(cli, first) == "cancelled"
    assert end_of(cli, second) == "failed"
    assert "did not finish well" in cli.json("show", second)["reason"]
    assert not (tmp_path / "ran").exists()


def test_the_status_of_a_hetjob_is_that_of_the_part_that_failed_first(cli: Cli, tmp_path: Path) -> None:
    spec = write_spec(
        tmp_path, "name: parts\ngroups:\n- {name: a, command: sleep 300}\n- {name: b, command: sleep 1; exit 3}\n"
    )
    run_id = cli.json("submit", str(spec))["run_id"]
    assert end_of(cli, run_id) == "failed"
    assert cli.json("show", run_id)["attempts"][0]["exit_code"] == 3


def test_following_ends_where_there_is_nothing_to_follow(cli: Cli, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, "name: plain\ncommand: 'true'\n")
    run_id = cli.json("submit", str(spec))["run_id"]
    assert cli("logs", "-f", run_id, "--task", "7").returncode == 2
    sweep = write_spec(tmp_path, "name: two\ncommand: echo $A\nsweep: {parameters: {A: [x, y]}}\n", "two.yaml")
    swept = cli.json("submit", str(sweep))["run_id"]
    assert cli("logs", "-f", swept).returncode == 2
    assert cli("logs", "-f", swept, "--task", "2").returncode == 2
    assert cli("logs", "-f", swept, "--task", "1").stdout == "y\n"


def test_looking_twice_writes_an_end_once(cli: Cli, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, "name: slow\ncommand: sleep 300\n")
    run_id = cli.json("submit", str(spec))["run_id"]
    cli.slurm("scancel", cli.json("show", run_id)["job_id"])
    assert end_of(cli, run_id) == "cancelled"
    for _ in range(3):
        assert cli.json("ls")[0]["state"] == "cancelled"
    assert len(list((cli.runs / run_id / "events").glob("seen-*"))) == 1


def test_one_broken_run_spoils_no_other(cli: Cli, tmp_path: Path) -> None:
    for name in ("good", "bad"):
        cli("submit", str(write_spec(tmp_path, f"name: {name}\ncommand: 'true'\n", f"{name}.yaml")), "--wait")
    (bad,) = cli.runs.glob("bad-*")
    os.mkfifo(bad / "events" / "x.jsonl")
    done = cli("ls", "--json")
    assert [run["name"] for run in json.loads(done.stdout)] == ["good"]
    assert f"left out: {bad}" in done.stderr
    assert cli("show", bad.name).returncode == 12
    assert cli("show", "999999").returncode == 12


def test_why_a_run_waits(cli: Cli, tmp_path: Path) -> None:
    everything = "resources: {nodes: 4, gpus_per_node: 8}\n"
    blocker = cli.json("submit", str(write_spec(tmp_path, f"name: all\ncommand: sleep 300\n{everything}", "all.yaml")))
    wanted = "resources: {nodes: 3, gpus_per_node: 8, exclude: node4}\n"
    spec = write_spec(tmp_path, f"name: big\ncommand: 'true'\n{wanted}")
    run_id = cli.json("submit", str(spec))["run_id"]
    wait_until(lambda: cli.json("why", run_id)["slurm_reason"] not in (None, "None", ""), "Slurm's reason")
    answer = cli.json("why", run_id)
    assert answer["state"] == "pending"
    assert answer["excluded_nodes"] == "node4"
    assert answer["why"] != answer["slurm_reason"], "words, not a code"
    assert cli.json("cancel", run_id)["cancelled"]
    assert end_of(cli, run_id) == "cancelled"
    assert cli.json("cancel", blocker["run_id"])["cancelled"]
    assert end_of(cli, blocker["run_id"]) == "cancelled"


def test_ls_is_plain_in_a_pipe_and_newest_first(cli: Cli, tmp_path: Path) -> None:
    for name in ("one", "two"):
        cli("submit", str(write_spec(tmp_path, f"name: {name}\ncommand: 'true'\n", f"{name}.yaml")), "--wait")
    lines = cli("ls").stdout.splitlines()
    assert lines[0].split("\t")[:3] == ["RUN", "JOB", "STATE"]
    assert [line.split("-")[0] for line in lines[1:]] == ["two", "one"]
    assert "\x1b" not in "".join(lines)


def test_a_requeued_job_is_the_next_attempt_of_the_same_run(cli: Cli, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    spec = write_spec(
        tmp_path,
        f"name: again\nrecovery: {{requeue: true}}\nscript: |\n  echo attempt $FLEETCTL_ATTEMPT\n"
        f"  while [ ! -e {gate} ]; do sleep 0.1; done\n",
    )
    answer = cli.json("submit", str(spec))
    wait_until(lambda: "attempt 1.0" in cli("logs", answer["run_id"]).stdout, "the first attempt")
    cli.slurm("scontrol", "requeue", answer["job_id"])
    gate.touch()
    again = cli.json("submit", str(spec))
    assert (again["run_id"], again["job_id"], again["created"]) == (answer["run_id"], answer["job_id"], False)
    assert again["state"] in ("completing", "pending")
    assert end_of(cli, answer["run_id"]) == "completed"
    shown = cli.json("show", answer["run_id"])
    assert [attempt["attempt"] for attempt in shown["attempts"]] == ["1.0", "2.0"]
    assert cli("logs", answer["run_id"], "--attempt", "1.0").stdout.startswith("attempt 1.0"), "its log is kept"
    assert cli("logs", answer["run_id"]).stdout == "attempt 2.0\n"
