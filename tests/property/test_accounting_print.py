"""Whatever users call their jobs, a cell is one cell, and no spreadsheet or terminal acts on it."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from datetime import UTC

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.cli.account_options import Form
from fleetctl.cli.account_print import About, Column, Unit, csv_cell, print_rows

_COLUMNS = (Column("name", "NAME"), Column("words", "WORDS", Unit.WORDS), Column("number", "NUMBER", Unit.NUMBER))
_ABOUT = About(None, UTC, 0, 0, (), 0)
_STARTS = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
texts = st.text(st.characters() | st.sampled_from([*_STARTS, '"', ",", ";", "\n", "'", "\0", "\x1b", "\udcff"]))
rows = st.lists(st.tuples(texts, st.lists(texts), st.none() | st.integers()), max_size=4)


@given(texts | st.sampled_from(_STARTS).flatmap(lambda start: texts.map(lambda text: start + text)))
def test_no_text_begins_as_a_formula(text: str) -> None:
    cell = csv_cell(text, Unit.TEXT)
    assert isinstance(cell, str)
    assert not cell.startswith(_STARTS)
    assert cell == "" or cell.isprintable()


@given(rows)
def test_csv_keeps_its_rows_and_columns(wanted: list[tuple[object, ...]]) -> None:
    found = list(csv.reader(io.StringIO(printed(wanted, Form.CSV))))
    assert [len(row) for row in found] == [3] * (len(wanted) + 1)
    assert all(cell == "" or cell.isprintable() for row in found for cell in row)
    assert [row[2] for row in found[1:]] == ["" if row[2] is None else str(row[2]) for row in wanted]


@given(rows)
def test_a_piped_table_keeps_its_rows_and_columns(wanted: list[tuple[object, ...]]) -> None:
    lines = printed(wanted, Form.TABLE).split("\n")
    assert [len(line.split("\t")) for line in lines[:-1]] == [3] * (len(wanted) + 1)
    assert all(char.isprintable() for line in lines for cell in line.split("\t") for char in cell)


@given(rows)
def test_json_says_it_as_it_is(wanted: list[tuple[object, ...]]) -> None:
    out = printed(wanted, Form.JSON)
    assert out.isascii()
    assert [[row["name"], row["words"], row["number"]] for row in json.loads(out)["rows"]] == [
        list(row) for row in wanted
    ]


def printed(wanted: list[tuple[object, ...]], form: Form) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        print_rows(_COLUMNS, wanted, form, _ABOUT)
    return out.getvalue()
