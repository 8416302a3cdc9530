"""Slurm's accounting in memory, for tests of the sync: rows as sacct prints them, chosen as slurmdbd chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from zlib import crc32

from fleetctl.errors import FleetctlError, SlurmRefused, SlurmUnreachable
from fleetctl.slurm.books import Happened, Rows, Share, Used
from fleetctl.slurm.sacct_fields import NEWER_RECORD_FIELDS, RECORD_FIELDS, STEP_FIELDS, offered

COLUMNS = offered(RECORD_FIELDS, NEWER_RECORD_FIELDS, frozenset(("SLUID", "Restarts", "FailedNode")))
Row = Mapping[str, str]
NOW_S = 1_796_000_000


class Clock:
    """Stands where it is put."""

    def __init__(self, now_s: int = NOW_S) -> None:
        self.now_s = now_s

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_s, UTC)

    def monotonic_s(self) -> float:
        return float(self.now_s)

    def sleep(self, duration_s: float) -> None:
        self.now_s += int(duration_s)


class FakeBooks:
    """`rows` and `step_rows` may change at any time. `calls` are the windows and ids that were asked for."""

    def __init__(self, clock: Clock, rows: Iterable[Row] = (), step_rows: Iterable[Row] = ()) -> None:
        self.clock = clock
        self.rows, self.step_rows = list(rows), list(step_rows)
        self.running: set[int] = set()
        self.waits = 0
        self.shows_all: bool | None = True  # else only those of ann
        self.tracked: bool | None = True  # GPUs
        self.unframed: tuple[str, ...] = ()
        self.widest_s: int | None = None  # MaxQueryTimeRange
        self.trouble: dict[str, FleetctlError] = {}  # method -> what it raises
        self.poison: frozenset[int] = frozenset()  # job ids about which no answer comes
        self.before_reply: Callable[[int], None] = lambda call: None
        self.calls: list[tuple[object, ...]] = []

    def cluster(self) -> str:
        self._called("cluster")
        return "stub"

    def tracks_gpus(self) -> bool | None:
        self._called("tracks_gpus")
        return self.tracked

    def records(self, since_s: int, until_s: int | None) -> Rows:
        self._called("records", since_s, until_s)
        end_s = self.clock.now_s if until_s is None else until_s
        self._refuse_width(end_s - since_s)
        end_s += until_s is None
        found = [row for row in self._shown() if 0 < _second(row["Eligible"]) < end_s and _lasted(row, since_s)]
        return Rows(COLUMNS, tuple(line(row) for row in found), self.unframed)

    def records_of(self, job_ids: Sequence[int], since_s: int) -> Rows:
        self._called("records_of", tuple(job_ids), since_s)
        self._refuse(job_ids, since_s)
        found = [row for row in self._shown() if _ids(row) & set(job_ids) and _lasted(row, since_s)]
        return Rows(COLUMNS, tuple(line(row) for row in found))

    def steps(self, job_ids: Sequence[int], since_s: int) -> Rows:
        self._called("steps", tuple(job_ids), since_s)
        self._refuse(job_ids, since_s)
        found = [row for row in self.step_rows if _ids(row) & set(job_ids) and _lasted(row, since_s)]
        return Rows(STEP_FIELDS, tuple(tuple(row.get(name, "") for name in STEP_FIELDS) for row in found))

    def alive(self) -> frozenset[int]:
        self._called("alive")
        return frozenset(self.running)

    def waiting(self) -> int:
        self._called("waiting")
        return self.waits

    def sees_all(self, user: str) -> bool | None:
        self._called("sees_all")
        return self.shows_all

    def node_events(self, since_s: int) -> tuple[Happened, ...]:
        self._called("node_events")
        return ()

    def used(self, since_s: int, until_s: int, tres: str = "gres/gpu") -> tuple[Used, ...]:
        raise NotImplementedError

    def shares(self) -> tuple[Share, ...]:
        raise NotImplementedError

    def windows(self) -> list[tuple[object, ...]]:
        return [call[1:] for call in self.calls if call[0] == "records"]

    def _shown(self) -> list[Row]:
        return [row for row in self.rows if self.shows_all or row["User"] == "ann"]

    def _refuse(self, job_ids: Sequence[int], since_s: int) -> None:
        self._refuse_width(self.clock.now_s - since_s)
        if self.poison & set(job_ids):
            raise SlurmUnreachable("sacct gave no answer in 120 s")

    def _refuse_width(self, width_s: int) -> None:
        if self.widest_s is not None and width_s > self.widest_s:
            raise SlurmRefused(1, "sacct: error: slurmdb_jobs_get: Too wide of a date range in query")

    def _called(self, name: str, *values: object) -> None:
        self.calls.append((name, *values))
        self.before_reply(len(self.calls))
        if name in self.trouble:
            raise self.trouble[name]


def line(row: Row) -> tuple[str, ...]:
    return tuple(row.get(name, "") for name in COLUMNS)


def job(raw_id: int, submit_s: int, end_s: int | None, **columns: str) -> dict[str, str]:
    """A row of one job that waited a minute; `end_s` None: it runs. The same id and time give the same DBIndex, and
    there is no order in them."""
    return {
        "DBIndex": str(1 + crc32(f"{raw_id} {submit_s}".encode())),
        "JobID": str(raw_id),
        "JobIDRaw": str(raw_id),
        "JobName": "train",
        "User": "ann",
        "UID": "1000",
        "Account": "lab",
        "Partition": "gpu",
        "QOS": "normal",
        "State": "RUNNING" if end_s is None else "COMPLETED",
        "ExitCode": "0:0",
        "DerivedExitCode": "0:0",
        "Submit": str(submit_s),
        "Eligible": str(submit_s),
        "Start": str(submit_s + 60),
        "End": "Unknown" if end_s is None else str(end_s),
        "Suspended": "00:00:00",
        "TimelimitRaw": "1440",
        "AllocTRES": "billing=8,cpu=16,gres/gpu:h100=8,gres/gpu=8,mem=1024M,node=2",
        "NodeList": "n[1-2]",
        "Reason": "None",
        **columns,
    }


def step(row: Row, name: str, **columns: str) -> dict[str, str]:
    """A step that lasted as long as its job."""
    return {
        **{key: row[key] for key in ("DBIndex", "State", "ExitCode", "Start", "End", "NodeList")},
        "JobID": f"{row['JobID']}.{name}",
        "JobIDRaw": f"{row['JobIDRaw']}.{name}",
        "JobName": name,
        "NTasks": "2",
        **columns,
    }


def _lasted(row: Row, since_s: int) -> bool:
    return not row["End"].isdigit() or int(row["End"]) >= since_s


def _second(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _ids(row: Row) -> set[int]:
    """Its raw id, and the id of its array or hetjob."""
    shown = "".join(letter if letter.isdigit() else " " for letter in row["JobID"])
    return {int(shown.split()[0]), int(row["JobIDRaw"].partition(".")[0])}
