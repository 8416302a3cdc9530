"""`fleetctl completion`."""

from __future__ import annotations

import click

from fleetctl.cli.output import json_option, print_json


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
def command(shell: str, as_json: bool) -> None:
    """Print what your shell must read for tab completion.

    \b
    Example:
      echo 'eval "$(fleetctl completion bash)"' >> ~/.bashrc
    """
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root()
    found = get_completion_class(shell)
    assert found is not None, "click knows the three shells of the choice above"
    source = found(root.command, {}, "fleetctl", "_FLEETCTL_COMPLETE").source()
    if as_json:
        print_json({"shell": shell, "script": source})
    else:
        click.echo(source)
