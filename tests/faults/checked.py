"""A sandbox whose slurmd run the installed node checks, on hardware that the tests describe."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleetctl.ops.bundle import make_bundle
from fleetctl.ops.far_side import install
from fleetctl.sandbox.cluster import Sandbox
from fleetctl.sandbox.model import SandboxConfig
from tests.integration.conftest import MakeSandbox
from tests.nvml.scenario import Node, Paths, site_settings
from tests.support import Cli, wait_until, write_spec

SPEC = """\
name: checked
resources: {{nodes: {nodes}, gpus_per_node: {gpus}, time: 10m}}
recovery: {{requeue: true}}
command: {command}
"""


class Checked:
    """Nodes with this hardware, the installed checks as Prolog, Epilog and HealthCheckProgram, and Slurm's word."""

    def __init__(self, folder: Path, nodes: list[Node]) -> None:
        self.folder = folder
        self.paths: dict[str, Paths] = {node.name: node.write(folder / "nvml") for node in nodes}

    def start(
        self,
        make_sandbox: MakeSandbox,
        site: Mapping[str, Any],
        *,
        profile: bytes | None = None,
        look_every_s: int = 0,
    ) -> None:
        """Install the checks as `fleetctl node install` does on each host, and start Slurm with its lines."""
        directory = self.folder / "slurm"
        directory.mkdir()
        whole = {**site_settings(self.folder / "nvml"), "slurm_conf": str(directory / "etc" / "slurm.conf"), **site}
        bundle = make_bundle(sys.executable, json.dumps(whole).encode(), profile)
        prefix = self.folder / "fleetctl"
        prefix.mkdir()
        install(str(prefix), bundle.digest, bundle.packed, sys.executable, 3)
        current = prefix / "current"
        settings = [
            ("Prolog", f"{current}/prolog/fleetctl-prolog.sh"),
            ("Epilog", f"{current}/epilog/fleetctl-epilog.sh"),
            ("PrologEpilogTimeout", "60"),
            ("BatchStartTimeout", "60"),  # dozens of nodes share this machine
            ("SchedulerParameters", "bf_interval=1,sched_interval=1,batch_sched_delay=0,nohold_on_prolog_fail"),
        ]
        if look_every_s:
            settings += [
                ("HealthCheckProgram", f"{current}/prolog/fleetctl-periodic.sh"),
                ("HealthCheckInterval", str(look_every_s)),
                ("HealthCheckNodeState", "ANY,CYCLE"),
            ]
        config = SandboxConfig(nodes=len(self.paths), gpus=8, settings=tuple(settings))
        self.sandbox: Sandbox = make_sandbox(config, directory=directory)
        self.cli = Cli(self.sandbox.environment(os.environ), self.folder / "runs")

    def change(self, node: Node) -> None:
        """The hardware of a node is like this from now on."""
        node.write(self.folder / "nvml")

    def submit(self, command: str, *, nodes: int = 1, gpus: int = 8, again: bool = False) -> dict[str, str]:
        text = SPEC.format(nodes=nodes, gpus=gpus, command=command)
        words = ["--again"] if again else []
        answer: dict[str, str] = self.cli.json("submit", str(write_spec(self.folder, text)), *words)
        return answer

    def node(self, name: str) -> str:
        return self.cli.slurm("scontrol", "show", "node", name)

    def states(self) -> dict[str, str]:
        """Node -> Slurm's state of it."""
        lines = self.cli.slurm("scontrol", "--oneliner", "show", "nodes").splitlines()
        return {line.split()[0].partition("=")[2]: re.findall(r" State=(\S+)", line)[0] for line in lines}

    def drained(self) -> dict[str, str]:
        """Node -> why, of each that takes no jobs; without who said so and when."""
        names = [name for name, state in self.states().items() if "DRAIN" in state]
        return {name: re.findall(r"Reason=(.*) \[[^\[]*$", self.node(name), re.M)[0] for name in names}

    def job(self, job_id: str, what: str) -> str:
        text = self.cli.slurm("scontrol", "show", "job", job_id, "--oneliner")
        return str(re.findall(rf"(?:^| ){what}=(\S*)", text)[0])

    def spool(self, name: str) -> list[dict[str, Any]]:
        """What the node itself wrote down, the oldest first."""
        path = self.folder / "nvml" / "nodes" / name / "spool" / "verdicts.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def phases(self, name: str) -> list[str]:
        return [str(verdict["phase"]) for verdict in self.spool(name)]

    def await_state(self, name: str, state: str, within_s: float = 60) -> None:
        wait_until(lambda: self.states()[name] == state, f"{name} is {state}", within_s)


def word_of(verdicts: list[dict[str, Any]]) -> str:
    """For the message of a failed assertion."""
    return "\n".join(f"{one['phase']} {one['decision']} {one['reason']} {one['findings']}" for one in verdicts[-4:])
