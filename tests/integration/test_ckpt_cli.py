"""`fleetctl ckpt` as its user calls it, on checkpoints that Checkpointer wrote. No Slurm is asked."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fleetctl.checkpoint import apart
from fleetctl.checkpoint.apart import Apart
from fleetctl.checkpoint.model import Checked, Entry, Level
from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.cli import ckpt_place, ckpt_watch
from fleetctl.cli.app import run as run_here
from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.model import EventKind, RunKind, RunRecord
from fleetctl.rundir.store import RunDir, Store
from fleetctl.train import layout
from fleetctl.train.checkpointer import Checkpointer
from tests.checkpoints import write_checkpoint, write_staged
from tests.eyes import child_that, in_open
from tests.formats.huggingface import write_trainer
from tests.support import BIN, Cli, wait_until

NOW = datetime.now(UTC)
HUNG_S = 3.0  # a busy machine may take more than a second to start a Python
KEYS = [
    "name", "path", "training_step", "run_id", "attempt", "saved_at", "size_bytes", "format", "resumable", "ranks",
    "validity", "level", "reason", "pieces", "faults", "bytes_read",
]  # fmt: skip


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli({"HOME": str(tmp_path), "PATH": "/nonexistent"}, tmp_path / "runs")


def train(directory: Path, *steps: int, run: RunDir | None = None, attempt: str = "1.0", resume: str = "") -> None:
    """Save at these steps as a training does that launch has started."""
    environ = {"FLEETCTL_CHECKPOINT_DIR": str(directory)}
    if run is not None:
        environ |= {"FLEETCTL_RUN_ID": run.run_id, "FLEETCTL_ATTEMPT": attempt, "FLEETCTL_RESUME_PATH": resume}
        environ |= {"FLEETCTL_ATTEMPT_DIR": str(run.attempt_dir(attempt, None))}
    with Checkpointer(environ=environ) as checkpoints:
        if resume:
            checkpoints.load()
        for step in steps:
            checkpoints.save(step, {"weights": bytes(range(256)) * 20, "step": step}, wait=True)


def make_run(runs: Path, workdir: Path, *, kind: RunKind = RunKind.PLAIN, **checkpoint: str) -> RunDir:
    record = RunRecord("demo-abc234", "demo", "me", NOW, kind, "d", "train.yaml", str(workdir), 1, 2, "c", "0")
    store = Store(runs)
    store.ensure()
    assert store.reserve(record.run_id)
    return store.fill(record, "name: demo\n", {"checkpoint": {"dir": "ckpt", **checkpoint} if checkpoint else None})


def claim(run: RunDir, number: tuple[int, int], *stands: str, task: int | None = None, over: bool = False) -> None:
    """What launch writes when an attempt starts, and, if it is over, when it ends."""
    attempts = Attempts(run.attempts_dir(task))
    assert attempts.claim(number)
    attempts.write_stands(number, stands, NOW, "7")
    facts: dict[str, Any] = {"submission": 1, "attempt": f"{number[0]}.{number[1]}", "task": task, "job_id": "7"}
    log = run.event_log("job-7")
    log.append(NOW, EventKind.ATTEMPT_STARTED, **facts, host="n1")
    if over:
        log.append(NOW, EventKind.ATTEMPT_ENDED, **facts, exit_code=1, terminated=False, ending="failed")


def name(step: int, attempt: str = "1.0", run_id: str = "demo-abc234") -> str:
    return layout.committed_name(step, run_id, attempt)


def asked(cli: Cli, code: int, *args: str) -> Any:
    done = cli("ckpt", *args, "--json")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


def flip(folder: Path) -> None:
    raw = bytearray((folder / "shard-00000.bin").read_bytes())
    raw[-1] ^= 1
    (folder / "shard-00000.bin").write_bytes(raw)


def test_what_checkpointer_writes_is_valid_at_every_level(cli: Cli, tmp_path: Path) -> None:
    train(tmp_path / "c", 10, 20)
    for level, validity, code in (("names", "unknown", 3), ("structure", "valid", 0), ("content", "valid", 0)):
        found = asked(cli, code, "verify", str(tmp_path / "c"), "--level", level)
        assert [(one["training_step"], one["validity"], one["level"]) for one in found] == [
            (20, validity, level),
            (10, validity, level),
        ], "what was not looked into is not valid"
        assert all(list(one) == KEYS for one in found)
    assert found[0]["path"] == str(tmp_path / "c" / name(20, "0.0", "local"))
    assert found[0]["bytes_read"] > found[0]["size_bytes"] > 5000
    assert found[0]["reason"] is None


def test_a_list_is_newest_first_with_what_is_wrong(cli: Cli, tmp_path: Path) -> None:
    directory = tmp_path / "c"
    train(directory, 10, 20)
    os.truncate(directory / name(20, "0.0", "local") / "shard-00000.bin", 100)
    (directory / "evil\n\x1b[2J").mkdir()
    write_staged(directory, 30)
    done = cli("ckpt", "ls", str(directory), "--all")
    assert done.returncode == 0, done.stderr
    head, *rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert head == ["STEP", "AGE", "SIZE", "FORMAT", "VALIDITY", "LEVEL", "REASON", "NAME"]
    assert [row[0] for row in rows] == ["30", "20", "10", ""]
    assert [row[3] for row in rows] == ["", "own", "own", ""]
    assert [row[4] for row in rows] == ["in_progress", "corrupt", "valid", "unknown"]
    assert rows[2][2:3] == ["5.3 KiB"]
    assert rows[2][1].endswith("s")
    assert rows[3][7] == "evil\\n\\x1b[2J"


def test_one_checkpoint_can_be_named(cli: Cli, tmp_path: Path) -> None:
    train(tmp_path / "c", 10, 20)
    flip(tmp_path / "c" / name(20, "0.0", "local"))
    one = str(tmp_path / "c" / name(20, "0.0", "local"))
    assert [found["validity"] for found in asked(cli, 11, "verify", one)] == ["corrupt"]
    assert [found["validity"] for found in asked(cli, 0, "verify", one + "/", "--level", "structure")] == ["valid"]
    assert [found["validity"] for found in asked(cli, 11, "verify", str(tmp_path / "c"), "--step", "20")] == ["corrupt"]
    assert [found["validity"] for found in asked(cli, 0, "verify", str(tmp_path / "c"))] == ["corrupt", "valid"]


def test_a_list_is_short_unless_all_is_asked(cli: Cli, tmp_path: Path) -> None:
    for step in range(60):
        write_checkpoint(tmp_path / "c", step)
    done = cli("ckpt", "ls", str(tmp_path / "c"))
    assert len(done.stdout.splitlines()) == 51
    assert done.stderr == "10 more: --all\n"
    assert len(asked(cli, 0, "ls", str(tmp_path / "c"), "--all")) == 60


@pytest.mark.parametrize("verb", ["ls", "verify", "resolve"])
def test_exit_codes_and_one_line(verb: str, cli: Cli, tmp_path: Path) -> None:
    directory = tmp_path / "c"
    directory.mkdir()
    for words, code, text in (
        (str(directory), 11, "fleetctl: no checkpoint in "),
        (str(tmp_path / "missing"), 2, "there is no "),
        ("", 2, "is empty"),
        ("nobody", 12, "no run 'nobody'"),
    ):
        done = cli("ckpt", verb, words)
        assert (done.returncode, text in done.stderr) == (code, True), done.stderr
        assert "Traceback" not in done.stderr
    train(directory, 10)
    assert cli("ckpt", verb, str(directory)).returncode == 0
    os.truncate(directory / name(10, "0.0", "local") / "shard-00000.bin", 100)
    assert cli("ckpt", verb, str(directory)).returncode == 11


@pytest.mark.parametrize("verb", ["ls", "verify", "resolve", "gc"])
def test_a_variable_that_is_not_set_does_not_mean_the_current_folder(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (10, 20, 30):
        write_checkpoint(tmp_path, step)
    monkeypatch.chdir(tmp_path)
    assert run_here(["ckpt", verb, "", *(("--keep", "2") if verb == "gc" else ())]) == 2
    assert capsys.readouterr().out == ""


def test_an_interval_is_of_a_run(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    for word in ("", ".", "folder", str(tmp_path)):
        assert run_here(["--runs", str(cli.runs), "ckpt", "interval", word]) == 2
        assert "takes a run" in capsys.readouterr().err


def test_names_alone_are_said_to_be_names_alone(cli: Cli, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", 10)
    done = cli("ckpt", "verify", str(tmp_path / "c"), "--level", "names")
    assert done.returncode == 3
    assert "looked at names only" in done.stderr
    assert "--level structure" in done.stderr
    assert "again later" not in done.stderr


def test_without_a_valid_one_a_word_is_said_and_no_command_sends_to_the_one_before(cli: Cli, tmp_path: Path) -> None:
    for step in (10, 20):
        os.truncate(write_checkpoint(tmp_path / "c", step) / "shard-00000.bin", 100)
    for verb in ("ls", "verify"):
        done = cli("ckpt", verb, str(tmp_path / "c"))
        assert done.returncode == 11
        assert done.stderr.splitlines()[-1].endswith(": none of 2 is valid")
    done = cli("ckpt", "resolve", str(tmp_path / "c"))
    assert done.returncode == 11
    assert f"fleetctl ckpt ls {tmp_path}/c" in done.stderr


@pytest.mark.parametrize("verb", ["ls", "verify", "resolve"])
def test_one_folder_too_high_names_the_right_one(verb: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "out" / "logs").mkdir(parents=True)
    done = cli("ckpt", verb, f"{tmp_path}/out")
    assert done.returncode == 11
    assert done.stderr.splitlines()[-1].strip() == "name the folder that holds them"
    for step in (10, 20, 30):
        write_checkpoint(tmp_path / "out" / "points\n", step)
    done = cli("ckpt", verb, f"{tmp_path}/out")
    assert done.returncode == 11
    assert f"fleetctl: no checkpoint in {tmp_path}/out\n" in done.stderr
    assert done.stderr.endswith(": points\\n/ holds 3\n")


def test_other_names_do_not_drown_the_checkpoints(cli: Cli, tmp_path: Path) -> None:
    directory = tmp_path / "c"
    write_checkpoint(directory, 10)
    for number in range(60):
        (directory / f"log-{number}").touch()
    (directory / "latest").symlink_to(name(10))
    (directory / "loop").symlink_to("loop")
    os.mkfifo(directory / "pipe")
    done = cli("ckpt", "ls", str(directory))
    assert (len(done.stdout.splitlines()), done.stderr) == (2, "63 other names: --all\n")
    done = cli("ckpt", "ls", str(directory), "--all")
    assert (len(done.stdout.splitlines()), done.stderr) == (65, "")
    listed = asked(cli, 0, "ls", str(directory))
    reasons = {one["name"]: one["reason"] for one in listed}
    assert len(listed) == 64
    assert reasons["latest"] == reasons["loop"] == "a link: it is not followed"
    assert reasons["pipe"] == reasons["log-1"] == "not a checkpoint that fleetctl knows"


@pytest.mark.parametrize("verb", ["ls", "verify", "resolve"])
def test_what_cannot_be_read_is_not_a_no(verb: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage is read by another process, so that is where the faults are put."""
    (tmp_path / "loop").symlink_to("loop")
    assert cli("ckpt", verb, str(tmp_path / "loop")).returncode == 3
    make_run(cli.runs, tmp_path, load="latest")
    (tmp_path / "ckpt").touch()
    assert cli("ckpt", verb, "demo").returncode == 3

    write_checkpoint(tmp_path / "c", 10)
    monkeypatch.setattr(apart, "ARGV", in_open("raise OSError(5, 'Input/output error')", "step-"))
    assert run_here(["ckpt", verb, str(tmp_path / "c")]) == 3
    monkeypatch.setattr(apart, "ARGV", child_that("storage.LocalStorage.look = lambda *args: None"))
    assert run_here(["ckpt", verb, str(tmp_path / "c")]) == 11


