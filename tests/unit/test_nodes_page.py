"""docs/nodes.md says what the code says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fleetctl.health.service import Back
from fleetctl.health.site import _KEYS, Budget, Site, parse_site
from fleetctl.ops.install_plan import Outcome
from fleetctl.ops.slurm_lines import slurm_lines

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "nodes.md").read_text()
ROWS = [
    (re.findall(r"`(\w+)`", cells[0]), cells[1], cells[2])
    for line in PAGE.partition("| key | default | meaning |")[2].partition("\n\n")[0].splitlines()[2:]
    if (cells := line.strip("|").split(" | "))
]
DEFAULTS = {key: text.strip() for keys, text, _ in ROWS for key in keys}


def test_every_key_of_the_site_file_is_described_once() -> None:
    assert sorted(key for keys, _, _ in ROWS for key in keys) == sorted(_KEYS)
    assert all(meaning.strip() for _, _, meaning in ROWS)


@pytest.mark.parametrize(("key", "part"), [("budget", Budget), ("back", Back)])
def test_the_parts_of_a_key_are_all_shown(key: str, part: Any) -> None:
    shown = next(json.loads(re.findall(r"`({.*})`", meaning)[0]) for keys, _, meaning in ROWS if key in keys)
    assert set(shown) == set(part._fields)
    if key == "back":
        assert part(**shown) == part()  # "these" are the defaults


@pytest.mark.parametrize("key", ["deadline_s", "slurm_wait_s", "folder", "stuck", "scontrol", "tmp", "xid_window_s"])
def test_the_defaults_are_those_of_the_code(key: str) -> None:
    default = getattr(Site(), key)
    assert DEFAULTS[key] == (
        f"{default:g}"
        if isinstance(default, float)
        else str(default if isinstance(default, str) else json.dumps(default))
    )


def test_its_examples_are_understood() -> None:
    for example in re.findall(r"^\| `(\w+)` .*?`({.*})`", PAGE.partition("| key | default")[2], re.M):
        assert parse_site(json.dumps({example[0]: json.loads(example[1])}), "n1").complaints == ()


def test_its_lines_for_slurm_conf_are_the_printed_ones() -> None:
    assert "```\n" + "".join(f"{line.text}\n" for line in slurm_lines("/opt/fleetctl")) + "```\n" in PAGE


def test_every_outcome_of_an_install_is_in_the_reference() -> None:
    row = next(
        line for line in (DOCS / "json.md").read_text().splitlines() if line.startswith("| `outcome` | text | `i")
    )
    assert re.findall(r"`(\w+)`", row)[1:] == [outcome.value for outcome in Outcome]
