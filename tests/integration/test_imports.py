"""What a command may import: seconds add up on a login node."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "sqlalchemy",
    "paramiko",
    "httpx",
    "numpy",
    "jinja2",
    "rich",
    "ClusterShell",
    "yaml",
    "msgspec",
    "fleetctl.slurm",
)


@pytest.mark.parametrize(
    ("args", "allowed"),
    [
        (["--help"], ()),
        (["--version"], ()),
        (["submit", "--help"], ()),
        (["submit", "train.yaml", "--dry-run"], ("jinja2", "yaml", "msgspec", "fleetctl.slurm")),
        (["ls"], ("msgspec", "fleetctl.slurm")),
    ],
)
def test_a_command_imports_only_what_it_needs(args: list[str], allowed: tuple[str, ...]) -> None:
    code = (
        f"import sys; from fleetctl.cli.app import run; run({args!r}); print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    environ = {"PATH": "/nonexistent", "HOME": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    loaded = set(done.stderr.splitlines())
    assert "click" in loaded
    assert not [name for name in HEAVY if name in loaded and name not in allowed]
