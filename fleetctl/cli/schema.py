"""`fleetctl schema`: what an editor needs to check a train.yaml."""

from __future__ import annotations

import click

from fleetctl.cli.output import json_option, print_json


@click.command("schema")
@click.option("--table", is_flag=True, help="Print every field as a Markdown table instead.")
@json_option
def command(table: bool, as_json: bool) -> None:
    """Print the JSON Schema of train.yaml.

    Editors complete and check fields with it. Example:

    \b
      fleetctl schema > train.schema.json

    and as the first line of train.yaml:

    \b
      # yaml-language-server: $schema=train.schema.json
    """
    from fleetctl.spec.schema import field_table, json_schema

    if table and not as_json:
        click.echo(field_table(), nl=False)
    else:
        print_json(json_schema())
