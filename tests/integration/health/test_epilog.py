"""What an epilog cleans up, with real processes, files and children: the job's own goes, all else stays."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fleetctl.health import epilog, state
from fleetctl.health.apart import Done, Task, run_apart
from fleetctl.health.epilog import Cleaned, Place, clean_up, job_from, survivors, window_of
from fleetctl.health.leavings import Window
from fleetctl.health.model import Answer, Care, Outcome
from fleetctl.health.process_table import Job, Seen
from fleetctl.health.processes import Ended
from fleetctl.health.state import JobStart, State
from fleetctl.health.store import load_state, update_state
from tests.integration.health.jobs import UID, Processes, lives
from tests.unit.health.mapping import only_mapped

BOOT = "0a1b"
JOB = Job("7001", UID)
WITHIN_S = 20.0

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="files and processes of another user need root"),
    pytest.mark.usefixtures("as_a_service"),
]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name in ("shm", "tmp"):
        (tmp_path / name).mkdir(mode=0o1777)
    return Place(str(tmp_path / "spool"), BOOT, (str(tmp_path / "shm"), str(tmp_path / "tmp")))


def apart(tasks: Sequence[Task]) -> dict[str, Done]:
    return run_apart(tasks, stuck=None, monotonic=time.monotonic)


def began(place: Place, job: Job = JOB, *, uid: int | None = UID, ago_s: float = 0.0) -> None:
    """What the job's prolog leaves, a moment before its first file."""
    start = JobStart(time.time() - ago_s, BOOT, uptime_s=time.monotonic() - ago_s, uid=uid)
    update_state(place.folder, lambda was: state.with_job(was, job.job_id, start), boot_id=BOOT)
    settled(place)


def ended(place: Place, cleaned: Cleaned, job: Job = JOB) -> None:
    at = time.time() if cleaned.ended_at is None else cleaned.ended_at
    update_state(place.folder, epilog.job_ended(job.job_id, at), boot_id=BOOT)


def leave(place: Place, name: str, *, uid: int = UID, where: int = 0) -> Path:
    path = Path(place.leavings[where]) / name
    path.write_bytes(b"x" * 5000)
    os.chown(path, uid, uid)
    return path


def settled(place: Place) -> None:
    """Let the clock that stamps files pass this moment, as it has long before a real job's first file or epilog."""
    probe, now = Path(place.folder).parent / "probe", time.time()
    while True:
        probe.write_text("")
        if probe.stat().st_mtime > now + 0.03:
            return


def test_what_a_job_left_is_ended_and_removed_and_counted(ours: Processes, place: Place) -> None:
    began(place)
    process = ours.start(job="7001")
    leave(place, "torch_shm")
    leave(place, "cache", where=1)
    stranger = leave(place, "stranger", uid=UID + 1)
    settled(place)
    cleaned = clean_up(JOB, place, apart, WITHIN_S)
    assert not lives(process)
    assert [list(Path(folder).iterdir()) for folder in place.leavings] == [[stranger], []]
    assert cleaned.findings == ()
    assert cleaned.record["killed"] == 1
    assert cleaned.record["left"]["removed"] == 2
    assert cleaned.record["left"]["removed_bytes"] >= 10_000
    assert cleaned.ended_at is not None


def test_a_second_epilog_does_nothing_and_says_the_same(ours: Processes, place: Place) -> None:
    began(place)
    ours.start(job="7001")
    leave(place, "torch_shm")
    settled(place)
    first = clean_up(JOB, place, apart, WITHIN_S)
    ended(place, first)
    later = leave(place, "of_a_login_afterwards")
    settled(place)
    second = clean_up(JOB, place, apart, WITHIN_S)
    ended(place, second)
    assert second.record["killed"] == 0
    assert second.record["left"]["removed"] == 0
    assert later.exists()
    assert second.findings == first.findings
    assert load_state(place.folder).jobs["7001"].ended_at == first.ended_at


