"""A resubmission whose caller died half-way: whoever asked for it finishes it, and no other call counts as it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from fleetctl.rundir.history import BY_DAEMON
from fleetctl.rundir.model import EventKind, SubmissionState
from fleetctl.rundir.store import RunDir, Store
from fleetctl.submission.decide_requeue import Wanted
from fleetctl.submission.look import Try, finish_earlier, write_wish
from tests.unit.clocks import StillClock
from tests.unit.test_rundir import NOW, make_run

if TYPE_CHECKING:
    from fleetctl.submission.plan import Plan
    from fleetctl.submission.submit import Site

PERSON, DAEMON = Wanted(), Wanted(by=BY_DAEMON, why="its node is gone")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    store = Store(tmp_path)
    store.ensure()
    made = make_run(store, "r-aaaaaa")
    for number in (1, 2):
        made.submission_dir(number).mkdir()
        made.event_log("login").append(NOW, EventKind.INTENT, submission=number)
    return made


def asked(run: RunDir, wanted: Wanted) -> Try:
    site = cast("Site", SimpleNamespace(clock=StillClock(), cluster="c", user="me", host="login"))
    return Try(run, cast("Plan", None), wanted, site, run.event_log("requeue-login"))


def begin_and_die(run: RunDir, wanted: Wanted) -> None:
    """What there is when the caller is killed once its job has claimed the submission."""
    write_wish(asked(run, wanted), run.history(), 2)
    assert run.claim(2, "9", "c", "node1", NOW)


@pytest.mark.parametrize("wanted", [PERSON, DAEMON])
def test_the_same_call_again_finishes_it(run: RunDir, wanted: Wanted) -> None:
    begin_and_die(run, wanted)
    assert finish_earlier(asked(run, wanted), run.history())
    told = [event for event in run.events() if event.kind is EventKind.SUBMITTED]
    assert [(event.data["submission"], event.data["job_id"]) for event in told] == [(2, "9")]
    assert not finish_earlier(asked(run, wanted), run.history()), "from now on it is another wish"


@pytest.mark.parametrize(("before", "now"), [(DAEMON, PERSON), (PERSON, DAEMON)])
def test_a_call_of_another_kind_is_a_wish_of_its_own(run: RunDir, before: Wanted, now: Wanted) -> None:
    begin_and_die(run, before)
    assert not finish_earlier(asked(run, now), run.history())
    assert run.history().state is SubmissionState.SUBMITTED, "the job claimed it"


def test_what_the_daemon_asks_for_is_written_as_its_own(run: RunDir) -> None:
    begin_and_die(run, DAEMON)
    event = next(event for event in run.events() if event.kind is EventKind.REQUEUE)
    assert (event.data["by"], event.data["why"]) == (BY_DAEMON, "its node is gone")
    history = run.history()
    assert not history.wishes
    assert not history.asked
    assert not history.asks
