"""The only place that reads time or sleeps; everything else is given a Clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for records, monotonic time for deadlines. `sleep` never returns early."""

    def now(self) -> datetime:
        """Aware, in UTC."""
        ...

    def monotonic_s(self) -> float: ...

    def sleep(self, duration_s: float) -> None: ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        time.sleep(duration_s)
