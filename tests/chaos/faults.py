"""How each fault is done to a run that is being played."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fleetctl.sandbox.nodes import Node
from tests.chaos.scenario import Fault, Planned
from tests.chaos.stage import Did, Missed, Stage, chosen

DRAIN_REASON = "admin: a fan of this node rattles"
PRIORITY = "500000"


def _node_killed(stage: Stage, planned: Planned, *, is_host: bool = False) -> Did:
    node = stage.node(planned, is_host=is_host)
    node.kill()
    return Did(f"{node.name} is dead", partial(_boot, stage, node))


def _boot(stage: Stage, node: Node) -> None:
    """Power on. Slurm sets a node DOWN that booted under a job (by its boot time, which here is the host's)."""
    state, reason = stage.site.nodes().get(node.name, ("", ""))
    if "down" not in state:
        why = reason or "Node unexpectedly rebooted"
        stage.site.ask("scontrol", "update", f"nodename={node.name}", "state=down", f"reason={why}")
    node.start(wait=False)


def _node_frozen(stage: Stage, planned: Planned, *, is_host: bool = False) -> Did:
    node = stage.node(planned, is_host=is_host)
    node.freeze()
    return Did(f"{node.name} is frozen", partial(_if_alive, node, node.wake))


def _node_cut(stage: Stage, planned: Planned) -> Did:
    node = stage.node(planned, is_host=planned.pick < 0.4)
    node.cut()
    return Did(f"{node.name} is cut off", partial(_if_alive, node, node.heal))


def _if_alive(node: Node, mend: Callable[[], None]) -> None:
    if node.alive():
        mend()


def _signal(pids: list[int], planned: Planned, number: signal.Signals, who: str) -> Did:
    pid = chosen(pids, planned.pick)
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        raise Missed(f"{who} is gone") from None

    def go_on() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return Did(f"{number.name} to {who} {pid}", go_on if number is signal.SIGSTOP else None)


def _rank(stage: Stage, planned: Planned, number: signal.Signals) -> Did:
    return _signal(stage.training.ranks(stage.attempt()), planned, number, "rank")


def _srun_killed(stage: Stage, planned: Planned) -> Did:
    return _signal(stage.training.sruns(stage.attempt()), planned, signal.SIGKILL, "srun")


def _agent(stage: Stage, planned: Planned, number: signal.Signals) -> Did:
    return _signal(stage.agents(), planned, number, "agent")


def _head(stage: Stage, planned: Planned, number: signal.Signals) -> Did:
    return _signal(stage.heads(), planned, number, "head")


def _ctld_killed(stage: Stage, planned: Planned) -> Did:
    stage.site.sandbox.ctld.kill()
    return Did("slurmctld is dead", stage.site.sandbox.ctld.start)


def _ctld_stopped(stage: Stage, planned: Planned) -> Did:
    stage.site.sandbox.ctld.stop()
    return Did("slurmctld stands still", stage.site.sandbox.ctld.cont)


def _dbd_killed(stage: Stage, planned: Planned) -> Did:
    stage.site.sandbox.dbd.kill()
    return Did("slurmdbd is dead", stage.site.sandbox.dbd.start)


def _dbd_stopped(stage: Stage, planned: Planned) -> Did:
    stage.site.sandbox.dbd.stop()
    return Did("slurmdbd stands still", stage.site.sandbox.dbd.cont)


def _damaged(stage: Stage, planned: Planned, how: Callable[[Path, float], None]) -> Did:
    """The newest checkpoint is no longer what it was, and a rank dies."""
    newest = max(stage.checkpoints.glob("step-*"), default=None)
    if newest is None:
        raise Missed("no checkpoint yet")
    how(newest / "shard-00000.bin", planned.pick)
    stage.damaged[newest.name] = stage.attempt()
    return Did(f"{newest.name} is damaged; {_rank(stage, planned, signal.SIGKILL).what}")


def _tear(path: Path, pick: float) -> None:
    os.truncate(path, int(path.stat().st_size * pick))


def _flip(path: Path, pick: float) -> None:
    at = int(path.stat().st_size * pick * 0.999)
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << int(pick * 8))]))


