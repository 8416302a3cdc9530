"""A daemon that is killed, stopped or late, at the worst moments: nothing is done twice, and nothing after its time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fleetctl.errors import LeaseLost
from fleetctl.recovery import act as acting
from fleetctl.recovery.act import World, settle
from fleetctl.recovery.model import Action, Deed, Outcome
from fleetctl.recovery.order import Answer, Order
from fleetctl.recovery.policy import Mode
from fleetctl.recovery.wire import read, written
from fleetctl.sandbox.cluster import Sandbox
from tests.databases import FreshDatabase
from tests.integration.recovery.ledger import Daemon, HandClock, lapse
from tests.integration.recovery.scene import CLOCK, Run, a_world, done, on_cluster, three_nodes
from tests.support import ROOT, processes_with, wait_until

pytestmark = pytest.mark.slurm
QUICK = (("MessageTimeout", "5"), ("AuthInfo", "cred_expire=5"), ("KillWait", "2"))
KILL_THE_DAEMON = 'kill -KILL "$(ps -o ppid= -p "$PPID" | tr -d " ")"'  # its child has started this


@pytest.fixture(scope="module")
def shared() -> Iterator[Sandbox]:
    with three_nodes(QUICK) as started:
        yield started


@pytest.fixture
def run(shared: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    made = on_cluster(shared, tmp_path, monkeypatch)
    yield made
    made.cli.slurm("scancel", "--user", str(os.getuid()))
    wait_until(lambda: not made.cli.slurm("squeue", "-h"), "an empty queue")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, fresh_database: FreshDatabase) -> str:
    return fresh_database(request.param)


def a_daemon(url: str, run: Run, deed: Deed, path: str = "") -> int:
    """It does this one thing. How it ended."""
    argv = [sys.executable, "-m", "tests.integration.recovery.one_act", url, str(run.cli.runs), run.run_id, deed]
    environ = {**run.cli.environ, "PATH": path or run.cli.environ["PATH"]}
    return subprocess.run(argv, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, timeout=120, check=False).returncode


def lapse_all(url: str) -> None:
    daemon = Daemon(url, "time", HandClock())
    lapse(daemon)
    daemon.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_daemon_killed_around_the_deed_is_followed_by_one_that_looks(
    run: Run, url: str, tmp_path: Path, when: str
) -> None:
    """Its child ends by itself soon after, having asked Slurm or not; the entry in the journal is open."""
    run.submit().await_attempt("1.0")
    asks = '[ "$1" = requeue ] || exec $REAL "$@"'
    deeds = {"before": f"{KILL_THE_DAEMON}; exit 1", "after": f'$REAL "$@"; code=$?; {KILL_THE_DAEMON}; exit $code'}
    path = run.cli.shadow(tmp_path / "bin", "scontrol", f"{asks}\n{deeds[when]}")
    assert a_daemon(url, run, Deed.REQUEUE, path) == -signal.SIGKILL
    with pytest.raises(AssertionError), a_world(url, run.cli):  # its lease stands: its child may still be at work
        pass
    wait_until(lambda: not processes_with(f"PATH={path}", f"FLEETCTL_RUNS={run.cli.runs}"), "its child has ended")
    lapse_all(url)
    with a_world(url, run.cli) as world:
        (found,) = settle(world)
        assert found.outcome is (Outcome.FAILED if when == "before" else Outcome.DONE), found.detail
        again = done(world, run, Deed.REQUEUE)  # decided again from what is seen
        assert (again.outcome, run.shown("Restarts")) == (Outcome.DONE, "1"), again.detail
    run.await_attempt("2.0")
    assert run.shown("Restarts") == "1"


def test_a_daemon_stopped_across_its_lease_does_nothing_when_it_wakes(run: Run, url: str, tmp_path: Path) -> None:
    """It is stopped once it has looked for its lease, before it writes down what it is about to do."""
    run.submit().await_attempt("1.0")
    script = tmp_path / "stopped.py"
    script.write_text(
        "import os, signal, sys\n"
        "from fleetctl.recovery import act\n"
        "from tests.integration.recovery import one_act\n"
        "forbidden = act._forbidden\n"
        "def stop(*given):\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    return forbidden(*given)\n"
        "act._forbidden = stop\n"
        "one_act.main(*sys.argv[1:])\n"
    )
    argv = [sys.executable, str(script), url, str(run.cli.runs), run.run_id, Deed.REQUEUE]
    environ = {**run.cli.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True) as stopped:
        wait_until(lambda: " T " in Path(f"/proc/{stopped.pid}/stat").read_text(), "it is stopped")
        lapse_all(url)
        with a_world(url, run.cli) as world:
            assert done(world, run, Deed.REQUEUE).outcome is Outcome.DONE
            run.await_attempt("2.0")
            os.kill(stopped.pid, signal.SIGCONT)
            _, said = stopped.communicate(timeout=60)
            assert (stopped.returncode, "LeaseLost" in said) == (1, True), said
            assert len(world.journal.memory().done) == 1
    assert run.shown("Restarts") == "1"


def test_of_two_daemons_only_the_leader_acts(run: Run, url: str) -> None:
    run.submit().await_attempt("1.0")
    with a_world(url, run.cli) as one:
        assert a_daemon(url, run, Deed.REQUEUE) == 1  # it does not come to lead
        lapse_all(url)
        with a_world(url, run.cli) as two:
            with pytest.raises(LeaseLost):
                done(one, run, Deed.REQUEUE)
            assert done(two, run, Deed.REQUEUE).outcome is Outcome.DONE
    assert run.shown("Restarts") == "1"


@pytest.fixture
def world(run: Run, fresh_database: FreshDatabase) -> Iterator[World]:
    with a_world(fresh_database("sqlite"), run.cli) as made:
        yield made


def order_of(world: World, run: Run, deadline_s: float, deed: Deed = Deed.REQUEUE) -> Order:
    return Order(
        action=Action(deed, run.run_id, run.start(), "why", "rule"),
        mode=Mode.OWNER,
        seat=acting.seat_of(world.site),
        path=str(run.dir.path),
        attempts=1,
        wishes=0,
        deadline_s=deadline_s,
    )


def ask(order: Order, **environ: str) -> Answer:
    """The process that acts, as the daemon starts it."""
    said = subprocess.run(
        acting.ARGV,
        input=written(order) + "\n",
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        timeout=60,
    )
    assert said.returncode == 0, said.stderr
    return read(said.stdout, Answer)


def test_nothing_is_done_after_the_deadline(run: Run, world: World) -> None:
    run.submit().await_attempt("1.0")
    for deed in (Deed.REQUEUE, Deed.HOLD, Deed.ROLL_BACK):
        found = ask(order_of(world, run, CLOCK.monotonic_s() + 0.5, deed))
        assert (found.outcome, found.detail) == (Outcome.CHANGED, "the time of this lease is over")
    assert (run.shown("Restarts"), run.dir.history().held) == ("0", {})


@pytest.mark.parametrize("slow", ["squeue", "scontrol"])
def test_at_the_deadline_the_process_ends_and_with_it_what_it_waits_for(
    run: Run, world: World, tmp_path: Path, slow: str
) -> None:
    run.submit().await_attempt("1.0")
    text = "sleep 59.875" if slow == "squeue" else '[ "$1" = requeue ] || exec $REAL "$@"\nsleep 59.875'
    path = run.cli.shadow(tmp_path / "bin", slow, text)
    began_s = CLOCK.monotonic_s()
    found = ask(order_of(world, run, began_s + 4), PATH=path)
    assert (found.outcome, found.detail) == (Outcome.OPEN, "its time was over")
    assert CLOCK.monotonic_s() - began_s < 10
    wait_until(lambda: not processes_with(f"PATH={path}"), "nothing of it is left", 5)
    assert run.shown("Restarts") == "0"


def test_a_process_that_is_stopped_is_killed_before_the_lease_is_over(
    run: Run, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.submit().await_attempt("1.0")
    monkeypatch.setattr(acting, "_OTHERWISE_S", 3.0)
    monkeypatch.setattr(acting, "_NEEDS_S", {})
    stopper = tmp_path / "stopper"
    stopper.write_text(f"#!/bin/sh\nkill -STOP $$\nexec {' '.join(acting.ARGV)}\n")
    stopper.chmod(0o755)
    stuck = msgspec.structs.replace(world, argv=(str(stopper),))
    found = done(stuck, run, Deed.REQUEUE)
    assert found.outcome is Outcome.OPEN
    assert world.leader.left_s() > 0
    assert run.shown("Restarts") == "0"
    (settled,) = settle(world)
    assert settled.outcome is Outcome.FAILED


@pytest.mark.parametrize("said", ["exit 3", "echo '{}'", "echo nonsense", "cat; echo", "head -c 300000 /dev/zero"])
def test_a_process_that_says_nothing_of_use_leaves_the_entry_open(
    run: Run, world: World, tmp_path: Path, said: str
) -> None:
    run.submit().await_attempt("1.0")
    broken = tmp_path / "broken"
    broken.write_text(f"#!/bin/sh\n{said}\n")
    broken.chmod(0o755)
    found = done(msgspec.structs.replace(world, argv=(str(broken),)), run, Deed.HOLD)
    assert found.outcome is Outcome.OPEN
    assert [entry.done.outcome for entry in world.journal.unfinished()] == [Outcome.OPEN]
    assert json.loads(run.cli.slurm("sh", "-c", "echo 1")) == 1


def test_what_acts_inherits_nothing_that_is_the_daemons_alone(
    run: Run, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.submit().await_attempt("1.0")
    for name in ("FLEETCTL_DATABASE", "NOTIFY_SOCKET", "WATCHDOG_USEC"):
        monkeypatch.setenv(name, "secret")
    teller = tmp_path / "teller"
    teller.write_text(f"#!/bin/sh\nenv > {tmp_path}/environ\n")
    teller.chmod(0o755)
    done(msgspec.structs.replace(world, argv=(str(teller),)), run, Deed.HOLD)
    assert "secret" not in (tmp_path / "environ").read_text()
    assert "SLURM_CONF=" in (tmp_path / "environ").read_text()
