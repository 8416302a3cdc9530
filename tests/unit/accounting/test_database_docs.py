"""docs/database.md is that of this code."""

from __future__ import annotations

import re
from pathlib import Path

from fleetctl.accounting import mishaps
from fleetctl.accounting.database import _LOCAL, _WAIT_S
from fleetctl.accounting.tables import metadata

PAGE = (Path(__file__).parents[3] / "docs" / "database.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_table_has_its_line() -> None:
    assert re.findall(r"^\| `(\w+)` \| \S", section("Tables"), re.M) == [*metadata.tables]


def test_the_words_of_mishaps_are_those_of_the_code() -> None:
    said = {words for words, _ in (*mishaps._SQLITE.values(), *mishaps._POSTGRES.values())}
    quoted = re.findall(r"`((?:is|cannot be|went) [^`]*)`", section("When something goes wrong"))
    assert len(quoted) >= 8
    assert {*quoted} - said == {"cannot be reached"}
    assert f"waited for {_WAIT_S:.0f} s" in PAGE


def test_what_is_called_a_network_file_system_is_not_among_the_local_ones() -> None:
    assert not {"nfs", "nfs4", "lustre", "gpfs", "ceph", "fuse", "cifs", "9p"} & _LOCAL
