"""When the next save is due. No I/O; every time is in seconds on the monotonic clock. Python 3.8 and newer."""

from __future__ import annotations

import math
from typing import Sequence

FIRST_SAVE_S = 600.0  # nothing is measured before the first save, so it must not wait for long
_SHORTEST_S = 60.0  # a failure costs minutes of detection and restart anyway: to lose less work than that buys nothing
_DRAIN_SHARE = 2.0  # times what a save takes in all: the next one never waits for it, and storage rests half the time
_LONGEST_S = 7200.0  # the failure rate may be wrong: so much work at most hangs on it ...
_LONGEST_COSTS = 100.0  # ... unless saves this often would take more than 1 % of the time
_RECENT = 5  # saves; the cost of one changes with the storage's load
_FIRST_RETRY_S = 5.0
_LAST_RETRY_S = 300.0  # a full disk is emptied by people: no need to copy the state more often than this


def best_interval_s(cost_s: float, total_s: float, mtbf_s: float) -> float:
    """Seconds from the start of one save to the next: Young's sqrt(2 C M) (Comm. ACM 17, 1974), kept within bounds.

    `cost_s` is what the training waits for a save, `total_s` what the save takes until it is on disk, and `mtbf_s` the
    mean time between two failures of the job.
    """
    shortest = max(_SHORTEST_S, _DRAIN_SHARE * total_s)
    longest = max(_LONGEST_S, _LONGEST_COSTS * cost_s, shortest)
    return min(max(math.sqrt(2.0 * cost_s * mtbf_s), shortest), longest)


class Schedule:
    """Told of every save that starts and how it ends, it says whether another one is due."""

    def __init__(
        self,
        interval_s: float | None,
        every_steps: int | None,
        now: float,
        retries: bool = True,
        mtbf_s: float | None = None,
    ) -> None:
        """Without `retries` a failed save waits for the next regular one: ranks that all save must agree when.

        With `mtbf_s`, the mean time between failures of the job, `interval_s` is only a start: measured saves mend it.
        """
        self._mtbf_s = mtbf_s if interval_s is not None else None
        if interval_s is not None and mtbf_s is not None:
            interval_s = min(interval_s, FIRST_SAVE_S)
        self._interval_s, self._every_steps, self._retries = interval_s, every_steps, retries
        self._measured: list[tuple[float, float]] = []
        self._since = now
        self._step: int | None = None  # of the save that started last
        self._asked = False
        self._failures, self._not_before = 0, now

    def due(self, training_step: int, now: float) -> bool:
        """A request is answered at once; after a failure the next try waits; else the interval or the steps say."""
        if self._asked:
            return True
        if self._failures:
            return now >= self._not_before
        if training_step == self._step:
            return False
        late = self._interval_s is not None and now - self._since >= self._interval_s
        return late or self.every(training_step)

    def every(self, training_step: int) -> bool:
        """Whether this step is one of every so many: the only rule that all ranks know the answer to."""
        return bool(self._every_steps) and training_step != self._step and training_step % (self._every_steps or 1) == 0

    def ask(self) -> None:
        """Somebody wants a save that starts from now on."""
        self._asked = True

    def loaded(self, training_step: int, now: float) -> None:
        """The state of this step was loaded: nothing to save yet."""
        self._step, self._since = training_step, now

    def started(self, training_step: int, now: float) -> None:
        self._step, self._since, self._asked = training_step, now, False

    def succeeded(self, blocked_s: float | None = None, total_s: float = 0.0) -> None:
        """`blocked_s` is what the training waited for it; None if nothing was written."""
        self._failures = 0
        if self._mtbf_s is not None and blocked_s is not None:
            self._measured = [*self._measured, (blocked_s, total_s)][-_RECENT:]
            cost_s = _middle([cost_s for cost_s, _ in self._measured])
            total_s = _middle([total_s for _, total_s in self._measured])
            self._interval_s = best_interval_s(cost_s, total_s, self._mtbf_s)

    def failed(self, now: float) -> float | None:
        """The seconds until the next try, growing, so that a full disk does not hold up the training; else None."""
        if not self._retries:
            return None
        wait_s = min(_FIRST_RETRY_S * 2.0**self._failures, _LAST_RETRY_S)
        self._failures, self._not_before = min(self._failures + 1, 16), now + wait_s
        return wait_s


def _middle(values: Sequence[float]) -> float:
    """The median, the lower of two: the first save of a process takes several times as long as those after it."""
    return sorted(values)[(len(values) - 1) // 2]
