"""Remove old checkpoints while an attempt runs, as `checkpoint.keep` of the spec says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from threading import Lock, Thread

from fleetctl.checkpoint.apart import Apart
from fleetctl.checkpoint.eyes import Eyes
from fleetctl.checkpoint.prune import carry_out, plan_folder
from fleetctl.checkpoint.retention import Keep, Plan, Shunned
from fleetctl.checkpoint.select import SETTLED
from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.checkpoint.survey import survey_names
from fleetctl.errors import FleetctlError
from fleetctl.launch.lead import Lead
from fleetctl.launch.memory import Folder, known, narrowed
from fleetctl.launch.resume import directory_of, folder_of
from fleetctl.rundir.history import BY_JOB
from fleetctl.rundir.model import AttemptNumber, EventKind
from fleetctl.units import Duration

_FIRST_S = 5.0  # soon after a start: what failed before may have been a full disk
_EVERY_S = 60.0  # one listing of the folder a minute; nothing is looked into unless there are others, and too many
_AGAIN_S = SETTLED.total_seconds()  # the same names may go then: what a framework had written is settled
_LAST_RENAME_S = 30.0  # how long the end of an attempt waits for it; storage that slow has failed


class Retainer:
    """The retention of one attempt. Storage is slow or hangs, so a thread looks and a thread removes; the head's own
    thread writes down what is going to be removed, and only while no newer attempt leads."""

    def __init__(self, lead: Lead, number: AttemptNumber) -> None:
        self._lead, self._number = lead, number
        self._clock = lead.world.clock
        self._look_at_s = self._clock.monotonic_s() + _FIRST_S
        self._thread: Thread | None = None
        self._plan: Plan | None = None
        self._trouble = ""
        self._stays: frozenset[str] = frozenset()  # the names of the last look that let nothing go
        self._stays_until_s = 0.0
        self._stopped = False
        self._removing = Lock()  # held while one goes, from the question whether it may

    def stop(self) -> None:
        """Nothing goes after this: the next attempt is about to choose. What is out of sight is still being deleted."""
        self._stopped = True
        if self._removing.acquire(timeout=_LAST_RENAME_S):
            self._removing.release()

    def tend(self) -> None:
        """To be called often. Never waits for the storage."""
        order = self._lead.order.checkpoint
        if order is None or order.keep is None or (self._thread is not None and self._thread.is_alive()):
            return
        if self._plan is not None:
            made, self._plan = self._plan, None
            self._begin_removal(made)
        elif self._clock.monotonic_s() >= self._look_at_s:
            self._look_at_s = self._clock.monotonic_s() + _EVERY_S
            self._start(self._look)

    def _begin_removal(self, made: Plan) -> None:
        lead = self._lead
        assert lead.order.checkpoint is not None, "there is no plan without it"
        try:
            if lead.attempts.newest() != self._number:
                return
            lead.log.append(
                self._clock.now(),
                EventKind.RETENTION,
                submission=lead.order.submission,
                task=lead.job.task,
                by=BY_JOB,
                keep=lead.order.checkpoint.keep,
                names=[one.name for one in made.removed],
            )
        except FleetctlError:
            return  # not written down, so not done: the next look tries again
        self._start(lambda: self._remove(made))

    def _start(self, target: Callable[[], None]) -> None:
        self._thread = Thread(target=target, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        lead, order = self._lead, self._lead.order.checkpoint
        assert order is not None, "tend asked"
        assert order.keep is not None, "tend asked"
        folder = folder_of(order, lead.job.task)
        try:
            names = _candidates(folder)
            if len(names) <= order.keep or (names == self._stays and self._clock.monotonic_s() < self._stays_until_s):
                return
            keep = Keep(order.keep, None if order.keep_every_s is None else Duration(order.keep_every_s))
            with Apart() as eyes:
                made = self._planned(folder, keep, eyes)
        except FleetctlError as error:
            self._say(error.message)
            return
        self._plan = made if made.removed else None
        self._stays = frozenset() if made.removed else names
        self._stays_until_s = self._clock.monotonic_s() + _AGAIN_S

    def _planned(self, folder: Folder, keep: Keep, eyes: Eyes) -> Plan:
        lead, after = self._lead, (self._number[0] + 1, 0)
        before = known(lead.attempts, after, lead.run.history(), lead.job.task, folder, eyes.storage)
        found, form = narrowed(eyes.survey(folder.directory, folder.format), before, folder.format)
        return plan_folder(
            lambda entry, level: eyes.examine(folder.directory, entry, level, wanted=form),
            folder.directory,
            found,
            before.fence,
            keep,
            run_id=lead.run.run_id,
            now=self._clock.now(),
            may_be_written=True,
            used=lead.attempts.resumed(self._number),
            shunned=Shunned(before.suspects, lead.attempts.passed_over(self._number), before.at_most_step),
        )

    def _remove(self, made: Plan) -> None:
        order = self._lead.order.checkpoint
        assert order is not None, "there is no plan without it"
        try:
            carry_out(directory_of(order, self._lead.job.task), made, permit=self._permit)
        except FleetctlError as error:
            self._say(error.message)

    @contextlib.contextmanager
    def _permit(self) -> Iterator[bool]:
        """:raises RunDirError: it is not known whether a newer attempt leads."""
        with self._removing:
            yield not self._stopped and self._lead.attempts.newest() == self._number

    def _say(self, text: str) -> None:
        """Once: a folder that cannot be written to is the same every minute."""
        if text != self._trouble:
            self._trouble = text
            self._lead.world.say(f"fleetctl: old checkpoints are not removed: {text}")


def _candidates(folder: Folder) -> frozenset[str]:
    """The names that may be checkpoints, without a look into anything: of some frameworks any name may be one."""
    names = LocalStorage().names(folder.directory)
    return frozenset(entry.name for entry in survey_names(names, folder.format, lambda _: 0).entries)
