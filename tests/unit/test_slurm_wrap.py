"""Wrappers, the scrubbed environment, host lists and reasons: without a Slurm."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fleetctl.errors import SlurmRefused, SlurmUnreachable
from fleetctl.slurm import hosts, rows
from fleetctl.slurm.allocation import Allocation, Step
from fleetctl.slurm.commands import scrubbed
from fleetctl.slurm.model import (
    AdminLevel,
    BaseState,
    Job,
    JobId,
    JobRecord,
    JobState,
    Node,
    Partition,
    Reservation,
    SubmitAnswer,
    Unknown,
)
from fleetctl.slurm.port import Slurm
from fleetctl.slurm.reasons import explain
from fleetctl.slurm.wrap import Logged, Retrying
from tests.unit.test_slurm_rows import MARK, job_row


@dataclass
class StoppedClock:
    """Time passes only by sleeping."""

    slept_s: list[float] = field(default_factory=list)

    def now(self) -> datetime:
        return datetime(2026, 11, 30, tzinfo=UTC) + timedelta(seconds=sum(self.slept_s))

    def monotonic_s(self) -> float:
        return sum(self.slept_s)

    def sleep(self, duration_s: float) -> None:
        self.slept_s.append(duration_s)


@dataclass
class Flaky:
    """Every verb fails `failures` times, then answers."""

    failures: int
    error: Exception = field(default_factory=lambda: SlurmUnreachable("Slurm does not answer"))
    calls: list[str] = field(default_factory=list)

    def _answer(self, verb: str) -> None:
        self.calls.append(verb)
        if len(self.calls) <= self.failures:
            raise self.error

    def version(self) -> str:
        self._answer("version")
        return "1"

    def ping(self) -> None:
        self._answer("ping")

    def submit(
        self, script: Path, *, stdout: Path, stderr: Path, cwd: Path, extra_args: Sequence[str] = ()
    ) -> SubmitAnswer:
        self._answer("submit")
        return Unknown("?")

    def jobs(self, *, user: str | None = None, ids: Sequence[JobId] = ()) -> tuple[Job, ...]:
        self._answer(f"jobs {user} {ids}")
        return ()

    def starts(self, *, user: str | None = None) -> tuple[Job, ...]:
        self._answer(f"starts {user}")
        return ()

    def gpus(self, job: Job) -> int | None:
        self._answer("gpus")
        return 8

    def reservations(self) -> tuple[Reservation, ...]:
        self._answer("reservations")
        return ()

    def history(self, *, since: datetime, user: str | None = None, ids: Sequence[JobId] = ()) -> tuple[JobRecord, ...]:
        self._answer(f"history {user} {ids}")
        return ()

    def nodes(self) -> tuple[Node, ...]:
        self._answer("nodes")
        return ()

    def address(self, node: str) -> str:
        self._answer("address")
        return "127.0.0.1"

    def partitions(self) -> tuple[Partition, ...]:
        self._answer("partitions")
        return ()

    def config(self) -> Mapping[str, str]:
        self._answer("config")
        return {}

    def admin_level(self, user: str) -> AdminLevel:
        self._answer("admin_level")
        return AdminLevel.NONE

    def cancel(self, job_id: JobId) -> None:
        self._answer("cancel")

    def allocation(self, job_id: JobId) -> Allocation:
        self._answer("allocation")
        return Allocation(1, JobState(BaseState.PENDING), 0, "", "", "", None, None, None, None)

    def steps(self, job_id: JobId) -> tuple[Step, ...]:
        self._answer("steps")
        return ()

    def endpoints(self, nodes: Sequence[str]) -> Mapping[str, tuple[str, int]]:
        self._answer("endpoints")
        return {}

    def requeue(self, job_id: JobId) -> None:
        self._answer("requeue")

    def requeue_ended(self, job_id: JobId) -> None:
        self._answer("requeue_ended")

    def set_excluded(self, job_id: JobId, nodes: str) -> None:
        self._answer("set_excluded")

    def start_now(self, job_id: JobId) -> None:
        self._answer("start_now")

    def drain(self, node: str, reason: str) -> None:
        self._answer("drain")

    def down(self, node: str, reason: str) -> None:
        self._answer("down")

    def resume(self, node: str) -> None:
        self._answer("resume")

    def kill_step(self, step_id: str) -> None:
        self._answer("kill_step")


def call(slurm: Slurm, verb: str) -> object:
    if verb == "submit":
        return slurm.submit(Path("s"), stdout=Path("o"), stderr=Path("e"), cwd=Path())
    if verb == "set_excluded":
        return slurm.set_excluded(JobId(1), "n1")  # type: ignore[func-returns-value]
    if verb in {"cancel", "allocation", "steps", "requeue", "requeue_ended", "start_now"}:
        return getattr(slurm, verb)(JobId(1))
    if verb in {"drain", "down"}:
        return getattr(slurm, verb)("n1", "why")
    if verb == "history":
        return slurm.history(since=datetime(2026, 1, 1, tzinfo=UTC), user="u", ids=(JobId(1),))
    if verb == "gpus":
        return slurm.gpus(rows.parse_squeue(job_row(), MARK)[0])
    if verb == "jobs":
        return slurm.jobs(user="u", ids=(JobId(1),))
    named = verb in {"admin_level", "address", "kill_step", "endpoints", "resume"}
    return getattr(slurm, verb)("x") if named else getattr(slurm, verb)()


READS = [
    "ping",
    "jobs",
    "starts",
    "reservations",
    "gpus",
    "history",
    "nodes",
    "partitions",
    "config",
    "admin_level",
    "address",
]
READS += ["allocation", "steps", "endpoints"]
ACTS = ["submit", "cancel", "requeue", "requeue_ended", "set_excluded", "start_now", "kill_step"]
ACTS += ["drain", "down", "resume"]


@pytest.mark.parametrize("verb", READS)
def test_a_read_is_tried_again_and_gives_up(verb: str) -> None:
    clock, flaky = StoppedClock(), Flaky(failures=2)
    call(Retrying(flaky, clock, attempts=3, pause_s=4.0), verb)
    assert len(flaky.calls) == 3
    assert clock.slept_s == [4.0, 4.0]
    flaky = Flaky(failures=3)
    with pytest.raises(SlurmUnreachable):
        call(Retrying(flaky, clock, attempts=3), verb)
    assert len(flaky.calls) == 3


@pytest.mark.parametrize("verb", ACTS)
def test_what_changes_the_world_is_never_tried_again(verb: str) -> None:
    flaky = Flaky(failures=1)
    with pytest.raises(SlurmUnreachable):
        call(Retrying(flaky, StoppedClock(), attempts=3), verb)
    assert flaky.calls == [verb]


def test_a_refusal_is_final() -> None:
    flaky = Flaky(failures=9, error=SlurmRefused(1, "no"))
    with pytest.raises(SlurmRefused):
        call(Retrying(flaky, StoppedClock(), attempts=3), "jobs")
    assert len(flaky.calls) == 1


@pytest.mark.parametrize("verb", [*READS, *ACTS, "version"])
def test_every_call_is_logged_and_passed_on(verb: str) -> None:
    lines: list[str] = []
    flaky = Flaky(failures=0)
    call(Logged(flaky, lines.append, StoppedClock()), verb)
    assert len(lines) == 1
    assert re.match(rf"slurm {verb}.* -> .+ \(0 ms\)$", lines[0])
    assert flaky.calls[0].split()[0] == verb
    with pytest.raises(SlurmUnreachable):
        call(Logged(Flaky(failures=1), lines.append, StoppedClock()), verb)
    assert "SlurmUnreachable" in lines[1]


def test_filters_pass_through_the_wrappers() -> None:
    flaky = Flaky(failures=0)
    wrapped = Retrying(Logged(flaky, lambda line: None, StoppedClock()), StoppedClock())
    call(wrapped, "jobs")
    call(wrapped, "history")
    assert flaky.calls == [f"{verb} u {(JobId(1),)}" for verb in ("jobs", "history")]


def test_the_environment_is_free_of_other_jobs_and_hidden_options() -> None:
    kept = {"SLURM_CONF": "/c", "SLURM_JWT": "t", "TZ": "Asia/Tokyo", "LC_ALL": "de_DE", "PATH": "/bin", "PS1": "$"}
    gone = ["SLURM_JOB_ID", "SLURM_CPU_BIND", "SLURM_CPUS_PER_TASK", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT"]
    gone += ["SLURM_EXIT_ERROR", "SBATCH_PARTITION", "SBATCH_EXPORT", "SQUEUE_FORMAT", "SACCT_FORMAT"]
    gone += ["SINFO_FORMAT", "SCANCEL_USER", "PMI_RANK", "PMIX_RANK", "SRUN_CPUS_PER_TASK", "SLURMD_NODENAME"]
    assert scrubbed(kept | dict.fromkeys(gone, "x")) == kept


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[1-3],m7", ("n1", "n2", "n3", "m7")),
        ("gpu[08-10]", ("gpu08", "gpu09", "gpu10")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("n1,n1", ("n1",)),
    ],
)
def test_a_host_list_is_expanded(text: str, expected: tuple[str, ...]) -> None:
    assert hosts.expand(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "@gpus",
        "n[1-3]!n2",
        "a&b",
        "a^b",
        "n[1-",
        "n1]",
        "n[]",
        "a b",
        "n[1-99999999]",
        "n[1-300]m[1-300]",
        "n%d",
        "a\n",
    ],
)
def test_what_slurm_would_not_read_is_no_host_list(text: str) -> None:
    with pytest.raises(ValueError, match="not a Slurm host list"):
        hosts.expand(text)


def test_hosts_are_folded() -> None:
    assert hosts.fold(["n3", "n1", "n2", "m1"]) == "m1,n[1-3]"
    assert hosts.fold([]) == ""


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "in use"),
        ("", "not looked at it"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "(UnavailableNodes:n[1-2])"),
        ("AssocGrpGRES", "account or user together use as many GPUs"),
        ("QOSGrpCpuLimit", "QOS together use as many CPUs"),
        ("QOSMaxGRESPerUser", "You use as many GPUs as the QOS allows"),
        ("MaxGRESPerAccount", "as many GPUs as the account allows"),
        ("QOSMaxWallDurationPerJobLimit", "more run time than one job"),
        ("AssocMaxJobsLimit", "as many running jobs"),
        ("AssocGrpCPURunMinutesLimit", "CPUs over time"),
        ("QOSMinGRES", "too few GPUs"),
        ("QOSJobLimit", "QOSJobLimit"),
        ("launch failed requeued held", "failed prolog"),
        ("DependencyNeverSatisfied", "never start"),
        ("WarpCoreBreach", "'WarpCoreBreach'"),
    ],
)
def test_a_reason_is_explained_and_an_unknown_one_kept(reason: str, words: str) -> None:
    assert words in explain(reason)
    assert ("does not know" in explain(reason)) is (reason == "WarpCoreBreach")
