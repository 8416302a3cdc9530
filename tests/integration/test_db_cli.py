"""`fleetctl db` as its user starts it."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fleetctl.accounting.database import HEAD
from tests.databases import Postgres, hold, postgres
from tests.support import ROOT, Cli

__all__ = ["postgres"]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli({"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, tmp_path / "runs")


def test_a_database_is_made_where_users_keep_their_state(cli: Cli, tmp_path: Path) -> None:
    path = str(tmp_path / ".local/state/fleetctl/accounting.db")
    missing = cli("db", "current")
    assert (missing.returncode, missing.stdout) == (16, "")
    assert missing.stderr.splitlines() == [
        f"fleetctl: there is no accounting database at {path}",
        "  `fleetctl account sync` or `fleetctl daemon run` makes and fills it",
    ]
    made = cli.json("db", "upgrade")
    assert made == {"database": path, "before": None, "after": HEAD, "backup": None}
    assert cli.json("db", "upgrade") == {**made, "before": HEAD}
    assert cli.json("db", "current") == {"database": path, "revision": HEAD, "needed": HEAD}
    assert cli.json("db", "check") == {"database": path, "wrong": []}
    for name in ("upgrade", "current", "check"):  # Alembic prints nothing of its own
        done = cli("db", name)
        assert done.stderr == ("all is well\n" if name == "check" else "")
        assert done.stdout.splitlines()[0] == f"database  {path}"


def test_what_is_wrong_is_an_exit_code(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    cli.json("db", "upgrade", FLEETCTL_DATABASE=str(path))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP INDEX ix_run_jobs_job")
    done = cli("db", "check", "--database", str(path))
    assert done.returncode == 1
    assert "wrong     index run_jobs: ix_run_jobs_job is missing" in done.stdout.splitlines()


def test_postgres_by_url(cli: Cli, postgres: Postgres) -> None:
    postgres.sql("CREATE DATABASE by_url")
    url = postgres.url("by_url").replace("postgres@", "postgres:secret@")
    name = "postgresql://postgres@/by_url"
    assert cli.json("db", "current", "--database", url) == {"database": name, "revision": None, "needed": HEAD}
    assert cli("db", "check", "--database", url).returncode == 1
    made = cli.json("db", "upgrade", "--database", url)
    assert made == {"database": name, "before": None, "after": HEAD, "backup": None}
    assert cli.json("db", "check", FLEETCTL_DATABASE=url) == {"database": name, "wrong": []}


def test_an_upgrade_beside_a_sync_says_so(cli: Cli, tmp_path: Path) -> None:
    path = str(tmp_path / "x.db")
    cli.json("db", "upgrade", "--database", path)
    with hold(path) as holder:
        busy = cli("db", "upgrade", "--database", path)
        holder.communicate()
    assert busy.returncode == 16
    assert busy.stderr.startswith(f"fleetctl: another sync or upgrade of {path} is under way")


def test_an_installed_wheel_brings_the_schema_along(tmp_path: Path) -> None:
    """Laid out as pyproject.toml's force-include lays it out, and never written to."""
    place = tmp_path / "site-packages"
    bare = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "fleetctl", place / "fleetctl", ignore=bare)
    shutil.copytree(ROOT / "db", place / "fleetctl/_assets/db", ignore=bare)
    code = (
        "import fleetctl, sys; print(fleetctl.__file__); from fleetctl.cli.app import run; sys.exit(run(sys.argv[1:]))"
    )
    command = [sys.executable, "-P", "-c", code, "db", "upgrade", "--database", str(tmp_path / "x.db")]
    environ = {"PYTHONPATH": str(place), "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == f"{place}/fleetctl/__init__.py"
    assert (tmp_path / "x.db").exists()
    assert not [*place.rglob("__pycache__")]


@pytest.mark.parametrize("name", ["upgrade", "current", "check"])
def test_help_imports_no_database(name: str) -> None:
    code = f"import sys; from fleetctl.cli.app import run; run(['db', {name!r}, '--help']); print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"sqlalchemy", "alembic", "psycopg"} & {*said.splitlines()[-1].split()}
