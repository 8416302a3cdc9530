"""A run's folder as its user may have left it: what is no file of fleetctl's is unknown, and never an exception."""

from __future__ import annotations

import json
import os
import pwd
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fleetctl.recovery import read_run as reading
from fleetctl.recovery.facts import facts_in
from fleetctl.recovery.read_run import read_log, read_run
from fleetctl.recovery.read_wire import AskLog, AskRun, ToldRun, frame, told_in
from fleetctl.rundir.model import EventKind, RunKind
from fleetctl.rundir.store import RunDir
from tests.watched_runs import AT, BEGAN, a_pulse, a_run, beat, ended, started

ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = a_run(tmp_path / "runs", "r-1", ME)
    started(made)
    beat(made)
    return made


def ask(run: RunDir, told: ToldRun | None = None, *, thorough: bool = False) -> ToldRun:
    path = os.fsencode(run.path)
    if told is None:
        return read_run(AskRun(path, run.run_id))
    again = AskRun(path, run.run_id, state=told.state, digest=told.digest, uid=told.uid, thorough=thorough)
    return read_run(again)


def test_a_run_is_read_with_its_spec_its_history_and_its_pulse(run: RunDir) -> None:
    told = ask(run)
    assert told.trouble == ""
    assert told.pulses == ((None, a_pulse()),)
    assert told.read is not None
    facts = told.read.facts
    assert (facts.max_failures, facts.may_restart, facts.own_format, facts.chain) == (5, True, True, True)
    assert (facts.nodes, facts.gpus, facts.opted_out) == (3, 24, False)
    assert [attempt.name for attempt in facts.history.attempts] == ["1.0"]
    assert told.read.owner == ME
    assert [(task, past.restart_count) for task, past in told.read.pasts] == [(None, 0)]
    assert told_in(frame(told)[4:]) == told, "it goes over the wire"


def counted(real: Callable[..., object], name: str, done: list[str]) -> Callable[..., object]:
    def call(*args: object, **kwargs: object) -> object:
        done.append(name)
        return real(*args, **kwargs)

    return call


