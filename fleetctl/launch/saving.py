"""Ask the training to save before its time is up, and see whether it has."""

from __future__ import annotations

import secrets
from contextlib import suppress

from fleetctl.errors import RunDirError
from fleetctl.launch.lead import Lead
from fleetctl.launch.limits import LEAVE_S, NO_HORIZON, Horizon, horizon, save_at_s
from fleetctl.rundir.model import SCHEMA_VERSION, AttemptNumber, EventKind

_LOOK_S = 0.5  # Checkpointer looks for a request as often
_MEASURE_S = 60.0  # how often the measured saves are read again


class Saver:
    """The last save of one attempt. Only a run that may be started again is asked for one."""

    def __init__(self, lead: Lead, number: AttemptNumber) -> None:
        self._lead = lead
        self._number = number
        self._clock = lead.world.clock
        self._horizon = NO_HORIZON
        self._asked: str | None = None
        self._look_at_s = self._measure_at_s = 0.0
        self._slowest_s: float | None = None

    def learn(self, found: Horizon | None) -> None:
        """A newer word about the end; None when Slurm gave none, and then the older one holds."""
        self._horizon = found or self._horizon

    def is_time_to_leave(self) -> bool:
        """Asks for the save when it is time; true once it is on disk, or the end is too near to wait for it."""
        now_s, found = self._clock.monotonic_s(), self._horizon
        if now_s < self._look_at_s or not self._leaves_by_itself():
            return False
        self._look_at_s = now_s + _LOOK_S
        if self._asked is None:
            at_s = save_at_s(found, self._slowest_save_s(now_s), now_s)
            if at_s is not None and now_s >= at_s and self._still_true():
                self._ask("preemption" if self._horizon.preempted else "time limit")
            return False
        return self.is_saved() or (found.ends_at_s is not None and now_s >= found.ends_at_s - LEAVE_S)

    def _leaves_by_itself(self) -> bool:
        order = self._lead.order
        return order.max_failures is not None and (order.chain or self._horizon.preempted)

    def _still_true(self) -> bool:
        """An admin may have extended the limit since: ask once more before the deed."""
        before = self._horizon
        self.learn(read_horizon(self._lead))
        if before.ends_at_s is None or self._horizon.ends_at_s is None:
            return True
        return self._horizon.ends_at_s <= before.ends_at_s + LEAVE_S

    def _ask(self, why: str) -> None:
        self._asked = secrets.token_hex(4)
        self._lead.note(EventKind.SAVE_ASKED, self._number, id=self._asked, why=why)
        value = {"schema": SCHEMA_VERSION, "id": self._asked, "why": why}
        try:
            self._lead.attempts.write(self._number, "save-now", value)
        except RunDirError as error:
            self._lead.world.say(f"fleetctl: {error.message}")
        self._lead.world.say(f"fleetctl: the training was asked to save ({why})")

    def is_saved(self) -> bool:
        """Whether the save that was asked for is on disk."""
        return any(save.committed and save.flag == self._asked for save in self._lead.attempts.saves(self._number))

    def _slowest_save_s(self, now_s: float) -> float | None:
        """Of this attempt and the one before it: what older ones saved may have been another size."""
        if now_s >= self._measure_at_s:
            self._measure_at_s = now_s + _MEASURE_S
            with suppress(RunDirError):  # not known now: the measure before still holds
                recent = [number for number in self._lead.attempts.numbers() if number <= self._number][-2:]
                saves = [save for number in recent for save in self._lead.attempts.saves(number)]
                self._slowest_s = max((save.total_s for save in saves if save.committed), default=None)
        return self._slowest_s


def read_horizon(lead: Lead) -> Horizon | None:
    """When this allocation ends, by Slurm's word; None when it gives none."""
    found = lead.ask(lambda: lead.world.slurm.allocation(lead.raw_job_id))
    if found is None:
        return None
    now_s, now = lead.world.clock.monotonic_s(), lead.world.clock.now()
    left_s = (found.end_time - now).total_seconds() if found.end_time is not None else None
    limit_s = (found.end_time - found.start_time).total_seconds() if found.end_time and found.start_time else None
    return horizon(now_s, lead.began_s, wall_left_s=left_s, limit_s=limit_s, preempted=found.preempt_time is not None)
