"""What the daemon writes down, on both databases: once, before the deed, under its lease, and whatever users write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from fleetctl.errors import LeaseLost
from fleetctl.recovery import pause, recall
from fleetctl.recovery.lease import Place
from fleetctl.recovery.model import (
    Advice,
    CauseClass,
    Decision,
    Deed,
    Done,
    Incident,
    Interruption,
    Outcome,
    Suspected,
    Verdict,
)
from fleetctl.recovery.recall import Cost
from tests.integration.recovery.ledger import PLACE, Daemon, HandClock, an_action, lapse

ODD = "a\x00b\udc80 \u2620\n'; DROP TABLE daemon_state; --"


@pytest.fixture
def daemon(database: str) -> Iterator[Daemon]:
    found = Daemon(database, "one", HandClock())
    assert found.leader.lead()
    yield found
    found.close()


def an_interruption(daemon: Daemon, key: str = "r-1", attempt: str = "1.0") -> Interruption:
    causes = (Suspected(CauseClass.NODE, Advice.ELSEWHERE, f"slurm: node3 {ODD}", "node3"),)
    return Interruption(key, attempt, "c/7/0", daemon.clock.now(), causes, "node", ("node3", "node4"), 300, 12.5)


def test_an_entry_is_there_before_the_deed_and_has_its_outcome_after(daemon: Daemon) -> None:
    action = an_action(evidence=("slurm: node3 is DOWN",), nodes=("node3",))
    number = daemon.journal.begin(action)
    assert isinstance(number, int)
    (done,) = daemon.journal.memory().done
    assert (done.action, done.outcome, done.at, done.ended_at) == (action, Outcome.OPEN, daemon.clock.now(), None)
    daemon.clock.sleep(3)
    daemon.journal.end(number, Outcome.DONE, "restart 1", {"excluded/r-1": "node3"})
    memory = daemon.journal.memory()
    (done,) = memory.done
    assert (done.outcome, done.detail) == (Outcome.DONE, "restart 1")
    assert done.ended_at == daemon.clock.now()
    assert memory.notes == {"excluded/r-1": "node3"}
    assert daemon.journal.note("excluded/r-1") == "node3"
    assert daemon.journal.note("excluded/r-2") == ""


def test_an_outcome_is_written_once(daemon: Daemon) -> None:
    number = daemon.journal.begin(an_action())
    assert isinstance(number, int)
    daemon.journal.end(number, Outcome.DONE, "seen")
    daemon.journal.end(number, Outcome.FAILED, "a late word", {"x": "y"})
    (done,) = daemon.journal.memory().done
    assert (done.outcome, done.detail) == (Outcome.DONE, "seen")
    assert daemon.journal.memory().notes == {}


@pytest.mark.parametrize("deed", [Deed.REQUEUE, Deed.REQUEUE_ENDED, Deed.RESUBMIT, Deed.HOLD, Deed.ROLL_BACK])
def test_the_same_deed_on_the_same_start_is_done_once(daemon: Daemon, deed: Deed) -> None:
    number = daemon.journal.begin(an_action(deed))
    assert isinstance(number, int)
    again = daemon.journal.begin(an_action(deed))
    assert isinstance(again, Done)
    assert again.outcome is Outcome.OPEN
    daemon.journal.end(number, Outcome.DONE)
    again = daemon.journal.begin(an_action(deed))
    assert isinstance(again, Done)
    assert again.outcome is Outcome.DONE
    assert isinstance(daemon.journal.begin(an_action(deed, start="c/7/1")), int)
    assert isinstance(daemon.journal.begin(an_action(deed, key="r-2")), int)


@pytest.mark.parametrize("outcome", [Outcome.CHANGED, Outcome.REFUSED, Outcome.FAILED])
def test_what_came_to_nothing_may_be_tried_again(daemon: Daemon, outcome: Outcome) -> None:
    number = daemon.journal.begin(an_action())
    assert isinstance(number, int)
    daemon.journal.end(number, outcome)
    assert isinstance(daemon.journal.begin(an_action()), int)


def test_what_sets_or_tells_something_may_be_done_again_and_so_may_a_later_drain(daemon: Daemon) -> None:
    for action in (an_action(Deed.EXCLUDE), an_action(Deed.TELL), an_action(Deed.DRAIN, "", "", nodes=("n1",))):
        for _ in range(2):
            number = daemon.journal.begin(action)
            assert isinstance(number, int)
            assert isinstance(daemon.journal.begin(action), Done)  # while it is open
            daemon.journal.end(number, Outcome.DONE)


def test_what_is_only_observed_is_one_entry_a_day(daemon: Daemon) -> None:
    for _ in range(3):
        daemon.journal.observe(an_action())
        daemon.clock.sleep(7)
        assert daemon.leader.lead()
    (done,) = daemon.journal.memory().done
    assert done.outcome is Outcome.OBSERVED
    assert done.ended_at == done.at + timedelta(seconds=14)
    assert isinstance(daemon.journal.begin(an_action()), int)  # it is no obstacle for acting
    daemon.clock.sleep(86_401)
    assert daemon.leader.lead()
    daemon.journal.observe(an_action())
    assert [each.outcome for each in daemon.journal.memory().done].count(Outcome.OBSERVED) == 2


def test_a_decision_is_remembered_and_the_newest_word_counts(daemon: Daemon) -> None:
    first = an_interruption(daemon)
    incident = Incident("class", "network", daemon.clock.now(), None, ("r-1", "r-2"))
    verdict = Verdict("r-1", "orphan", f"its head is gone {ODD}")
    decision = Decision((), (verdict,), (first,), (incident,), {"since/r-1": "5", "gone": "x"})
    daemon.journal.remember(decision, daemon.clock.now())
    memory = daemon.journal.memory()
    assert (memory.interruptions, memory.incidents) == ((first,), (incident,))
    assert memory.notes == {"since/r-1": "5", "gone": "x"}
    assert recall.verdict_of(daemon.engine, PLACE, "r-1") == (daemon.clock.now(), verdict)
    assert recall.verdict_of(daemon.engine, PLACE, "r-9") is None
    since = daemon.clock.now()
    daemon.clock.sleep(9)
    other = an_interruption(daemon, attempt="1.1")
    better = Interruption(first.key, first.attempt, first.start, first.at, (), "gpu", (), None)
    ended = Incident("class", "network", incident.since, daemon.clock.now(), ("r-1",))
    again = Decision((), (verdict,), (better, other), (ended,), {"gone": "", "since/r-1": "6"})
    daemon.journal.remember(again, daemon.clock.now())
    memory = daemon.journal.memory()
    assert (memory.interruptions, memory.incidents, memory.notes) == ((better, other), (ended,), {"since/r-1": "6"})
    found = recall.verdict_of(daemon.engine, PLACE, "r-1")
    assert found is not None
    assert found[0] == since  # it has been so since then


def test_a_week_is_remembered_and_a_quarter_is_kept(daemon: Daemon) -> None:
    number = daemon.journal.begin(an_action())
    assert isinstance(number, int)
    daemon.journal.end(number, Outcome.DONE)
    old = Incident("class", "network", daemon.clock.now(), daemon.clock.now())
    standing = Incident("class", "gpu", daemon.clock.now(), None)
    decision = Decision((), (Verdict("r-1", "x", "y"),), (an_interruption(daemon),), (old, standing), {"n": "1"})
    daemon.journal.remember(decision, daemon.clock.now())
    daemon.clock.sleep(8 * 86_400)
    assert daemon.leader.lead()
    memory = daemon.journal.memory()
    assert (memory.done, memory.interruptions, memory.incidents) == ((), (), (standing,))
    assert len(recall.done_of(daemon.engine, PLACE, "r-1")) == 1
    daemon.clock.sleep(90 * 86_400)
    assert daemon.leader.lead()
    daemon.journal.remember(Decision((), ()), daemon.clock.now())
    assert daemon.rows("SELECT count(*) FROM daemon_actions") == [(0,)]
    assert daemon.rows("SELECT count(*) FROM daemon_interruptions") == [(0,)]
    memory = daemon.journal.memory()
    assert (memory.notes, memory.incidents) == ({}, (standing,))


def test_what_an_interruption_cost_is_noted_once_and_outlives_a_second_thought(daemon: Daemon) -> None:
    one = an_interruption(daemon)
    daemon.journal.remember(Decision((), (), (one,)), daemon.clock.now())
    assert recall.interruptions_of(daemon.engine, PLACE, "r-1")[0].cost is None
    daemon.journal.recovered(one, Cost(4.25, 130.0, None), daemon.clock.now())
    daemon.journal.recovered(one, Cost(1.0, 1.0, 1.0), daemon.clock.now())
    daemon.journal.remember(Decision((), (), (one,)), daemon.clock.now())
    (found,) = recall.interruptions_of(daemon.engine, PLACE, "r-1")
    assert (found.interruption, found.at, found.cost) == (one, daemon.clock.now(), Cost(4.25, 130.0, None))


def test_whatever_users_write_is_kept_and_breaks_nothing(daemon: Daemon) -> None:
    action = an_action(Deed.TELL, key=f"r-1{ODD}", start=f"c{ODD}/7/0", evidence=(ODD,), suspects=(ODD,))
    number = daemon.journal.begin(action)
    assert isinstance(number, int)
    daemon.journal.end(number, Outcome.FAILED, ODD, {f"note {ODD}": ODD})
    decision = Decision((), (Verdict(ODD, ODD, ODD),), (an_interruption(daemon, ODD, ODD),), (), {ODD: ODD})
    daemon.journal.remember(decision, daemon.clock.now())
    daemon.journal.remember(decision, daemon.clock.now())
    daemon.journal.save_pass({"said": ODD})
    memory = daemon.journal.memory()
    assert memory.done[0].action == action
    assert "\x00" not in memory.done[0].detail
    assert len(memory.notes) == 2
    assert len(memory.interruptions) == 1
    assert recall.last_pass(daemon.engine, PLACE) == (daemon.clock.now(), {"said": ODD})
    daemon.journal.remember(Decision((), (), notes={ODD: "", f"note {ODD}": ""}), daemon.clock.now())
    assert daemon.journal.memory().notes == {}


def test_nothing_is_written_once_the_lease_is_lost_but_what_came_of_a_deed(daemon: Daemon) -> None:
    number = daemon.journal.begin(an_action())
    assert isinstance(number, int)
    lapse(daemon)
    one = an_interruption(daemon)
    writes: list[Callable[[], None]] = [
        lambda: daemon.journal.remember(Decision((), (), (one,)), daemon.clock.now()),
        lambda: daemon.journal.observe(an_action(start="c/9/0")),
        lambda: daemon.journal.save_pass({}),
        lambda: daemon.journal.recovered(one, Cost(1, 1, 1), daemon.clock.now()),
    ]
    for write in writes:
        with pytest.raises(LeaseLost):
            write()
    daemon.journal.end(number, Outcome.DONE, "it was seen")
    memory = daemon.journal.memory()
    assert (memory.interruptions, memory.done[0].outcome) == ((), Outcome.DONE)
    assert recall.last_pass(daemon.engine, PLACE) is None


def test_a_person_pauses_everything_or_one_run_and_ends_that(daemon: Daemon) -> None:
    engine, at = daemon.engine, daemon.clock.now()
    pause.pause(engine, PLACE, "", "user ann", "the switch is being replaced", at)
    pause.pause(engine, PLACE, "r-1", "user ann", "", at)
    pause.pause(engine, PLACE, "r-1", "user bob", f"mine {ODD}", at)
    assert daemon.journal.paused().keys() == {"", "r-1"}
    memory = daemon.journal.memory()
    assert memory.paused_by == "user ann: the switch is being replaced"
    assert memory.paused_runs["r-1"].startswith("user bob: mine a b")
    assert pause.resume(engine, PLACE, "r-1", at)
    assert not pause.resume(engine, PLACE, "r-1", at)
    assert pause.resume(engine, PLACE, "", at)
    assert pause.paused(engine, PLACE) == {}


def test_a_person_who_resumes_everything_ends_the_incidents_too(daemon: Daemon) -> None:
    at = daemon.clock.now()
    open_one = Incident("class", "network", at, None, ("r-1",))
    later = Incident("switch", "leaf3", at, at + timedelta(hours=1))
    over = Incident("class", "gpu", at - timedelta(hours=2), at - timedelta(hours=1))
    daemon.journal.remember(Decision((), (), incidents=(open_one, later, over)), at)
    assert not pause.resume(daemon.engine, PLACE, "r-1", at)
    assert pause.resume(daemon.engine, PLACE, "", at)
    assert {one.until for one in daemon.journal.memory().incidents} == {at, over.until}


def test_daemons_of_others_are_apart(daemon: Daemon, database: str) -> None:
    other = Daemon(database, "two", daemon.clock, Place("c", "operator"))
    assert other.leader.lead()
    for each in (daemon, other):
        number = each.journal.begin(an_action())
        assert isinstance(number, int)
        each.journal.remember(Decision((), (), (an_interruption(each),), notes={"n": "1"}), each.clock.now())
    assert len(other.journal.memory().done) == len(other.journal.unfinished()) == 1
    assert recall.places(daemon.engine) == (Place("c", "operator"), PLACE)
    other.journal.remember(Decision((), (), notes={"n": ""}), other.clock.now())
    assert daemon.journal.memory().notes == {"n": "1"}
    other.close()


def test_memory_is_bounded(daemon: Daemon) -> None:
    found = tuple(an_interruption(daemon, f"r-{number}") for number in range(2_100))
    daemon.journal.remember(Decision((), (), found, notes={f"n{n}": "x" for n in range(1_200)}), daemon.clock.now())
    memory = daemon.journal.memory()
    assert len(memory.interruptions) == 2_000
    daemon.journal.remember(Decision((), (), notes={f"n{n}": "" for n in range(1_200)}), daemon.clock.now())
    assert daemon.journal.memory().notes == {}
