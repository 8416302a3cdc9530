"""Clocks for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)


class StillClock:
    """Time moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.slept_s = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.slept_s)

    def monotonic_s(self) -> float:
        return self.slept_s

    def sleep(self, duration_s: float) -> None:
        self.slept_s += duration_s
