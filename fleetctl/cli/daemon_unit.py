"""`fleetctl daemon unit`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

_PLACEHOLDER = "@FLEETCTL@"


@click.command("unit")
@click.option("--operator", is_flag=True, help="For the whole cluster, as a service of the machine.")
def command(operator: bool) -> None:
    """Print a unit of systemd that runs this fleetctl as a daemon: of your own runs, or of the cluster.

    That of the cluster observes only, until you add --act to its ExecStart.

    \b
    Example:
      fleetctl daemon unit > ~/.config/systemd/user/fleetctl-daemon.service
      fleetctl daemon unit --operator > /etc/systemd/system/fleetctl-daemon.service
    """
    click.echo(unit_text(operator, Path(sys.executable).parent / "fleetctl"), nl=False)


def unit_text(operator: bool, program: Path) -> str:
    """The unit with the program's path, quoted as systemd.service.5 wants it."""
    from fleetctl.assets import asset_dir

    name = "fleetctl-daemon.service" if operator else "fleetctl-daemon-user.service"
    path = str(program).replace("%", "%%").replace("$", "$$").replace("\\", "\\\\").replace('"', '\\"')
    text = (asset_dir("templates") / name).read_text(encoding="utf-8")
    return text.replace(_PLACEHOLDER, f'"{path}"' if path != str(program) or " " in path else path)
