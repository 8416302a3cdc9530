"""What is seen of nodes beside Slurm: their switches, and what their checks found."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from fleetctl.errors import UsageError
from fleetctl.health.model import Care, Decision, Finding, Outcome, Phase, Verdict
from fleetctl.health.spool import line_of
from fleetctl.recovery.kept import Seen
from fleetctl.recovery.model import Snapshot
from fleetctl.recovery.observe import observe
from fleetctl.recovery.read_findings import read_findings
from fleetctl.recovery.read_wire import AskFindings
from fleetctl.recovery.topology import load_topology, parse_topology
from tests.watched_runs import AT, Here, SaidSlurm, sources

TOPOLOGY = """\
# two leaves and their spine
SwitchName=leaf1 Nodes=n[1-2] LinkSpeed=1
SwitchName=leaf2 \\
  Nodes=n3
switchname=spine Switches=leaf[1-2]
"""


def test_slurms_own_topology_tells_leaf_switches() -> None:
    assert parse_topology(TOPOLOGY, "t") == {"n1": "leaf1", "n2": "leaf1", "n3": "leaf2"}


def test_blocks_and_plain_pairs_are_read_too() -> None:
    assert parse_topology("BlockName=b1 Nodes=n[1-2]\nBlockSizes=2\n", "t") == {"n1": "b1", "n2": "b1"}
    assert parse_topology("n[1-2] rack7\n\nn3   rack8 # here\n", "t") == {"n1": "rack7", "n2": "rack7", "n3": "rack8"}
    assert parse_topology("", "t") == {}


@pytest.mark.parametrize("line", ["n1", "n1 a b", "Nodes=n1", "n[1- rack", "@all rack", "n[1-999999999] rack"])
def test_a_mistake_is_named_with_its_line(line: str) -> None:
    with pytest.raises(UsageError, match="topo, line 2: "):
        parse_topology(f"# x\n{line}\n", "topo")


def test_a_file_that_is_not_there_or_waits_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_topology(str(tmp_path / "gone"))
    (tmp_path / "t").write_text(TOPOLOGY)
    assert len(load_topology(str(tmp_path / "t"))) == 3


def say(
    folder: Path,
    node: str,
    *found: tuple[Outcome, Care],
    at: float = AT.timestamp(),
    about: str = "",
    changed_s: float = 0,
) -> None:
    findings = tuple(
        Finding(f"check{n}", one, "GPU 0", "gpu/0", "words", care=care) for n, (one, care) in enumerate(found)
    )
    verdict = Verdict(about or node, Phase.PERIODIC, at, "boot", next(iter(Decision)), "", findings, 1, 0.1)
    (folder / f"{node}.json").write_bytes(line_of(verdict))
    os.utime(folder / f"{node}.json", (AT.timestamp() + changed_s,) * 2)


def test_failed_checks_are_told_the_gravest_first(tmp_path: Path) -> None:
    say(tmp_path, "n1", (Outcome.FAIL, Care.WATCH), (Outcome.FAIL, Care.DRAIN), (Outcome.CANNOT_TELL, Care.IGNORE))
    say(tmp_path, "n2")
    (told,) = read_findings(AskFindings(os.fsencode(tmp_path), 0))
    found = dict(told.nodes)
    assert [(one.node, one.care, one.at) for one in found["n1"]] == [("n1", "DRAIN", AT), ("n1", "WATCH", AT)]
    assert found["n2"] == ()


@pytest.mark.parametrize("kind", ["of another node", "link", "fifo", "half", "binary", "at infinity"])
def test_a_file_that_is_no_verdict_of_its_node_has_no_findings(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "n1.json"
    say(tmp_path, "n1", (Outcome.FAIL, Care.DRAIN), about="n2" if kind == "of another node" else "")
    data = path.read_bytes()
    path.unlink()
    if kind == "link":
        path.symlink_to(tmp_path / "x")
        (tmp_path / "x").write_bytes(data)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        changed = {
            "half": data[:20],
            "binary": bytes(range(256)),
            "at infinity": data.replace(b'"at":', b'"at":1e300,"x":'),
        }
        path.write_bytes(changed.get(kind, data))
    (told,) = read_findings(AskFindings(os.fsencode(tmp_path), 0))
    assert dict(told.nodes).get("n1", ()) == ()


def test_findings_are_read_again_each_minute_and_only_where_they_changed(tmp_path: Path) -> None:
    shared, here, seen, at = tmp_path / "shared", Here(), Seen(), AT
    shared.mkdir()
    say(shared, "n1", (Outcome.FAIL, Care.DRAIN))
    say(shared, "n2", (Outcome.FAIL, Care.DRAIN))
    os.utime(shared / "n2.json", (0, 0))
    at_sources = sources(SaidSlurm(), here, tmp_path / "runs", "me", shared=str(shared))

    def look(after_s: float) -> Snapshot:
        nonlocal at, seen
        at += timedelta(seconds=after_s)
        here.asked.clear()
        snapshot, seen = observe(at_sources, seen, at)
        return snapshot

    def nodes(snapshot: Snapshot) -> list[str] | None:
        return None if snapshot.findings is None else sorted(one.node for one in snapshot.findings)

    assert nodes(look(0)) == ["n1", "n2"]
    say(shared, "n1", changed_s=1)
    assert nodes(look(30)) == ["n1", "n2"]
    assert not any(isinstance(ask, AskFindings) for ask in here.asked), "a minute has not passed"
    assert nodes(look(31)) == ["n2"], "n2's file is old, and what it said is kept"
    here.fails = lambda path: "it hangs" if path.endswith(b"shared") else ""
    snapshot = look(61)
    assert (nodes(snapshot), "it hangs" in snapshot.failed["findings"]) == (None, True)
    here.fails = lambda path: ""
    assert nodes(look(61)) == ["n2"]
    say(shared, "n3", (Outcome.FAIL, Care.DRAIN), at=AT.timestamp() + 10**6, changed_s=300)
    assert nodes(look(61)) == ["n2"], "a check of the future was not made"
