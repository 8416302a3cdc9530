"""`checkpoint.tell: arguments`: what the job side appends reaches the program through every bash on the way."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fleetctl.render.steps import Style, step_words
from fleetctl.spec.model import (
    Checkpoint,
    CheckpointFormat,
    CheckpointTell,
    Container,
    ContainerRuntime,
    Launcher,
    Spec,
)

HOSTILE = ["a b", "it's", '"$HOME" $(touch x) `y`', "*", "", "\n", "-n", "\\"]
SHOW = "import sys; print(sys.argv[1:])"


@pytest.mark.parametrize("contained", [False, True])
@pytest.mark.parametrize("launch", [Launcher.SRUN, Launcher.COMMAND])
@pytest.mark.parametrize("program", [("python3", "-c", SHOW, "first"), f'python3 -c "{SHOW}" first "$@"'])
def test_appended_words_reach_the_command_as_they_are(
    launch: Launcher, program: str | tuple[str, ...], contained: bool
) -> None:
    told = Checkpoint(dir="c", format=CheckpointFormat.LIGHTNING, tell=CheckpointTell.ARGUMENTS)
    container = Container(image="i", runtime=ContainerRuntime.APPTAINER) if contained else None
    spec = Spec(name="n", command=program, launch=launch, checkpoint=told, container=container)
    ((_, _, words),) = step_words(spec, (), Style())
    first = "bash" if "bash" in words else "python3"
    argv = [*words[words.index(first) :], *HOSTILE]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == f"{['first', *HOSTILE]}\n"


@pytest.mark.parametrize("program", [("train.py", "first"), 'train.py first "$@"'])
def test_appended_words_reach_a_program_of_torchrun(program: str | tuple[str, ...], tmp_path: Path) -> None:
    told = Checkpoint(dir="c", format=CheckpointFormat.LIGHTNING, tell=CheckpointTell.ARGUMENTS)
    ((_, _, words),) = step_words(
        Spec(name="n", command=program, launch=Launcher.TORCHRUN, checkpoint=told), (), Style()
    )
    (tmp_path / "torchrun").write_text(f"#!/bin/bash\nexec python3 -c '{SHOW}' \"${{@:6}}\"\n")
    (tmp_path / "torchrun").chmod(0o755)
    names = dict.fromkeys(("MASTER_ADDR", "MASTER_PORT", "FLEETCTL_RUN_ID", "FLEETCTL_ATTEMPT"), "x")
    argv = [*words[words.index("bash") :], *HOSTILE]
    env = {**names, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=env)
    assert done.stdout == f"{['train.py', 'first', *HOSTILE]}\n"
