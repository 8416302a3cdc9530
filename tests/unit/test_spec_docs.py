"""docs/spec.md is in step with the code. To mend its table, paste what `fleetctl schema --table` prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fleetctl.errors import SpecError
from fleetctl.spec.compose import MAX_DEPTH, MAX_REPEATED
from fleetctl.spec.load import load_spec
from fleetctl.spec.rules import MAX_ELEMENTS
from fleetctl.spec.schema import field_table

PAGE = (Path(__file__).parents[2] / "docs" / "spec.md").read_text(encoding="utf-8")


def test_the_table_is_that_of_the_model() -> None:
    match = re.search(r"<!-- fields: [^\n]*-->\n(.*)<!-- end of fields -->", PAGE, re.DOTALL)
    assert match
    assert match[1] == field_table()


def test_the_example_loads() -> None:
    match = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert match
    assert load_spec(match[1], "train.yaml").recovery.chain


def test_the_limits_are_those_of_the_code() -> None:
    assert f"{MAX_DEPTH} levels, {MAX_REPEATED} repeated values" in PAGE
    assert f"{MAX_ELEMENTS} combinations" in PAGE


def test_the_printed_problems_are_real() -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(
            "name: a\nresources:\n  nodes: two\n  gpus_per_nod: 8\n  time: 4:00:00\ncommand: b\n",
            "train.yaml",
        )
    assert "\n".join(caught.value.problems) in PAGE
