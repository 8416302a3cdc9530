"""The import contracts hold, and each of them notices a violation: a contract that cannot fail protects nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import BIN, ROOT


def linted(folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    argv = [str(BIN / "lint-imports"), "--no-cache"]
    return subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "fleetctl", tmp_path / "fleetctl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_hold(copy: Path) -> None:
    done = linted(copy)
    assert done.returncode == 0, done.stdout
    assert "Contracts: 5 kept, 0 broken." in done.stdout


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("slurm/parse.py", "import fleetctl.submission.submit", "layers point downwards"),
        ("submission/decide.py", "import fleetctl.launch.model", "layers point downwards"),
        ("utils.py", "", "utils"),
        ("submission/decide.py", "import time", "decisions do no I/O"),
        ("render.py", "import fleetctl.rundir.store", "decisions do no I/O"),
        ("cli/ls.py", "import fleetctl.slurm.text", "only slurm/connect.py names a Slurm transport"),
        ("train/progress.py", "import yaml", "what runs in a container or a prolog stays light"),
        ("health/phases.py", "import paramiko", "node checks import nothing but themselves"),
        ("health/phases.py", "import fleetctl.errors", "node checks import nothing but themselves"),
        ("health/judge.py", "import os", "decisions do no I/O"),
        ("accounting/ledger.py", "import sqlalchemy", "decisions do no I/O"),
        ("accounting/sync.py", "import fleetctl.launch.model", "layers point downwards"),
        ("accounting/sync.py", "import fleetctl.slurm.text_books", "only slurm/connect.py names a Slurm transport"),
    ],
)
def test_a_violation_is_noticed(copy: Path, module: str, line: str, broken: str) -> None:
    with open(copy / "fleetctl" / module, "a") as file:
        file.write(f"\n{line}\n")
    done = linted(copy)
    assert done.returncode != 0
    assert broken in done.stdout + done.stderr
