"""The text adapter brings jobs back and ends steps, on real daemons: the contract, preemption and dead nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from fleetctl.sandbox.model import Partition, SandboxConfig
from fleetctl.slurm.model import BaseState
from fleetctl.slurm.port import Slurm
from fleetctl.slurm.text import TextSlurm
from tests.contract.control import ControlContract
from tests.contract.slurm import CLOCK, Submitter, until
from tests.integration.conftest import MakeSandbox

pytestmark = pytest.mark.slurm
GRACE_S = 4
PREEMPTING = SandboxConfig(
    nodes=1,
    settings=(("PreemptType", "preempt/partition_prio"), ("PreemptMode", "REQUEUE"), ("KillWait", "2")),
    partitions=(
        Partition("low", (("Nodes", "ALL"), ("PriorityTier", "1"), ("GraceTime", str(GRACE_S)))),
        Partition("high", (("Nodes", "ALL"), ("PriorityTier", "10"))),
    ),
)
PATIENT = SandboxConfig(nodes=3, settings=(("SlurmdTimeout", "300"),))

TOLD = """#!/bin/bash
trap 'echo TERM >> batch' TERM
srun --overlap bash -c 'trap "echo TERM >> task" TERM; touch ready; while true; do sleep 0.1; done' &
while true; do sleep 0.1; done
"""
# The step's client and its first task are on the first node, the batch script's.
BEATING = """#!/bin/bash
srun --ntasks=3 --overlap bash -c 'trap "" TERM; while true; do touch beat.$SLURM_PROCID; sleep 0.1; done' &
wait
sleep 300
"""


class TestTextSlurmControl(ControlContract):
    @pytest.fixture
    def slurm(self, slurm_env: Mapping[str, str]) -> Slurm:
        return TextSlurm(slurm_env)


def test_a_preempted_job_in_its_grace_time_runs_and_says_when_it_ends(
    make_sandbox: MakeSandbox, tmp_path: Path
) -> None:
    """Its steps get SIGTERM at once, its batch script hears nothing until the end of the grace time."""
    slurm = TextSlurm(make_sandbox(PREEMPTING).environment(os.environ))
    submit = Submitter(slurm, tmp_path)
    job_id = submit("--partition=low", "--exclusive", "--time=10", script=TOLD)
    until((tmp_path / "ready").exists)
    before = slurm.allocation(job_id)
    submit("--partition=high", "--exclusive")
    until(lambda: slurm.allocation(job_id).preempt_time is not None)
    held = slurm.allocation(job_id)
    assert (held.state.base, held.restarts) == (BaseState.RUNNING, 0)
    assert held.preempt_time is not None
    assert held.end_time == held.preempt_time + timedelta(seconds=GRACE_S)
    assert before.end_time is not None
    assert held.end_time < before.end_time
    until((tmp_path / "task").exists)
    assert not (tmp_path / "batch").exists()
    until(lambda: slurm.allocation(job_id).state.base is BaseState.PENDING)
    assert slurm.allocation(job_id).restarts == 1
    assert (tmp_path / "batch").read_text() == "TERM\n"


def test_a_preempted_script_that_ends_in_its_grace_time_is_not_requeued_by_slurm(
    make_sandbox: MakeSandbox, tmp_path: Path
) -> None:
    slurm = TextSlurm(make_sandbox(PREEMPTING).environment(os.environ))
    submit = Submitter(slurm, tmp_path)
    ends = submit("--partition=low", "--exclusive", script="#!/bin/sh\nsrun sleep 300\ntouch ended\nexit 0\n")
    until(lambda: len(slurm.steps(ends)) == 2)
    submit("--partition=high", "--exclusive", script="#!/bin/sh\n")
    until(lambda: submit.base(ends) is BaseState.COMPLETED)
    assert slurm.allocation(ends).restarts == 0
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize(("dead", "client"), [("node2", "alive"), ("node2", "dead"), ("node1", "dead")])
def test_killing_a_step_that_spans_a_dead_node_ends_the_living_tasks(
    make_sandbox: MakeSandbox, tmp_path: Path, dead: str, client: str
) -> None:
    made = make_sandbox(PATIENT)
    slurm = TextSlurm(made.environment(os.environ))
    submit = Submitter(slurm, tmp_path)
    job_id = submit("--nodes=3", "--ntasks=3", "--no-kill", script=BEATING)
    beats = [tmp_path / f"beat.{rank}" for rank in range(3)]
    until(lambda: all(beat.exists() for beat in beats))
    if client == "dead" and dead != "node1":
        kill_clients(tmp_path)
    made.node(dead).kill()
    living = [beat for rank, beat in enumerate(beats) if dead != f"node{rank + 1}"]
    assert is_beating(living)
    began_s = CLOCK.monotonic_s()
    slurm.kill_step(f"{job_id}.0")
    assert CLOCK.monotonic_s() - began_s < 2  # scancel --signal=KILL takes 6 s here, and leaves the srun
    until(lambda: not is_beating(living))
    assert f"{job_id}.0" in {step.id for step in slurm.steps(job_id)}  # until the node is DOWN
    assert submit.base(job_id) is BaseState.RUNNING


def is_beating(beats: list[Path]) -> bool:
    before = [beat.stat().st_mtime_ns for beat in beats]
    CLOCK.sleep(0.4)
    return before != [beat.stat().st_mtime_ns for beat in beats]


def kill_clients(folder: Path) -> None:
    """SIGKILL the process beside srun first: it ends the step as soon as it sees srun die."""
    found: list[int] = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text() == "srun\n" and os.path.realpath(comm.parent / "cwd") == os.path.realpath(folder):
                found.append(int(comm.parent.name))
        except OSError:  # it ended
            continue
    assert len(found) == 2
    for pid in sorted(found, reverse=True):
        os.kill(pid, signal.SIGKILL)
