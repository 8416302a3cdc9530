"""Wrappers of slurm.books.Books, one concern each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from fleetctl.clock import Clock
from fleetctl.errors import SlurmUnreachable
from fleetctl.slurm.books import Books, Happened, Rows, Share, Used
from fleetctl.slurm.wrap import timed

Value = TypeVar("Value")

# Longer than Slurm's own time-outs of a connection: what took so long is not asked again, slurmdbd has enough to do.
_SOON_S = 5.0


class RetryingBooks:
    """Asks once more where Slurm said quickly that it cannot be reached."""

    def __init__(self, books: Books, clock: Clock, pause_s: float = 1.0) -> None:
        self._books = books
        self._clock = clock
        self._pause_s = pause_s

    def cluster(self) -> str:
        return self._again(self._books.cluster)

    def tracks_gpus(self) -> bool | None:
        return self._again(self._books.tracks_gpus)

    def records(self, since_s: int, until_s: int | None) -> Rows:
        return self._again(lambda: self._books.records(since_s, until_s))

    def records_of(self, job_ids: Sequence[int], since_s: int) -> Rows:
        return self._again(lambda: self._books.records_of(job_ids, since_s))

    def steps(self, job_ids: Sequence[int], since_s: int) -> Rows:
        return self._again(lambda: self._books.steps(job_ids, since_s))

    def alive(self) -> frozenset[int]:
        return self._again(self._books.alive)

    def waiting(self) -> int:
        return self._again(self._books.waiting)

    def sees_all(self, user: str) -> bool | None:
        return self._again(lambda: self._books.sees_all(user))

    def node_events(self, since_s: int) -> tuple[Happened, ...]:
        return self._again(lambda: self._books.node_events(since_s))

    def used(self, since_s: int, until_s: int, tres: str = "gres/gpu") -> tuple[Used, ...]:
        return self._again(lambda: self._books.used(since_s, until_s, tres))

    def shares(self) -> tuple[Share, ...]:
        return self._again(self._books.shares)

    def _again(self, call: Callable[[], Value]) -> Value:
        began_s = self._clock.monotonic_s()
        try:
            return call()
        except SlurmUnreachable:
            if self._clock.monotonic_s() - began_s > _SOON_S:
                raise
        self._clock.sleep(self._pause_s)
        return call()


class LoggedBooks:
    """Writes one line per call: what was asked, what came back in short, and how long it took."""

    def __init__(self, books: Books, log: Callable[[str], None], clock: Clock) -> None:
        self._books = books
        self._log = log
        self._clock = clock

    def cluster(self) -> str:
        return self._timed("cluster", self._books.cluster, str)

    def tracks_gpus(self) -> bool | None:
        return self._timed("tracks_gpus", self._books.tracks_gpus, str)

    def records(self, since_s: int, until_s: int | None) -> Rows:
        what = f"records since={since_s} until={until_s or '-'}"
        return self._timed(what, lambda: self._books.records(since_s, until_s), _rows)

    def records_of(self, job_ids: Sequence[int], since_s: int) -> Rows:
        what = f"records_of jobs={len(job_ids)} since={since_s}"
        return self._timed(what, lambda: self._books.records_of(job_ids, since_s), _rows)

    def steps(self, job_ids: Sequence[int], since_s: int) -> Rows:
        what = f"steps jobs={len(job_ids)} since={since_s}"
        return self._timed(what, lambda: self._books.steps(job_ids, since_s), _rows)

    def alive(self) -> frozenset[int]:
        return self._timed("alive", self._books.alive, _count)

    def waiting(self) -> int:
        return self._timed("waiting", self._books.waiting, str)

    def sees_all(self, user: str) -> bool | None:
        return self._timed(f"sees_all user={user}", lambda: self._books.sees_all(user), str)

    def node_events(self, since_s: int) -> tuple[Happened, ...]:
        return self._timed(f"node_events since={since_s}", lambda: self._books.node_events(since_s), _count)

    def used(self, since_s: int, until_s: int, tres: str = "gres/gpu") -> tuple[Used, ...]:
        what = f"used since={since_s} until={until_s} tres={tres}"
        return self._timed(what, lambda: self._books.used(since_s, until_s, tres), _count)

    def shares(self) -> tuple[Share, ...]:
        return self._timed("shares", self._books.shares, _count)

    def _timed(self, what: str, call: Callable[[], Value], show: Callable[[Value], str]) -> Value:
        return timed(f"slurm books {what}", call, show, self._log, self._clock)


def _rows(found: Rows) -> str:
    return f"{len(found.rows)} rows, {len(found.unframed)} unframed"


def _count(found: Sequence[object] | frozenset[int]) -> str:
    return f"{len(found)} rows"
