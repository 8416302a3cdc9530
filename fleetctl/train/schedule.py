"""When the next save is due. No I/O; every time is in seconds on the monotonic clock. Python 3.8 and newer."""

from __future__ import annotations

_FIRST_RETRY_S = 5.0
_LAST_RETRY_S = 300.0  # a full disk is emptied by people: no need to copy the state more often than this


class Schedule:
    """Told of every save that starts and how it ends, it says whether another one is due."""

    def __init__(self, interval_s: float | None, every_steps: int | None, now: float, retries: bool = True) -> None:
        """Without `retries` a failed save waits for the next regular one: ranks that all save must agree when."""
        self._interval_s, self._every_steps, self._retries = interval_s, every_steps, retries
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

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, now: float) -> float | None:
        """The seconds until the next try, growing, so that a full disk does not hold up the training; else None."""
        if not self._retries:
            return None
        wait_s = min(_FIRST_RETRY_S * 2.0**self._failures, _LAST_RETRY_S)
        self._failures, self._not_before = min(self._failures + 1, 16), now + wait_s
        return wait_s
