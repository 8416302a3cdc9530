"""What a prolog costs a job: the installed checks, as Slurm starts them, on a stand-in node of eight GPUs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from fleetctl.ops import far_side
from fleetctl.ops.bundle import make_bundle
from tests.bench import tree_cost
from tests.bench.measure import Row, alternate
from tests.nvml.scenario import Node, healthy, read_calls, site_settings

_PYTHON = os.path.realpath(sys.executable)
_NODE = "n1"
_JOB = {"SLURMD_NODENAME": _NODE, "SLURM_JOB_ID": "42", "SLURM_JOB_UID": "4242", "SLURM_JOB_GPUS": "0-7"}
_WHAT = "prolog, 8 GPUs, 18 links, 8 ports"
_MOST_TIMES, _MOST_MIB = 8.0, 64.0
_DEADLINE_S, _LATE_S = 3.0, 0.5


class Cost(NamedTuple):
    """Of a program with all its children, those that it abandoned included; `left` counts those. `said`: on stderr."""

    status: int
    wall_ms: float
    cpu_ms: float
    peak_mib: float
    left: int
    said: str


def cost_of(argv: list[str], environ: Mapping[str, str]) -> Cost:
    measured = [_PYTHON, "-I", "-S", str(Path(tree_cost.__file__)), *argv]
    done = subprocess.run(measured, env=environ, capture_output=True, text=True, check=True, timeout=120)
    return Cost(**json.loads(done.stdout), said=done.stderr)


@contextmanager
def installed(node: Node, **settings: Any) -> Iterator[str]:
    """The path of the prolog's script, installed as `fleetctl node install` does it, for this stand-in node."""
    place = Path(tempfile.mkdtemp(prefix="fb-", dir="/tmp"))
    try:
        paths = node.write(place)
        assert not read_calls(paths)
        paths.calls.unlink()  # counting them would be part of the cost
        site = {
            **site_settings(place),
            "limits": {"shm_free_share": 0},
            "scontrol": str(place / "scontrol"),
            **settings,
        }
        (place / "scontrol").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
        (place / "scontrol").chmod(0o755)
        bundle = make_bundle(_PYTHON, json.dumps(site).encode())
        far_side.install(str(place / "opt"), bundle.digest, bundle.packed, _PYTHON, 1)
        yield str(place / "opt" / "current" / "prolog" / "fleetctl-prolog.sh")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def rows() -> list[Row]:
    node = healthy("h100-sxm", _NODE)
    assert (len(node.gpus), len(node.gpu(0).links), sum(len(card.ports) for card in node.cards)) == (8, 18, 8)
    with installed(node) as prolog, tempfile.TemporaryDirectory(prefix="fb-", dir="/tmp") as folder:
        # Without packages: what an installation's .pth files do at each start is no measure
        venv.create(folder, with_pip=False)
        bare = [f"{folder}/bin/python", "-I", "-c", "pass"]
        peaks: list[float] = []

        def ours() -> float:
            cost = cost_of([prolog], _JOB)
            assert (cost.status, cost.left, cost.said) == (0, 0, ""), cost
            peaks.append(cost.peak_mib)
            return cost.cpu_ms

        peer, cpu_ms = alternate(lambda: cost_of(bare, {}).cpu_ms, ours, 15)
    return [
        Row(_WHAT, "python -I -c pass, no packages", peer, cpu_ms, _MOST_TIMES),
        Row("the same, its largest process in MiB", "the limit of the issue", _MOST_MIB, max(peaks), 1.0),
        _hung(),
    ]


def _hung() -> Row:
    """NVML and scontrol both hang, which is the worst case."""
    node = healthy("h100-sxm", _NODE)
    node.hangs("nvmlInitWithFlags", uninterruptibly=True)
    with installed(node, deadline_s=_DEADLINE_S) as prolog:
        costs = [cost_of([prolog], _JOB) for _ in range(3)]
    assert all(cost.status == 1 and "NVML did not answer" in cost.said for cost in costs), costs
    limit_ms = 1000 * (_DEADLINE_S + _LATE_S)
    return Row(
        "prolog, NVML hangs, wall clock", "its deadline + 0.5 s", limit_ms, median(c.wall_ms for c in costs), 1.0
    )


def main() -> int:
    """These rows alone: `python -m tests.bench.node_checks`."""
    from tests.bench.measure import table

    found = rows()
    print(table(found))
    return 0 if all(row.holds for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
