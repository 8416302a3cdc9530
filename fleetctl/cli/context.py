"""What every command is given: the edges of the world, so that tests can pass their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from pathlib import Path

    from fleetctl.clock import Clock


class App(NamedTuple):
    """The process's edges. `environ` is what the user's shell gave; `runs_root` holds one folder per run."""

    clock: Clock
    environ: Mapping[str, str]
    cwd: Path
    runs_root: Path
    debug: bool = False


def app() -> App:
    """The App of the command that is running."""
    found = click.get_current_context().find_object(App)
    assert found is not None, "fleetctl.cli.app.main sets it"
    return found