def test_a_later_unreadable_one_does_not_hide_a_valid_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path / "c", 10)
    newer = write_checkpoint(tmp_path / "c", 20)
    monkeypatch.setattr(apart, "ARGV", in_open("raise OSError(5, 'Input/output error')", newer.name))
    for verb in ("ls", "verify", "resolve"):
        assert run_here(["ckpt", verb, str(tmp_path / "c")]) == 0
        assert "Input/output error" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["ls", "verify", "resolve", "gc"])
def test_storage_that_hangs_does_not_hang_the_command(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An `open` that never returns stands for a mount whose server is gone."""
    older, newer = write_checkpoint(tmp_path / "c", 10), write_checkpoint(tmp_path / "c", 20)
    words = ["ckpt", verb, str(tmp_path / "c"), *(("--keep", "2") if verb == "gc" else ())]
    for argv, code in (
        (in_open("time.sleep(1e6)", older.name), 0),  # the newer one was looked at before
        (in_open("time.sleep(1e6)", newer.name), 0 if verb == "gc" else 3),
        (child_that("here.Here.kind = lambda *args: time.sleep(1e6)"), 3),
        (child_that("here.Here.survey = lambda *args: time.sleep(1e6)"), 3),
    ):
        monkeypatch.setattr(ckpt_place, "Apart", lambda argv=argv: Apart(argv=argv, silence_s=HUNG_S))
        assert run_here(words) == code
        said = capsys.readouterr()
        assert code == 0 or "does not answer" in said.out + said.err
        assert len(said.err.splitlines()) <= 3
    assert older.exists()


def test_a_checkpoint_that_kills_its_reader_does_not_end_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path / "c", 10)
    newer = write_checkpoint(tmp_path / "c", 20)
    monkeypatch.setattr(apart, "ARGV", in_open("os.kill(os.getpid(), 9)", newer.name))
    assert run_here(["ckpt", "verify", str(tmp_path / "c"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["training_step"], one["validity"]) for one in found] == [(20, "unknown"), (10, "valid")]
    assert found[0]["reason"] == "the process that looked at it ended with signal 9"


def test_a_verification_goes_on_where_it_was_interrupted(cli: Cli, tmp_path: Path) -> None:
    folders = [write_checkpoint(tmp_path / "c", step, data=bytes(100_000)) for step in (1, 2)]
    notes = tmp_path / ".cache" / "fleetctl" / "verified"
    # The older one is looked at last, and its first shard is opened for its header, and then for ever
    forever = "seen.append(inside[-1]) or seen.count('shard-00000.bin') > 1 and time.sleep(1e6)"
    stuck = in_open(forever, folders[0].name, before="seen = []")
    code = (
        f"import sys\nfrom fleetctl.checkpoint import apart\nfrom fleetctl.cli.app import run\napart.ARGV = {stuck!r}\n"
    )
    code += "sys.exit(run(sys.argv[1:]))"
    words = ["ckpt", "verify", str(tmp_path / "c")]
    done = subprocess.Popen([sys.executable, "-c", code, *words], env=cli.environ, stderr=subprocess.DEVNULL)
    wait_until(lambda: len([*notes.glob("*")]) == 2, "its notes")
    done.send_signal(signal.SIGINT)
    assert done.wait(30) == 130
    size = sum(path.stat().st_size for path in folders[1].glob("*.bin"))
    again = asked(cli, 0, "verify", str(tmp_path / "c"), "--resume")
    assert again[0]["bytes_read"] < 2_000
    assert again[1]["bytes_read"] > size
    assert [*notes.glob("*")] == [], "all was read, so the next one begins anew"
    for flags in (("--resume",), ()):
        assert [one["bytes_read"] > size for one in asked(cli, 0, "verify", str(tmp_path / "c"), *flags)] == [
            True,
            True,
        ]


def test_an_error_is_json_after_what_is_known(cli: Cli, tmp_path: Path) -> None:
    train(tmp_path / "c", 10)
    flip(tmp_path / "c" / name(10, "0.0", "local"))
    done = cli("ckpt", "verify", str(tmp_path / "c"), "--json")
    assert json.loads(done.stdout)[0]["reason"] == "shard-00000.bin has another content than was written"
    assert json.loads(done.stderr.splitlines()[-1])["exit_code"] == 11


def test_resolve_says_why_not_the_newer_ones(cli: Cli, tmp_path: Path) -> None:
    directory = tmp_path / "c"
    train(directory, 10, 20, 30)
    os.truncate(directory / name(20, "0.0", "local") / "shard-00000.bin", 100)
    (directory / name(30, "0.0", "local") / "manifest.json").unlink()
    write_staged(directory, 40)
    write_staged(directory, 5)  # older than what is taken: nobody asks about it
    found = asked(cli, 0, "resolve", str(directory))
    assert list(found) == ["outcome", "why", *KEYS, "passed_over"]
    assert (found["outcome"], found["training_step"], found["level"]) == ("resume", 10, "structure")
    assert [(one["training_step"], one["validity"]) for one in found["passed_over"]] == [
        (40, "in_progress"),
        (30, "incomplete"),
        (20, "corrupt"),
    ]
    said = cli("ckpt", "resolve", str(directory)).stdout
    assert f"path     {directory}/{name(10, '0.0', 'local')}\n" in said
    assert "manifest.json is missing" in said


def test_without_a_choice_all_keys_are_null(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    found = asked(cli, 11, "resolve", str(tmp_path / "c"))
    assert (found["outcome"], found["why"]) == ("scratch", "nothing was ever saved")
    assert [found[key] for key in KEYS] == [None] * len(KEYS)


# Runs


def test_a_run_knows_its_folder_and_its_fence(cli: Cli, tmp_path: Path) -> None:
    run = make_run(cli.runs, tmp_path, load="latest")
    directory = tmp_path / "ckpt"
    claim(run, (1, 0), over=True)
    train(directory, 10, 20, run=run)
    claim(run, (2, 0), name(10), name(20), over=True)
    # A rank of attempt 1.0 that was frozen wakes up, and another run saves into the same folder
    write_checkpoint(directory, 99, run_id=run.run_id, attempt="1.0")
    write_checkpoint(directory, 98, run_id="other", attempt="5.0")
    found = asked(cli, 0, "resolve", "demo")
    assert (found["training_step"], found["attempt"], found["run_id"]) == (20, "1.0", run.run_id)
    assert [one["training_step"] for one in found["passed_over"]] == [99, 98]
    train(directory, 30, run=run, attempt="2.0")
    assert asked(cli, 0, "resolve", run.run_id)["training_step"] == 30
    assert [one["training_step"] for one in asked(cli, 0, "verify", run.run_id)] == [30, 20, 10]
    assert [one["validity"] for one in asked(cli, 0, "ls", run.run_id)] == ["unknown"] * 2 + ["valid"] * 3


def test_a_first_start_takes_what_is_there_if_the_spec_says_so(cli: Cli, tmp_path: Path) -> None:
    make_run(cli.runs, tmp_path, load="latest")
    write_checkpoint(tmp_path / "ckpt", 50, run_id="older")
    assert asked(cli, 0, "resolve", "demo")["training_step"] == 50


def test_a_first_start_without_load_takes_nothing(cli: Cli, tmp_path: Path) -> None:
    make_run(cli.runs, tmp_path, load="none")
    write_checkpoint(tmp_path / "ckpt", 50, run_id="older")
    assert asked(cli, 11, "resolve", "demo")["outcome"] == "scratch"


def test_an_attempt_that_died_loading_makes_its_checkpoint_a_suspect(cli: Cli, tmp_path: Path) -> None:
    run = make_run(cli.runs, tmp_path, load="latest")
    directory = tmp_path / "ckpt"
    claim(run, (1, 0), over=True)
    train(directory, 10, 20, run=run)
    claim(run, (2, 0), name(10), name(20))
    loading = {"schema": 1, "state": "loading", "path": str(directory / name(20)), "training_step": 20, "rank": 0}
    Attempts(run.attempts_dir(None)).write((2, 0), "load.json", loading)
    assert asked(cli, 0, "resolve", "demo")["training_step"] == 20  # it lives, and loads
    log = run.event_log("job-7")
    facts: dict[str, Any] = {"submission": 1, "attempt": "2.0", "task": None, "job_id": "7"}
    log.append(NOW, EventKind.ATTEMPT_ENDED, **facts, exit_code=1, terminated=False, ending="failed")
    found = asked(cli, 0, "resolve", "demo")
    assert (found["training_step"], found["passed_over"][0]["validity"]) == (10, "suspect")
    assert [one["validity"] for one in asked(cli, 0, "ls", "demo")] == ["suspect", "valid"]
    os.truncate(directory / name(10) / "shard-00000.bin", 0)
    found = asked(cli, 0, "resolve", "demo")
    assert (found["training_step"], found["level"]) == (20, "content")
    flip(directory / name(20))
    assert asked(cli, 11, "resolve", "demo")["outcome"] == "hold"


def test_what_was_saved_and_is_gone_holds(cli: Cli, tmp_path: Path) -> None:
    run = make_run(cli.runs, tmp_path, load="latest")
    claim(run, (1, 0), over=True)
    train(tmp_path / "ckpt", 10, run=run)
    (tmp_path / "ckpt" / name(10)).rename(tmp_path / "moved")
    found = asked(cli, 11, "resolve", "demo")
    assert (found["outcome"], found["why"]) == ("hold", "something was saved, and nothing that counts is there now")


def test_staging_of_a_live_attempt_is_in_progress(cli: Cli, tmp_path: Path) -> None:
    run = make_run(cli.runs, tmp_path, load="latest")
    claim(run, (1, 0), over=True)
    claim(run, (2, 0))
    old = (datetime.now(UTC) - timedelta(days=1)).timestamp()
    write_staged(tmp_path / "ckpt", 10, run_id="other", attempt="7.0")  # nobody here knows whether it lives
    for attempt in ("1.0", "2.0"):
        folder = write_staged(tmp_path / "ckpt", 10, run_id=run.run_id, attempt=attempt)
        for path in (*folder.iterdir(), folder):
            os.utime(path, (old, old))
    assert {one["attempt"]: one["validity"] for one in asked(cli, 11, "ls", "demo")} == {
        "7.0": "in_progress",
        "2.0": "in_progress",
        "1.0": "incomplete",
    }


def test_an_element_of_a_sweep_has_its_own_folder(cli: Cli, tmp_path: Path) -> None:
    run = make_run(cli.runs, tmp_path, kind=RunKind.SWEEP, load="latest")
    write_checkpoint(tmp_path / "ckpt" / "1", 10, run_id=run.run_id)
    claim(run, (2, 0), name(10), task=1)
    assert asked(cli, 0, "resolve", "demo", "--task", "1")["training_step"] == 10
    assert asked(cli, 11, "resolve", "demo", "--task", "0")["outcome"] == "scratch"
    for words in (("demo",), ("demo", "--task", "2"), ("demo", "--task", "-1"), (str(tmp_path), "--task", "0")):
        assert cli("ckpt", "ls", *words).returncode == 2


def test_a_run_without_checkpoints_says_so(cli: Cli, tmp_path: Path) -> None:
    make_run(cli.runs, tmp_path)
    done = cli("ckpt", "ls", "demo")
    assert done.returncode == 2
    assert "no checkpoint section" in done.stderr


def test_a_run_of_the_whole_name_comes_before_a_folder_and_a_folder_before_a_guess(cli: Cli, tmp_path: Path) -> None:
    run = make_run(cli.runs, tmp_path, load="latest")
    train(tmp_path / "ckpt", 10, run=None)
    here = tmp_path / "here"
    write_checkpoint(here / "demo", 77)
    write_checkpoint(here / run.run_id, 88)

    def step(word: str) -> Any:
        done = subprocess.run(
            [BIN / "fleetctl", "ckpt", "resolve", word, "--json"],
            cwd=here,
            env=cli.environ,
            capture_output=True,
            check=True,
        )
        return json.loads(done.stdout)["training_step"]

    assert [step(word) for word in (run.run_id, "demo", "demo-", f"./{run.run_id}")] == [10, 77, 10, 88]


# A hostile tree


def test_a_hostile_tree_neither_hangs_nor_raises(cli: Cli, tmp_path: Path) -> None:
    directory = tmp_path / "c"
    good = write_checkpoint(directory, 1)
    loop = directory / name(90)
    loop.symlink_to(loop.name)
    os.mkfifo(directory / name(91))
    (directory / name(92)).symlink_to("/")
    inner = write_checkpoint(directory, 93)
    (inner / "shard-00000.bin").unlink()
    os.mkfifo(inner / "shard-00000.bin")
    huge = write_checkpoint(directory, 94)
    os.truncate(huge / "manifest.json", 1 << 30)
    long = write_checkpoint(directory, 95)
    os.truncate(long / "shard-00001.bin", 1 << 40)
    (directory / ".staging").symlink_to(".staging")
    for number in range(5000):
        (directory / f"junk-{number}").touch()
    for words in (("ls",), ("ls", "--all"), ("verify",), ("resolve",)):
        began = datetime.now(UTC)
        done = cli("ckpt", *words, str(directory))
        assert done.returncode == 0, done.stderr
        assert good.name in done.stdout
        assert datetime.now(UTC) - began < timedelta(seconds=30)
    found = [one["validity"] for one in asked(cli, 0, "verify", str(directory))]
    assert found == ["corrupt"] * 3 + ["unknown", "corrupt", "unknown", "valid"], "links are not followed"


# Progress


def test_a_long_look_shows_a_bar_on_a_terminal_only(cli: Cli, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", 1, data=bytes(9_000_000))
    words = [str(BIN / "fleetctl"), "ckpt", "verify", str(tmp_path / "c"), "--json"]
    outer, inner = pty.openpty()
    environ = {**cli.environ, "TERM": "xterm", "COLUMNS": "80"}
    done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, stderr=inner, timeout=60, check=True)
    os.close(inner)
    shown = os.read(outer, 1 << 16).decode()
    os.close(outer)
    assert "MiB" in shown
    assert "1 of 1" in shown
    assert json.loads(done.stdout)[0]["validity"] == "valid"
    assert cli(*words[1:]).stderr == ""


class Terminal(io.StringIO):
    """What stderr is to a person."""

    def isatty(self) -> bool:
        return True


def test_a_bar_costs_no_second_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (10, 20):
        write_checkpoint(tmp_path / "c", step)
    levels, examine = [], Apart.examine

    def seen(self: Apart, directory: Path, entry: Entry, level: Level, **more: Any) -> Checked:
        levels.append(level)
        return examine(self, directory, entry, level, **more)

    monkeypatch.setattr(Apart, "examine", seen)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert run_here(["ckpt", "verify", str(tmp_path / "c")]) == 0
    assert levels == [Level.CONTENT] * 2


def test_the_bar_knows_the_bytes_of_all_files_of_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "c" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "c" / "a").write_bytes(bytes(5))
    (tmp_path / "c" / "deep" / "er" / "b").write_bytes(bytes(7))
    (tmp_path / "c" / "out").symlink_to("/")
    storage = LocalStorage()
    sizes = [ckpt_watch.size_of(storage, tmp_path, Entry(name, 1)) for name in ("c", "gone")]
    assert sizes == [12, 0]
    assert ckpt_watch.size_of(storage, tmp_path / "c", Entry("a", 1)) == 5


# A narrow terminal


def test_on_a_narrow_terminal_only_reasons_and_names_take_more_lines(cli: Cli, tmp_path: Path) -> None:
    write_trainer(tmp_path, 1100)
    folder = write_trainer(tmp_path, 1200)
    (folder / "model.safetensors").unlink()
    os.utime(folder)
    (tmp_path / "evil\x1b[2J\n").mkdir()
    outer, inner = pty.openpty()
    environ = {**cli.environ, "TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}
    words = [str(BIN / "fleetctl"), "ckpt", "ls", str(tmp_path), "--all"]
    subprocess.run(words, env=environ, stdout=inner, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(inner)
    head, *rows = os.read(outer, 1 << 16).decode().splitlines()
    os.close(outer)
    shown = "\n".join(rows)
    for word in ("in_progress", "huggingface", "structure", "missing"):
        assert word in shown, "words are not cut"
    assert "\x1b" not in shown
    assert "STEP" in head
    assert all(len(line) <= 80 for line in rows)
