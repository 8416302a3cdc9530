"""A real Slurm for tests: one sandbox that all share, and private ones for tests that break things."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from fleetctl.clock import SystemClock
from fleetctl.sandbox import cluster
from fleetctl.sandbox.cluster import Sandbox
from fleetctl.sandbox.model import SandboxConfig


class MakeSandbox(Protocol):
    """Starts a sandbox of one's own; it is taken down after the test."""

    def __call__(self, config: SandboxConfig | None = None, *, directory: Path | None = None) -> Sandbox: ...


def short_dir() -> Path:
    """Short enough for Unix sockets (pytest's tmp_path is not), and open to other users."""
    directory = Path(tempfile.mkdtemp(prefix="fc-", dir="/tmp"))
    directory.chmod(0o755)
    return directory


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """4 nodes with 8 fake GPUs each. Leave it as you found it; to kill or freeze, use make_sandbox."""
    directory = short_dir()
    started = cluster.up(
        SandboxConfig(nodes=4, gpus=8), directory, SystemClock()
    )  # raises, with the remedy, without Slurm
    try:
        yield started
    finally:
        cluster.down(directory, SystemClock())
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def slurm_env(sandbox: Sandbox) -> dict[str, str]:
    """Our environment with SLURM_CONF of the shared sandbox and no other Slurm variable."""
    return sandbox.environment(os.environ)


@pytest.fixture
def make_sandbox() -> Iterator[MakeSandbox]:
    """`make_sandbox(SandboxConfig(nodes=2))`: a private sandbox, ready."""
    directories: list[Path] = []

    def make(config: SandboxConfig | None = None, *, directory: Path | None = None) -> Sandbox:
        directories.append(directory or short_dir())
        return cluster.up(config or SandboxConfig(), directories[-1], SystemClock())

    yield make
    for directory in directories:
        cluster.down(directory, SystemClock())
        shutil.rmtree(directory, ignore_errors=True)