def test_a_run_that_is_well_costs_two_file_operations(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    told = ask(run)
    beat(run, at=AT + timedelta(seconds=5), training_step=9)
    done: list[str] = []
    for name in ("open", "stat", "lstat", "scandir", "listdir"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, counted(real, name, done))
    again = ask(run, told)
    assert done == ["open", "stat"]
    assert again.read is None
    assert again.pulses[0][1].training_step == 9


@pytest.mark.parametrize("how", ["a head's event", "a new file", "another attempt", "the last pulse"])
def test_news_are_read(run: RunDir, how: str) -> None:
    told = ask(run)
    if how == "a head's event":
        beat(run, events=2)
    elif how == "a new file":
        run.event_log("cancel").append(AT, EventKind.CANCEL, by="me")
    elif how == "another attempt":
        started(run, "1.1")
        beat(run, attempt="1.1")
    else:
        beat(run, over=True)
    again = ask(run, told)
    assert again.state != told.state
    assert (again.read is not None) == (how in ("a new file", "another attempt"))


def test_a_line_in_a_file_that_was_there_is_found_when_each_is_looked_at(run: RunDir) -> None:
    told = ask(run)
    (log,) = (run.path / "events").glob("submit-*")
    log.write_text(log.read_text() + json.dumps({"time": AT.isoformat(), "kind": "cancel", "by": "me"}) + "\n")
    assert ask(run, told).read is None
    again = ask(run, told, thorough=True)
    assert again.read is not None
    assert again.read.facts.history.cancelled_at == AT
    assert ask(run, again, thorough=True).read is None


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    real = path.with_name("elsewhere")
    real.write_text(json.dumps({"schema": 1}))
    path.symlink_to(real)


PULSES: list[tuple[str, Callable[[Path], object]]] = [
    ("fifo", fifo),
    ("link", link),
    ("device", lambda path: path.symlink_to("/dev/zero")),
    ("folder", lambda path: path.mkdir()),
    ("empty", lambda path: path.write_bytes(b"")),
    ("half", lambda path: path.write_text(json.dumps({"schema": 1, "attempt": "1.0"})[:-3])),
    ("binary", lambda path: path.write_bytes(bytes(range(256)) * 10)),
    ("deep", lambda path: path.write_text("[" * 100_000)),
    ("huge", lambda path: os.truncate(path, 5 << 30) if path.write_bytes(b"{") else None),
    ("long number", lambda path: path.write_text('{"schema": 1, "events": ' + "9" * 5000 + "}")),
    ("list", lambda path: path.write_text("[]")),
]


@pytest.mark.parametrize(("kind", "make"), PULSES, ids=[kind for kind, _ in PULSES])
def test_a_pulse_that_is_none_says_nothing_and_the_run_is_known(
    run: RunDir, kind: str, make: Callable[[Path], object]
) -> None:
    before = ask(run)
    (run.path / "pulse.json").unlink()
    make(run.path / "pulse.json")
    for told in (ask(run), ask(run, before)):
        assert told.pulses == ()
        assert told.state
        assert bool(told.trouble) == (kind not in ("list",))
        assert ("no plain file" in told.trouble) == (kind in ("fifo", "folder"))
    assert ask(run).read is not None


def test_a_pulse_of_another_owner_says_nothing(run: RunDir) -> None:
    told = ask(run)
    troubles: list[str] = []
    there = run.path / "pulse.json"
    opened = lambda path: os.open(there, os.O_RDONLY)  # noqa: E731
    assert tuple(reading._pulses(opened, (None,), told.uid + 1, troubles)) == ()
    assert "belongs to uid" in troubles[0]


def linked(path: Path) -> None:
    path.rename(path.with_name("x"))
    path.symlink_to("x")


def waiting(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


BAD_RECORDS: list[tuple[str, Callable[[Path], object], str]] = [
    ("missing", lambda path: path.unlink(), "no run.json"),
    ("link", linked, "link|plain"),
    ("fifo", waiting, "plain"),
    ("half", lambda path: path.write_text(path.read_text()[:-20]), "missing or damaged"),
    ("newer", lambda path: path.write_text(path.read_text().replace('"schema": 1', '"schema": 99')), "schema 99"),
    ("of another run", lambda path: path.write_text(path.read_text().replace("r-1", "r-2")), "run 'r-2'"),
    ("of another user", lambda path: path.write_text(path.read_text().replace(f'"{ME}"', '"mallory"')), "mallory"),
    ("huge", lambda path: os.truncate(path, 1 << 40), "larger|more than"),
]


@pytest.mark.parametrize(("kind", "spoil", "why"), BAD_RECORDS, ids=[kind for kind, _, _ in BAD_RECORDS])
def test_a_record_that_is_not_the_runs_makes_it_unknown(
    run: RunDir, kind: str, spoil: Callable[[Path], object], why: str
) -> None:
    spoil(run.path / "run.json")
    told = ask(run)
    assert told.read is None
    assert told.state == ""
    assert told.trouble.isprintable()
    assert any(part in told.trouble for part in why.split("|")), told.trouble


@pytest.mark.parametrize(
    "line",
    [
        b"[]\n",
        b"\xff\xfe\n{}\n",
        b'{"kind": "attempt_started"}\n',
        b'{"kind": 7, "time": 1}\n',
        b'{"kind": "intent", "time": "2026-01-01T00:00:00+00:00", "submission": "x"}\n',
        b"null\n",
        b"[" * 100_000 + b"\n",
    ],
)
def test_events_that_fleetctl_never_wrote_make_a_run_unknown_and_nothing_worse(run: RunDir, line: bytes) -> None:
    (run.path / "events" / "z.jsonl").write_bytes(line)
    told = ask(run)
    assert (told.read is None) == bool(told.trouble)


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_an_event_file_that_is_no_file_makes_a_run_unknown(run: RunDir, kind: str) -> None:
    path = run.path / "events" / "z.jsonl"
    made: dict[str, Callable[[Path], None]] = {"fifo": fifo, "link": link, "folder": Path.mkdir}
    made[kind](path)
    told = ask(run)
    assert told.read is None
    assert told.trouble


def test_more_events_than_any_run_has_are_not_read(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(run.path / "events" / "z.jsonl", "wb") as file:
        os.truncate(file.fileno(), reading.MOST_EVENT_BYTES + 1)
    assert "its events have more than" in ask(run).trouble
    monkeypatch.setattr(reading, "MOST_FILES", 1)
    assert "more than 1 files" in ask(run).trouble


def test_a_folder_that_is_a_link_or_has_gone_is_no_run(run: RunDir, tmp_path: Path) -> None:
    told = ask(run)
    moved = run.path.with_name("moved")
    run.path.rename(moved)
    assert ask(run, told).trouble == "No such file or directory"
    run.path.symlink_to(moved)
    assert "link" in ask(run).trouble
    run.path.unlink()
    shutil.rmtree(moved)
    assert ask(run).trouble == "No such file or directory"


def test_a_spec_that_cannot_be_read_forbids_everything(run: RunDir) -> None:
    (run.path / "spec.json").write_text("{")
    told = ask(run)
    assert told.read is not None
    assert (told.read.facts.may_restart, told.read.facts.opted_out) == (False, True)


def test_a_half_character_in_a_text_is_told_as_trouble(run: RunDir) -> None:
    """JSON may hold one; MessagePack cannot, and the daemon must hear of the run all the same."""
    from fleetctl.recovery.reader import packed

    ended(run, code=1, ending="\ud800")
    run.event_log("x").append(AT, EventKind.NOT_STARTED, submission=1, task=None, attempts=1, job_id="7", why="\ud800")
    told = told_in(packed(ask(run))[4:])
    assert isinstance(told, ToldRun)
    assert (told.read, "cannot be told" in told.trouble) == (None, True)


def test_a_sweep_has_a_past_for_each_element_that_has_not_ended_well(tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs", "s-1", ME, kind=RunKind.SWEEP, tasks=3)
    for task in (0, 1):
        started(run, "1.0", f"7_{task}", task=task)
    ended(run, code=0, ending="finished", task=0)
    beat(run, task=1)
    told = read_run(AskRun(os.fsencode(run.path), "s-1", tasks=(1, 2)))
    assert told.read is not None
    assert [task for task, _ in told.read.pasts] == [1]
    assert [task for task, _ in told.pulses] == [1]


def test_lost_nodes_are_told_with_their_attempt(run: RunDir) -> None:
    log = run.event_log("job")
    log.append(BEGAN, EventKind.NODE_LOST, attempt="1.0", task=None, node="n2", evidence="no heartbeat")
    told = ask(run)
    assert told.read is not None
    assert told.read.lost == ((None, "1.0", "n2"),)


def log_of(run: RunDir, attempt: str = "1.0", *, owner: str = ME, first: int = 4, last: int = 4) -> AskLog:
    return AskLog(os.fsencode(run.path), owner, None, attempt, first, last)


def test_of_a_log_the_beginning_and_the_end_are_read(run: RunDir) -> None:
    folder = run.path / "attempts" / "1.0"
    folder.mkdir()
    assert read_log(log_of(run)).data is None
    (folder / "output.log").write_bytes(b"\x00\xff\n12")
    assert (read_log(log_of(run)).data, read_log(log_of(run)).is_whole) == (b"\x00\xff\n12", True)
    with open(folder / "output.log", "ab") as log:
        os.truncate(log.fileno(), 20 << 30)
        log.write(b"last")
    told = read_log(log_of(run))
    assert (told.data, told.is_whole) == (b"\x00\xff\n1\nlast", False)


@pytest.mark.parametrize("attempt", ["..", "../1.0", "1.0/..", "", "1", "/etc"])
def test_no_log_outside_the_attempts_is_read(run: RunDir, attempt: str) -> None:
    (run.path / "output.log").write_text("x")
    assert read_log(log_of(run, attempt)).data is None


def test_a_log_that_is_a_link_or_in_somebody_elses_folder_is_not_read(run: RunDir) -> None:
    folder = run.path / "attempts" / "1.0"
    folder.mkdir()
    (folder / "output.log").symlink_to("/etc/passwd")
    assert read_log(log_of(run)).data is None
    (folder / "output.log").unlink()
    (folder / "output.log").write_text("x")
    assert "belongs to" in read_log(log_of(run, owner="mallory")).trouble


# Signs of a training whose head is silent


def with_signs(run: RunDir) -> ToldRun:
    return read_run(AskRun(os.fsencode(run.path), run.run_id, signs=True))


def test_the_newest_thing_that_the_training_wrote_is_its_sign_and_only_where_that_was_asked(run: RunDir) -> None:
    folder = run.attempt_dir("1.0", None)
    folder.mkdir(parents=True, exist_ok=True)
    for name, second in (("progress.json", 50), ("saves.jsonl", 70), ("output.log", 60), ("other", 90)):
        (folder / name).write_text("x")
        os.utime(folder / name, (second, second))
    told = with_signs(run)
    assert told.moved == ((None, datetime.fromtimestamp(70, UTC)),)
    assert told.is_full is False
    assert told_in(frame(told)[4:]) == told
    assert (ask(run).moved, ask(run).is_full) == ((), None)


@pytest.mark.parametrize("how", ["empty", "gone", "a FIFO", "a link", "a strange name", "a strange time"])
def test_what_is_no_sign_is_not_known(run: RunDir, how: str) -> None:
    folder = run.attempt_dir("1.0", None)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if how == "empty":
        (folder / "output.log").write_text("")
    elif how == "a FIFO":
        os.mkfifo(folder / "progress.json")
    elif how == "a link":
        (folder / "progress.json").symlink_to(run.path / "run.json")
    elif how == "a strange name":
        beat(run, attempt="../..")
    elif how == "a strange time":
        (folder / "progress.json").write_text("x")
        os.utime(folder / "progress.json", (1 << 33, 1 << 40))
    told = with_signs(run)
    assert told.read is not None
    if how != "a strange time":  # some file systems keep no such time
        assert told.moved == ()


@pytest.mark.parametrize(
    ("blocks", "files", "free_files", "full"),
    [(1 << 20, 1 << 20, 1 << 20, False), (10, 1 << 20, 1 << 20, True), (1 << 20, 9, 2, True), (1 << 20, 0, 0, False)],
)
def test_a_disk_without_bytes_or_inodes_is_full(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, blocks: int, files: int, free_files: int, full: bool
) -> None:
    stat = os.statvfs_result((4096, 4096, 1 << 21, blocks, blocks, files, free_files, free_files, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda handle: stat)
    assert with_signs(run).is_full is full


@pytest.mark.parametrize(("said", "wanted"), [({}, False), ({"canary": True}, True), ({"canary": "yes"}, False)])
def test_losses_roll_a_run_back_only_where_its_spec_says_so(run: RunDir, said: dict[str, object], wanted: bool) -> None:
    told = ask(run)
    assert told.read is not None
    assert facts_in({"recovery": said}, told.read.facts.history).canary is wanted
