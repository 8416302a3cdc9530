"""The daemon's loop: observe, decide, write down, act, save. One sentence a pass.

Order within a pass, and why a crash anywhere is safe: what was found is remembered before anything is done; each action
is journalled open, done, and its outcome written; the pass itself is saved last. Whoever comes next looks at what is
open, and decides again from what it sees.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from fleetctl.clock import Clock
from fleetctl.errors import FleetctlError, LeaseLost
from fleetctl.recovery import notify
from fleetctl.recovery.after import Followed, Recovered, follow, recovered
from fleetctl.recovery.guarded import decided, words_of
from fleetctl.recovery.metrics import Numbers
from fleetctl.recovery.model import Action, Decision, Done, Interruption, Memory, Outcome, RunSeen, Snapshot
from fleetctl.recovery.notify import Notice, Teller
from fleetctl.recovery.passes import Passed, as_json, counted, is_blind, kept, sentence
from fleetctl.recovery.sd_notify import Manager

QUIET_S = 30.0
_LEAST_S = 1.0
_LONGEST_S = 120.0  # between tries while Slurm or the database is away: a dead node is missed for no longer
_SLICE_S = 1.0  # of a wait: how soon a signal is heeded
_PET_S = 10.0  # so often a waiting daemon tells the watchdog that it lives
_CLOSING_S = 20.0  # for the notices that wait when it ends


class Ledger(Struct, frozen=True):
    """The journal and the lease, as the loop uses them; each raises DatabaseError where the database is away."""

    lead: Callable[[], bool]  # take the lease, or keep it
    other: Callable[[], str]  # who leads where we do not
    release: Callable[[], None]
    memory: Callable[[], Memory]
    settle: Callable[[], tuple[Done, ...]]  # look at what somebody left open
    remember: Callable[[Decision, datetime], None]
    observe: Callable[[Action], None]  # what would have been done
    recovered: Callable[[Recovered], None]
    save: Callable[[Mapping[str, Any]], None]


class Parts(Struct, frozen=True):
    """What the loop is made of. `acts` False: it only observes."""

    cluster: str
    scope: str
    acts: bool
    ledger: Ledger
    observe: Callable[[Memory, datetime], Snapshot]
    decide: Callable[[Snapshot, Memory], Decision]
    act: Callable[[Action, RunSeen | None], Done]
    stopped: Callable[[], str]  # why nothing may be done now; "": go on
    teller: Teller
    numbers: Numbers
    manager: Manager
    clock: Clock
    say: Callable[[str], None]
    every_s: float = QUIET_S


class Loop:
    """Passes, one after the other. What it must not forget is in the journal; here is what may be lost."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._ends = False
        self._leads = False
        self._blind = 0  # passes in a row
        self._tried = dict[str, Notice]()  # under way to people
        self._notes: Mapping[str, str] = {}  # as the last pass knew them
        self._followed: Followed = {}
        self._recovered = set[tuple[str, str, str]]()  # interruptions of which it is written down

    def end(self, number: int = signal.SIGTERM, _: object = None) -> None:
        """Ask for the end, from a signal's handler: after the current action. A second Ctrl-C ends it at once; what was
        begun is then settled by the next daemon.
        """
        if self._ends and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._ends = True

    def forever(self, shown: Callable[[Passed], None]) -> None:
        """Until `end`."""
        parts = self._parts
        parts.manager.ready("the first pass is under way")
        while not self._ends:
            one = self.once()
            shown(one)
            self._wait(self.pause_s(one), sentence(one))
        self.close()

    def close(self) -> None:
        """Deliver what waits, note it, and let the next daemon lead at once."""
        self._parts.manager.stopping("ending")
        try:
            notes = self._notes_of(self._parts.teller.close(_CLOSING_S))
            if notes and self._leads:
                self._parts.ledger.remember(Decision((), (), notes=notes), self._parts.clock.now())
            self._parts.ledger.release()
        except FleetctlError as error:
            self._parts.say(f"the lease was not given back: {error.message}")

    def pause_s(self, one: Passed) -> float:
        """As soon as the decision wants it; while nothing can be seen, longer and longer."""
        every_s = self._parts.every_s
        if self._blind:
            return float(min(max(every_s, _LONGEST_S), every_s * 2 ** min(self._blind - 1, 8)))
        wanted_s = one.decision.look_again_s if one.decision else every_s
        return min(every_s, max(_LEAST_S, wanted_s))

    def once(self) -> Passed:
        """One pass. Never raises."""
        parts, began_s = self._parts, self._parts.clock.monotonic_s()
        at = parts.clock.now()
        try:
            one = self._pass(at)
        except Exception as error:  # noqa: BLE001 - whatever a user's files bring about, the daemon lives on and says so
            one = Passed(at, parts.cluster, parts.scope, 0.0, parts.acts, trouble=words_of(error))
        one = msgspec.structs.replace(one, took_s=parts.clock.monotonic_s() - began_s)
        self._blind = self._blind + 1 if one.is_blind else 0
        one = self._saved(one)
        self._count(one)
        parts.say(sentence(one))
        return one

    def _pass(self, at: datetime) -> Passed:
        parts = self._parts
        settled = self._lead()
        memory = parts.ledger.memory()
        snapshot = parts.observe(memory, at)
        decision, bug = decided(parts.decide, snapshot, memory)
        self._notes = memory.notes
        sent = self._notes_of(parts.teller.results())
        if self._leads:
            notes = {**notify.stale(memory.notes, at), **decision.notes, **sent}
            parts.ledger.remember(msgspec.structs.replace(decision, notes=notes), at)
        why_not = self._why_not(snapshot)
        done, trouble = self._do(decision, snapshot, why_not)
        everything = (*settled, *done)
        self._notes = {**memory.notes, **sent}
        self._tell(everything, at)
        self._after(snapshot, (*memory.interruptions, *decision.interruptions))
        known = {(one.kind, one.subject, one.since): one for one in (*memory.incidents, *decision.incidents)}
        parts.numbers.set("incidents", float(sum(one.until is None for one in known.values())))
        trouble = "; ".join(filter(None, (bug, trouble)))
        return Passed(at, parts.cluster, parts.scope, 0.0, parts.acts, snapshot, decision, everything, why_not, trouble)

    def _lead(self) -> tuple[Done, ...]:
        """What was begun and has no outcome is looked at before anything is decided."""
        self._leads = self._parts.ledger.lead()
        return self._parts.ledger.settle() if self._leads else ()

    def _why_not(self, snapshot: Snapshot) -> str:
        parts = self._parts
        if not self._leads:
            return f"another daemon leads ({parts.ledger.other()}): standing by"
        if not parts.acts:
            return "only observing (--act acts)"
        if is_blind(snapshot):
            return "nothing is done while Slurm does not tell of its jobs"
        return parts.stopped()

    def _do(self, decision: Decision, snapshot: Snapshot, why_not: str) -> tuple[list[Done], str]:
        """The actions, in their order; the end asked for, or a lost lease, leaves the rest to whoever comes next."""
        runs = {run.key: run for run in snapshot.runs or ()}
        done = list[Done]()
        for action in decision.actions:
            if self._ends:
                return done, "ending: the rest is left to the next daemon"
            try:
                done.append(self._one(action, runs.get(action.key), why_not))
            except LeaseLost as error:
                self._leads = False
                return done, error.message
            self._parts.manager.alive()
        return done, ""

    def _one(self, action: Action, run: RunSeen | None, why_not: str) -> Done:
        if not why_not:
            return self._parts.act(action, run)
        if self._leads and not self._parts.acts:
            self._parts.ledger.observe(action)
        return Done(action, self._parts.clock.now(), Outcome.OBSERVED)

    def _after(self, snapshot: Snapshot, interruptions: tuple[Interruption, ...]) -> None:
        """Write down, once, that a run makes progress again, and what its interruption cost."""
        self._followed = follow(self._followed, snapshot.runs) if snapshot.runs is not None else self._followed
        of_run = dict[str, list[Interruption]]()
        for each in interruptions:
            of_run.setdefault(each.key, []).append(each)
        for run in snapshot.runs or ():
            if self._leads and run.key in of_run:
                found = recovered(run, of_run[run.key], self._followed.get(run.key, ()))
                name = (run.key, found.interruption.attempt, found.interruption.start) if found else None
                if found and name and name not in self._recovered:
                    self._parts.ledger.recovered(found)
                    self._recovered.add(name)

    def _tell(self, done: tuple[Done, ...], at: datetime) -> None:
        """Nobody is told what was only observed, nor by a daemon that does not lead."""
        if not (self._leads and self._parts.acts):
            return
        for notice in notify.fresh(notify.notices(done, self._parts.cluster), self._notes, at):
            if self._parts.teller.tell(notice):
                self._tried[notice.identity] = notice
            elif self._parts.teller.has_channels:
                self._parts.numbers.add("notices_total", result="dropped")

    def _notes_of(self, sent: tuple[notify.Sent, ...]) -> dict[str, str]:
        """What came of deliveries, for the journal; a failed one is tried again."""
        found, now = dict[str, str](), self._parts.clock.now()
        for one in sent:
            name = notify.name_of(one.identity)
            found[name] = notify.noted(one, self._notes.get(name, ""), now)
            self._parts.numbers.add("notices_total", result="failed" if one.trouble else "sent")
            notice = self._tried.pop(one.identity, None)
            if one.trouble:
                self._parts.say(f"a notice was not delivered: {one.trouble}")
                if notice and notify.fresh([notice], found, now) and not self._ends and self._parts.teller.tell(notice):
                    self._tried[notice.identity] = notice
        return found

    def _saved(self, one: Passed) -> Passed:
        """Last of all. A pass that cannot be saved was one all the same."""
        if not self._leads:
            return one
        try:
            self._parts.ledger.save(kept(as_json(one)))
        except FleetctlError as error:
            return msgspec.structs.replace(one, trouble=one.trouble or f"the pass was not saved: {error.message}")
        return one

    def _count(self, one: Passed) -> None:
        numbers = self._parts.numbers
        numbers.set("last_pass_timestamp_seconds", self._parts.clock.now().timestamp())
        numbers.set("pass_seconds", one.took_s)
        numbers.set("leader", float(self._leads))
        numbers.set("acting", float(not one.standing_by and one.acts and not one.is_blind))
        numbers.add("passes_total", result="blind" if one.is_blind else "seen")
        failed = one.snapshot.failed if one.snapshot else {"pass": one.trouble}
        numbers.only("source_failed", dict.fromkeys(failed, 1.0), "source")
        if one.decision is None:
            return
        numbers.only("runs", counted(one), "rule")
        for interruption in one.decision.interruptions:
            cause = interruption.causes[0].cause.value if interruption.causes else "unknown"
            numbers.add("interruptions_total", cause=cause)
        for done in one.done:
            numbers.add("actions_total", deed=done.action.deed.value, outcome=done.outcome.value)

    def _wait(self, duration_s: float, status: str) -> None:
        """In slices, so that a signal is heeded and the watchdog told."""
        clock, manager = self._parts.clock, self._parts.manager
        until_s = clock.monotonic_s() + duration_s
        pet_s = min(_PET_S, (manager.watchdog_s or 2 * _PET_S) / 2)
        pet_at_s = clock.monotonic_s()
        while not self._ends and (left_s := until_s - clock.monotonic_s()) > 0:
            if clock.monotonic_s() >= pet_at_s:
                manager.alive(status)
                pet_at_s = clock.monotonic_s() + pet_s
            clock.sleep(min(_SLICE_S, left_s))
