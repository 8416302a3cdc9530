"""What a duration or size prints is read back as the same."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.units import Duration, MemorySize

_SECONDS = st.integers(0, 86_400 * 999_999_999)


@settings(deadline=None)
@given(_SECONDS)
def test_a_duration_round_trips_in_both_forms(seconds: int) -> None:
    value = Duration(seconds)
    assert Duration.parse(str(value)) == value
    assert Duration.parse(value.slurm()) == value


@settings(deadline=None)
@given(_SECONDS, _SECONDS)
def test_durations_are_ordered_by_length(one: int, other: int) -> None:
    assert (Duration(one) < Duration(other)) == (one < other)


@settings(deadline=None)
@given(st.integers(0, 999_999_999), st.sampled_from("KMGT"))
def test_a_memory_size_round_trips(count: int, unit: str) -> None:
    value = MemorySize.parse(f"{count}{unit}")
    assert MemorySize.parse(str(value)) == value


@settings(deadline=None)
@given(st.text())
def test_any_text_is_read_or_refused_with_what_was_expected(text: str) -> None:
    assert _refusal(Duration.parse, text).startswith("a duration")
    assert _refusal(MemorySize.parse, text).startswith("a memory size")


def _refusal(parse: Callable[[str], object], text: str) -> str:
    """The words of the refusal, or the kind of value in such words."""
    try:
        return {"Duration": "a duration", "MemorySize": "a memory size"}[type(parse(text)).__name__]
    except ValueError as error:
        return str(error)
