"""What a dead node and a hang cost a run: on a real Slurm with Slurm's own times, beside what Slurm does alone.

All of it takes as long as Slurm takes to bring a job back: 8 minutes. `python -m tests.bench.recovery NAME...` measures
some of them: alone, spare, owner, administrator, hang.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from tests.bench.measure import Row
from tests.bench.recovery_scene import AWAY_S, GPUS, SLURMD_TIMEOUT_S, Away, Bench, a_bench, away_of, job_now
from tests.faults.training import Training
from tests.support import BIN, wait_until

_DOWN_MORE_S, _PROVED_MOST_S, _FOUND_MORE_S = 15.0, 10.0, 15.0  # the limits of the issue
_SPARE_SHARE = 0.1  # of what Slurm alone takes
_ALL_GPUS = ["0,1,2,3,4,5,6,7"]
# A job as Slurm's manual has it, that comes back by Slurm's own requeue
_ALONE = """#!/bin/sh
exec srun sh -c 'echo "${SLURM_RESTART_COUNT:-0} $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES" >>"$PLACED"; exec sleep 3600'
"""


def alone(bench: Bench) -> Away:
    """What Slurm does by itself; with all the job's GPUs."""
    cli = bench.cli("alone")
    placed, script = bench.folder / "alone" / "placed", bench.folder / "alone" / "job.sh"
    script.write_text(_ALONE)
    argv = ["sbatch", "--parsable", "--requeue", "--nodes=2", "--ntasks-per-node=1", f"--gpus-per-node={GPUS}"]
    argv += ["--output=/dev/null", f"--export=ALL,PLACED={placed}", str(script)]
    job_id = cli.slurm(*argv).strip()

    def starts(restarts: int) -> dict[str, str]:
        lines = placed.read_text().splitlines() if placed.exists() else []
        words = [line.split(" ", 2) for line in lines]
        return {node: devices for count, node, devices in words if count == str(restarts)}

    wait_until(lambda: len(starts(0)) == 2, "the job on both nodes")
    dead = next(node for node in starts(0) if node != job_now(cli, job_id)["BatchHost"])
    bench.sandbox().node(dead).kill()
    away = away_of(cli, job_id, dead)
    wait_until(lambda: len(starts(1)) == 2, "the job on two nodes again")
    assert dead not in starts(1)
    assert [*starts(1).values()] == _ALL_GPUS * 2
    cli.slurm("scancel", job_id)
    return away


def spare(bench: Bench) -> float:
    """Seconds from a node's death to a training step on the spare node of the allocation."""
    training = bench.training("spare", spares=1)
    _kill_one(training)
    died = time.monotonic()
    wait_until(lambda: training.has_begun("1.1"), "a training step on the spare", AWAY_S)
    took_s = time.monotonic() - died
    assert [*training.placed("1.1").values()] == [_ALL_GPUS] * 2
    training.cli("cancel", training.run_id)
    return took_s


def owner(bench: Bench) -> Away:
    """The daemon of the run's owner: without spares and without any special right."""
    training = bench.training("owner")
    with bench.daemon(training) as log:
        bench.await_controller(training.cli)
        dead = _kill_one(training)
        away = away_of(training.cli, training.job_id, dead)
        _check_placed(training, dead)
        print(log.read_text(), file=sys.stderr)
    training.cli("cancel", training.run_id)
    return away


def administrator(bench: Bench) -> tuple[float, float]:
    """Seconds from the proof of a node's death, and from the death, until the run's job runs again."""
    training = bench.training("administrator")
    proved, fence = training.folder / "proved", training.folder / "fence"
    proof = shlex.join([str(BIN / "fleetctl"), "sandbox", "node", "dead", "--dir", str(bench.directory)])
    fence.write_text(f'#!/bin/sh\n{proof} "$@" && date +%s.%N >>{proved}\n')
    fence.chmod(0o755)
    with bench.daemon(training, "--operator", "--fence", str(fence)) as log:
        bench.await_controller(training.cli)
        dead, died_at = _kill_one(training), time.time()
        away = away_of(training.cli, training.job_id, dead)
        _check_placed(training, dead)
        print(log.read_text(), file=sys.stderr)
    training.cli("cancel", training.run_id)
    return died_at + away.running_s - float(proved.read_text().split()[0]), away.running_s


def hang(bench: Bench) -> tuple[float, float]:
    """Seconds from a rank's last sign to the event that says so, and the limit that this event names."""
    training = bench.training("hang", peer_timeout_s=100_000)
    os.kill(training.rank_pid(1), signal.SIGSTOP)
    stopped_at = time.time()
    wait_until(lambda: training.events("hung"), "a hang that is found", AWAY_S)
    (hung,) = training.events("hung")
    wait_until(lambda: training.has_begun("1.1"), "a training step after the hang")
    training.cli("cancel", training.run_id)
    return datetime.fromisoformat(hung["time"]).timestamp() - stopped_at, float(hung["limit_s"])


