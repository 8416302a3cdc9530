"""A private PostgreSQL for tests, and fresh databases of both kinds. Use it by
`from tests.databases import database, fresh_database, postgres  # noqa: F401` in a conftest.

The server listens on a Unix socket alone, in a short folder of its own, so any number of test processes run at once,
and neither Debian's own service nor what it holds matters.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleetctl.accounting.database import open_database
from tests.support import wait_until

KINDS = ("sqlite", "postgres")
_OWNER = "postgres"  # PostgreSQL refuses to run as root; Debian's package brings this user
# Nothing of a test has to outlive a power cut
_QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
_numbers = itertools.count(1)

FreshDatabase = Callable[[str], str]


class Postgres:
    """One server, from `initdb` to its end, in `folder`. `settings` are those of postgresql.conf, `name=value`."""

    def __init__(self, folder: Path, settings: Sequence[str] = _QUICK) -> None:
        self.folder = folder
        self.owner = _OWNER if os.geteuid() == 0 else os.geteuid()
        self._settings = (*settings, "listen_addresses=", f"unix_socket_directories={folder}", "max_connections=40")
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            shutil.chown(folder, _OWNER)
        folder.chmod(0o755)
        self._run("initdb", "--auth=trust", f"--username={_OWNER}", "--no-sync", "--encoding=UTF8", "--locale=C", "-D")

    def start(self) -> None:
        """Returns once it answers. It ends with the test process, however that ends."""
        options = [word for setting in self._settings for word in ("-c", setting)]
        with (self.folder / "log").open("ab") as log:
            command = [*_as_owner("--pdeathsig=INT"), _program("postgres"), "-D", str(self._data), *options]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
        wait_until(self._answers, f"PostgreSQL answers; see {self.folder}/log")

    def stop(self, signal: str = "INT") -> None:
        """INT: its clients are cut off, and it ends in order. QUIT: as after a power cut."""
        if self._process is not None:
            subprocess.run(["kill", f"-{signal}", str(self._process.pid)], check=True)
            self._process.wait(timeout=60)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def url(self, database: str = _OWNER) -> str:
        return f"postgresql://{_OWNER}@/{database}?host={self.folder}"

    def sql(self, statement: str) -> None:
        """One statement of an administrator, in no transaction."""
        self._client(statement)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        command = [_program("pg_isready"), "-q", "-h", str(self.folder), "-U", _OWNER]
        return subprocess.run(command, check=False).returncode == 0

    def _client(self, statement: str) -> None:
        options = ["--no-psqlrc", "-q", "-h", str(self.folder), "-U", _OWNER, "-v", "ON_ERROR_STOP=1"]
        subprocess.run([_program("psql"), *options, "-c", statement], check=True)

    def _run(self, name: str, *options: str) -> None:
        command = [*_as_owner(), _program(name), *options, str(self._data)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")


@contextmanager
def private_postgres(settings: Sequence[str] = _QUICK) -> Iterator[Postgres]:
    """A server of one's own, to be stopped and broken."""
    folder = Path(tempfile.mkdtemp(prefix="fc-pg-", dir="/tmp"))  # the path of a Unix socket has 107 bytes
    server = Postgres(folder, settings)
    try:
        server.start()
        yield server
    finally:
        server.stop("QUIT")
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The server that all tests of this process share. Leave it running."""
    with private_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def fresh_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FreshDatabase:
    """`fresh_database("sqlite" | "postgres")`: the URL of a new, empty database with the newest schema."""
    made: dict[str, Callable[[], str]] = {}

    def fresh(kind: str) -> str:
        if kind not in made:
            if kind == "sqlite":
                made[kind] = _sqlite(tmp_path_factory.mktemp("databases"))
            else:
                made[kind] = _copies(request.getfixturevalue("postgres"))
        return made[kind]()

    return fresh


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, fresh_database: FreshDatabase) -> str:
    """The URL of a fresh database, of each kind in turn."""
    return fresh_database(request.param)


_HOLD = """
import sys
from fleetctl.accounting.database import connect, database_url, one_sync
with one_sync(connect(database_url({}, sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(url: str) -> subprocess.Popen[str]:
    """Another process in the middle of a sync of this database, until it is killed or its stdin ends."""
    pipe = subprocess.PIPE
    holder = subprocess.Popen([sys.executable, "-c", _HOLD, url], stdin=pipe, stdout=pipe, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def _sqlite(folder: Path) -> Callable[[], str]:
    model = folder / "model.db"
    _make(f"sqlite:///{model}")

    def copy() -> str:
        path = folder / f"{next(_numbers)}.db"
        shutil.copyfile(model, path)
        return f"sqlite:///{path}"

    return copy


def _copies(server: Postgres) -> Callable[[], str]:
    server.sql("CREATE DATABASE model")
    _make(server.url("model"))

    def copy() -> str:
        name = f"t{next(_numbers)}"
        server.sql(f"CREATE DATABASE {name} TEMPLATE model STRATEGY file_copy")
        return server.url(name)

    return copy


def _make(url: str) -> None:
    """The newest schema, by the road that users take."""
    open_database(url, create=True).dispose()


def _as_owner(*options: str) -> list[str]:
    """setpriv (util-linux) with these options, and as PostgreSQL's user where we are root."""
    user = [f"--reuid={_OWNER}", f"--regid={_OWNER}", "--init-groups"] if os.geteuid() == 0 else []
    return ["setpriv", *user, *options] if user or options else []


def _program(name: str) -> str:
    """A program of PostgreSQL; Debian keeps the server's outside PATH, by version."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return str(found[-1]) if found else name
