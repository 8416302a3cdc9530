"""Slurm's accounting of a cluster whose whole history is known, as it stood at one moment: Books without a Slurm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fleetctl.errors import SlurmRefused, SlurmUnreachable
from fleetctl.slurm.books import Happened, Rows, Share, Used
from fleetctl.slurm.sacct_fields import NEWER_RECORD_FIELDS, NEWER_STEP_FIELDS, RECORD_FIELDS, STEP_FIELDS
from tests.stub_sacct import StubRow, make_steps, whole_numbers

_COLUMNS = (*RECORD_FIELDS[:-1], *NEWER_RECORD_FIELDS[:1], *NEWER_RECORD_FIELDS[2:], RECORD_FIELDS[-1])
_STEP_COLUMNS = (*STEP_FIELDS[:-1], *NEWER_STEP_FIELDS, STEP_FIELDS[-1])
_NOT_STARTED = {"Start": "Unknown", "AllocTRES": "", "NodeList": "None assigned", "State": "PENDING"}
_NOT_ENDED = {"End": "Unknown", "ExitCode": "0:0", "DerivedExitCode": "0:0", "FailedNode": ""}
_NEVER = 1 << 62


def as_it_stood(row: StubRow, now_s: int) -> StubRow | None:
    """A row of the end as sacct showed it at `now_s`; None: not submitted yet."""
    if int(row["Submit"]) > now_s:
        return None
    if int(row["Start"]) > now_s:
        return {**row, **_NOT_ENDED, **_NOT_STARTED}
    if _end(row) > now_s:
        return {**row, **_NOT_ENDED, "State": "RUNNING"}
    return row


def _end(row: StubRow) -> int:
    return int(row["End"]) if row["End"].isdigit() else _NEVER


class PlayedBooks:
    """See slurm.books.Books. `widest_s`: a window of more is refused, as by MaxQueryTimeRange. After so many `answers`
    about windows it is gone."""

    def __init__(
        self, rows: Sequence[StubRow], now_s: int, *, widest_s: int | None = None, answers: int | None = None
    ) -> None:
        stood = [(row, now) for row in rows if (now := as_it_stood(row, now_s)) is not None]
        self._rows = [now for _, now in stood]
        self._now_s, self._widest_s, self._answers = now_s, widest_s, answers

    def cluster(self) -> str:
        return "stub"

    def tracks_gpus(self) -> bool:
        return True

    def records(self, since_s: int, until_s: int | None) -> Rows:
        end = self._now_s + 1 if until_s is None else until_s
        if self._widest_s is not None and end - since_s > self._widest_s:
            raise SlurmRefused(1, "sacct: error: slurmdbd: Too wide of a date range in query")
        if self._answers is not None:
            if self._answers == 0:
                raise SlurmUnreachable("Slurm does not answer: Connection refused")
            self._answers -= 1
        found = [row for row in self._rows if int(row["Eligible"]) < end and _end(row) >= since_s]
        return _rows(_COLUMNS, found)

    def records_of(self, job_ids: Sequence[int], since_s: int) -> Rows:
        return _rows(_COLUMNS, list(self._of(job_ids, since_s)))

    def steps(self, job_ids: Sequence[int], since_s: int) -> Rows:
        return _rows(_STEP_COLUMNS, list(make_steps(list(self._of(job_ids, since_s)))))

    def alive(self) -> frozenset[int]:
        return frozenset(int(row["JobIDRaw"]) for row in self._rows if row["State"] == "RUNNING")

    def waiting(self) -> int:
        return 0

    def sees_all(self, user: str) -> bool:
        return True

    def node_events(self, since_s: int) -> tuple[Happened, ...]:
        return ()

    def used(self, since_s: int, until_s: int, tres: str = "gres/gpu") -> tuple[Used, ...]:
        return ()

    def shares(self) -> tuple[Share, ...]:
        raise SlurmRefused(1, "this cluster has no fair share")

    def _of(self, job_ids: Sequence[int], since_s: int) -> Iterator[StubRow]:
        wanted = set(job_ids)
        for row in self._rows:
            ids = {int(row["JobIDRaw"]), *whole_numbers(row["JobID"])[:1]}
            if ids & wanted and _end(row) >= since_s:
                yield row


def _rows(columns: tuple[str, ...], rows: Sequence[StubRow]) -> Rows:
    return Rows(columns, tuple(tuple(row.get(column, "") for column in columns) for row in rows))