def _kill_one(training: Training) -> str:
    """A node that does not lead the run."""
    dead = next(node for node in training.placed("1.0") if node != training.batch_host())
    training.sandbox.node(dead).kill()
    return dead


def _check_placed(training: Training, dead: str) -> None:
    wait_until(lambda: training.has_begun("2.0"), "a training step of the second start")
    assert dead not in training.placed("2.0")
    assert [*training.placed("2.0").values()] == [_ALL_GPUS] * 2
    assert training.resumed_at("2.0") == training.saved("1.0")[-1]


def _rows(seconds: Mapping[str, float]) -> list[Row]:
    """`seconds`: figure -> seconds; a row that has no figure, or nothing to stand beside, is left out."""
    ms = {name: 1000 * value for name, value in seconds.items()}
    by_slurm, alone_ms = "Slurm alone, from death to RUNNING", ms.get("alone", 0.0)
    # When Slurm has a node DOWN is its own: it looks every SlurmdTimeout / 3, 100 s at most, and counts from its look
    # before (ping_nodes.c), which makes 300 to 500 s of 300
    down_ms = ms.get("owner down", 0.0)
    slurm_more_ms, owner_more_ms = alone_ms - ms.get("alone down", 0.0), ms.get("owner", 0.0) - down_ms
    rows = {
        "alone": Row("node death to RUNNING, Slurm alone", "SlurmdTimeout", 1000 * SLURMD_TIMEOUT_S, alone_ms, 2.2),
        "owner": Row("DOWN to RUNNING, owner mode", "Slurm alone, DOWN to RUNNING", slurm_more_ms, owner_more_ms, 0.13),
        "owner down": Row(
            "node death to RUNNING, owner mode",
            "Slurm's DOWN + 15 s",
            down_ms + 1000 * _DOWN_MORE_S,
            ms.get("owner", 0.0),
            1.0,
        ),
        "spare": Row("node death to training, spare node", by_slurm, alone_ms, ms.get("spare", 0.0), _SPARE_SHARE),
        "administrator": Row(
            "proof of death to RUNNING, Administrator",
            "10 s, the limit of the issue",
            1000 * _PROVED_MOST_S,
            ms.get("administrator", 0.0),
            1.0,
        ),
        "from death": Row("node death to RUNNING, Administrator", by_slurm, alone_ms, ms.get("from death", 0.0), 0.5),
        "hang": Row(
            "a hang in a step, found",
            "its limit + 15 s",
            ms.get("hang limit", 0.0) + 1000 * _FOUND_MORE_S,
            ms.get("hang", 0.0),
            1.0,
        ),
    }
    return [row for name, row in rows.items() if name in ms and row.peer_ms]


def _alone(bench: Bench) -> dict[str, float]:
    away = alone(bench)
    return {"alone": away.running_s, "alone down": away.down_s}


def _owner(bench: Bench) -> dict[str, float]:
    away = owner(bench)
    return {"owner": away.running_s, "owner down": away.down_s}


def _administrator(bench: Bench) -> dict[str, float]:
    proved_s, died_s = administrator(bench)
    return {"administrator": proved_s, "from death": died_s}


def _hang(bench: Bench) -> dict[str, float]:
    found_s, limit_s = hang(bench)
    return {"hang": found_s, "hang limit": limit_s}


_FIGURES: dict[str, Callable[[Bench], dict[str, float]]] = {
    "alone": _alone,
    "spare": lambda bench: {"spare": spare(bench)},
    "owner": _owner,
    "hang": _hang,
    "administrator": _administrator,
}
_APART = ("administrator",)  # it sees the whole cluster, so that others' faults would be its own


def rows(names: Sequence[str] = tuple(_FIGURES)) -> list[Row]:
    """Side by side: nearly all of it is waiting."""
    seconds: dict[str, float] = {}
    for group in ([name for name in names if name not in _APART], [name for name in names if name in _APART]):
        if not group:
            continue
        with a_bench() as bench, ThreadPoolExecutor(len(group)) as pool:
            for found in pool.map(lambda name, bench=bench: _FIGURES[name](bench), group):
                seconds |= found
    print("Recovery, in seconds:", ", ".join(f"{name} {value:.1f}" for name, value in seconds.items()))
    return _rows(seconds)


def main() -> int:
    """These rows alone: `python -m tests.bench.recovery`."""
    from tests.bench.measure import table

    if unknown := set(sys.argv[1:]) - set(_FIGURES):
        print(f"no figure {', '.join(sorted(unknown))}: {', '.join(_FIGURES)}", file=sys.stderr)
        return 2
    found = rows(sys.argv[1:] or tuple(_FIGURES))
    print(table(found))
    return 0 if all(row.holds for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
