"""Checkpointer among processes: forked workers end by SIGTERM, and a training ends by Ctrl-C, twice at the latest."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support import wait_until

_POOL = """
import multiprocessing, os, signal, sys, time
from fleetctl.train.checkpointer import Checkpointer

with Checkpointer(directory=sys.argv[1], environ={}) as checkpoints:
    checkpoints.save_on_sigterm()
    pool = multiprocessing.get_context("fork").Pool(2)
    workers = pool._pool[:]
    assert pool.map(abs, [-1, -2]) == [1, 2]
    for _ in workers:
        pool.apply_async(time.sleep, (100,))
    time.sleep(0.5)
    pool.terminate()
    pool.join()
    print("ended", [worker.exitcode for worker in workers], checkpoints.told_to_end)
    os.kill(os.getpid(), signal.SIGTERM)
    print("told", checkpoints.told_to_end)
    checkpoints.save(1, {})
"""

_HANGING = """
import sys, time
from fleetctl.train.checkpointer import Checkpointer
from fleetctl.train.disk import Disk

class Hanging(Disk):
    def write(self, path, pieces):
        print("writing", flush=True)
        time.sleep(100)

with Checkpointer(directory=sys.argv[1], environ={}, disk=Hanging()) as checkpoints:
    checkpoints.save(1, {})
    time.sleep(100)
"""

_WITHOUT_A_BLOCK = """
import sys, time
from fleetctl.train.checkpointer import Checkpointer
from fleetctl.train.disk import Disk

class Slow(Disk):
    def write(self, path, pieces):
        time.sleep(0.3)
        super().write(path, pieces)

Checkpointer(directory=sys.argv[1], environ={}, disk=Slow()).save(1, {"x": 1})
"""


def test_a_pool_ends_under_save_on_sigterm(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _POOL, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "ended [-15, -15] False\ntold True\n"
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-000000001@local@0.0"]


def test_the_second_ctrl_c_ends_a_training_whose_save_hangs(tmp_path: Path) -> None:
    told = tmp_path / "told"
    with told.open("wb") as out:
        training = subprocess.Popen([sys.executable, "-c", _HANGING, str(tmp_path / "ckpt")], stdout=out, stderr=out)
    try:
        wait_until(lambda: "writing" in told.read_text(), "it writes", within_s=30)
        training.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert training.poll() is None, "the first one waits for the save under way"
        training.send_signal(signal.SIGINT)
        assert training.wait(10) != 0
    finally:
        training.kill()
        training.wait()


def test_a_program_that_just_ends_gets_its_last_save(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _WITHOUT_A_BLOCK, str(tmp_path)], timeout=60, check=True)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-000000001@local@0.0"]
