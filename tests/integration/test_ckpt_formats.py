"""`fleetctl ckpt` on what frameworks write: a run by its own format, and whatever a path by hand may be."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fleetctl.rundir.model import RunKind, RunRecord
from fleetctl.rundir.store import RunDir, Store
from tests.formats.deepspeed import write_zero
from tests.formats.huggingface import write_trainer
from tests.formats.safetensors import write_safe
from tests.formats.torch import data, tensor, torch_bytes
from tests.integration.test_ckpt_cli import claim
from tests.support import Cli

NOW = datetime.now(UTC)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli({"HOME": str(tmp_path), "PATH": "/nonexistent"}, tmp_path / "runs")


def asked(cli: Cli, code: int, *args: str) -> Any:
    done = cli("ckpt", *args, "--json")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


def make_run(cli: Cli, workdir: Path, resources: dict[str, object] | None = None, **checkpoint: str) -> RunDir:
    record = RunRecord("demo-abc234", "demo", "me", NOW, RunKind.PLAIN, "d", "s", str(workdir), 1, 1, "c", "0")
    store = Store(cli.runs)
    store.ensure()
    assert store.reserve(record.run_id)
    spec = {"name": "demo", "command": "x", "resources": resources or {}, "checkpoint": {"dir": "ckpt", **checkpoint}}
    return store.fill(record, "name: demo\n", spec)


def cut(path: Path) -> None:
    os.truncate(path, 30)


def test_one_checkpoint_can_be_named_be_it_a_folder_or_a_file(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_trainer(tmp_path / "out", 500)
    write_trainer(tmp_path / "out", 600)
    (tmp_path / "last.ckpt").write_bytes(torch_bytes({"w": tensor(0, 200)}, {0: data(200)}))
    (tmp_path / "out" / "link").symlink_to(folder)
    for path, name, form in (
        (str(folder), "checkpoint-500", "huggingface"),
        (f"{folder}/.", "checkpoint-500", "huggingface"),
        (f"{tmp_path}/out/link", "checkpoint-500", "huggingface"),
        (str(tmp_path / "last.ckpt"), "last.ckpt", "torch"),
    ):
        (found,) = asked(cli, 0, "verify", path, "--level", "structure")
        assert (found["name"], found["format"], found["validity"]) == (name, form, "valid"), found
        assert found["path"] == str(tmp_path / ("out" if form == "huggingface" else "") / name)
    cut(tmp_path / "last.ckpt")
    os.utime(tmp_path / "last.ckpt", (1_700_000_000, 1_700_000_000))  # so that nobody is writing it
    (found,) = asked(cli, 11, "verify", str(tmp_path / "last.ckpt"))
    assert found["validity"] == "corrupt"
    monkeypatch.chdir(tmp_path)
    assert [one["name"] for one in asked(cli, 11, "ls", "last.ckpt")] == ["last.ckpt"], "no run has this name"


@pytest.mark.parametrize("left", ["weights", "trainer_state.json"])
def test_what_a_trainer_leaves_beside_its_checkpoints_does_not_hide_them(cli: Cli, tmp_path: Path, left: str) -> None:
    """A Trainer saves its last model, and its state, into the very folder of its checkpoints."""
    write_trainer(tmp_path / "out", 500)
    (tmp_path / "out" / "config.json").write_text("{}")
    write_safe(tmp_path / "out" / "model.safetensors")
    if left != "weights":
        shutil.copy(tmp_path / "out" / "checkpoint-500" / left, tmp_path / "out" / left)
    found = asked(cli, 0, "ls", str(tmp_path / "out"))
    assert [one["name"] for one in found if one["validity"] == "valid"] == ["checkpoint-500"]


def test_a_checkpoint_that_holds_one_of_another_format_is_one(cli: Cli, tmp_path: Path) -> None:
    folder = write_trainer(tmp_path / "out", 500, kind="none")
    (folder / "optimizer.pt").unlink()
    (folder / "scheduler.pt").unlink()
    write_zero(folder, 500, data_ranks=1)
    (found,) = asked(cli, 0, "verify", str(folder), "--level", "structure")
    assert (found["name"], found["format"]) == ("checkpoint-500", "huggingface")


@pytest.mark.parametrize(
    ("make", "code", "text"),
    [
        (lambda path: path.write_text("hello"), 11, "thing in {} is not a checkpoint that fleetctl knows"),
        (lambda path: path.mkdir(), 11, "no checkpoint in {}/thing"),
        (lambda path: os.mkfifo(path), 2, "{}/thing is no folder and no file"),
        (lambda path: path.symlink_to("nowhere"), 2, "there is no {}/thing"),
        (lambda path: None, 2, "there is no {}/thing"),
    ],
    ids=["text", "empty folder", "fifo", "dangling link", "nothing"],
)
def test_what_is_no_checkpoint_is_said_in_one_line(
    cli: Cli, tmp_path: Path, make: Callable[[Path], object], code: int, text: str
) -> None:
    make(tmp_path / "thing")
    done = cli("ckpt", "verify", f"{tmp_path}/thing")
    assert done.returncode == code
    assert done.stderr.removeprefix("1 of 1 not valid\n").startswith(f"fleetctl: {text.format(tmp_path)}\n")


def test_an_intact_one_whose_weights_have_no_checksum_is_valid_by_default(cli: Cli, tmp_path: Path) -> None:
    write_trainer(tmp_path / "out", 500)
    write_trainer(tmp_path / "out", 600, kind="bin")
    done = cli("ckpt", "verify", str(tmp_path / "out"))
    assert done.returncode == 0
    assert done.stderr == "1 has parts without any checksum: structure is the deepest there\n"
    found = asked(cli, 0, "verify", str(tmp_path / "out"))
    assert [(one["level"], one["reason"]) for one in found] == [
        ("content", None),
        ("structure", "model.safetensors: the format has no checksum"),
    ]
    assert [one["reason"] for one in asked(cli, 0, "ls", str(tmp_path / "out"))] == [None, None]
    assert cli("ckpt", "verify", str(tmp_path / "out"), "--level", "structure").stderr == ""


def test_weights_alone_are_none_for_a_training_and_valid_as_what_they_are(cli: Cli, tmp_path: Path) -> None:
    write_trainer(tmp_path / "out", 500, only_model=True)
    for words in (("ls",), ("verify",), ("resolve",)):
        done = cli("ckpt", *words, str(tmp_path / "out"))
        assert done.returncode == 11
        assert "there are weights alone" in done.stderr
    for words in (("ls",), ("verify",)):
        assert cli("ckpt", *words, str(tmp_path / "out" / "checkpoint-500")).returncode == 0


def test_a_reason_does_not_say_the_name_again(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "epoch=3-step=400.ckpt").write_bytes(b"no zip" * 100)
    os.utime(tmp_path / "epoch=3-step=400.ckpt", (1_700_000_000, 1_700_000_000))
    (found,) = asked(cli, 11, "ls", str(tmp_path))
    assert (found["name"], found["validity"]) == ("epoch=3-step=400.ckpt", "corrupt")
    assert "epoch" not in found["reason"]
    assert not found["reason"].startswith((":", " "))
    assert found["pieces"][0]["name"] == "epoch=3-step=400.ckpt"


def test_what_may_be_being_written_is_in_progress_for_every_command(cli: Cli, tmp_path: Path) -> None:
    """Only what is newer than the newest valid one: nobody goes back to write an older one."""
    for step in (100, 200, 300):
        write_trainer(tmp_path / "out", step)
    for step in (100, 300):
        (tmp_path / "out" / f"checkpoint-{step}" / "trainer_state.json").unlink()
        os.utime(tmp_path / "out" / f"checkpoint-{step}")
    for verb in ("ls", "verify"):
        found = asked(cli, 0, verb, str(tmp_path / "out"))
        assert [one["validity"] for one in found] == ["in_progress", "valid", "incomplete"]
    found = asked(cli, 0, "resolve", str(tmp_path / "out"))
    assert (found["training_step"], found["passed_over"][0]["validity"]) == (200, "in_progress")
    shutil.rmtree(tmp_path / "out" / "checkpoint-200")
    for verb in ("ls", "resolve"):
        found = asked(cli, 11, verb, str(tmp_path / "out"))
        found = found["passed_over"] if verb == "resolve" else found
        assert [one["validity"] for one in found] == ["in_progress", "in_progress"]


def test_a_runs_checkpoints_are_judged_as_its_start_judges_them(cli: Cli, tmp_path: Path) -> None:
    run = make_run(cli, tmp_path, format="huggingface", verify="content")
    write_trainer(tmp_path / "ckpt", 100, kind="bin")
    for step in (200, 300):
        write_trainer(tmp_path / "ckpt", step, kind="bin")
    (tmp_path / "ckpt" / "checkpoint-300" / "trainer_state.json").unlink()
    weights = tmp_path / "ckpt" / "checkpoint-200" / "pytorch_model.bin"
    raw, at = bytearray(weights.read_bytes()), weights.stat().st_mtime
    raw[raw.index(bytes(range(64))) + 3] ^= 1
    weights.write_bytes(raw)
    os.utime(weights, (at, at))
    claim(run, (1, 0), over=True)
    found = asked(cli, 0, "resolve", "demo")
    assert (found["training_step"], found["format"], found["level"]) == (100, "huggingface", "content")
    assert [(one["name"], one["validity"]) for one in found["passed_over"]] == [
        ("checkpoint-300", "incomplete"),
        ("checkpoint-200", "corrupt"),
    ]
    assert "another content" in found["passed_over"][1]["reason"]


def test_a_run_of_another_size_says_that_it_cannot_load_it(cli: Cli, tmp_path: Path) -> None:
    run = make_run(cli, tmp_path, {"nodes": 1, "gpus_per_node": 4}, format="deepspeed")
    (tmp_path / "ckpt").mkdir()
    write_zero(tmp_path / "ckpt", 100, data_ranks=2)
    claim(run, (1, 0), over=True)
    found = asked(cli, 11, "resolve", "demo")
    assert found["outcome"] == "hold"
    assert found["passed_over"][0]["reason"] == "saved by 2 ranks, and 4 cannot load it"


def test_what_was_there_before_the_run_does_not_count_for_it(cli: Cli, tmp_path: Path) -> None:
    from fleetctl.checkpoint.aside import set_aside
    from fleetctl.checkpoint.storage import LocalStorage
    from fleetctl.checkpoint.survey import survey
    from fleetctl.rundir.attempts import Attempts

    run = make_run(cli, tmp_path, format="auto", load="none")
    write_trainer(tmp_path / "ckpt", 500)
    attempts = Attempts(run.attempts_dir(None))
    assert attempts.claim((1, 0))
    found = survey(LocalStorage(), tmp_path / "ckpt", "auto")
    attempts.write_stands((1, 0), (), NOW, "7", set_aside(LocalStorage(), tmp_path / "ckpt", found))
    write_trainer(tmp_path / "ckpt", 100)
    answer = asked(cli, 0, "resolve", "demo")
    assert answer["training_step"] == 100
    assert (
        answer["passed_over"][0]["reason"]
        == "set aside: it was there before this run, or a person went back to an older step"
    )
