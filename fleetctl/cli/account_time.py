"""What people write for a moment (`2026-11`, `7d`, `yesterday`), and how moments are shown: given a zone and now."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, tzinfo

from fleetctl.accounting.usage import midnight
from fleetctl.units import Duration

FORMS = "2026-11-05, 2026-11-05T14:30, 2026-11-05T14:30Z, 2026-11, 7d, today, yesterday, this-month, last-month or now"

_DAY = r"(\d{4})-(\d{2})(?:-(\d{2}))?"
_MOMENT = r"(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2})(:\d{2})?(Z|[+-]\d{2}:?\d{2})?"
_YEARS = range(1970, 9999)  # what every zone can show


def moment(text: str, zone: tzinfo, now: datetime) -> int:
    """Seconds since the epoch of the start of what `text` names; what has no offset is a time of `zone`.

    A duration is that much before `now`, in hours that have passed: where clocks were changed `1d` is not yesterday.

    :raises ValueError: says what was expected; also for a time that `zone` skipped or had twice.
    """
    text = text.strip()
    today = now.astimezone(zone).date()
    if text == "now":
        return int(now.timestamp())
    if (day := _named_day(text, today)) is not None:
        return midnight(day, zone)
    if match := re.fullmatch(_MOMENT, text, re.ASCII):
        return _written(match, zone)
    try:
        return int(now.timestamp()) - Duration.parse(text).seconds
    except ValueError:
        raise ValueError(f"a moment such as {FORMS}") from None


def _named_day(text: str, today: date) -> date | None:
    first = today.replace(day=1)
    named = {
        "today": today,
        "yesterday": today - timedelta(days=1),
        "this-month": first,
        "last-month": (first - timedelta(days=1)).replace(day=1),
    }
    if text in named:
        return named[text]
    match = re.fullmatch(_DAY, text, re.ASCII)
    if match is None:
        return None
    try:
        day = date(int(match[1]), int(match[2]), int(match[3] or 1))
    except ValueError as error:
        raise ValueError(f"a day that there is: {error}") from None
    if day.year not in _YEARS:
        raise ValueError(f"a year from {_YEARS.start} to {_YEARS.stop - 1}")
    return day


def _written(match: re.Match[str], zone: tzinfo) -> int:
    try:
        naive = datetime.fromisoformat(f"{match[1]}T{match[2]}{match[3] or ':00'}")
        offset = datetime.fromisoformat(match[0].replace(" ", "T")).tzinfo
    except ValueError as error:
        raise ValueError(f"a moment that there is: {error}") from None
    if naive.year not in _YEARS:
        raise ValueError(f"a year from {_YEARS.start} to {_YEARS.stop - 1}")
    if offset is not None:
        return int(naive.replace(tzinfo=offset).timestamp())
    first, second = naive.replace(tzinfo=zone), naive.replace(tzinfo=zone, fold=1)
    if first.utcoffset() == second.utcoffset():
        return int(first.timestamp())
    if datetime.fromtimestamp(first.timestamp(), zone).replace(tzinfo=None) == naive:
        raise ValueError(f"one moment: clocks show this twice, as {first.isoformat()} and {second.isoformat()}")
    raise ValueError(f"a moment that there was in {zone}: clocks skipped this one")


def shown(at_s: int, zone: tzinfo) -> str:
    """`2026-11-02 01:30:00`, with its offset where the clocks of `zone` show this twice."""
    at = datetime.fromtimestamp(at_s, zone)
    twice = at.replace(fold=0).utcoffset() != at.replace(fold=1).utcoffset()
    return at.isoformat(sep=" ") if twice else at.strftime("%Y-%m-%d %H:%M:%S")


def iso(at_s: int, zone: tzinfo = UTC) -> str:
    """ISO 8601 with its offset; `Z` for UTC."""
    text = datetime.fromtimestamp(at_s, zone).isoformat()
    return f"{text.removesuffix('+00:00')}Z" if zone is UTC else text
