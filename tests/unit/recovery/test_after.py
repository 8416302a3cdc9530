"""After a recovery: when a run has passed its checkpoint, and what its interruption cost."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from fleetctl.recovery.after import Followed, Recovered, follow, recovered
from fleetctl.recovery.model import Facts, Interruption, RunSeen
from fleetctl.rundir.history import add_up
from fleetctl.rundir.model import Attempt, Ending, RunKind, RunRecord
from fleetctl.rundir.pulse import Pulse
from tests.unit.clocks import START

RECORD = RunRecord("r-1", "r", "me", START, RunKind.PLAIN, "d", "/s/train.yaml", "/s", 1, 1, "c", "0")


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def attempt(
    name: str, began: float, ended: float | None = None, *, resume: int | None = None, code: int = 1
) -> Attempt:
    return Attempt(
        name,
        "7",
        "n1",
        at(began),
        ended_at=None if ended is None else at(ended),
        exit_code=None if ended is None else code,
        ending=None if ended is None else Ending.FINISHED if code == 0 else Ending.FAILED,
        resume_step=resume,
    )


def pulse(name: str, now: float, step: int, checkpoint: int | None, progress: float) -> Pulse:
    return Pulse(
        attempt=name,
        job_id="7",
        restart_count=0,
        host="n1",
        at=at(now),
        events=1,
        phase="step",
        training_step=step,
        progress_at=at(progress),
        checkpoint_step=checkpoint,
    )


def seen(told: Pulse | None, *attempts: Attempt) -> RunSeen:
    history = msgspec.structs.replace(add_up(RECORD, (), {}), attempts=attempts)
    facts = Facts(history=history, max_failures=3, may_restart=True, own_format=True, nodes=1, gpus=8)
    return RunSeen("r-1", "r-1", None, "me", "/runs/r-1", facts, told, ())


END = Interruption("r-1", "1.0", "c/7/0", at(130), (), "f", ("n1",), 100)
FIRST = seen(pulse("1.0", 60, 100, 100, 60), attempt("1.0", 0))
LATER = seen(pulse("1.0", 115, 190, 100, 110), attempt("1.0", 0))


def after(run: RunSeen, followed: Followed) -> Recovered | None:
    return recovered(run, [END], follow(followed, [run])["r-1"])


FOLLOWED = follow(follow({}, [FIRST]), [LATER])


def test_what_an_interruption_cost() -> None:
    run = seen(pulse("2.0", 400, 101, 100, 399), attempt("1.0", 0, 130), attempt("2.0", 300, resume=100))
    found = after(run, FOLLOWED)
    assert found is not None
    assert found.at == at(399)
    assert (found.detection_s, found.restart_s, found.lost_s) == (20, 269, 50), "90 steps were lost, of 5/9 s each"


def test_a_run_that_has_only_loaded_its_checkpoint_is_not_recovered() -> None:
    run = seen(pulse("2.0", 400, 100, 100, 399), attempt("1.0", 0, 130), attempt("2.0", 300, resume=100))
    assert after(run, FOLLOWED) is None


def test_the_old_attempt_is_no_recovery() -> None:
    assert after(LATER, FOLLOWED) is None
    stale = seen(pulse("1.0", 400, 500, 100, 399), attempt("1.0", 0, 130), attempt("2.0", 300, resume=100))
    assert after(stale, FOLLOWED) is None, "that pulse is the old attempt's"


def test_a_run_that_finished_between_two_passes_has_recovered() -> None:
    run = seen(None, attempt("1.0", 0, 130), attempt("2.0", 300, 350, resume=100, code=0))
    found = after(run, FOLLOWED)
    assert found is not None
    assert found.restart_s == 220


def test_a_daemon_that_began_in_between_knows_the_restart_alone() -> None:
    run = seen(pulse("2.0", 400, 101, 100, 399), attempt("1.0", 0, 130), attempt("2.0", 300, resume=100))
    found = after(run, {})
    assert found is not None
    assert (found.detection_s, found.restart_s, found.lost_s) == (None, 269, None)


def test_clocks_that_differ_give_no_negative_times() -> None:
    run = seen(pulse("2.0", 120, 101, 100, 119), attempt("1.0", 0, 130), attempt("2.0", 110, resume=100))
    found = after(run, FOLLOWED)
    assert found is not None
    assert found.restart_s == 0


def test_runs_that_are_gone_are_forgotten_and_unreadable_ones_are_not() -> None:
    unreadable = msgspec.structs.replace(FIRST, pulse=None, facts=None)
    assert follow(FOLLOWED, [unreadable]) == FOLLOWED
    assert follow(FOLLOWED, []) == {}


def test_few_attempts_of_each_run_are_kept() -> None:
    followed: Followed = {}
    for number in range(1, 50):
        followed = follow(followed, [seen(pulse(f"{number}.0", number, 1, None, number))])
    assert [one.attempt for one in followed["r-1"]] == ["46.0", "47.0", "48.0", "49.0"]
