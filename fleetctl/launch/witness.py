"""Remember that a training of a framework has saved something whole, while it still runs.

What a Checkpointer commits it writes down itself. Of a framework it is seen only in the folder: were that empty or not
mounted at the next start, nobody would know that there was something not to start from scratch over.
"""

from __future__ import annotations

from threading import Thread

from fleetctl.errors import FleetctlError
from fleetctl.launch.lead import Lead
from fleetctl.launch.resume import newest_step
from fleetctl.rundir.model import AttemptNumber

_EVERY_S = 60.0  # until it has seen one; each look is a listing, and a look into the newest
_OWN = "own"


class Witness:
    """Looks in a thread, since storage is slow or hangs. `newest_step` writes down what it sees."""

    def __init__(self, lead: Lead, number: AttemptNumber, *, resumed: bool) -> None:
        """`resumed`: this attempt began from a valid one, so it is known already."""
        order = lead.order.checkpoint
        self._lead, self._number = lead, number
        self._clock = lead.world.clock
        self._look_at_s = self._clock.monotonic_s() + _EVERY_S
        self._thread: Thread | None = None
        self._done = order is None or order.format == _OWN or resumed

    def tend(self) -> None:
        """To be called often. Never waits for the storage."""
        looks = self._thread is not None and self._thread.is_alive()
        if self._done or looks or self._clock.monotonic_s() < self._look_at_s:
            return
        self._look_at_s = self._clock.monotonic_s() + _EVERY_S
        self._thread = Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        lead, order = self._lead, self._lead.order.checkpoint
        assert order is not None, "there is nothing to look for without it"
        try:
            step = newest_step(order, lead.attempts, self._number, lead.run.history(), lead.job.task)
        except FleetctlError:
            return  # not known now: the next look tries again
        self._done = step is not None
