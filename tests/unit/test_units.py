"""Durations and memory sizes: what is read, what is refused and in which words."""

from __future__ import annotations

import pytest

from fleetctl.units import Duration, MemorySize


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", 5400),
        ("4h30m", 16_200),
        ("1d12h", 129_600),
        ("1d2h3m4s", 93_784),
        ("0s", 0),
        (" 10m ", 600),
        ("4:00:00", 14_400),
        ("04:00:00", 14_400),
        ("0:00:30", 30),
        ("100:00:00", 360_000),
        ("2-00:00:00", 172_800),
        ("2-12", 216_000),
        ("2-12:30", 217_800),
    ],
)
def test_a_duration_is_read_in_each_form_of_one_meaning(text: str, seconds: int) -> None:
    assert Duration.parse(text) == Duration(seconds)


_ANY = "a duration such as 90m, 4h30m, 1d12h, 4:00:00 or 2-00:00:00"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("60", "a duration with a unit, such as 60m or 60h"),
        ("12:30", "a duration of one meaning: 0:12:30 (minutes:seconds) or 12:30:00 (hours:minutes)"),
        ("", _ANY),
        ("4 h", _ANY),
        ("-1h", _ANY),
        ("30m4h", _ANY),
        ("1.5h", _ANY),
        ("4:60:00", _ANY),
        ("4:00:60", _ANY),
        ("2-12:60", _ANY),
        ("unlimited", _ANY),
        ("\u0664h", _ANY),  # a digit to str.isdigit, not to Slurm
        ("9" * 5000 + "h", _ANY),  # int() would refuse it in words of its own
        ("1" * 10 + "d", _ANY),
    ],
)
def test_any_other_duration_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=r"^a duration") as caught:
        Duration.parse(text)
    assert str(caught.value) == expected


def test_a_duration_prints_its_shortest_worded_form_and_slurms() -> None:
    assert [str(Duration(seconds)) for seconds in (0, 90, 3600, 129_600)] == ["0s", "1m30s", "1h", "1d12h"]
    assert Duration(129_661).slurm() == "1-12:01:01"


@pytest.mark.parametrize(
    ("text", "kib"),
    [
        ("64G", 64 * 1024**2),
        ("512M", 512 * 1024),
        ("1024K", 1024),
        ("2T", 2 * 1024**3),
        ("64GB", 64 * 1024**2),
        ("1gib", 1024**2),
    ],
)
def test_a_memory_size_is_in_powers_of_1024(text: str, kib: int) -> None:
    assert MemorySize.parse(text) == MemorySize(kib)


@pytest.mark.parametrize("text", ["64", "", "G", "1.5G", "-1G", "64 G", "64P", "64iB", "9" * 5000 + "G", "\u0664G"])
def test_any_other_memory_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^a memory size with a unit, such as 64G or 512M$"):
        MemorySize.parse(text)


def test_a_memory_size_prints_the_largest_unit_that_is_exact() -> None:
    assert [str(MemorySize(kib)) for kib in (0, 1, 1536, 2048, 64 * 1024**2)] == ["0K", "1K", "1536K", "2M", "64G"]
