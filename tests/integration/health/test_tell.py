"""scontrol as a process: started, heard and ended in time, from a child that is given up."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from fleetctl.health.apart import Task, run_apart
from fleetctl.health.model import Answer
from fleetctl.health.tell import Ran, bounded, environment


def script(folder: Path, text: str) -> str:
    path = folder / "scontrol"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def in_child(
    scontrol: str, *calls: list[str], wait_s: float = 10.0, environ: dict[str, str] | None = None
) -> list[Ran]:
    """What each call gave; all of them have `wait_s` together."""
    until = time.monotonic() + wait_s

    def work() -> object:
        run = bounded(scontrol, environment(environ or {}), until, time.monotonic)
        return [list(run(call)) for call in calls]

    done = run_apart([Task("slurm", work, wait_s + 5)], stuck=None, monotonic=time.monotonic)["slurm"]
    assert done.answer is Answer.ANSWERED, done
    return [Ran(*one) for one in done.value]


def test_arguments_arrive_as_they_are(tmp_path: Path) -> None:
    scontrol = script(tmp_path, "printf '%s|' \"$@\"; exit 3")
    hostile = "reason=fleetctl: $(id); 'x' && rm -rf / [a] *"
    assert in_child(scontrol, ["update", hostile]) == [Ran(3, f"update|{hostile}|")]


def test_scontrol_sees_the_configuration_and_no_word_of_the_job(tmp_path: Path) -> None:
    scontrol = script(tmp_path, 'echo "$SLURM_CONF $PATH ${SLURM_JOB_COMMENT-none}"')
    environ = {"SLURM_CONF": "/etc/other.conf", "SLURM_JOB_COMMENT": "x", "PATH": "/nowhere"}
    assert in_child(scontrol, [], environ=environ) == [Ran(0, "/etc/other.conf /usr/sbin:/usr/bin:/sbin:/bin none\n")]


def test_what_it_says_on_stderr_is_heard_too(tmp_path: Path) -> None:
    assert in_child(script(tmp_path, "echo denied >&2; exit 1"), []) == [Ran(1, "denied\n")]


@pytest.mark.parametrize("missing", ["not_there", "not_executable"])
def test_a_scontrol_that_cannot_be_started_says_why(tmp_path: Path, missing: str) -> None:
    path = tmp_path / missing
    if missing == "not_executable":
        path.write_text("")
    ((status, text),) = in_child(str(path), [])
    assert status is None
    assert str(path) in text


@pytest.mark.parametrize(
    "text",
    [
        "exec sleep 1000",
        "trap '' TERM INT HUP; while :; do sleep 1000; done",
        "exec >&- 2>&-; exec sleep 1000",
        "while :; do echo x; done",
    ],
    ids=["hangs", "deaf", "closes its output and hangs", "talks for ever"],
)
def test_a_scontrol_that_does_not_end_is_killed_in_time(tmp_path: Path, text: str) -> None:
    pid_file = tmp_path / "pid"
    began = time.monotonic()
    scontrol = script(tmp_path, f"echo $$ > {pid_file}; {text}")
    (ran,) = in_child(scontrol, ["show"], wait_s=1.0)
    assert time.monotonic() - began < 4.0
    assert ran.status in (None, -signal.SIGPIPE)  # what it says is heard up to a limit
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_two_calls_share_the_time(tmp_path: Path) -> None:
    scontrol = script(tmp_path, "echo x >> " + str(tmp_path / "calls") + "; exec sleep 1000")
    began = time.monotonic()
    assert [ran.status for ran in in_child(scontrol, ["show"], ["update"], wait_s=1.0)] == [None, None]
    assert time.monotonic() - began < 4.0
    assert (tmp_path / "calls").read_text() == "x\n"  # no time was left to start the second
