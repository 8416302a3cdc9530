"""How rows of accounting are printed, and what an answer says of itself."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from datetime import UTC, tzinfo
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from fleetctl.accounting.model import Window
from fleetctl.accounting.read_state import State
from fleetctl.cli.account_options import Form
from fleetctl.cli.account_print import About, Cluster, Column, Unit, about, head_line, print_rows

T0 = 1_793_491_200  # 2026-11-01 00:00:00 UTC
COLUMNS = (
    Column("account", "ACCOUNT"),
    Column("gpu_seconds", "", Unit.NUMBER),
    Column("gpu_hours", "GPU-HOURS", Unit.HOURS),
    Column("share", "SHARE", Unit.SHARE),
    Column("amount", "AMOUNT", Unit.MONEY),
    Column("held_s", "HELD", Unit.SECONDS),
    Column("at", "AT", Unit.TIME),
    Column("words", "WORDS", Unit.WORDS),
)
ROWS: tuple[tuple[object, ...], ...] = (
    ("a", Fraction(7200), Fraction(2), 0.25, Fraction(1, 8), 3661, T0, ("x", "y")),
    (None, None, None, None, None, None, None, None),
)
ABOUT = About(Window(T0, T0 + 60), ZoneInfo("Europe/Berlin"), T0 + 90, T0 + 30, (Cluster(1, "lab"),), 0)

Capture = pytest.CaptureFixture[str]


def test_json_has_the_window_the_age_and_numbers_as_numbers(capsys: Capture) -> None:
    print_rows(COLUMNS, iter(ROWS), Form.JSON, replace(ABOUT, notes=("a gap",), definition="what it is"), ROWS[0])

    found = json.loads(capsys.readouterr().out)
    row = {
        "account": "a",
        "gpu_seconds": 7200,
        "gpu_hours": 2,
        "share": 0.25,
        "amount": 0.125,
        "held_s": 3661,
        "at": "2026-11-01T00:00:00Z",
        "words": ["x", "y"],
    }
    assert found == {
        "since": "2026-11-01T00:00:00Z",
        "until": "2026-11-01T00:01:00Z",
        "as_of": "2026-11-01T00:00:30Z",
        "age_s": 60,
        "time_zone": "Europe/Berlin",
        "clusters": ["lab"],
        "quarantined": 0,
        "notes": ["a gap"],
        "definition": "what it is",
        "total": row,
        "rows": [row, dict.fromkeys(row)],
    }


def test_json_without_rows_or_window_is_whole(capsys: Capture) -> None:
    print_rows(COLUMNS, (), Form.JSON, replace(ABOUT, window=None, as_of_s=None))

    found = json.loads(capsys.readouterr().out)
    assert (found["since"], found["until"], found["as_of"], found["age_s"], found["rows"]) == (None,) * 4 + ([],)
    assert "definition" not in found


def test_a_piped_table_has_tabs_and_says_on_stderr_what_it_is_about(capsys: Capture) -> None:
    about_it = replace(ABOUT, notes=("a gap",), definition="what it is", quarantined=3)
    print_rows(COLUMNS, ROWS, Form.TABLE, about_it, ROWS[0])

    out, err = capsys.readouterr()
    assert [line.split("\t") for line in out.splitlines()] == [
        ["ACCOUNT", "GPU-HOURS", "SHARE", "AMOUNT", "HELD", "AT", "WORDS"],
        ["a", "2.00", "25.0%", "0.12", "1h1m1s", "2026-11-01 01:00:00", "x y"],
        ["-", "-", "-", "-", "-", "-", "-"],
    ]
    assert err.splitlines() == [
        "Europe/Berlin: 2026-11-01 01:00:00 to 2026-11-01 01:01:00; data as of 2026-11-01 01:00:30, 1m old; "
        "3 rows in quarantine",
        "what it is",
        "a gap",
    ]


def test_csv_has_the_rows_alone_on_stdout_and_offsets_in_its_times(capsys: Capture) -> None:
    print_rows(COLUMNS, ROWS, Form.CSV, ABOUT, ROWS[0])

    out, err = capsys.readouterr()
    assert list(csv.reader(io.StringIO(out))) == [
        ["account", "gpu_seconds", "gpu_hours", "share", "amount", "held_s", "at", "words"],
        ["a", "7200", "2", "0.25", "0.125", "3661", "2026-11-01T01:00:00+01:00", "x y"],
        [""] * 8,
    ]
    assert err.startswith("Europe/Berlin: 2026-11-01 01:00:00 to ")


@pytest.mark.parametrize("form", [Form.CSV, Form.JSON, Form.TABLE])
def test_rows_are_written_as_they_come(form: Form, capsys: Capture) -> None:
    def rows() -> Iterator[tuple[object, ...]]:
        yield ("first",)
        assert "first" in capsys.readouterr().out
        yield ("second",)

    print_rows((Column("name", "NAME"),), rows(), form, ABOUT)
    assert "second" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\uff1d1"])
def test_a_text_that_a_spreadsheet_would_compute_is_kept_a_text(text: str, capsys: Capture) -> None:
    print_rows((Column("name", "NAME"), Column("n", "N", Unit.NUMBER)), [(text, -1)], Form.CSV, ABOUT)

    name, number = next(csv.reader(io.StringIO(capsys.readouterr().out.split("\n", 1)[1])))
    assert name.startswith(("'", "\\"))
    assert number == "-1"  # a number of ours stays one


@pytest.mark.parametrize(("value", "wanted"), [(math.inf, "Infinity"), (-math.inf, "-Infinity"), (math.nan, None)])
def test_what_json_has_no_number_for_is_a_word_or_null(value: float, wanted: str | None, capsys: Capture) -> None:
    print_rows((Column("n", "N", Unit.NUMBER),), [(value,)], Form.JSON, ABOUT)
    assert json.loads(capsys.readouterr().out)["rows"] == [{"n": wanted}]


@pytest.mark.parametrize(
    ("amount", "wanted"),
    [
        (Fraction(5, 1000), "0.00"),
        (Fraction(15, 1000), "0.02"),
        (Fraction(-5, 1000), "0.00"),
        (Fraction(12345678901234567890, 100), "123456789012345678.90"),
        (Fraction(0), "0.00"),
    ],
)
def test_money_is_rounded_half_to_even_and_has_no_other_error(amount: Fraction, wanted: str, capsys: Capture) -> None:
    print_rows((Column("amount", "AMOUNT", Unit.MONEY),), [(amount,)], Form.TABLE, ABOUT)
    assert capsys.readouterr().out.splitlines()[1].lstrip("-") == wanted


def state(**values: object) -> State:
    usual = {"cluster_id": 1, "cluster": "lab", "from_s": 0, "to_s": T0, "synced_s": T0, "waiting": 0}
    return State(**{**usual, "sees_all": True, "quarantined": 0, **values})  # type: ignore[arg-type]


def test_the_oldest_cluster_tells_the_age_and_quarantines_add_up() -> None:
    found = about([state(quarantined=2), state(synced_s=T0 - 60, quarantined=1)], Window(0, 1), UTC, T0)
    assert (found.as_of_s, found.quarantined, found.notes) == (T0 - 60, 3, ())
    assert head_line(found).endswith("1m old; 3 rows in quarantine")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"from_s": None, "synced_s": None}, "no sync has ended yet"),
        ({"from_s": T0}, "records that ended before 2026-11-01 00:00:00 were not read"),
        ({"sees_all": False}, "only their own jobs"),
        ({"waiting": 5}, "5 records have not reached slurmdbd yet"),
        ({"to_s": T0 - 30}, "records after 2026-10-31 23:59:30 may be missing"),
    ],
)
def test_what_is_missing_is_said(values: dict[str, object], words: str) -> None:
    found = about([state(**values)], Window(T0 - 60, T0), UTC, T0)
    assert [words in note for note in found.notes] == [True]


@pytest.mark.parametrize(("until_s", "synced_s"), [(T0 - 30, T0), (T0, T0 - 30)])
def test_what_was_not_yet_to_be_read_is_not_missing(until_s: int, synced_s: int) -> None:
    assert about([state(to_s=T0 - 30, synced_s=synced_s)], Window(T0 - 60, until_s), UTC, T0).notes == ()


def test_an_age_is_not_made_up_where_one_cluster_was_never_synced() -> None:
    found = about([state(), state(synced_s=None, from_s=None)], Window(T0, T0 + 1), UTC, T0)
    assert found.as_of_s is None
    assert "no sync has ended yet" in head_line(found)


@pytest.mark.parametrize(("zone", "name"), [(UTC, "UTC"), (ZoneInfo("America/New_York"), "America/New_York")], ids=str)
def test_the_zone_is_named(zone: tzinfo, name: str) -> None:
    assert head_line(replace(ABOUT, zone=zone)).startswith(f"{name}: ")


def test_on_a_terminal_the_head_line_stands_above_the_table(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")

    print_rows(COLUMNS, ROWS, Form.TABLE, ABOUT)

    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith("Europe/Berlin: ")
    assert err == ""


def test_a_narrow_terminal_cuts_no_number_and_no_time_apart_and_shows_the_total(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    columns = (Column("job", "JOB", Unit.ID), Column("user", "USER"), *COLUMNS[2:7])
    row = ("1234567_[1-10]", "u" * 30, *ROWS[0][2:7])

    print_rows(columns, [row], Form.TABLE, ABOUT, (None, None, *ROWS[0][2:7]))

    lines = capsys.readouterr().out.splitlines()[2:]
    wanted = ["1234567_[1-10]", "u" * 8, "2.00", "25.0%", "0.12", "1h1m1s", "2026-11-01", "01:00:00"]
    assert lines[0].split() == wanted
    assert [line.split() for line in lines[1:4]] == [["u" * 8], ["u" * 8], ["u" * 6]]
    assert lines[4].split() == ["total", "-", *wanted[2:]]