def test_two_jobs_of_one_user_the_epilog_of_one_leaves_the_other_alone(ours: Processes, place: Place) -> None:
    other = Job("7002", UID)
    began(place)
    began(place, other)
    mine, others = ours.start(job="7001"), ours.start(job="7002")
    files = [leave(place, name, where=where) for name in ("of_one", "of_the_other") for where in (0, 1)]
    settled(place)
    cleaned = clean_up(JOB, place, apart, WITHIN_S)
    ended(place, cleaned)
    assert (lives(mine), lives(others)) == (False, True)
    assert all(path.exists() for path in files)  # whose they are, nobody can tell
    assert cleaned.record["left"]["kept"] == 4
    assert "other processes here" in cleaned.record["left"]["why"]
    last = clean_up(other, place, apart, WITHIN_S)
    assert not lives(others)
    assert last.record["left"]["removed"] == 4


def test_another_job_that_has_no_process_yet_keeps_the_files(place: Place) -> None:
    began(place)
    began(place, Job("7002", UID))  # its prolog is through, or runs just now; or it is a salloc between two steps
    path = leave(place, "perhaps_of_7002")
    settled(place)
    cleaned = clean_up(JOB, place, apart, WITHIN_S)
    assert path.exists()
    assert cleaned.record["left"]["why"] == "its user has another job here (7002)"


def test_a_job_of_another_user_keeps_nothing(ours: Processes, place: Place) -> None:
    began(place)
    began(place, Job("7002", UID + 1), uid=UID + 1)
    neighbour = ours.start(job="7002", uid=UID + 1)
    leave(place, "mine")
    settled(place)
    assert clean_up(JOB, place, apart, WITHIN_S).record["left"]["removed"] == 1
    assert lives(neighbour)


def test_a_login_of_the_user_keeps_the_files(ours: Processes, place: Place) -> None:
    began(place)
    login = ours.start()
    path = leave(place, "perhaps_of_the_login")
    settled(place)
    clean_up(JOB, place, apart, WITHIN_S)
    assert path.exists()
    assert lives(login)


def test_a_job_whose_start_nobody_knows_loses_no_file(ours: Processes, place: Place) -> None:
    process = ours.start(job="7001")
    path = leave(place, "torch_shm")
    settled(place)
    cleaned = clean_up(JOB, place, apart, WITHIN_S)
    assert not lives(process)
    assert path.exists()
    assert cleaned.record["left"]["kept_bytes"] >= 5000
    assert "its start is not known" in cleaned.record["left"]["why"]


def test_files_from_before_the_job_stay(place: Place) -> None:
    path = leave(place, "dataset")
    settled(place)
    began(place)
    path.write_bytes(b"the job wrote here")
    settled(place)
    cleaned = clean_up(JOB, place, apart, WITHIN_S)
    assert path.exists()
    assert cleaned.record["left"]["kept"] == 1


def test_what_another_user_has_mapped_stays(place: Place) -> None:
    began(place)
    path = leave(place, "shared_model")
    leave(place, "unshared")
    settled(place)
    with only_mapped(path):
        assert clean_up(JOB, place, apart, WITHIN_S).record["left"]["removed"] == 1
        assert path.exists()
    assert clean_up(JOB, place, apart, WITHIN_S).record["left"]["removed"] == 1


def test_a_job_of_root_loses_nothing(ours: Processes, place: Place) -> None:
    began(place, Job("7001", 0), uid=0)
    process = ours.start(job="7001", uid=0)
    path = leave(place, "roots", uid=0)
    settled(place)
    cleaned = clean_up(Job("7001", 0), place, apart, WITHIN_S)
    assert lives(process)
    assert path.exists()
    assert cleaned.record["killed"] == 0


def test_a_clean_up_that_hangs_is_given_up_and_named(place: Place) -> None:
    def hang(tasks: Sequence[Task]) -> Mapping[str, Done]:
        return {task.name: Done(Answer.HUNG, detail="no answer within 4.0 s") for task in tasks}

    cleaned = clean_up(JOB, place, lambda tasks: dict(hang(tasks)), WITHIN_S)
    (finding,) = cleaned.findings
    assert (finding.check, finding.outcome, finding.care) == ("stuck", Outcome.CANNOT_TELL, Care.WATCH)
    assert "job 7001" in finding.words
    assert cleaned.ended_at is None


