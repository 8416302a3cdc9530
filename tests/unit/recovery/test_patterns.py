"""The patterns of log lines: each row knows its lines, a site adds its own, and a mistake in them has a place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fleetctl.errors import UsageError
from fleetctl.recovery.logs import HEAD_BYTES, TAIL_BYTES, cut, exceptions, hits, root_host, task_ends
from fleetctl.recovery.model import Advice, CauseClass
from fleetctl.recovery.patterns import MOST_BYTES, Patterns, matches, patterns_in, shape
from fleetctl.recovery.read_patterns import load_patterns

# As Slurm, NCCL, CUDA, PyTorch and the frameworks print them, by the row that knows them, and what trainings print that
# go well. The wording is that of their public sources and threads; hosts, paths and numbers are made up
_LINES = json.loads((Path(__file__).parent / "log_lines.json").read_text())
LINES: dict[str, list[str]] = _LINES["rows"]
HARMLESS: list[str] = _LINES["harmless"]
OURS = load_patterns()
ROWS = {row.name: row for row, _ in OURS.rows}


def rows_of(text: str | bytes, patterns: Patterns = OURS) -> list[str]:
    data = text.encode() if isinstance(text, str) else text
    return [hit.row.name for hit in hits(cut(data), patterns)]


def site(*rows: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"schema": 1, "rows": rows, **more}).encode()


def row(**changes: Any) -> dict[str, Any]:
    return {"name": "ours", "cause": "data", "advice": "same", "patterns": ["bad shard #"], **changes}


def test_every_row_has_lines() -> None:
    assert set(ROWS) == set(LINES)


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in LINES.items() for line in lines])
def test_a_line_is_known_by_its_row(name: str, line: str) -> None:
    text = "\n".join([line] * ROWS[name].at_least)
    assert set(rows_of(text)) == {name}
    assert set(rows_of(text.upper() if "job cancelled" not in name else text)) == {name}, "in any case"


@pytest.mark.parametrize("line", HARMLESS)
def test_a_line_of_a_training_that_goes_well_is_no_failure(line: str) -> None:
    assert rows_of("\n".join([line] * 20)) == []


def test_advice_is_no_evidence() -> None:
    assert rows_of("this might be caused by a CUDA error: out of memory on another rank") == []
    assert rows_of("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported") == [
        "GPU memory"
    ]


@pytest.mark.parametrize(
    ("pattern", "line", "expected"),
    [
        ("xid", "NVRM: Xid (PCI", True),
        ("xid", "maxids", False),
        ("xid", "xid_3", False),
        ("*xid", "maxid is 4", True),
        ("bad * shard", "a bad old shard here", True),
        ("bad * shard", "a shard that is bad", False),
        ("bad * bad", "bad", False),
        ("rank #: gone", "rank 12345: gone", True),
        ("rank #: gone", "rank : gone", False),
        ("loss~nan", "loss: nan", True),
        ("loss~nan", "'loss': nan,", True),
        ("loss~nan", "loss = nan", True),
        ("loss~nan", "loss nanoseconds", False),
        ("loss~nan", "lossnan", False),
        ("abab*ab", "ababab", True),
        ("abab*ab", "abab", False),
        ("{one|two|}three", "twothree", True),
        ("{one|two|}three", "three", True),
        ("nan", "nan", True),
        ("failed (code #)", "it failed (code 7)", True),
    ],
)
def test_what_a_pattern_finds(pattern: str, line: str, expected: bool) -> None:
    made = patterns_in(site(row(patterns=[pattern])), "site.json")
    compiled = made.rows[0][1]
    assert any(matches(one, shape(line.lower().encode()), line.lower().encode()) for one in compiled) is expected
    assert bool(rows_of(f"before\n{line}\nafter", made)) is expected


def test_a_sites_rows_come_first_and_replace_ours() -> None:
    theirs = site(row(patterns=["Stale file handle*shard"]), row(name="disk", patterns=["quota of group"]))
    more = patterns_in(theirs, "site.json", OURS)
    assert rows_of("OSError: [Errno 116] Stale file handle: shard-7", more) == ["ours"]
    assert rows_of("No space left on device", more) == [], "theirs stands in the place of ours"
    assert rows_of("quota of group used up", more) == ["disk"]
    assert rows_of("Segmentation fault", more) == ["crash"]


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"{", "site.json:1:2: no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "schema"),
        (b'{"schema": 2}', "schema"),
        (site(row(cause="gremlins")), "row 'ours'.*cause"),
        (site(row(advice="pray")), "row 'ours'.*advice"),
        (site(row(pattern="typo")), "row 'ours'.*pattern"),
        (site({"name": "ours"}), "row 'ours'.*cause"),
        (site(row(), row()), "two rows are called 'ours'"),
        (site(row(patterns=[])), "row 'ours' has no patterns"),
        (site(row(patterns=["*"])), "row 'ours'.*no plain text"),
        (site(row(patterns=["a*b"])), "row 'ours'.*no plain text"),
        (site(row(patterns=["{a"])), "row 'ours'.*brace"),
        (site(row(patterns=["a|bcd"])), "row 'ours'.*brace"),
        (site(row(patterns=["rank # of 8"])), "row 'ours'.*beside other digits"),
        (site(row(patterns=["my loss~nan"])), "row 'ours'.*beside blanks"),
        (site(row(patterns=["{a|b|c}" * 5 + "word"])), "row 'ours'.*alternatives"),
        (site(row(patterns=["x" * 201])), "row 'ours'.*characters"),
        (site(row(patterns=["two\nlines"])), "row 'ours'.*printable"),
        (site(row(patterns=["caf\u00e9"])), "row 'ours'.*printable"),
        (site(row(patterns=["{1|2|3|4|5|6|7|8}{1|2|3|4|5|6|7|8}word"] * 16)), "more than 1000 patterns"),
        (site(hints=["{a"]), "hints.*brace"),
        (b" " * (MOST_BYTES + 1), "more than"),
    ],
)
def test_a_mistake_is_told_with_its_place(data: bytes, place: str) -> None:
    with pytest.raises(UsageError, match=place) as error:
        patterns_in(data, "site.json")
    assert "\n" not in error.value.message
    assert error.value.message.startswith("site.json")


def test_a_sites_file_must_be_roots_or_ours_alone(tmp_path: Path) -> None:
    path = tmp_path / "site.json"
    path.write_bytes(site(row()))
    path.chmod(0o644)
    assert load_patterns(str(path)).rows[0][0].name == "ours"
    path.chmod(0o666)
    with pytest.raises(UsageError, match="alone"):
        load_patterns(str(path))
    (tmp_path / "link.json").symlink_to(path)
    os.mkfifo(tmp_path / "fifo.json")
    for name in ("link.json", "fifo.json", "missing.json"):
        with pytest.raises(UsageError, match=name):
            load_patterns(str(tmp_path / name))


def test_the_example_in_the_manual_is_one() -> None:
    page = (Path(__file__).parents[3] / "docs" / "daemon.md").read_text()
    example = page.partition("## Log patterns")[2].partition("```json\n")[2].partition("```")[0]
    assert patterns_in(example.encode(), "docs/daemon.md").rows


def test_rows_say_what_a_failure_asks_for() -> None:
    assert (ROWS["GPU hardware"].cause, ROWS["GPU hardware"].advice) == (CauseClass.GPU, Advice.DRAIN)
    assert ROWS["collective timed out"].cascade
    assert (ROWS["loss is no number"].advice, ROWS["loss is no number"].again) == (Advice.OLDER, Advice.STOP)
    assert ROWS["job cancelled"].advice is Advice.NEVER
    for one in ROWS.values():
        assert one.again is None or one.advice not in (Advice.STOP, Advice.NEVER), one.name


def test_only_the_beginning_and_the_end_of_a_huge_log_are_looked_at() -> None:
    filler = b"x" * 99 + b"\n"
    half = filler * ((HEAD_BYTES // 2 + TAIL_BYTES) // 100)
    found = cut(b"No space left on device\n" + half + b"Segmentation fault\n" + half + b"ModuleNotFoundError: x\n")
    assert sum(map(len, found.lines)) <= HEAD_BYTES + TAIL_BYTES
    assert [hit.row.name for hit in hits(found, OURS)] == ["disk", "import"]


def test_a_line_that_never_ends_is_looked_at_where_something_stands() -> None:
    assert rows_of(b"\0" * 300_000 + b" No space left on device " + b"\xff" * 300_000) == ["disk"]


def test_a_carriage_return_ends_a_line_too() -> None:
    assert rows_of("10%|#   |\r20%|##  |\rMemoryError: no") == ["host memory"]


def test_losses_count_only_at_the_end_and_when_they_stay() -> None:
    nan = "step 7 loss: nan\n"
    assert rows_of(nan * 3) == ["losses that are no numbers"]
    assert rows_of(nan * 2) == [], "a loss scaler skips steps"
    assert rows_of(nan * 3 + "step 8 loss: 2.0\n" * 4000) == []


def test_what_the_training_went_on_after_did_not_end_it() -> None:
    text = "OSError: No route to host\n" + "step 7 loss: 2.0\n" * 3 + "Segmentation fault\n" + "step 8 loss: 2.0\n"
    found = hits(cut(text.encode()), OURS)
    assert [(hit.row.name, hit.survived) for hit in found] == [("network", True), ("crash", False)]


def test_the_end_of_a_traceback_is_found_behind_the_names_of_ranks() -> None:
    text = (
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "train.py", line 7, in <module>\n'
        "[rank5]: Traceback (most recent call last):\n"
        "srun: error: n3: task 5: Exited with exit code 1\n"
        "[rank3]:     main()\n"
        "[rank3]: mylib.Odd: what is this\n"
        "Exception ignored in: <function A.__del__>\n"
        "Traceback (most recent call last):\n"
        "  x\n"
        "TypeError: nothing\n"
        "Traceback (most recent call last):\n"
        "srun: error: n4: task 8: Exited with exit code 1\n"
        "srun: launch/slurm: _step_signal: Terminating StepId=41.0\n"
        "  y\n"
        "Odder\n"
        "Traceback (most recent call last):\n"
        "  cut off"
    )
    told = [one.line for one in exceptions(cut(text.encode()), OURS)]
    assert told == [b"mylib.Odd: what is this", b"Odder"]


def test_what_srun_and_torchrun_say_is_read() -> None:
    text = (
        "srun: error: n3: tasks 4-7,9: Exited with exit code 1\n"
        "srun: error: n4: task 8: Terminated\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-30_10:00:05\n  host      : n4\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-30_10:00:02\n  host      : n3.cluster\n"
    )
    log = cut(text.encode())
    assert [(end.node, end.tasks, end.how) for end in task_ends(log)] == [
        ("n3", 5, "Exited with exit code 1"),
        ("n4", 1, "Terminated"),
    ]
    assert root_host(log) == "n3.cluster"
    assert root_host(cut(b"")) == ""
