"""Reads the stand-in NVML as the prolog does: in a child, so that each read loads a library of its own."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from fleetctl.health.apart import Done, Task, run_apart
from fleetctl.health.model import Answer, Gpu, Nvml, Phase
from fleetctl.health.nvml import Wanted, read_nvml
from fleetctl.health.wire import from_wire, to_wire
from tests.nvml.scenario import Node, Paths

LONG_S = 30.0


def apart(wanted: Wanted, deadline_s: float = LONG_S, stuck: Path | None = None) -> Done:
    tasks = [Task("nvml", lambda: to_wire(read_nvml(wanted)), deadline_s)]
    return run_apart(tasks, stuck=stuck, monotonic=time.monotonic)["nvml"]


def read(paths: Paths, phase: Phase = Phase.PROLOG, **wanted: Any) -> Nvml:
    done = apart(Wanted(phase, library=str(paths.library), **wanted))
    assert done.answer is Answer.ANSWERED, done.detail
    told = from_wire(Nvml, done.value)
    assert isinstance(told, Nvml)
    return told


def calls_of(paths: Paths) -> Counter[int]:
    """How many calls each GPU got, by index."""
    lines = [line.split() for line in paths.calls.read_text().splitlines()]
    return Counter(int(gpu) for name, gpu in lines if gpu != "-" and name != "nvmlDeviceGetP2PStatus")


def one(folder: Path, node: Node, phase: Phase = Phase.PROLOG, index: int = 3, **wanted: Any) -> Gpu:
    return read(node.write(folder), phase, **wanted).gpus[index]
