"""What nodes and Slurm tell of nodes, into the database: each verdict and each event once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, Table, select, update

from fleetctl.accounting import tables
from fleetctl.accounting.database import open_database
from fleetctl.accounting.ingest_events import ingest_events
from fleetctl.accounting.ingest_nodes import ingest_nodes
from fleetctl.errors import CannotTell
from fleetctl.health.model import Care, Decision, Finding, Outcome, Phase, Verdict
from fleetctl.health.spool import append_verdict, publish
from fleetctl.slurm.books import Happened
from tests.accounting_dump import dump
from tests.accounting_rows import DAY_S, HOUR_S, Rows
from tests.unit.accounting.run_folders import NOW_MS, NOW_S

XID = Finding("xid", Outcome.FAIL, "GPU 3 (0000:1b:00.0)", "gpu/0000:1b:00.0", "Xid 79", care=Care.REBOOT, code=999)
USE: dict[str, Any] = {
    "seconds": 60.5,
    "gpus": [
        {"gpu": "0000:1b:00.0", "uuid": "GPU-1", "energy_j": 1.5, "memory_bytes": 7},
        {"gpu": None, "uuid": "GPU-2", "energy_j": None, "memory_bytes": None},
    ],
    "errors": None,
}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{tmp_path}/a.db", create=True)
    with engine.begin() as connection:
        Rows(connection)
    yield engine
    engine.dispose()


class Nodes:
    """The shared folder, and the spool of each node."""

    def __init__(self, folder: Path) -> None:
        self.shared, self._spools = folder / "shared", folder / "spools"
        self.shared.mkdir()
        self.notes: list[str] = []

    def tell(self, node: str, seconds: float, phase: Phase = Phase.EPILOG, **more: Any) -> None:
        usual: dict[str, Any] = {"decision": Decision.DRAIN, "reason": "Xid 79", "findings": (XID,), "job_id": "7"}
        verdict = Verdict(node, phase, NOW_S + seconds, boot_id="b", passed=40, took_s=1.0, **{**usual, **more})
        assert append_verdict(str(self._spools / node), verdict)
        assert publish(str(self._spools / node), str(self.shared), node)

    def ingest(self, engine: Engine) -> int:
        with engine.begin() as connection:
            return ingest_nodes(connection, "lab", str(self.shared), self.notes.append, now_s=NOW_S)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def rows(engine: Engine, table: Table, *names: str) -> list[tuple[Any, ...]]:
    columns = [table.c[name] for name in names]
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(select(*columns).order_by(*columns))]


def told(engine: Engine) -> list[tuple[str, int]]:
    return [(node, at_ms - NOW_MS) for node, at_ms in rows(engine, tables.node_verdicts, "node", "at_ms")]


def test_a_verdict_has_its_findings_and_what_the_job_used(engine: Engine, nodes: Nodes) -> None:
    nodes.tell("n1", 1.25, usage=USE)
    assert nodes.ingest(engine) == 1
    names = ("node", "at_ms", "phase", "decision", "reason", "job_id", "boot_id", "passed")
    assert rows(engine, tables.node_verdicts, *names) == [
        ("n1", NOW_MS + 1250, "epilog", "drain", "Xid 79", "7", "b", 40)
    ]
    told_of = ("sequence", "check_id", "outcome", "care", "subject", "part", "words", "code")
    assert rows(engine, tables.node_findings, *told_of) == [
        (0, "xid", "fail", "reboot", "GPU 3 (0000:1b:00.0)", "gpu/0000:1b:00.0", "Xid 79", 999)
    ]
    used = ("gpu", "uuid", "job_id", "used_ms", "energy_mj", "memory_bytes")
    assert rows(engine, tables.gpu_use, *used) == [
        ("0000:1b:00.0", "GPU-1", "7", 60_500, 1500, 7),
        ("GPU-2", "GPU-2", "7", 60_500, None, None),
    ]


def test_twice_ingested_is_once_and_what_came_since_is_added(engine: Engine, nodes: Nodes) -> None:
    nodes.tell("n1", 1)
    nodes.tell("n2", 2, Phase.PERIODIC, job_id=None)
    assert nodes.ingest(engine) == 2
    before = dump(engine)
    (nodes.shared / "n2.jsonl").unlink()  # is not even opened
    assert nodes.ingest(engine) == 0
    assert (dump(engine), nodes.notes) == (before, [])
    nodes.tell("n1", 301)
    nodes.tell("n1", 601)
    assert nodes.ingest(engine) == 2
    assert told(engine) == [("n1", 1000), ("n1", 301_000), ("n1", 601_000), ("n2", 2000)]


def test_a_clock_that_went_back_hides_nothing(engine: Engine, nodes: Nodes) -> None:
    nodes.tell("n1", 5000)
    nodes.ingest(engine)
    nodes.tell("n1", 10)
    assert nodes.ingest(engine) == 1
    assert told(engine) == [("n1", 10_000), ("n1", 5_000_000)]


def test_half_a_spool_file_still_tells_its_whole_lines(engine: Engine, nodes: Nodes) -> None:
    for seconds in (1, 2, 3):
        nodes.tell("n1", seconds)
    path = nodes.shared / "n1.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - len(data) // 2])
    assert nodes.ingest(engine) == 2, "the first, and the newest from its own file"
    assert told(engine) == [("n1", 1000), ("n1", 3000)]


def test_a_history_that_cannot_be_read_leaves_the_newest_verdict(engine: Engine, nodes: Nodes) -> None:
    nodes.tell("n1", 1)
    nodes.tell("n1", 2)
    (nodes.shared / "n1.jsonl").unlink()
    assert nodes.ingest(engine) == 1
    assert nodes.notes == ["node n1: only its newest verdict is counted: No such file or directory"]


@pytest.mark.parametrize(
    "garbage",
    [b"", b"{", b"\x00\xff\n", b"[" * 100_000, b"[]", b'{"node": "n2"}', b"null"],
    ids=["empty", "torn", "bytes", "deep", "list", "another node's", "null"],
)
def test_a_node_whose_verdict_makes_no_sense_is_put_aside_until_it_does(
    engine: Engine, nodes: Nodes, garbage: bytes
) -> None:
    nodes.tell("n1", 1)
    nodes.tell("n2", 1)
    (nodes.shared / "n1.json").write_bytes(garbage)
    for _ in range(2):
        nodes.ingest(engine)
        assert rows(engine, tables.quarantine, "source", "raw", "why") == [
            ("node", b"n1", "n1.json is no verdict of that node")
        ]
    assert told(engine) == [("n2", 1000)]
    nodes.tell("n1", 2)
    nodes.ingest(engine)
    assert rows(engine, tables.quarantine, "raw") == []
    assert told(engine) == [("n1", 1000), ("n1", 2000), ("n2", 1000)]


def test_no_link_is_followed(engine: Engine, nodes: Nodes) -> None:
    nodes.tell("n1", 1)
    (nodes.shared / "n1.json").rename(nodes.shared.parent / "elsewhere")
    (nodes.shared / "n1.json").symlink_to(nodes.shared.parent / "elsewhere")
    assert nodes.ingest(engine) == 0
    assert rows(engine, tables.quarantine, "why") == [("n1.json is a symbolic link",)]


def change(nodes: Nodes, **fields: object) -> None:
    """The newest verdict of n1, which anybody who may write there could have made."""
    path = nodes.shared / "n1.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    "fields", [{"at": math.nan}, {"at": math.inf}, {"at": -1.0}, {"at": 1e300}, {"at": 1 << 80}, {"passed": 1 << 63}]
)
def test_a_verdict_of_no_time_or_number_is_put_aside(engine: Engine, nodes: Nodes, fields: dict[str, object]) -> None:
    nodes.tell("n1", 1)
    change(nodes, **fields)
    assert nodes.ingest(engine) == 0
    assert rows(engine, tables.quarantine, "why") == [("n1.json has a time or number that no node tells",)]


def test_numbers_and_texts_that_no_column_holds_do_no_harm(engine: Engine, nodes: Nodes) -> None:
    strange = "".join(map(chr, range(0x100))) + "\ud800"
    nodes.tell("n1", 1)
    finding = json.loads((nodes.shared / "n1.json").read_text())["findings"][0]
    use = {
        "seconds": math.nan,
        "gpus": [{"gpu": strange, "energy_j": 1 << 2000, "memory_bytes": 1 << 63}, 7, {"gpu": 1}],
    }
    fields = {"reason": strange, "job_id": strange, "boot_id": strange, "usage": use}
    change(nodes, **fields, findings=[{**finding, "code": 1 << 63, "words": strange * 100}])
    assert nodes.ingest(engine) == 2, "it is about another job than the one in the spool"
    assert rows(engine, tables.node_findings, "code") == [(None,), (999,)]
    assert rows(engine, tables.gpu_use, "used_ms", "energy_mj", "memory_bytes") == [(None, None, None)]
    assert nodes.ingest(engine) == 0


@pytest.mark.parametrize("usage", [{}, {"gpus": None}, {"gpus": {}}, {"gpus": [[]]}, None])
def test_a_use_that_is_none_is_not_known(engine: Engine, nodes: Nodes, usage: object) -> None:
    nodes.tell("n1", 1)
    change(nodes, usage=usage)
    assert nodes.ingest(engine) == 1
    assert rows(engine, tables.gpu_use, "gpu") == []


def test_a_folder_that_cannot_be_read_is_no_empty_one(engine: Engine, nodes: Nodes) -> None:
    nodes.shared.rmdir()
    with pytest.raises(CannotTell, match=r"cannot be read in .*shared: No such file"):
        nodes.ingest(engine)


class Events:
    """Slurm's books, of which only the nodes' events are asked."""

    def __init__(self, *told: Happened) -> None:
        self.told: Sequence[Happened] = told
        self.asked: list[int] = []

    def node_events(self, since_s: int) -> tuple[Happened, ...]:
        self.asked.append(since_s)
        return tuple(self.told)


def see(engine: Engine, events: Events, now_s: int = NOW_S) -> int:
    with engine.connect() as connection:
        with connection.begin():
            (cluster_id,) = connection.execute(select(tables.clusters.c.id)).one()
        return ingest_events(connection, cluster_id, events, now_s)  # type: ignore[arg-type]


def test_an_event_is_kept_once_and_closed_later(engine: Engine) -> None:
    down = Happened("n1", NOW_S, None, "DOWN*", "Not responding", "slurm")
    events = Events(down, Happened("n2", NOW_S - 50, NOW_S, "DRAIN", "a\x00b\udcff", "root"), down)
    assert see(engine, events) == 2
    assert see(engine, events, NOW_S + 60) == 0
    names = ("node", "started_s", "ended_s", "state", "reason", "user")
    assert rows(engine, tables.node_events, *names) == [
        ("n1", NOW_S, None, "DOWN*", "Not responding", "slurm"),
        ("n2", NOW_S - 50, NOW_S, "DRAIN", "a\\x00b\\xff", "root"),
    ]
    events.told = [Happened("n1", NOW_S, NOW_S + 90, "DOWN*", "Not responding", "slurm")]
    assert see(engine, events, NOW_S + 120) == 1
    assert rows(engine, tables.node_events, "node", "ended_s") == [("n1", NOW_S + 90), ("n2", NOW_S)]
    assert events.asked == [NOW_S - 35 * DAY_S, NOW_S - HOUR_S, NOW_S + 60 - HOUR_S]


@pytest.mark.parametrize("waiting", [None, 3])
def test_events_that_may_still_come_are_asked_for_again(engine: Engine, waiting: int | None) -> None:
    events = Events()
    see(engine, events)
    for state in ({"waiting": waiting}, {"waiting": 0}, {}):
        with engine.begin() as connection:
            if state:
                connection.execute(update(tables.sync_state).values(**state))
        see(engine, events, NOW_S + 7000)
    assert events.asked[1:] == [NOW_S - HOUR_S, NOW_S - HOUR_S, NOW_S + 7000 - HOUR_S]


@pytest.mark.parametrize(
    ("swept", "back_s"),
    [
        ({"nightly_s": NOW_S}, 7 * DAY_S),
        ({"nightly_s": NOW_S, "weekly_s": NOW_S}, 35 * DAY_S),
        ({"nightly_s": NOW_S - 1, "weekly_s": NOW_S - 1}, HOUR_S + 60),
        ({"nightly_s": NOW_S, "events_s": NOW_S - 9 * DAY_S}, 9 * DAY_S + HOUR_S),
        ({"events_s": NOW_S + DAY_S}, HOUR_S),
    ],
)
def test_events_are_read_as_far_back_as_the_records_of_this_sync(
    engine: Engine, swept: dict[str, int], back_s: int
) -> None:
    with engine.begin() as connection:
        connection.execute(update(tables.sync_state).values(**{"events_s": NOW_S - 60, **swept}))
    events = Events()
    see(engine, events)
    assert events.asked == [NOW_S - back_s]


def test_nobody_waits_for_the_database_while_slurm_is_asked(engine: Engine) -> None:
    class Slow(Events):
        def node_events(self, since_s: int) -> tuple[Happened, ...]:
            with engine.begin() as other:
                other.execute(update(tables.sync_state).values(sees_all=0))
            return super().node_events(since_s)

    assert see(engine, Slow(Happened("n1", NOW_S, None, "DOWN*", "x", "slurm"))) == 1


def test_slurm_that_tells_nothing_changes_nothing(engine: Engine) -> None:
    see(engine, Events(Happened("n1", NOW_S, None, "DOWN*", "x", "slurm")))
    assert see(engine, Events()) == 0
    assert rows(engine, tables.node_events, "node") == [("n1",)]
