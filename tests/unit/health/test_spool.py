"""Verdicts: a bounded spool on the node, a shared folder in which others may write, and history read from it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetctl.health import spool
from fleetctl.health.model import Care, Decision, Finding, Outcome, Phase, Verdict
from fleetctl.health.spool import NodeSaid, append_verdict, publish, read_history, read_shared
from fleetctl.health.store import Foreign
from tests.unit.health.disk import Recorder, after_a_crash, put

FAULT = Finding("nvlink_state", Outcome.FAIL, "GPU 3", "gpu/0", "17 of 18 links are up", 17, 18, "", Care.RESET)
VERDICT = Verdict(
    "n1", Phase.PROLOG, 1000.0, "boot", Decision.DRAIN, "fleetctl: x", (FAULT,), 40, 0.5, "7", {"seconds": 1}
)


def verdict(number: int, *, node: str = "n1", words: int = 0) -> Verdict:
    return VERDICT._replace(at=float(number), node=node, findings=(FAULT._replace(words="w" * words),))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "fleetctl"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    path = tmp_path / "shared"
    path.mkdir()
    return path


def times(folder: Path, name: str = "verdicts.jsonl") -> list[float]:
    return [json.loads(line)["at"] for line in (folder / name).read_bytes().splitlines()]


def test_a_verdict_comes_back_from_the_shared_folder_as_it_was(folder: Path, shared: Path) -> None:
    assert append_verdict(str(folder), VERDICT)
    assert publish(str(folder), str(shared), "n1")
    assert read_history(str(shared), "n1") == (VERDICT,)
    assert read_shared(str(shared)) == (NodeSaid("n1", VERDICT),)


def test_the_spool_keeps_the_newest_within_its_bound(folder: Path) -> None:
    for number in range(40):
        assert append_verdict(str(folder), verdict(number, words=500), most_bytes=8000)
    assert (folder / "verdicts.jsonl").stat().st_size <= 8000
    kept = times(folder)
    assert kept == [float(n) for n in range(40 - len(kept), 40)]
    assert len(kept) > 5


def test_one_verdict_larger_than_the_bound_stands_alone(folder: Path) -> None:
    for number in range(3):
        append_verdict(str(folder), verdict(number, words=500), most_bytes=100)
    assert times(folder) == [2.0]


def test_the_gravest_findings_stay_where_a_verdict_is_too_long_for_a_line() -> None:
    mild = tuple(FAULT._replace(check=str(n), care=Care.WATCH, words="w" * 200) for n in range(400))
    line = spool.line_of(VERDICT._replace(findings=(*mild, FAULT)))
    assert len(line) <= spool.MOST_LINE_BYTES
    found = spool.verdict_of(line, "n1")
    assert found is not None
    assert found.findings[0] == FAULT
    assert found.reason == VERDICT.reason


def test_a_verdict_with_enormous_usage_is_kept_without_it() -> None:
    found = spool.verdict_of(spool.line_of(VERDICT._replace(usage={"x": "y" * 100_000})), "n1")
    assert found == VERDICT._replace(usage=None, findings=())


def test_a_verdict_with_a_number_that_json_lacks_is_noted_and_not_written(folder: Path) -> None:
    notes: list[str] = []
    assert not append_verdict(str(folder), VERDICT._replace(took_s=float("inf")), note=notes.append)
    assert len(notes) == 1
    assert not (folder / "verdicts.jsonl").exists()


@pytest.mark.parametrize("scrap", [b"{torn", b"\x00" * 50 + b"\n", b"[]\n", b"\xff\n\n", b'{"at": 5.0}\n{"a'])
def test_scraps_in_the_spool_are_dropped_and_whole_lines_stay(folder: Path, scrap: bytes) -> None:
    append_verdict(str(folder), verdict(1))
    with (folder / "verdicts.jsonl").open("ab") as stream:
        stream.write(scrap)
    append_verdict(str(folder), verdict(2))
    assert [at for at in times(folder) if at != 5.0] == [1.0, 2.0]


@pytest.mark.parametrize("kind", ["enormous", "link", "owner"])
def test_a_spool_that_is_not_ours_is_started_anew_with_a_note(folder: Path, tmp_path: Path, kind: str) -> None:
    folder.mkdir(mode=0o700)
    path, elsewhere = folder / "verdicts.jsonl", tmp_path / "elsewhere"
    elsewhere.write_text("{}\n")
    if kind == "enormous":
        path.write_bytes(b"{}\n" * (2 << 20))
    elif kind == "link":
        path.symlink_to(elsewhere)
    else:
        path.write_text("{}\n")
        os.chown(path, 12345, 12345)
    notes: list[str] = []
    assert append_verdict(str(folder), verdict(3), note=notes.append)
    assert len(notes) == 1
    assert times(folder) == [3.0]
    assert elsewhere.read_text() == "{}\n"


def test_a_crash_at_any_moment_leaves_all_verdicts_but_perhaps_the_last(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_verdict(str(folder), verdict(1))
    before = {"verdicts.jsonl": (folder / "verdicts.jsonl").read_bytes()}
    put(folder, before)
    with monkeypatch.context() as patch:
        recorder = Recorder(patch)
        append_verdict(str(folder), verdict(2))
    for count, files in after_a_crash(before, recorder.steps):
        put(tmp_path / "after", files)
        found = times(tmp_path / "after")
        assert found in ([1.0], [1.0, 2.0])
        assert found == [1.0, 2.0] or count < len(recorder.steps)


def test_a_full_disk_keeps_the_spool_that_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_verdict(str(folder), verdict(1))

    def fail(*args: object) -> int:
        raise OSError(28, "No space left on device")

    notes: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        assert not append_verdict(str(folder), verdict(2), note=notes.append)
    assert notes == [f"{folder}/verdicts.jsonl not written: No space left on device"]
    assert times(folder) == [1.0]


def test_nothing_is_published_before_there_is_a_verdict(folder: Path, shared: Path) -> None:
    folder.mkdir(mode=0o700)
    assert not publish(str(folder), str(shared), "n1")
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize("node", ["", "../n1", "a/b", ".hidden", "n1\n", "x" * 300, "-n"])
def test_a_name_that_would_leave_the_folder_is_no_node(folder: Path, shared: Path, node: str) -> None:
    append_verdict(str(folder), VERDICT)
    notes: list[str] = []
    assert not publish(str(folder), str(shared), node, note=notes.append)
    assert len(notes) == 1
    assert list(shared.iterdir()) == []
    with pytest.raises(Foreign):
        read_history(str(shared), node)


def test_a_shared_folder_that_is_not_there_is_noted(folder: Path, tmp_path: Path) -> None:
    append_verdict(str(folder), VERDICT)
    notes: list[str] = []
    assert not publish(str(folder), str(tmp_path / "none"), "n1", note=notes.append)
    assert notes == [f"verdicts not published in {tmp_path / 'none'}: No such file or directory"]


def test_publishing_replaces_a_planted_link_and_follows_none(folder: Path, shared: Path, tmp_path: Path) -> None:
    append_verdict(str(folder), VERDICT)
    target = tmp_path / "target"
    target.write_text("precious")
    for name in ("n1.json", "n1.jsonl", ".n1.json.part", ".n1.jsonl.part"):
        (shared / name).symlink_to(target)
    assert publish(str(folder), str(shared), "n1")
    assert target.read_text() == "precious"
    assert read_shared(str(shared)) == (NodeSaid("n1", VERDICT),)


def planted_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    ("plant", "word"),
    [
        (planted_link, "symbolic link"),
        (os.mkfifo, "no plain file"),
        (Path.mkdir, "no plain file"),
        (lambda path: path.write_bytes(b"{" * (5 << 20)), "larger than"),
        (lambda path: path.write_text("{}"), "no verdict"),
        (lambda path: path.write_bytes(spool.line_of(verdict(1, node="other"))), "no verdict of that node"),
    ],
    ids=["link", "fifo", "folder", "enormous", "nonsense", "another node's"],
)
def test_what_others_planted_in_the_shared_folder_is_named_and_hides_no_node(
    folder: Path, shared: Path, plant: Callable[[Path], object], word: str
) -> None:
    append_verdict(str(folder), VERDICT)
    publish(str(folder), str(shared), "n1")
    plant(shared / "evil.json")
    (shared / "..json").write_text("{}")
    said = {one.node: one for one in read_shared(str(shared))}
    assert said["n1"].latest == VERDICT
    assert said["evil"].latest is None
    assert word in said["evil"].trouble
    assert set(said) == {"n1", "evil"}


def test_history_leaves_out_lines_that_make_no_sense(shared: Path) -> None:
    good = spool.line_of(verdict(1)) + spool.line_of(verdict(2))
    (shared / "n1.jsonl").write_bytes(
        b"\xff\xfe\n{}\n" + good + b"[" * 50_000 + b"\n" + spool.line_of(verdict(3))[:-40]
    )
    assert [one.at for one in read_history(str(shared), "n1")] == [1.0, 2.0]


def test_no_history_is_no_empty_history(shared: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_history(str(shared), "n1")
