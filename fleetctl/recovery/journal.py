"""What the leader writes down: each action before it is done and what came of it, and what later passes need.

All of it happens under the lease, in the transaction that looks at it: a daemon that was stopped and wakes writes and
does nothing. After a crash an entry without an outcome says that its deed may have been done: act.settle looks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, delete, insert, update

from fleetctl.accounting import bulk
from fleetctl.accounting.database import explained
from fleetctl.accounting.tables import daemon_actions as actions
from fleetctl.accounting.tables import daemon_interruptions as interruptions
from fleetctl.accounting.tables import daemon_state as state
from fleetctl.clock import Clock
from fleetctl.recovery import pause, recall
from fleetctl.recovery.lease import Leader
from fleetctl.recovery.model import Action, Decision, Deed, Done, Interruption, Memory, Outcome
from fleetctl.recovery.pause import COLUMNS, KEY
from fleetctl.recovery.recall import Cost, Entry, Kind, ms, plain
from fleetctl.recovery.wire import written

_KEPT = timedelta(days=90)  # of the journal: a quarter's questions; memory alone takes 7 days
_NOTES_KEPT = timedelta(days=30)
_TIDY_S = 3600.0
_SAME_VIEW = timedelta(days=1)  # what is only observed is one entry a day, not one a pass
# Sets what may be set again, or says something: each other deed is done once for a start of a job
_REPEATABLE = frozenset({Deed.EXCLUDE, Deed.TELL, Deed.PAUSE})


class Journal:
    """The journal of one leader."""

    def __init__(self, engine: Engine, leader: Leader, clock: Clock) -> None:
        self._engine, self._leader, self._clock = engine, leader, clock
        self._place = leader.place
        self._verdicts: dict[str, str] = {}  # as they were written last
        self._tidied_s = float("-inf")

    def memory(self) -> Memory:
        """Of the last seven days."""
        return recall.memory(self._engine, self._place, self._clock.now())

    def unfinished(self) -> tuple[Entry, ...]:
        """Entries without an outcome, of whatever leader."""
        with explained(self._engine), self._engine.begin() as connection:
            return recall.unfinished(connection, self._place)

    def paused(self) -> Mapping[str, str]:
        """Key of a run, or "" for all, to who has paused it and why: now."""
        return pause.paused(self._engine, self._place)

    def note(self, name: str) -> str:
        """A note; "": there is none."""
        with explained(self._engine), self._engine.begin() as connection:
            notes = recall.rows_of(connection, self._place, Kind.NOTE, plain(name))
        return notes[0].value if notes else ""

    def begin(self, action: Action) -> int | Done:
        """Write down that this is about to be done; committed when this returns. Its number, or what stands already:
        the same deed on the same start is never done twice.

        :raises LeaseLost: another one may lead.
        """
        identity = identity_of(action)
        against = [Outcome.OPEN] if action.deed in _REPEATABLE or not action.start else [Outcome.OPEN, Outcome.DONE]
        with explained(self._engine), self._engine.begin() as connection:
            self._leader.require(connection)
            there = recall.standing(connection, self._place, identity, *against)
            return there.done if there is not None else self._insert(connection, action, Outcome.OPEN, None)

    def end(self, number: int, outcome: Outcome, detail: str = "", notes: Mapping[str, str] = {}) -> None:
        """What came of it, once. Without the lease too: it is about what was done under it."""
        with explained(self._engine), self._engine.begin() as connection:
            values = {"outcome": outcome, "detail": plain(detail), "ended_ms": self._now_ms()}
            open_one = (actions.c.id == number, actions.c.outcome == Outcome.OPEN)
            if connection.execute(update(actions).where(*open_one).values(values)).rowcount:
                self._note(connection, notes, self._now_ms())

    def observe(self, action: Action, detail: str = "") -> None:
        """It would be done, if we acted."""
        with explained(self._engine), self._engine.begin() as connection:
            self._leader.require(connection)
            there = recall.standing(connection, self._place, identity_of(action), Outcome.OBSERVED)
            if there is None or self._clock.now() - there.done.at > _SAME_VIEW:
                self._insert(connection, action, Outcome.OBSERVED, self._now_ms(), detail)
            else:
                seen = update(actions).where(actions.c.id == there.number)
                connection.execute(seen.values(ended_ms=self._now_ms(), detail=plain(detail)))

    def remember(self, decision: Decision, at: datetime) -> None:
        """What the pass at that moment decided, before anything is done about it.

        :raises LeaseLost: another one may lead.
        """
        with explained(self._engine), self._engine.begin() as connection:
            self._leader.require(connection)
            self._interrupted(connection, decision.interruptions)
            self._note(connection, decision.notes, ms(at))
            incidents = {f"{one.kind}|{one.subject}": written(one) for one in decision.incidents}
            self._put(connection, Kind.INCIDENT, incidents, ms(at))
            verdicts = {one.key: written(one) for one in decision.verdicts}
            self._put(connection, Kind.VERDICT, dict(verdicts.items() - self._verdicts.items()), ms(at))
            self._tidy(connection)
        self._verdicts = verdicts

    def save_pass(self, told: Mapping[str, object]) -> None:
        """What a pass tells about itself, when it is over.

        :raises LeaseLost: another one may lead.
        """
        with explained(self._engine), self._engine.begin() as connection:
            self._leader.require(connection)
            self._put(connection, Kind.PASS, {"": written(told)}, self._now_ms())

    def recovered(self, one: Interruption, cost: Cost, at: datetime) -> None:
        """The run makes progress again after this interruption."""
        costs = ("detection_ms", cost.detection_s), ("restart_ms", cost.restart_s), ("lost_ms", cost.lost_s)
        values = {name: None if seconds is None else round(seconds * 1000) for name, seconds in costs}
        c = interruptions.c
        this = (c.run_key == one.key, c.attempt == one.attempt, c.start == one.start, c.recovered_ms.is_(None))
        with explained(self._engine), self._engine.begin() as connection:
            self._leader.require(connection)
            changed = update(interruptions).where(*recall.here(interruptions, self._place), *this)
            connection.execute(changed.values(recovered_ms=ms(at), **values))

    def _insert(
        self, connection: Connection, action: Action, outcome: Outcome, ended_ms: int | None, detail: str = ""
    ) -> int:
        about = {"deed": action.deed, "run_key": plain(action.key), "start": plain(action.start)}
        said = {"rule": plain(action.rule), "why": plain(action.why), "outcome": outcome, "detail": plain(detail)}
        place = {"cluster": self._place.cluster, "scope": self._place.scope, "token": self._leader.token}
        times = {"at_ms": self._now_ms(), "ended_ms": ended_ms}
        row = insert(actions).values(
            **place, **times, **about, **said, identity=identity_of(action), action=written(action)
        )
        return int(connection.execute(row.returning(actions.c.id)).scalar_one())

    def _interrupted(self, connection: Connection, found: tuple[Interruption, ...]) -> None:
        """The same one again replaces what was thought of it, and keeps what it cost."""
        place = (self._place.cluster, self._place.scope)
        key = ("cluster", "scope", "run_key", "attempt", "start")
        columns = (*key, "at_ms", "cause", "fingerprint", "interruption")
        rows = []
        for one in found:
            cause = one.causes[0].cause if one.causes else ""
            of = (*place, plain(one.key), plain(one.attempt), plain(one.start))
            rows.append((*of, ms(one.at), cause, plain(one.fingerprint), written(one)))
        bulk.upsert(connection, interruptions, columns, rows, key)

    def _note(self, connection: Connection, notes: Mapping[str, str], at_ms: int) -> None:
        """A note of "" is forgotten."""
        self._put(connection, Kind.NOTE, {plain(name): plain(text) for name, text in notes.items() if text}, at_ms)
        gone = [plain(name) for name, text in notes.items() if not text]
        of_notes = (*recall.here(state, self._place), state.c.kind == Kind.NOTE)
        for first in range(0, len(gone), _MOST_NAMES):
            names = gone[first : first + _MOST_NAMES]
            connection.execute(delete(state).where(*of_notes, state.c.name.in_(names)))

    def _put(self, connection: Connection, kind: Kind, values: Mapping[str, str], at_ms: int) -> None:
        place = (self._place.cluster, self._place.scope)
        rows = [(*place, kind, plain(name), at_ms, value) for name, value in values.items()]
        bulk.upsert(connection, state, COLUMNS, rows, KEY)

    def _tidy(self, connection: Connection) -> None:
        """Once in a while, what is too old to be asked for."""
        if self._clock.monotonic_s() - self._tidied_s < _TIDY_S:
            return
        now = self._clock.now()
        for table in (actions, interruptions):
            old = table.c.at_ms < ms(now - _KEPT)
            connection.execute(delete(table).where(*recall.here(table, self._place), old))
        stale = state.c.at_ms < ms(now - _NOTES_KEPT)
        passing = state.c.kind.in_((Kind.NOTE, Kind.VERDICT))
        connection.execute(delete(state).where(*recall.here(state, self._place), passing, stale))
        self._tidied_s = self._clock.monotonic_s()

    def _now_ms(self) -> int:
        return ms(self._clock.now())


_MOST_NAMES = 500  # in one statement: SQLite before 3.32 takes 999 values


def identity_of(action: Action) -> str:
    """A digest of Action.identity, which may be longer than an index takes."""
    return hashlib.sha256(action.identity.encode("utf-8", "surrogatepass")).hexdigest()