def _disk_full(stage: Stage, planned: Planned) -> Did:
    filler = stage.site.disk / "filler"
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * (1 << 20))
    with open(filler, "ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    return Did("the disk of the checkpoints is full", filler.unlink)


def _cancelled(stage: Stage, planned: Planned) -> Did:
    done = stage.training.cli("cancel", stage.training.run_id)
    if done.returncode != 0:
        raise Missed(done.stderr.strip()[-200:])
    return Did("fleetctl cancel")


def _scancelled(stage: Stage, planned: Planned) -> Did:
    state = stage.site.job(stage.job_id).get("JobState")
    if state not in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED"):
        raise Missed(f"the job is {state}")
    if stage.site.ask("scancel", stage.job_id) is None:
        raise Missed("scancel failed")
    return Did(f"scancel of a job that was {state}")


def _requeued(stage: Stage, planned: Planned) -> Did:
    if stage.site.ask("scontrol", "requeue", "Incomplete", stage.job_id) is None:
        raise Missed("scontrol requeue failed")
    return Did("scontrol requeue")


def _drained(stage: Stage, planned: Planned) -> Did:
    name = chosen(stage.nodes(), planned.pick)
    words = ("scontrol", "update", f"nodename={name}", "state=drain", f"reason={DRAIN_REASON}")
    if stage.site.ask(*words) is None:
        raise Missed("scontrol failed")
    stage.drained[name] = DRAIN_REASON
    return Did(f"an admin drains {name}")


def _pending(stage: Stage) -> None:
    state = stage.site.job(stage.job_id).get("JobState")
    if state != "PENDING":
        raise Missed(f"the job is {state}")


def _job_held(stage: Stage, planned: Planned) -> Did:
    _pending(stage)
    if stage.site.ask("scontrol", "hold", stage.job_id) is None:
        raise Missed("scontrol hold failed")
    stage.attempts_when_held = len(stage.training.attempts)

    def release() -> None:
        stage.check_held()
        stage.attempts_when_held = None
        stage.site.slurm("scontrol", "release", stage.job_id)

    return Did("an admin holds the job", release)


def _priority(stage: Stage, planned: Planned) -> Did:
    _pending(stage)
    if stage.site.ask("scontrol", "update", f"jobid={stage.job_id}", f"priority={PRIORITY}") is None:
        raise Missed("scontrol failed")
    stage.priority = PRIORITY
    return Did(f"an admin gives the job the priority {PRIORITY}")


def _preempted(stage: Stage, planned: Planned) -> Did:
    count = len(stage.nodes())
    if not count:
        raise Missed("the job has no nodes")
    words = ("sbatch", "--parsable", "-p", "high", "-N4", "--gpus-per-node=8", "-o", "/dev/null", "--wrap", "sleep 2")
    if (urgent := stage.site.ask(*words)) is None:
        raise Missed("sbatch failed")
    return Did(f"job {urgent.strip()} preempts it", lambda: stage.site.ask("scancel", urgent.strip()))


def _flag(stage: Stage, name: str) -> Did:
    try:
        (stage.folder / name).touch(exist_ok=False)
    except FileExistsError:
        raise Missed(f"{name} is there already") from None
    return Did(f"the training finds the file {name}")


def _black_hole(stage: Stage, planned: Planned) -> Did:
    return _flag(stage, "black.node1")  # Slurm gives an idle cluster's first node to the next job


DEEDS: dict[Fault, Callable[[Stage, Planned], Did]] = {
    Fault.NODE_KILLED: _node_killed,
    Fault.BATCH_HOST_KILLED: lambda stage, planned: _node_killed(stage, planned, is_host=True),
    Fault.NODE_FROZEN: _node_frozen,
    Fault.BATCH_HOST_FROZEN: lambda stage, planned: _node_frozen(stage, planned, is_host=True),
    Fault.NODE_CUT: _node_cut,
    Fault.RANK_KILLED: lambda stage, planned: _rank(stage, planned, signal.SIGKILL),
    Fault.RANK_FROZEN: lambda stage, planned: _rank(stage, planned, signal.SIGSTOP),
    Fault.SRUN_KILLED: _srun_killed,
    Fault.AGENT_KILLED: lambda stage, planned: _agent(stage, planned, signal.SIGKILL),
    Fault.AGENT_FROZEN: lambda stage, planned: _agent(stage, planned, signal.SIGSTOP),
    Fault.HEAD_KILLED: lambda stage, planned: _head(stage, planned, signal.SIGKILL),
    Fault.HEAD_FROZEN: lambda stage, planned: _head(stage, planned, signal.SIGSTOP),
    Fault.CTLD_KILLED: _ctld_killed,
    Fault.CTLD_STOPPED: _ctld_stopped,
    Fault.DBD_KILLED: _dbd_killed,
    Fault.DBD_STOPPED: _dbd_stopped,
    Fault.CHECKPOINT_TORN: lambda stage, planned: _damaged(stage, planned, _tear),
    Fault.CHECKPOINT_FLIPPED: lambda stage, planned: _damaged(stage, planned, _flip),
    Fault.DISK_FULL: _disk_full,
    Fault.CANCELLED: _cancelled,
    Fault.SCANCELLED: _scancelled,
    Fault.REQUEUED: _requeued,
    Fault.DRAINED: _drained,
    Fault.JOB_HELD: _job_held,
    Fault.PRIORITY: _priority,
    Fault.PREEMPTED: _preempted,
    Fault.BLACK_HOLE: _black_hole,
    Fault.CRASH_LOOP: lambda stage, planned: _flag(stage, "crash"),
    Fault.CONFIGURATION: lambda stage, planned: _flag(stage, "config"),
    Fault.NAN_ONCE: lambda stage, planned: _flag(stage, "nan-once"),
    Fault.NAN_ALWAYS: lambda stage, planned: _flag(stage, "nan"),
    Fault.HANG: lambda stage, planned: _flag(stage, "hang-once"),
}