def test_the_epilogs_of_two_jobs_at_once_each_end_their_own(ours: Processes, place: Place) -> None:
    jobs = [Job(str(7001 + number), UID + number) for number in range(2)]
    for job in jobs:
        began(place, job, uid=job.uid)
    running = [ours.start(job=job.job_id, uid=job.uid or 0) for job in jobs]
    for job in jobs:
        leave(place, f"of_{job.job_id}", uid=job.uid or 0)
    settled(place)
    tasks = [
        Task(job.job_id, lambda job=job: clean_up(job, place, apart, WITHIN_S).record, WITHIN_S)  # type: ignore[misc]
        for job in jobs
    ]
    done = apart(tasks)
    assert [done[job.job_id].value["killed"] for job in jobs] == [1, 1]
    assert [done[job.job_id].value["left"]["removed"] for job in jobs] == [1, 1]
    assert [lives(process) for process in running] == [False, False]


START = JobStart(1000.0, BOOT, uptime_s=100.0, uid=UID)
QUIET = Ended(0, (), (), 2000.0)
SEEN = Seen(9, 1, UID, "python", "S", "", "")


@pytest.mark.parametrize(
    ("start", "wall", "uptime", "expected"),
    [
        (START, 2000.0, 1100.0, Window(1000.0, 2000.0)),
        (START, 9000.0, 1100.0, Window(8000.0, 2000.0)),  # the clock was behind at the start
        (START, 1500.0, 1100.0, Window(1000.0, 2000.0)),  # it was ahead
        (START._replace(uptime_s=None), 2000.0, 1100.0, Window(1000.0, 2000.0)),
        (START._replace(ended_at=1500.0), 2000.0, 1100.0, Window(1000.0, 1500.0)),
        (START._replace(ended_at=2500.0), 2000.0, 1100.0, Window(1000.0, 2000.0)),
    ],
)
def test_the_window_is_never_wider_than_the_job(start: JobStart, wall: float, uptime: float, expected: Window) -> None:
    assert window_of(JOB, State(BOOT, jobs={"7001": start}), QUIET, wall, uptime) == (expected, "")


@pytest.mark.parametrize(
    ("job", "jobs", "ended_so"),
    [
        (JOB, {}, QUIET),
        (Job("7001", 0), {"7001": START}, QUIET),
        (Job("7001", None), {"7001": START}, QUIET),
        (JOB, {"7001": START}, QUIET._replace(others=None)),
        (JOB, {"7001": START}, QUIET._replace(clean_at=None)),
        (JOB, {"7001": START}, Ended(1, (SEEN,), (), None)),
        (JOB, {"7001": START}, QUIET._replace(others=(SEEN,))),
        (JOB, {"7001": START, "7002": START}, QUIET),
        (JOB, {"7001": START, "7002": START._replace(uid=None)}, QUIET),
    ],
)
def test_any_doubt_keeps_everything_and_says_why(job: Job, jobs: dict[str, JobStart], ended_so: Ended) -> None:
    window, why = window_of(job, State(BOOT, jobs=jobs), ended_so, 2000.0, 1100.0)
    assert window is None
    assert why


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1000"}, Job("7", 1000)),
        ({"SLURM_JOB_ID": "7"}, Job("7", None)),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "-1"}, Job("7", None)),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "nobody"}, Job("7", None)),
        ({"SLURM_JOB_ID": "7_1", "SLURM_JOB_UID": "1000"}, None),
        ({"SLURM_JOB_ID": "", "SLURM_JOB_UID": "1000"}, None),
        ({}, None),
    ],
)
def test_the_job_of_an_epilogs_environment(environ: dict[str, str], expected: Job | None) -> None:
    assert job_from(environ) == expected


def test_survivors_are_named_for_a_person_and_never_close_by_themselves() -> None:
    (finding,) = survivors(JOB, [(10 + n, "py\nthon\x1b", "D") for n in range(5)])
    assert finding.words == (
        "processes of job 7001 hang in the kernel after SIGKILL: "
        "10 (py?thon?, state D), 11 (py?thon?, state D), 12 (py?thon?, state D) and 2 more"
    )
    assert (finding.check, finding.value, finding.care) == ("stuck", 5, Care.WATCH)
    assert survivors(JOB, []) == ()
