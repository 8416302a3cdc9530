"""What accounting costs: 100,000 attempts through a stub of sacct beside a peer, and a month of a million.

Time of the wall clock of whole processes, the stub's included, which both sides pay. The month's usage is timed within
one process, beside the barest query of the same rows.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from sqlalchemy import and_, func, select, text

from fleetctl.accounting.database import open_database
from fleetctl.accounting.model import Window
from fleetctl.accounting.read_usage import read_usage
from fleetctl.accounting.tables import clusters, job_records
from fleetctl.accounting.usage import By, by_key
from tests.bench.measure import Row, alternate
from tests.databases import private_postgres
from tests.stub_sacct import StubSlurm, make_rows

_DAY_S = 86_400
_ROWS, _FEW, _COPIES = 100_000, 10_000, 10
_SPAN_S = 28 * _DAY_S
_MOST_MIB = 300e6 / 2**20
# `fleetctl` in a process that tells its own memory at the end, which is os._exit; that of the stub is not ours. VmHWM:
# ru_maxrss would begin with what this process had when it started the other.
_TOLD = """
import os, sys
from fleetctl.cli.entry import main

def leave(status, end=os._exit):
    with open("/proc/self/status") as file:
        print(*(line for line in file if line.startswith("VmHWM")), file=sys.stderr, flush=True)
    end(status)

os._exit = leave
main()
"""


class Bench:
    """A stub of Slurm with 100,000 rows of the last four weeks, and a place for databases."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_s = int(time.time())
        self.stub = StubSlurm(folder / "stub")
        self.since_s = self.now_s - 30 * _DAY_S
        self.stub.write(_calmer(make_rows(_ROWS, 1, since_s=self.since_s, span_s=_SPAN_S)))
        # The stub of the peer's Slurm answers at its own pace, too: both pay it
        self.environ = {**self.stub.environ(os.environ), "FLEETCTL_RUNS": str(folder / "runs"), "TZ": "UTC"}
        self.environ["PATH"] = f"{self.environ['PATH']}:{Path(sys.executable).parent}"
        self.peaks_mib: list[float] = []

    def wall_ms(self, argv: list[str], environ: Mapping[str, str] | None = None) -> float:
        began = time.monotonic()
        done = subprocess.run(argv, env=environ or self.environ, capture_output=True, text=True, check=False)
        took_ms = 1000 * (time.monotonic() - began)
        assert done.returncode == 0, done.stderr
        if argv[1:3] == ["-c", _TOLD]:
            self.peaks_mib.append(int(done.stderr.split()[-2]) / 1024)
        return took_ms

    def ours_ms(self, *words: str, url: str) -> float:
        return self.wall_ms([sys.executable, "-c", _TOLD, "account", *words, "--database", url])

    def first_sync_ms(self, url: str) -> float:
        if url.startswith("sqlite:///"):
            for path in self.folder.glob(f"{Path(url.removeprefix('sqlite:///')).name}*"):
                path.unlink()
        return self.ours_ms("sync", "--since", "30d", url=url)

    def peer_ms(self) -> float:
        start = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(self.since_s))
        words = ["--update", "--quiet", "--", "-a", "-D", "-X", "-S", start]  # --update: attempts share a JobID
        path = self.folder / "peer.db"
        path.unlink(missing_ok=True)
        return self.wall_ms([sys.executable, "-m", "slurm2sql", str(path), *words])

    def url(self, name: str) -> str:
        return f"sqlite:///{self.folder / name}"


