"""--since, --until and the time zone: what people write, and which seconds that is."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import click
import pytest

from fleetctl.accounting.database import open_database
from fleetctl.accounting.model import Window
from fleetctl.accounting.usage import By, calendar
from fleetctl.cli.account_options import Asked, Place, reading, window_of, zone_of
from fleetctl.cli.account_time import iso, moment, shown
from fleetctl.cli.app import run
from fleetctl.cli.context import App
from fleetctl.errors import UsageError
from tests.accounting_books import Clock
from tests.accounting_rows import writing

NOW = datetime(2026, 11, 30, 19, 18, 20, tzinfo=UTC)
NEW_YORK, BERLIN = ZoneInfo("America/New_York"), ZoneInfo("Europe/Berlin")
HAVANA, BEIRUT = ZoneInfo("America/Havana"), ZoneInfo("Asia/Beirut")


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


@pytest.mark.parametrize(
    ("text", "zone", "wanted"),
    [
        ("now", UTC, "2026-11-30T19:18:20Z"),
        ("today", UTC, "2026-11-30T00:00Z"),
        ("today", ZoneInfo("Pacific/Auckland"), "2026-12-01T00:00+13:00"),
        ("yesterday", BERLIN, "2026-11-29T00:00+01:00"),
        ("this-month", BERLIN, "2026-11-01T00:00+01:00"),
        ("last-month", BERLIN, "2026-10-01T00:00+02:00"),
        ("2026-11", NEW_YORK, "2026-11-01T00:00-04:00"),
        ("2026-11-02", NEW_YORK, "2026-11-02T00:00-05:00"),
        ("2026-11-02T14:30", NEW_YORK, "2026-11-02T14:30-05:00"),
        ("2026-11-02 14:30:05", BERLIN, "2026-11-02T14:30:05+01:00"),
        ("2026-11-02T14:30Z", NEW_YORK, "2026-11-02T14:30Z"),
        ("2026-11-02T14:30+0530", NEW_YORK, "2026-11-02T14:30+05:30"),
        ("2025-11-02T01:30-05:00", NEW_YORK, "2025-11-02T01:30-05:00"),
        ("7d", NEW_YORK, "2026-11-23T19:18:20Z"),
        ("90m", UTC, "2026-11-30T17:48:20Z"),
        ("2026-11-01", HAVANA, "2026-11-01T00:00-04:00"),  # midnight comes twice: the first
        ("2026-03-29", BEIRUT, "2026-03-29T01:00+03:00"),  # midnight never comes
    ],
)
def test_a_moment_is_the_start_of_what_it_names(text: str, zone: tzinfo, wanted: str) -> None:
    assert moment(text, zone, NOW) == seconds(wanted)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2025-11-02T01:30", "clocks show this twice, as 2025-11-02T01:30:00-04:00 and 2025-11-02T01:30:00-05:00"),
        ("2026-03-08T02:30", "clocks skipped this one"),
        ("2026-02-30", "a day that there is"),
        ("2026-13", "a day that there is"),
        ("2026-11-05T25:00", "a moment that there is"),
        ("0001-01-01", "a year from 1970"),
        ("9999-12-31T00:00", "a year from 1970 to 9998"),
        ("tomorrow", "a moment such as"),
        ("7", "a moment such as"),
        ("", "a moment such as"),
        ("2026-11-05x", "a moment such as"),
        ("202\u0666-11-05", "a moment such as"),
    ],
)
def test_what_is_no_moment_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        moment(text, NEW_YORK, NOW)


def test_days_are_those_of_the_calendar() -> None:
    since = moment("2025-11-01", NEW_YORK, NOW)
    days = calendar(Window(since, moment("2025-11-04", NEW_YORK, NOW)), NEW_YORK, (By.DAY,))

    assert days.names == ("2025-11-01", "2025-11-02", "2025-11-03")
    hours = [(after - before) // 3600 for before, after in zip(days.starts, days.starts[1:], strict=False)]
    assert hours == [24, 25, 24]


def test_months_begin_before_the_window_and_end_after_it() -> None:
    since, until = moment("2025-12-24", BERLIN, NOW), moment("2026-02-01T00:00:01", BERLIN, NOW)

    months = calendar(Window(since, until), BERLIN, (By.MONTH,))

    assert months.names == ("2025-12", "2026-01", "2026-02")
    assert months.starts == tuple(moment(name, BERLIN, NOW) for name in ("2025-12", "2026-01", "2026-02", "2026-03"))


def test_a_moment_that_clocks_show_twice_is_shown_with_its_offset() -> None:
    first = seconds("2025-11-02T01:30-04:00")
    assert [shown(first, NEW_YORK), shown(first + 3600, NEW_YORK), shown(first + 7200, NEW_YORK)] == [
        "2025-11-02 01:30:00-04:00",
        "2025-11-02 01:30:00-05:00",
        "2025-11-02 02:30:00",
    ]
    assert (iso(first), iso(first, NEW_YORK)) == ("2025-11-02T05:30:00Z", "2025-11-02T01:30:00-04:00")


def window(since: str | None, until: str | None, environ: dict[str, str], *, utc: bool = False) -> Window:
    edges = App(Clock(int(NOW.timestamp())), environ, Path("/"), Path("/runs"))
    with click.Context(click.Command("x"), obj=edges):
        return window_of(Asked(since, until, utc))


def test_without_options_the_window_is_this_month_of_the_local_zone() -> None:
    until = int(NOW.timestamp())
    assert window(None, None, {"TZ": "Europe/Berlin"}) == Window(seconds("2026-11-01T00:00+01:00"), until)
    assert window(None, None, {"TZ": ":Europe/Berlin"}, utc=True) == Window(seconds("2026-11-01T00:00Z"), until)


@pytest.mark.parametrize(("since", "until"), [("2026-11-02", "2026-11-02"), ("today", "yesterday")])
def test_an_empty_window_is_refused(since: str, until: str) -> None:
    with pytest.raises(UsageError, match="the window is empty"):
        window(since, until, {"TZ": "UTC"})


def test_what_cannot_be_read_names_its_option() -> None:
    with pytest.raises(UsageError, match=r"--until soon: expected a moment such as"):
        window(None, "soon", {"TZ": "UTC"})


def test_a_time_zone_that_is_not_known_is_refused_and_never_taken_for_another() -> None:
    for name in ("Mars/Olympus", "../etc/passwd", "\0"):
        edges = App(Clock(int(NOW.timestamp())), {"TZ": name}, Path("/"), Path("/runs"))
        with click.Context(click.Command("x"), obj=edges):
            with pytest.raises(UsageError, match="no time zone known here"):
                zone_of(Asked(None, None, False))
            assert zone_of(Asked(None, None, True)) is UTC


def test_without_tz_the_zone_is_that_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "localtime"
    monkeypatch.setattr("fleetctl.cli.account_options._LOCALTIME", str(link))
    with click.Context(click.Command("x"), obj=App(Clock(), {}, Path("/"), Path("/runs"))):
        assert zone_of(Asked(None, None, False)) is UTC  # there is none
        link.symlink_to("/usr/share/zoneinfo/Europe/Berlin")
        zone = zone_of(Asked(None, None, False))
    assert str(zone) == "Europe/Berlin"
    assert moment("2026-11-01", zone, NOW) == moment("2026-11-01", BERLIN, NOW)


def test_gaps_are_those_of_the_window_that_is_counted(tmp_path: Path) -> None:
    url, now_s = f"sqlite:///{tmp_path}/a.db", int(NOW.timestamp())
    open_database(url, create=True).dispose()
    with writing(url) as rows:
        rows.add_cluster("young", from_s=now_s - 9, to_s=now_s, synced_s=now_s)
    edges = App(Clock(now_s), {"TZ": "UTC"}, Path("/"), Path("/runs"))
    for counted, missing in ((None, True), (Window(now_s - 9, now_s), False), (Window(now_s - 10, now_s), True)):
        read = reading(Place(url, False), ("young",), Asked(None, None, True), counted)
        with click.Context(click.Command("x"), obj=edges), read as (_, about):
            assert any("were not read" in words for words in about.notes) is missing
            assert counted in (None, about.window)


def test_json_and_csv_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["account", "usage", "--json", "--csv"]) == 2
    assert "exclude each other" in capsys.readouterr().err
