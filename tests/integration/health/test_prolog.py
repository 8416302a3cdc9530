"""The real prolog as Slurm starts it, on the stand-in node: real NVML calls, real files, a scontrol of the test."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fleetctl.health.model import Decision, Verdict
from fleetctl.health.spool import verdict_of
from tests.nvml.scenario import Node, Paths, healthy, read_calls, site_settings

NAME = "n1"
SLACK_S = 0.5  # promise: the deadline plus this
LOADED_S = 1.5  # and what a loaded test machine may take to start an interpreter


class Ran(NamedTuple):
    status: int
    out: str
    err: str
    took_s: float


class Place:
    """One node with its site file, its scontrol and its spool."""

    def __init__(self, place: Path, node: Node, **settings: Any) -> None:
        self.paths: Paths = node.write(place)
        self.site = place / "site.json"
        self.shown = place / "shown"
        self.shown.write_text(f"NodeName={NAME} Arch=x\n   State=IDLE ThreadsPerCore=1\n")
        self.asked = place / "scontrol.calls"
        self.scontrol = place / "scontrol"
        self.answer("[ $1 = show ] && exec /bin/cat " + str(self.shown) + "; exit 0")
        raw = {**site_settings(place), "scontrol": str(self.scontrol), "limits": {"shm_free_share": 0}, **settings}
        self.site.write_text(json.dumps(raw))

    def answer(self, text: str) -> None:
        self.scontrol.write_text(f'#!/bin/sh\necho "$@" >> {self.asked}\n{text}\n')
        self.scontrol.chmod(0o755)

    def start(self, phase: str = "prolog", **environ: str) -> subprocess.Popen[str]:
        job = {"SLURM_JOB_ID": "42", "SLURM_JOB_UID": "4242", "SLURM_JOB_GPUS": "0-7"}
        return subprocess.Popen(
            [sys.executable, "-I", "-m", "fleetctl.health", phase, "--site", str(self.site)],
            env={"SLURMD_NODENAME": NAME, **job, **environ},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, phase: str = "prolog", **environ: str) -> Ran:
        began = time.monotonic()
        process = self.start(phase, **environ)
        out, err = process.communicate(timeout=100)
        return Ran(process.returncode, out, err, time.monotonic() - began)

    @property
    def calls(self) -> list[str]:
        return self.asked.read_text().splitlines() if self.asked.exists() else []

    @property
    def verdicts(self) -> list[Verdict]:
        lines = (self.paths.node / "spool" / "verdicts.jsonl").read_bytes().splitlines()
        found = [verdict_of(line, NAME) for line in lines]
        return [verdict for verdict in found if verdict is not None]

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.paths.node / "spool" / "state.json").read_text())
        return found


@pytest.fixture
def node() -> Node:
    return healthy("h100-sxm", name=NAME)


def test_a_healthy_node_lets_the_job_start_in_silence(tmp_path: Path, node: Node) -> None:
    place = Place(tmp_path, node)
    ran = place.run()
    assert (ran.status, ran.out, ran.err) == (0, "", "")
    assert place.calls == []
    assert place.verdicts[0].decision is Decision.CLEAN
    assert place.verdicts[0].job_id == "42"
    assert "42" in place.state["jobs"]
    gpus, pairs = 8, 28
    assert len(read_calls(place.paths)) <= 12 * gpus + pairs + 4  # init, version, NVML's version, count


def test_a_link_that_is_down_drains_the_node_with_the_reason(tmp_path: Path, node: Node) -> None:
    node.gpu(3).links[7].state = 0
    place = Place(tmp_path, node)
    ran = place.run()
    assert ran.status == 1
    assert ran.out == ""
    assert ran.err == "fleetctl: NVLink 7 of GPU 3 (0000:61:00.0) is down [nvlink_state: reset the GPU]\n"
    assert place.calls == [f"show node {NAME}", f"update nodename={NAME} state=drain reason={ran.err.strip()}"]
    assert place.state["drain"]["findings"] == [["nvlink_state", "gpu/0000:61:00.0"]]


def test_a_gpu_of_another_job_costs_this_one_nothing(tmp_path: Path, node: Node) -> None:
    node.gpu(3).links[7].state = 0
    place = Place(tmp_path, node)
    assert place.run(SLURM_JOB_GPUS="0,1").status == 0
    assert place.run(SLURM_JOB_GPUS="2-3").status == 1


def test_a_job_without_gpus_asks_none(tmp_path: Path, node: Node) -> None:
    node.gpu(3).links[7].state = 0
    place = Place(tmp_path, node)
    assert place.run(SLURM_JOB_GPUS="").status == 0
    assert "nvmlDeviceGetFieldValues" not in {name for name, _ in read_calls(place.paths)}


def test_an_admins_drain_is_left_alone(tmp_path: Path, node: Node) -> None:
    node.gpu(3).links[7].state = 0
    place = Place(tmp_path, node)
    place.shown.write_text(f"NodeName={NAME} x\n   State=IDLE+DRAIN y\n   Reason=SHUTDOWN [root@2025-11-30T15:45:00]\n")
    ran = place.run()
    assert ran.status == 1
    assert place.calls == [f"show node {NAME}"]
    assert "SHUTDOWN" in ran.err


def test_a_driver_that_starts_anew_for_each_look_keeps_no_job_away(tmp_path: Path, node: Node) -> None:
    """Without persistence mode; before anybody knows that, silence is silence."""
    node.sleeps("nvmlInitWithFlags", 4)
    place = Place(tmp_path, node, deadline_s=2.5)
    assert place.run().status == 1
    assert place.run("periodic").status == 0
    ran = place.run()
    assert (ran.status, ran.err) == (0, "")
    assert [verdict.decision for verdict in place.verdicts] == [Decision.DRAIN, Decision.CLEAN, Decision.NOTED]
    assert "persistence mode" in place.verdicts[-1].findings[0].words


def test_everything_hangs_and_the_answer_comes_in_time(tmp_path: Path, node: Node) -> None:
    node.hangs("nvmlInitWithFlags", uninterruptibly=True)
    place = Place(tmp_path, node, deadline_s=3.0, budget={"folder": str(tmp_path), "most": 5})
    place.answer("exec /bin/sleep 1000")
    ran = place.run()
    assert ran.status == 1
    assert "NVML did not answer" in ran.err
    assert ran.took_s < 3.0 + SLACK_S + LOADED_S
    assert place.verdicts[0].took_s < 3.0 + SLACK_S


def test_a_spool_that_cannot_be_made_is_no_failure(tmp_path: Path, node: Node) -> None:
    (tmp_path / "file").write_text("")
    place = Place(tmp_path, node, folder=str(tmp_path / "file" / "spool"))
    ran = place.run()
    assert (ran.status, ran.out, ran.err) == (0, "", "")


def test_mistakes_in_the_site_file_keep_no_job_away_and_are_named(tmp_path: Path, node: Node) -> None:
    place = Place(tmp_path, node, typo=1, deadline_s="x", care={"no_such_check": "drain"}, xids={"94": "no_such_class"})
    ran = place.run()
    assert (ran.status, ran.err) == (0, "")
    assert place.verdicts[0].decision is Decision.NOTED
    words = " ".join(finding.words for finding in place.verdicts[0].findings)
    assert all(name in words for name in ("typo", "deadline_s", "no_such_check", "no_such_class"))


def test_a_torn_site_file_drains_nothing(tmp_path: Path, node: Node) -> None:
    """Nobody knows then which faults the site wants to live with, and on how many nodes."""
    node.gpu(3).links[7].state = 0
    place = Place(tmp_path, node)
    torn = (
        "import sys; from fleetctl.health import site, __main__ as entry\n"
        f"whole = site.load_site({str(place.site)!r}, {NAME!r})\n"
        "torn = site.parse_site('{', 'n1', 'torn.json')\n"
        "site.load_site = lambda *rest: whole._replace(budget=torn.budget, complaints=torn.complaints)\n"
        f"sys.exit(entry.main(['prolog'], {{'SLURMD_NODENAME': {NAME!r}, 'SLURM_JOB_GPUS': '0-7'}}))"
    )
    ran = subprocess.run([sys.executable, "-I", "-c", torn], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert place.calls == []
    assert place.verdicts[0].decision is Decision.NO_BUDGET
    assert {"nvlink_state", "site", "budget"} <= {finding.check for finding in place.verdicts[0].findings}


def test_hostile_words_of_the_job_break_nothing(tmp_path: Path, node: Node) -> None:
    hostile = 'a"b\n`id`$(id);|=\\ ☃'
    place = Place(tmp_path, node)
    ran = place.run(
        SLURM_JOB_GPUS=hostile, SLURM_JOB_ID=hostile, SLURM_JOB_UID=hostile, SLURM_JOB_COMMENT=hostile * 1000
    )
    assert (ran.status, ran.out, ran.err) == (0, "", "")
    (verdict,) = place.verdicts
    assert verdict.job_id is None
    assert [finding.check for finding in verdict.findings] == ["job_gpus"]


def test_our_own_bug_lets_the_job_start_and_is_written_down(tmp_path: Path, node: Node) -> None:
    place = Place(tmp_path, node)
    broken = (
        "import sys; from fleetctl.health import phases, __main__ as entry\n"
        "def look(*rest): raise RuntimeError('two\\nlines')\n"
        "phases.look = look\n"
        f"sys.exit(entry.main(['prolog', '--site', {str(place.site)!r}], {{'SLURMD_NODENAME': {NAME!r}}}))"
    )
    ran = subprocess.run([sys.executable, "-I", "-c", broken], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert ran.stderr == "fleetctl: a bug of fleetctl, the node stays as it is: RuntimeError: two lines\n"
    (verdict,) = place.verdicts
    assert verdict.decision is Decision.BUG
    assert "RuntimeError: two" in verdict.findings[0].words


@pytest.mark.parametrize("arguments", [[], ["no_phase"], ["prolog", "--sight", "x"], ["prolog", "epilog"], ["hand"]])
def test_a_wrong_call_keeps_no_job_away(arguments: list[str]) -> None:
    argv = [sys.executable, "-I", "-m", "fleetctl.health", *arguments]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, env={})
    assert (ran.returncode, ran.stdout) == (0, "")
    assert ran.stderr.startswith("usage: ")
    assert len(ran.stderr.splitlines()) == 1


def test_prologs_and_a_periodic_check_at_once_all_answer_and_lose_no_word(tmp_path: Path, node: Node) -> None:
    place = Place(tmp_path, node)
    running = [place.start(SLURM_JOB_ID=str(number), SLURM_JOB_GPUS=str(number)) for number in range(4)]
    running.append(place.start("periodic"))
    for process in running:
        out, err = process.communicate(timeout=100)
        assert (process.returncode, out) == (0, ""), err
    assert set(place.state["jobs"]) == {"0", "1", "2", "3"}
    assert len(place.verdicts) == 5


def test_a_node_is_drained_told_and_returned_by_the_periodic_check(tmp_path: Path, node: Node) -> None:
    node.gpu(3).links[7].state = 0
    place = Place(tmp_path, node, back={"most": 2, "cool_down_s": 0})
    assert place.run("periodic").status == 0
    assert place.calls[-1].startswith(f"update nodename={NAME} state=drain reason=fleetctl: NVLink 7")
    reason = place.state["drain"]["reason"]
    place.shown.write_text(f"NodeName={NAME} x\n   State=IDLE+DRAIN y\n   Reason={reason} [root@2025-11-30T15:45:00]\n")
    node.gpu(3).links[7].state = 1
    place.paths.scenario.write_text(node.scenario())
    place.asked.unlink()
    assert "back in service" in place.run("periodic").err
    assert place.calls == [f"show node {NAME}", f"update nodename={NAME} state=resume"]
    place.asked.unlink()
    assert place.run("periodic").err == ""
    assert place.calls == []


def test_an_xid_that_drained_the_node_once_does_not_do_so_again(tmp_path: Path, node: Node) -> None:
    node.log.xid("0000:61:00", 79, "GPU has fallen off the bus.", ago_s=30)
    place = Place(tmp_path, node)
    assert place.run().status == 1
    assert place.run().status == 0  # a person has resumed the node, without a reboot
    assert len([call for call in place.calls if call.startswith("update")]) == 1
