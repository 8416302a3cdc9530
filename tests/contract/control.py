"""What every adapter must do with a job that is there: bring it back, keep it off nodes, see and end its steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fleetctl.errors import JobUnknown, SlurmRefused
from fleetctl.slurm.allocation import Step
from fleetctl.slurm.model import BaseState, JobId, StateFlag
from fleetctl.slurm.port import Slurm
from tests.contract.slurm import Submits, Submitter, until

ODD_NAMES = ["a b", "x\n12.9", "a\x1fb", "\u2713 |,;"]
UNKNOWN = JobId(999_999)

# A step of tasks that ignore SIGTERM and say that they live.
STUBBORN = """#!/bin/bash
srun --overlap bash -c 'trap "" TERM; while true; do touch beat.$SLURM_PROCID; sleep 0.1; done' &
wait
touch srun-ended
sleep 300
"""


def numbered(steps: tuple[Step, ...]) -> list[Step]:
    return [step for step in steps if step.id.rpartition(".")[2].isdigit()]


class ControlContract(Submits):
    """Inherit, and give the fixture `slurm`; the cluster has node1 to node4 and a BeginTime of some seconds."""

    def test_a_requeued_job_rises_in_restarts_and_runs_again_where_it_may(
        self, slurm: Slurm, submit: Submitter
    ) -> None:
        job_id = submit("--nodelist=node4", "--gpus-per-node=2", "--time=10")
        until(lambda: submit.base(job_id) is BaseState.RUNNING)
        held = slurm.allocation(job_id)
        assert (held.restarts, held.node_list, held.batch_host) == (0, "node4", "node4")
        assert (held.raw_id, held.state.base, held.preempt_time) == (job_id.base, BaseState.RUNNING, None)
        assert ("node=1" in held.alloc_tres, held.gpus) == (True, 2)
        assert held.start_time is not None
        assert held.end_time is not None
        assert (held.end_time - held.start_time).total_seconds() == 600
        slurm.requeue(job_id)
        assert slurm.allocation(job_id).restarts == 1  # at once
        slurm.requeue(job_id)  # is no error, and does nothing
        until(lambda: submit.base(job_id) is BaseState.PENDING)
        held = slurm.allocation(job_id)
        assert (held.restarts, held.node_list, held.batch_host, held.alloc_tres) == (1, "", "", "")
        assert held.gpus is None
        slurm.set_excluded(job_id, "node[1-2]")
        assert slurm.jobs(ids=[job_id])[0].excluded_nodes == "node[1-2]"
        slurm.start_now(job_id)
        until(lambda: submit.base(job_id) is BaseState.RUNNING)
        assert slurm.allocation(job_id).restarts == 1
        until(lambda: [job.restarts for job in slurm.starts() if job.id == job_id] == [1])

    def test_begin_time_is_waited_for_unless_told_otherwise(self, slurm: Slurm, submit: Submitter) -> None:
        job_id = submit("--begin=now+1hour")
        (job,) = slurm.jobs(ids=[job_id])
        assert (job.state.base, job.reason) == (BaseState.PENDING, "BeginTime")
        slurm.start_now(job_id)
        until(lambda: submit.base(job_id) is BaseState.RUNNING)
        with pytest.raises(SlurmRefused, match="no longer pending"):
            slurm.start_now(job_id)

    @pytest.mark.parametrize("end", [BaseState.CANCELLED, BaseState.FAILED, BaseState.COMPLETED])
    def test_requeue_leaves_ended_jobs_alone(self, slurm: Slurm, submit: Submitter, end: BaseState) -> None:
        self.ended(slurm, submit, end)
        job_id = submit.accepted[-1]
        slurm.requeue(job_id)
        assert submit.base(job_id) is end
        assert slurm.allocation(job_id).restarts == 0

    @pytest.mark.parametrize("end", [BaseState.CANCELLED, BaseState.FAILED])
    def test_requeue_ended_brings_any_ended_job_back_cancelled_ones_too(
        self, slurm: Slurm, submit: Submitter, end: BaseState
    ) -> None:
        self.ended(slurm, submit, end)
        job_id = submit.accepted[-1]
        slurm.requeue_ended(job_id)
        assert slurm.allocation(job_id).restarts == 1
        until(lambda: submit.base(job_id) is BaseState.PENDING)
        with pytest.raises(SlurmRefused, match="pending"):
            slurm.requeue_ended(job_id)

    def ended(self, slurm: Slurm, submit: Submitter, end: BaseState) -> None:
        script = {BaseState.FAILED: "#!/bin/sh\nexit 3\n", BaseState.COMPLETED: "#!/bin/sh\nexit 0\n"}
        job_id = submit(script=script.get(end, "#!/bin/sh\nsleep 300\n"))
        if end is BaseState.CANCELLED:
            until(lambda: submit.base(job_id) is BaseState.RUNNING)
            slurm.cancel(job_id)
        until(lambda: submit.base(job_id) is end)

    def test_a_pending_job_is_not_requeued(self, slurm: Slurm, submit: Submitter) -> None:
        job_id = submit("--hold")
        slurm.requeue(job_id)
        assert (submit.base(job_id), slurm.allocation(job_id).restarts) == (BaseState.PENDING, 0)

    def test_a_job_that_forbids_it_is_refused(self, slurm: Slurm, submit: Submitter) -> None:
        job_id = submit("--no-requeue")
        until(lambda: submit.base(job_id) is BaseState.RUNNING)
        with pytest.raises(SlurmRefused, match="disabled"):
            slurm.requeue(job_id)

    def test_an_unknown_job_is_unknown_to_every_verb(self, slurm: Slurm, submit: Submitter) -> None:
        calls: list[Callable[[], object]] = [
            lambda: slurm.requeue(UNKNOWN),
            lambda: slurm.requeue_ended(UNKNOWN),
            lambda: slurm.set_excluded(UNKNOWN, "node1"),
            lambda: slurm.start_now(UNKNOWN),
            lambda: slurm.allocation(UNKNOWN),
            lambda: slurm.allocation(JobId(submit("--hold").base, array_index=3)),
            lambda: slurm.kill_step(f"{UNKNOWN}.0"),
        ]
        for call in calls:
            with pytest.raises(JobUnknown):
                call()
        assert slurm.steps(UNKNOWN) == ()

    def test_excluded_nodes_are_replaced_and_cleared_while_pending_only(self, slurm: Slurm, submit: Submitter) -> None:
        job_id = submit("--hold", "--exclude=node3")
        for nodes, reads in [("node1,node2", "node[1-2]"), ("node4", "node4"), ("", "")]:
            slurm.set_excluded(job_id, nodes)
            assert slurm.jobs(ids=[job_id])[0].excluded_nodes == reads
        with pytest.raises(SlurmRefused, match="Invalid node name"):
            slurm.set_excluded(job_id, "nosuchnode")
        running = submit()
        until(lambda: submit.base(running) is BaseState.RUNNING)
        with pytest.raises(SlurmRefused, match="no longer pending"):
            slurm.set_excluded(running, "node1")

    def test_one_element_of_an_array_is_meant_alone(self, slurm: Slurm, submit: Submitter) -> None:
        job_id = submit("--array=0-2%2", script="#!/bin/sh\nsrun --job-name=inner sleep 300\n")
        first = JobId(job_id.base, array_index=0)
        until(lambda: bool(numbered(slurm.steps(first))))
        raw = slurm.allocation(first).raw_id
        assert raw != job_id.base
        assert [(step.id, step.name) for step in numbered(slurm.steps(first))] == [(f"{raw}.0", "inner")]
        assert slurm.steps(JobId(raw)) == slurm.steps(first)
        waiting = slurm.allocation(JobId(job_id.base, array_index=2))
        assert (waiting.state.base, waiting.node_list) == (BaseState.PENDING, "")
        slurm.requeue(first)
        assert slurm.allocation(first).restarts == 1
        assert slurm.allocation(JobId(job_id.base, array_index=1)).restarts == 0
        until(lambda: slurm.allocation(first).state.base is BaseState.PENDING)
        slurm.set_excluded(first, "node1")
        excluded = {job.id.array_index: job.excluded_nodes for job in slurm.jobs(ids=[job_id])}
        assert (excluded[0], excluded[1]) == ("node1", "")

    def test_a_hetjobs_components_hold_and_run_their_own(self, slurm: Slurm, submit: Submitter) -> None:
        script = "#!/bin/sh\n#SBATCH --ntasks=1\n#SBATCH hetjob\n#SBATCH --ntasks=1\nsrun --het-group=0,1 sleep 300\n"
        job_id = submit(script=script)
        second = JobId(job_id.base, het_offset=1)
        until(lambda: bool(numbered(slurm.steps(second))))
        assert slurm.allocation(second).raw_id == job_id.base + 1
        assert slurm.allocation(job_id).raw_id == job_id.base
        assert [step.id for step in slurm.steps(second)] == [f"{job_id.base + 1}.0"]
        assert {step.id for step in slurm.steps(job_id)} == {f"{job_id}.batch", f"{job_id}.0"}

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_steps_have_names_as_they_were_written(self, slurm: Slurm, submit: Submitter, name: str) -> None:
        script = f"#!/bin/bash\nsrun --nodes=2 --job-name=$'{name}' sleep 300\n"
        job_id = submit("--nodes=2", script=script)
        until(lambda: bool(numbered(slurm.steps(job_id))))
        batch, step = sorted(slurm.steps(job_id), key=lambda each: each.id != f"{job_id}.batch")
        held = slurm.allocation(job_id)
        assert (batch.name, batch.nodes) == ("batch", held.batch_host)
        assert (step.id, step.name, step.nodes, step.state) == (f"{job_id}.0", name, held.node_list, "RUNNING")
        assert step.task_count == 2

    def test_killing_a_step_ends_its_tasks_at_once_and_nothing_else(self, slurm: Slurm, submit: Submitter) -> None:
        job_id = submit("--nodes=2", "--ntasks=2", script=STUBBORN)
        beats = [submit.folder / "beat.0", submit.folder / "beat.1"]
        until(lambda: all(beat.exists() for beat in beats))
        slurm.kill_step(f"{job_id}.0")
        until(lambda: not numbered(slurm.steps(job_id)))
        last = ages(beats)
        until((submit.folder / "srun-ended").exists)
        assert ages(beats) == last
        assert [step.id for step in slurm.steps(job_id)] == [f"{job_id}.batch"]
        assert submit.base(job_id) is BaseState.RUNNING
        with pytest.raises(JobUnknown):
            slurm.kill_step(f"{job_id}.0")

    @pytest.mark.parametrize("step_id", ["", "{}", "{}.", "{}.batch", "{}.0 {}", "--user=root", "{}.0,1"])
    def test_what_is_no_numbered_step_is_never_killed(self, slurm: Slurm, submit: Submitter, step_id: str) -> None:
        job_id = submit("--hold")
        with pytest.raises(ValueError, match="numbered step"):
            slurm.kill_step(step_id.format(job_id, job_id))
        assert submit.base(job_id) is BaseState.PENDING

    def test_a_node_is_drained_called_down_and_resumed_with_our_reason(self, slurm: Slurm) -> None:
        def shown() -> tuple[str, bool, str]:
            node = next(node for node in slurm.nodes() if node.name == "node3")
            return node.base_state, "DRAIN" in node.flags or "DRAINED" in node.flags, node.reason

        until(lambda: shown()[0] == "IDLE")
        try:
            for reason in ("fleetctl: GPU 3 (0000:1b:00.0) fell off the bus [reboot it]", "fleetctl: another"):
                slurm.drain("node3", reason)
                assert shown() == ("IDLE", True, reason)
            slurm.resume("node3")
            assert shown() == ("IDLE", False, "")
            slurm.down("node3", "fleetctl: it is dead")
            assert (shown()[0], shown()[2]) == ("DOWN", "fleetctl: it is dead")
        finally:
            slurm.resume("node3")
        until(lambda: shown() == ("IDLE", False, ""))
        with pytest.raises(SlurmRefused):
            slurm.resume("node3")

    def test_a_node_that_is_not_there_is_refused(self, slurm: Slurm) -> None:
        calls: list[Callable[[], None]] = [
            lambda: slurm.drain("nosuch", "x"),
            lambda: slurm.down("nosuch", "x"),
            lambda: slurm.resume("nosuch"),
        ]
        for call in calls:
            with pytest.raises(SlurmRefused, match=r"[Ii]nvalid node name"):
                call()

    def test_every_node_has_an_endpoint_of_its_own(self, slurm: Slurm) -> None:
        names = ["node4", "node1", "node2"]
        found = slurm.endpoints([*names, "node1"])
        assert list(found) == names
        assert {address for address, _ in found.values()} == {slurm.address("node1")}
        assert len({port for _, port in found.values()}) == 3
        assert slurm.endpoints([]) == {}
        with pytest.raises(SlurmRefused, match="nosuchnode"):
            slurm.endpoints(["node1", "nosuchnode"])

    def test_while_its_old_nodes_complete_a_job_keeps_exclusions_and_forgets_to_start_now(
        self, slurm: Slurm, submit: Submitter
    ) -> None:
        job_id = submit(script="#!/bin/sh\ntrap '' TERM\nsleep 3 & wait; sleep 3\n")
        until(lambda: submit.base(job_id) is BaseState.RUNNING)
        slurm.requeue(job_id)
        held = slurm.allocation(job_id)
        assert StateFlag.COMPLETING in held.state.flags
        assert (held.restarts, held.state.is_terminal, held.batch_host) == (1, False, held.node_list)
        slurm.set_excluded(job_id, held.batch_host)
        slurm.start_now(job_id)
        assert StateFlag.COMPLETING in slurm.allocation(job_id).state.flags
        until(lambda: submit.base(job_id) is BaseState.PENDING)
        (job,) = slurm.jobs(ids=[job_id])
        assert (job.reason, job.excluded_nodes) == ("BeginTime", held.batch_host)


def ages(paths: list[Path]) -> list[int]:
    return [path.stat().st_mtime_ns for path in paths]
