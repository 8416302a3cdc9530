"""Alembic's environment: on the connection that fleetctl gives, else on the database of FLEETCTL_DATABASE."""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import Connection

from fleetctl.accounting.database import connect, database_url
from fleetctl.accounting.tables import metadata


def migrate(connection: Connection) -> None:
    """In the caller's transaction: all revisions that are asked for, or none."""
    context.configure(connection=connection, target_metadata=metadata)
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    migrate(given)
else:
    engine = connect(database_url(os.environ, None), create=True)
    try:
        with engine.begin() as own:
            migrate(own)
    finally:
        engine.dispose()
