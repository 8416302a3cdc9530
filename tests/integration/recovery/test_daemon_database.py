"""The loop over a real journal: a database that goes away and comes back, and two daemons that share one."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Engine

from fleetctl.accounting.database import open_database
from fleetctl.clock import SystemClock
from fleetctl.recovery import recall
from fleetctl.recovery.journal import Journal
from fleetctl.recovery.lease import Leader, Place, boot_id
from fleetctl.recovery.loop import Ledger, Loop, Parts
from fleetctl.recovery.metrics import Numbers
from fleetctl.recovery.model import Action, Decision, Deed, Done, Memory, Outcome, RunSeen, Snapshot, Verdict
from fleetctl.recovery.notify import Teller
from fleetctl.recovery.sd_notify import Manager
from tests.databases import private_postgres

PLACE = Place("c", "user me")
REQUEUE = Action(Deed.REQUEUE, "r-1", "c/7/0", "its head is gone", "orphan")


class Standing:
    """A loop whose journal and lease are real, and whose deeds are a list."""

    def __init__(self, engine: Engine, holder: str, *, acts: bool = True) -> None:
        clock = SystemClock()
        leader = Leader(engine, PLACE, holder, clock, boot_id=boot_id())
        journal = Journal(engine, leader, clock)
        self.acted: list[Action] = []
        self.said: list[str] = []

        def act(action: Action, run: RunSeen | None) -> Done:
            begun = journal.begin(action)
            if isinstance(begun, Done):
                return begun
            self.acted.append(action)
            journal.end(begun, Outcome.DONE)
            return Done(action, clock.now(), Outcome.DONE)

        self.loop = Loop(
            Parts(
                cluster=PLACE.cluster,
                scope=PLACE.scope,
                acts=acts,
                ledger=Ledger(
                    lead=leader.lead,
                    other=lambda: leader.other,
                    release=leader.release,
                    memory=journal.memory,
                    settle=tuple,
                    remember=journal.remember,
                    observe=journal.observe,
                    recovered=lambda found: None,
                    save=journal.save_pass,
                ),
                observe=_observe,
                decide=_decide,
                act=act,
                stopped=str,
                teller=Teller((), lambda channel, notice: ""),
                numbers=Numbers(),
                manager=Manager(""),
                clock=clock,
                say=self.said.append,
            )
        )


def _observe(memory: Memory, at: datetime) -> Snapshot:
    return Snapshot(at, PLACE.cluster, (), (), (), ())


def _decide(snapshot: Snapshot, memory: Memory) -> Decision:
    return Decision((REQUEUE,), (Verdict("r-1", "orphan", "its head is gone"),))


def test_while_the_database_is_away_nothing_is_done_and_then_it_goes_on() -> None:
    with private_postgres() as server:
        engine = open_database(server.url(), create=True)
        standing = Standing(engine, "h:1:a")
        assert standing.loop.once().done[0].outcome is Outcome.DONE
        server.stop("QUIT")
        for _ in range(2):
            one = standing.loop.once()
            assert one.is_blind
            assert "saw nothing" in standing.said[-1]
        server.start()
        assert not standing.loop.once().is_blind
        assert standing.acted == [REQUEUE], "the same deed on the same start is done once, whatever happened"
        standing.loop.close()
        engine.dispose()


def test_of_two_daemons_one_acts_and_the_other_takes_over_at_its_end(database: str) -> None:
    engine = open_database(database)
    first, second = Standing(engine, "h:1:a"), Standing(engine, "h:2:b")
    first.loop.once()
    waiting = second.loop.once()
    assert "another daemon leads (h:1:a)" in waiting.standing_by
    assert second.acted == []
    first.loop.close()
    assert second.loop.once().standing_by == ""
    assert (first.acted, second.acted) == ([REQUEUE], [])
    assert [one.outcome for one in recall.done_of(engine, PLACE, "r-1")] == [Outcome.DONE]
    second.loop.close()
    engine.dispose()


def test_what_was_only_observed_does_not_keep_a_daemon_from_acting_later(database: str) -> None:
    engine = open_database(database)
    observing = Standing(engine, "h:1:a", acts=False)
    for _ in range(3):
        observing.loop.once()
    observing.loop.close()
    assert [one.outcome for one in recall.done_of(engine, PLACE, "r-1")] == [Outcome.OBSERVED], "one entry a day"
    acting = Standing(engine, "h:2:b")
    acting.loop.once()
    assert acting.acted == [REQUEUE]
    found = recall.last_pass(engine, PLACE)
    assert found is not None
    assert found[1]["actions"][0]["outcome"] == "done"
    acting.loop.close()
    engine.dispose()
