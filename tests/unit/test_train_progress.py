"""Progress, with time passed in. Runs under pytest, and alone under Python 3.8: `python3.8 test_train_progress.py`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from fleetctl.train.progress import Progress

WALL = 1_700_000_000.25  # 2023-11-14T22:13:20.250Z


class Time:
    """A clock that stands still until told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def make(path: Path, time: Time | None = None, rank: int | None = None, **env: str) -> Progress:
    environ = {"FLEETCTL_PROGRESS_FILE": str(path), "FLEETCTL_ATTEMPT": "3.1", **env}
    return Progress(rank=rank, clock=lambda: WALL, monotonic=time or Time(), environ=environ)


def read(path: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    record: dict[str, Any] = json.loads(path.read_text("utf-8"), parse_constant=refuse)
    return record


@contextlib.contextmanager
def no_file_may_grow_beyond(size: int) -> Iterator[None]:
    """A full disk: the write itself fails, half way (EFBIG; Python ignores the signal)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_writes_every_key(tmp_path: Path) -> None:
    make(tmp_path / "p.json").update(training_step=120, target_step=200, loss=0.31, samples_per_s=812.5, tokens=7)
    assert read(tmp_path / "p.json") == {
        "schema": 1,
        "attempt": "3.1",
        "training_step": 120,
        "first_step": 120,
        "first_time": "2023-11-14T22:13:20.250+00:00",
        "target_step": 200,
        "loss": 0.31,
        "time": "2023-11-14T22:13:20.250+00:00",
        "done": False,
        "metrics": {"samples_per_s": 812.5, "tokens": 7},
    }
    assert os.listdir(tmp_path) == ["p.json"]


def test_the_first_update_of_the_process_is_remembered(tmp_path: Path) -> None:
    time = Time()
    env = {"FLEETCTL_PROGRESS_FILE": str(tmp_path / "p.json")}
    progress = Progress(clock=lambda: WALL - 100 + time.now_s, monotonic=time, environ=env)
    for step in (0, 1, 2):
        progress.update(training_step=step)
        time.now_s += 60
    first = read(tmp_path / "p.json")
    assert (first["first_step"], first["first_time"]) == (0, "2023-11-14T22:13:20.250+00:00")
    assert (first["training_step"], first["time"]) == (2, "2023-11-14T22:15:20.250+00:00")


def test_target_is_remembered_and_loss_is_not(tmp_path: Path) -> None:
    time = Time()
    progress = make(tmp_path / "p.json", time)
    progress.update(training_step=1, target_step=200, loss=0.5, lr=0.1)
    time.now_s += 1
    progress.update(training_step=2)
    record = read(tmp_path / "p.json")
    assert (record["training_step"], record["target_step"], record["loss"], record["metrics"]) == (2, 200, None, {})


def test_does_nothing_without_its_variable(tmp_path: Path) -> None:
    for environ in ({}, {"FLEETCTL_PROGRESS_FILE": ""}):
        with Progress(environ=environ) as progress:
            progress.update(training_step=1, done=True)
    assert os.listdir(tmp_path) == []


def test_reads_the_environment_of_the_process(tmp_path: Path) -> None:
    environ = {"FLEETCTL_PROGRESS_FILE": str(tmp_path / "p.json"), "FLEETCTL_ATTEMPT": "2.0", "RANK": "0"}
    with mock.patch.dict(os.environ, environ):
        Progress().update(training_step=5)
    assert (read(tmp_path / "p.json")["attempt"], read(tmp_path / "p.json")["training_step"]) == ("2.0", 5)


def test_only_rank_0_writes(tmp_path: Path) -> None:
    cases = [
        ("rank", {}, 0, True),
        ("rank", {}, 1, False),
        ("RANK 0 beats SLURM_PROCID", {"RANK": "0", "SLURM_PROCID": "3"}, None, True),
        ("RANK 3 beats SLURM_PROCID", {"RANK": "3", "SLURM_PROCID": "0"}, None, False),
        ("SLURM_PROCID", {"SLURM_PROCID": "2"}, None, False),
        ("unreadable RANK is no RANK", {"RANK": "", "SLURM_PROCID": "2"}, None, False),
        ("none", {}, None, True),
        ("argument beats RANK", {"RANK": "0"}, 1, False),
    ]
    for number, (name, env, rank, writes) in enumerate(cases):
        path = tmp_path / str(number)
        make(path, None, rank, **env).update(training_step=1)
        assert path.exists() == writes, name


def test_rate_is_bounded(tmp_path: Path) -> None:
    time, path = Time(), tmp_path / "p.json"
    progress = make(path, time)
    seen: list[int] = []
    for step in range(1, 9):
        progress.update(training_step=step)
        seen.append(read(path)["training_step"])
        time.now_s += 0.375
    assert seen == [1, 1, 1, 4, 4, 4, 7, 7]
    progress.close()
    assert read(path)["training_step"] == 8


def test_done_is_written_at_once(tmp_path: Path) -> None:
    progress = make(tmp_path / "p.json")
    progress.update(training_step=1)
    progress.update(training_step=2, done=True)
    assert (read(tmp_path / "p.json")["training_step"], read(tmp_path / "p.json")["done"]) == (2, True)


def test_leaving_the_block_writes_the_last_value_but_is_not_done(tmp_path: Path) -> None:
    with contextlib.suppress(KeyError), make(tmp_path / "p.json") as progress:
        progress.update(training_step=1)
        progress.update(training_step=2)
        raise KeyError("the training failed")
    assert (read(tmp_path / "p.json")["training_step"], read(tmp_path / "p.json")["done"]) == (2, False)


def test_close_without_news_writes_nothing(tmp_path: Path) -> None:
    progress = make(tmp_path / "p.json")
    progress.close()
    assert os.listdir(tmp_path) == []
    progress.update(training_step=1)
    (tmp_path / "p.json").unlink()
    progress.close()
    assert os.listdir(tmp_path) == []


def test_what_json_cannot_hold_becomes_null_and_text(tmp_path: Path) -> None:
    cases = [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (10**400, "not a number: int"),
        ([1.0], "not a number: list"),
    ]
    for value, text in cases:
        make(tmp_path / "p.json").update(training_step=1, loss=value, grad_norm=value, fine=2.0)
        record = read(tmp_path / "p.json")
        assert (record["loss"], record["loss_text"]) == (None, text)
        assert record["metrics"] == {"grad_norm": None, "fine": 2.0}
        assert record["metrics_text"] == {"grad_norm": text}


def test_a_failed_write_is_told_once_and_tried_again_with_back_off(tmp_path: Path) -> None:
    time, folder = Time(), tmp_path / "gone"
    progress = make(folder / "p.json", time)
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        progress.update(training_step=1)  # fails: wait 2 s
        time.now_s += 2.0
        progress.update(training_step=2)  # fails: wait 4 s
        folder.mkdir()
        time.now_s += 3.9
        progress.update(training_step=3)
        assert not (folder / "p.json").exists()
        time.now_s += 0.1
        progress.update(training_step=4)
        assert read(folder / "p.json")["training_step"] == 4
        time.now_s += 1.0  # and the ordinary rate is back
        progress.update(training_step=5)
        assert read(folder / "p.json")["training_step"] == 5
        folder.rename(tmp_path / "away")
        progress.update(training_step=6, done=True)  # fails: 2 s again, the earlier failures are forgotten
        (tmp_path / "away").rename(folder)
        time.now_s += 2.0
        progress.update(training_step=7)
        assert read(folder / "p.json")["training_step"] == 7
    assert stderr.getvalue().count("\n") == 1
    assert "No such file or directory" in stderr.getvalue()
    assert "the training goes on" in stderr.getvalue()


def test_back_off_is_bounded(tmp_path: Path) -> None:
    time, folder = Time(), tmp_path / "gone"
    progress = make(folder / "p.json", time)
    with contextlib.redirect_stderr(io.StringIO()):
        for step in range(2000):
            progress.update(training_step=step)
            time.now_s += 64.0
        folder.mkdir()
        progress.update(training_step=2000)
    assert read(folder / "p.json")["training_step"] == 2000


def test_done_and_close_do_not_wait_for_the_back_off(tmp_path: Path) -> None:
    finish: list[Callable[[Progress], None]] = [
        lambda progress: progress.update(training_step=2, done=True),
        lambda progress: progress.close(),
    ]
    for number, end in enumerate(finish):
        folder = tmp_path / str(number)
        progress = make(folder / "p.json")
        with contextlib.redirect_stderr(io.StringIO()):
            progress.update(training_step=2)
        folder.mkdir()
        end(progress)
        assert read(folder / "p.json")["training_step"] == 2


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path) -> None:
    progress = make(tmp_path / "p.json")
    progress.update(training_step=1)
    with contextlib.redirect_stderr(io.StringIO()) as stderr, no_file_may_grow_beyond(20):
        progress.update(training_step=2, done=True)
    assert "File too large" in stderr.getvalue()
    assert read(tmp_path / "p.json")["training_step"] == 1
    assert os.listdir(tmp_path) == ["p.json"]
    progress.close()
    assert read(tmp_path / "p.json")["training_step"] == 2


def test_a_target_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "p.json").mkdir()
    with contextlib.redirect_stderr(io.StringIO()):
        make(tmp_path / "p.json").update(training_step=1)
    assert os.listdir(tmp_path) == ["p.json"]


def test_a_stderr_that_is_gone_does_not_stop_the_training(tmp_path: Path) -> None:
    closed = io.StringIO()
    closed.close()
    for stderr in (closed, None):
        with mock.patch("sys.stderr", stderr), contextlib.redirect_stdout(io.StringIO()) as stdout:
            make(tmp_path / "gone" / "p.json").update(training_step=1)
        assert stdout.getvalue() == ""


def test_close_in_a_signal_handler_during_a_write(tmp_path: Path) -> None:
    progress = make(tmp_path / "p.json")
    rename = os.replace

    def interrupted(source: str, target: str) -> None:
        progress.update(training_step=2, done=True)  # as a handler would, in the middle of our write
        progress.close()
        rename(source, target)

    with mock.patch("os.replace", interrupted), contextlib.redirect_stderr(io.StringIO()) as stderr:
        progress.update(training_step=1)
    assert stderr.getvalue() == ""
    assert read(tmp_path / "p.json")["training_step"] == 1
    progress.close()
    assert read(tmp_path / "p.json")["training_step"] == 2


def test_two_writers_never_share_a_temporary_file(tmp_path: Path) -> None:
    names: list[str] = []
    with mock.patch("os.replace", lambda source, target: names.append(source)):
        for _ in range(2):
            make(tmp_path / "p.json").update(training_step=1)
    assert len(set(names)) == 2
    assert {os.path.dirname(name) for name in names} == {str(tmp_path)}


def main() -> None:
    tests = [test for name, test in sorted(globals().items()) if name.startswith("test_")]
    for test in tests:
        with tempfile.TemporaryDirectory() as folder:
            test(Path(folder))
    print(f"{len(tests)} tests passed")


if __name__ == "__main__":
    main()