def _calmer(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """One in ten ends badly, not one in three: of those we ask for the steps as well, 500 a call, and the peer none."""
    well = {"State": "COMPLETED", "ExitCode": "0:0", "DerivedExitCode": "0:0", "FailedNode": ""}
    return [row | well if number % 3 and row["State"] != "RUNNING" else row for number, row in enumerate(rows)]


@contextmanager
def a_bench() -> Iterator[Bench]:
    folder = Path(tempfile.mkdtemp(prefix="fb-", dir="/tmp"))
    try:
        yield Bench(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _counted(url: str, expected: int) -> None:
    """A quick sync that read nothing would be no wonder."""
    engine = open_database(url, read_only=True)
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(job_records)) == expected
        assert (connection.scalar(text("SELECT count(*) FROM record_nodes")) or 0) > 2 * expected
    engine.dispose()


def _first(bench: Bench) -> tuple[Row, Row]:
    """The stub's rows and columns are prepared in the first round, which does not count."""
    peer, ours = alternate(bench.peer_ms, lambda: bench.first_sync_ms(bench.url("ours.db")), 3)
    _counted(bench.url("ours.db"), _ROWS)
    again = median(bench.ours_ms("sync", url=bench.url("ours.db")) for _ in range(3))
    return (
        Row(f"account sync, {_ROWS:,} attempts", "slurm2sql 0.9.9", peer, ours, 0.4),
        Row("the same again, unchanged", "the first sync", ours, again, 0.2),
    )


def _postgres(bench: Bench) -> Row:
    with private_postgres(()) as server:
        numbers = iter(range(100))

        def fresh() -> float:
            name = f"b{next(numbers)}"
            server.sql(f"CREATE DATABASE {name}")
            bench.wall_ms([sys.executable, "-c", _TOLD, "db", "upgrade", "--database", server.url(name)])
            took_ms = bench.first_sync_ms(server.url(name))
            _counted(server.url(name), _ROWS)
            return took_ms

        peer, ours = alternate(lambda: bench.first_sync_ms(bench.url("beside.db")), fresh, 2)
    return Row("the same into PostgreSQL", "our SQLite", peer, ours, 2.0)


def _grow(url: str) -> None:
    """A million records, all of the same month: copies of those there, with their nodes, as other jobs."""
    engine = open_database(url)
    columns = [column.name for column in job_records.c]
    others = {
        "id": "id + :n * 1000000",
        "record": "CAST(:n AS TEXT) || record",
        "raw_id": "raw_id + :n * 1000000",
        "job_id": "job_id + :n * 1000000",
    }
    copied = ", ".join(others.get(name, name) for name in columns)
    nodes = "INSERT INTO record_nodes SELECT record_id + :n * 1000000, node_id FROM record_nodes WHERE record_id < :top"
    records = f"INSERT INTO job_records ({', '.join(columns)}) SELECT {copied} FROM job_records WHERE id < :top"
    with engine.begin() as connection:
        for number in range(1, _COPIES):
            for statement in (records, nodes):
                connection.execute(text(statement), {"n": number, "top": 1_000_000})
    engine.dispose()


def _growth(bench: Bench, small: str, large: str) -> Row:
    """The same new rows into both, other ones in each round."""
    numbers = iter(range(100))

    def both() -> tuple[float, float]:
        number = next(numbers)
        soon_s = int(time.time()) - 1_500
        new = make_rows(_FEW, 2 + number, since_s=soon_s, span_s=600, mean_s=60, first_id=50_000_000 + number * 100_000)
        bench.stub.write([row for row in new if row["End"].isdigit() and int(row["End"]) < soon_s + 1_500])
        bench.ours_ms("sync", url=bench.url("scratch.db"))  # the stub prepares its rows
        return bench.ours_ms("sync", url=small), bench.ours_ms("sync", url=large)

    pairs = [both() for _ in range(5)]
    peer, ours = (median(pair[side] for pair in pairs) for side in (0, 1))
    # Linear would be 10: what is left are deeper trees, and pages of six indexes that no longer lie in the cache
    return Row(f"{_FEW:,} new on a million", f"on {_ROWS:,}", peer, ours, 2.0)


def _month(bench: Bench, url: str) -> Row:
    """By account, over a million."""
    engine = open_database(url, read_only=True)
    window = Window(bench.since_s, int(time.time()))
    with engine.connect() as connection:
        ids = tuple(connection.scalars(select(clusters.c.id)))
        record = job_records.c
        inside = and_(record.ended_s > window.since_s, record.started_s < window.until_s)
        bare = select(func.count()).where(record.cluster_id.in_(ids), inside)
        assert (connection.scalar(bare) or 0) > 0.9 * _ROWS * _COPIES

        def ours() -> None:
            found = by_key(read_usage(connection, window, (By.ACCOUNT,), ids), (By.ACCOUNT,))
            assert len(found) == 12

        peer_ms, ours_ms = alternate(_timed(lambda: connection.scalar(bare)), _timed(ours), 5)
    engine.dispose()
    return Row("a month by account, a million records", "a bare count(*) with that filter", peer_ms, ours_ms, 5.0)


def _timed(act: Callable[[], object]) -> Callable[[], float]:
    def timed() -> float:
        began = time.monotonic()
        act()
        return 1000 * (time.monotonic() - began)

    return timed


def rows() -> list[Row]:
    with a_bench() as bench:
        found = [*_first(bench), _postgres(bench)]
        small, large = bench.url("ours.db"), bench.url("large.db")
        shutil.copyfile(bench.folder / "ours.db", bench.folder / "large.db")
        shutil.copyfile(bench.folder / "ours.db", bench.folder / "scratch.db")
        _grow(large)
        found += [_month(bench, large), _growth(bench, small, large)]
        syncs = max(bench.peaks_mib)
        bench.ours_ms("usage", "--by", "account", "--since", "31d", "--json", url=large)
        usage = bench.peaks_mib[-1]
    limit = "300 MB, the limit of the issue"
    return [
        *found,
        Row("that month, memory in MiB", limit, _MOST_MIB, usage, 1.0),
        Row("the largest sync, memory in MiB", limit, _MOST_MIB, syncs, 1.2),
    ]


def main() -> int:
    """These rows alone: `python -m tests.bench.accounting`."""
    from tests.bench.measure import table

    found = rows()
    print(table(found))
    return 0 if all(row.holds for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
