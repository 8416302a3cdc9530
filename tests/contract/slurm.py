"""What every adapter of the port must do, on a real cluster: one method per promise of slurm.port.

What changes a job that is there already, and what it runs, is in tests/contract/control.py.

An adapter's test class inherits SlurmContract and gives it a `slurm` fixture; nothing here knows which one it is.
`submit_job` reads no id that the adapter did not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fleetctl.clock import SystemClock
from fleetctl.errors import JobUnknown, SlurmRefused
from fleetctl.slurm.model import Accepted, BaseState, Job, JobId, Refused
from fleetctl.slurm.port import Slurm

CLOCK = SystemClock()
DEADLINE_S = 60.0
SLEEPER = "#!/bin/sh\nsleep 300\n"
ODD_COMMENTS = [
    "a\nb",
    "a\x1fb\x1fc",
    "quote ' and \" and \\",
    "\u00e9\u2713 \U0001f680",
    "tab\there",
    "a,b;c|d^e%i",
    " x ",
]


def until(happened: Callable[[], bool]) -> None:
    """Wait on a real probe, with a deadline."""
    end_s = CLOCK.monotonic_s() + DEADLINE_S
    while not happened():
        assert CLOCK.monotonic_s() < end_s, "it did not happen in time"
        CLOCK.sleep(0.1)


class Submitter:
    """Submits small jobs and cancels them all in the end."""

    def __init__(self, slurm: Slurm, folder: Path) -> None:
        self.slurm = slurm
        self.folder = folder
        self.count = 0
        self.accepted: list[JobId] = []

    def answer(self, *args: str, script: str = SLEEPER) -> object:
        self.count += 1
        path = self.folder / f"job{self.count}.sh"
        path.write_text(script)
        answer = self.slurm.submit(
            path,
            stdout=self.folder / f"{self.count}.out",
            stderr=self.folder / f"{self.count}.err",
            cwd=self.folder,
            extra_args=("--output=/dev/null", *args),
        )
        if isinstance(answer, Accepted):
            self.accepted.append(answer.job_id)
        return answer

    def __call__(self, *args: str, script: str = SLEEPER) -> JobId:
        answer = self.answer(*args, script=script)
        assert isinstance(answer, Accepted), answer
        return answer.job_id

    def rows(self, job_id: JobId) -> dict[str, Job]:
        found = self.slurm.jobs(ids=[job_id])
        return {f"{job.id}[{job.pending_tasks}]" if job.pending_tasks else str(job.id): job for job in found}

    def base(self, job_id: JobId) -> BaseState | None:
        (job,) = self.slurm.jobs(ids=[job_id])
        return job.state.base


class Submits:
    """Gives the fixture `submit`, over the fixture `slurm`."""

    @pytest.fixture
    def submit(self, slurm: Slurm, tmp_path: Path) -> Iterator[Submitter]:
        submitter = Submitter(slurm, tmp_path)
        yield submitter
        for job_id in submitter.accepted:
            try:
                slurm.cancel(job_id)
            except (JobUnknown, SlurmRefused):
                continue


class SlurmContract(Submits):
    """Inherit, and give the fixtures `slurm` and `user`."""

    def test_a_cluster_that_is_up_answers_a_ping(self, slurm: Slurm) -> None:
        slurm.ping()

    def test_the_version_is_the_controllers(self, slurm: Slurm) -> None:
        assert slurm.config()["SLURM_VERSION"] == slurm.version()

    def test_what_was_submitted_is_found_at_once(self, slurm: Slurm, submit: Submitter, user: str) -> None:
        before = CLOCK.now() - timedelta(seconds=2)
        job_id = submit("--hold", "--comment=fleetctl:r-1", "--job-name=train", "--time=90", "--exclude=node3")
        (job,) = [each for each in slurm.jobs(user=user) if each.comment == "fleetctl:r-1"]
        assert (job.id, job.raw_id, job.name, job.user) == (job_id, job_id.base, "train", user)
        assert (job.state.base, job.reason, job.time_limit_s) == (BaseState.PENDING, "JobHeldUser", 5400)
        assert job.submit_time is not None
        assert before <= job.submit_time <= CLOCK.now()
        assert (job.start_time, job.node_list, job.excluded_nodes) == (None, "", "node3")
        assert Path(job.command).parent == Path(job.work_dir) == submit.folder

    def test_a_running_job_has_nodes_and_times(self, slurm: Slurm, submit: Submitter) -> None:
        job_id = submit("--gpus-per-node=2", "--nodes=1", "--time=10")
        until(lambda: submit.base(job_id) is BaseState.RUNNING)
        (job,) = slurm.jobs(ids=[job_id])
        assert job.start_time is not None
        assert job.end_time == job.start_time + timedelta(minutes=10)
        assert (job.node_count, job.dependency) == (1, "")
        (node,) = [each for each in slurm.nodes() if each.name == job.node_list]
        assert (node.base_state, node.gpus, node.gpus_used) == ("MIXED", 8, 2)

    def test_a_start_of_a_job_is_told_with_its_host_and_what_it_really_has(
        self, slurm: Slurm, submit: Submitter, user: str
    ) -> None:
        waits, runs = submit("--hold"), submit("--gpus-per-node=2", "--nodes=2", "--job-name= JOB_GRES=gpu:9 ")
        until(lambda: submit.base(runs) is BaseState.RUNNING)
        found = {job.id: job for job in slurm.starts(user=user)}
        assert (found[waits].restarts, found[waits].batch_host, slurm.gpus(found[waits])) == (0, "", None)
        assert (found[runs].restarts, slurm.gpus(found[runs])) == (0, 4)
        assert found[runs].batch_host in {"node1", "node2", "node3", "node4"}
        assert {job.restarts for job in slurm.jobs(ids=[runs])} == {None}
        with pytest.raises(SlurmRefused, match="nosuchuser"):
            slurm.starts(user="nosuchuser")

    def test_without_reservations_there_are_none(self, slurm: Slurm) -> None:
        assert slurm.reservations() == ()

    @pytest.mark.parametrize("comment", ODD_COMMENTS)
    def test_a_comment_comes_back_as_it_was_written(self, slurm: Slurm, submit: Submitter, comment: str) -> None:
        job_id = submit("--hold", f"--comment={comment}")
        other = submit("--hold", f"--job-name={comment}")
        found = slurm.jobs(ids=[job_id, other])
        assert {job.id: job.comment for job in found} == {job_id: comment, other: ""}
        assert {job.name for job in found} == {"job1.sh", comment}

    def test_an_array_is_one_row_while_it_waits_and_an_element_is_found_in_it(
        self, slurm: Slurm, submit: Submitter
    ) -> None:
        job_id = submit("--hold", "--array=0-8:2%2")
        assert list(submit.rows(job_id)) == [f"{job_id}[0,2,4,6,8%2]"]
        element = JobId(job_id.base, array_index=4)
        assert slurm.jobs(ids=[element])
        assert slurm.jobs(ids=[JobId(job_id.base, array_index=3)]) == ()
        slurm.cancel(element)
        until(lambda: f"{job_id}[0,2,6,8%2]" in submit.rows(job_id))

    def test_a_long_array_is_not_cut(self, slurm: Slurm, submit: Submitter) -> None:
        members = [index * index for index in range(31)]  # no stride that Slurm could shorten
        job_id = submit("--hold", f"--array={','.join(map(str, members))}")
        assert slurm.jobs(ids=[JobId(job_id.base, array_index=900)])

    def test_elements_that_run_have_rows_and_numbers_of_their_own(self, slurm: Slurm, submit: Submitter) -> None:
        job_id = submit("--array=0-3%2")
        until(lambda: {f"{job_id}_0", f"{job_id}_1"} <= set(submit.rows(job_id)))
        rows = submit.rows(job_id)
        assert rows[f"{job_id}_0"].raw_id != rows[f"{job_id}_1"].raw_id
        assert [job.id.array_index for job in slurm.jobs(ids=[JobId(job_id.base, array_index=1)])] == [1]

    def test_a_hetjob_has_a_row_per_component(self, slurm: Slurm, submit: Submitter) -> None:
        script = "#!/bin/sh\n#SBATCH --hold\n#SBATCH hetjob\n#SBATCH --ntasks=1\nsleep 300\n"
        job_id = submit(script=script)
        rows = submit.rows(job_id)
        assert sorted(rows) == [f"{job_id}+0", f"{job_id}+1"]
        assert rows[f"{job_id}+1"].raw_id == job_id.base + 1
        one = slurm.jobs(ids=[JobId(job_id.base, het_offset=1)])
        assert [str(job.id) for job in one] == [f"{job_id}+1"]
        assert slurm.jobs(ids=[JobId(job_id.base, het_offset=7)]) == ()
        with pytest.raises(SlurmRefused, match="heterogeneous"):
            slurm.cancel(JobId(job_id.base, het_offset=1))
        slurm.cancel(job_id)
        until(lambda: all(job.state.is_terminal for job in slurm.jobs(ids=[job_id])))

    def test_an_unknown_id_is_absent_and_no_error(self, slurm: Slurm, submit: Submitter) -> None:
        known = submit("--hold")
        assert slurm.jobs(ids=[JobId(999_999)]) == ()
        assert slurm.jobs(ids=[JobId(999_999), JobId(999_998)]) == ()
        assert [job.id for job in slurm.jobs(ids=[JobId(999_999), known])] == [known]

    def test_an_ended_job_is_still_listed(self, slurm: Slurm, submit: Submitter, user: str) -> None:
        good, bad = submit(script="#!/bin/sh\nexit 0\n"), submit(script="#!/bin/sh\nexit 3\n")
        until(lambda: all(job.state.is_terminal for job in slurm.jobs(ids=[good, bad])))
        states = {job.id: job.state.base for job in slurm.jobs(user=user)}
        assert (states[good], states[bad]) == (BaseState.COMPLETED, BaseState.FAILED)

    def test_a_cancelled_job_ends_and_cancelling_again_says_so(self, slurm: Slurm, submit: Submitter) -> None:
        job_id = submit()
        until(lambda: submit.base(job_id) is BaseState.RUNNING)
        slurm.cancel(job_id)
        until(lambda: slurm.jobs(ids=[job_id])[0].state.is_terminal)
        assert submit.base(job_id) is BaseState.CANCELLED
        with pytest.raises(JobUnknown):
            slurm.cancel(job_id)
        with pytest.raises(JobUnknown):
            slurm.cancel(JobId(999_999))

    @pytest.mark.parametrize(
        ("args", "words"),
        [
            (["--partition=nope"], "invalid partition specified: nope"),
            (["--time=soon"], "Invalid --time specification"),
            (["--nosuch-option"], "unrecognized option '--nosuch-option'"),
            (["--array=0-99999"], "Invalid job array specification"),
            (["--gres=unicorn:1"], "Invalid generic resource"),
            (["--mem=1", "--mem-per-cpu=1"], "mutually exclusive"),
            (["--dependency=afterok:xx"], "Job dependency problem"),
            (["--gpus-per-node=99"], "Requested node configuration is not available"),
        ],
    )
    def test_a_refusal_has_slurms_own_words(self, submit: Submitter, args: list[str], words: str) -> None:
        answer = submit.answer(*args)
        assert isinstance(answer, Refused), answer
        assert words in answer.text

    @pytest.mark.parametrize("script", ["", "echo\n", "#!/bin/sh\r\n", '#!/bin/sh\n#SBATCH --comment="x\n'])
    def test_a_bad_script_is_refused(self, submit: Submitter, script: str) -> None:
        assert isinstance(submit.answer(script=script), Refused)

    def test_a_user_that_does_not_exist_is_an_error_and_not_an_empty_list(self, slurm: Slurm) -> None:
        with pytest.raises(SlurmRefused, match="nosuchuser"):
            slurm.jobs(user="nosuchuser")

    def test_nodes_and_partitions(self, slurm: Slurm) -> None:
        nodes, partitions = slurm.nodes(), slurm.partitions()
        assert [node.name for node in nodes] == ["node1", "node2", "node3", "node4"]
        assert {node.gpus for node in nodes} == {8}
        (default,) = [each for each in partitions if each.is_default]
        assert default.node_count == 4
        assert default.name in nodes[0].partitions

    def test_an_address_is_known_or_refused(self, slurm: Slurm) -> None:
        assert slurm.address("node1")
        with pytest.raises(SlurmRefused):
            slurm.address("nosuchnode")

    def test_without_accounting_there_is_no_history_and_not_an_empty_one(self, slurm: Slurm, user: str) -> None:
        with pytest.raises(SlurmRefused, match="accounting"):
            slurm.history(since=CLOCK.now())
        with pytest.raises(SlurmRefused, match="accounting"):
            slurm.admin_level(user)
