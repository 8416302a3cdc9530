"""The real libraries, in a virtual environment that `./dev test` makes: fleetctl itself never needs them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import make_sandbox, sandbox, slurm_env
from tests.support import ROOT

__all__ = ["make_sandbox", "sandbox", "slurm_env"]

MakeReal = Callable[..., str]
_TIMEOUT_S = 300


@pytest.fixture(scope="session")
def real_python() -> Path:
    """The interpreter that has torch and the others."""
    python = ROOT / ".venv-real" / "bin" / "python"
    assert python.exists(), "run it by ./dev test, which makes .venv-real"
    return python


@pytest.fixture(scope="session")
def make_real(real_python: Path) -> MakeReal:
    """Run a script of this folder with arguments; returns what it prints. One that fails fails the test."""

    def run(script: str, *arguments: str | Path) -> str:
        argv = [str(real_python), str(Path(__file__).parent / script), *map(str, arguments)]
        environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environ)
        assert done.returncode == 0, f"{script}: {done.stderr[-4000:]}"
        return done.stdout

    return run
