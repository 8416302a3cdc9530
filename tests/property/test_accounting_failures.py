"""However Slurm's records and the runs overlap: every interruption is counted once, whatever the windows."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fleetctl.accounting.causes import ENDED_WELL, Cause, Ranked
from fleetctl.accounting.failures import Interruption, Place, Tried, merge
from fleetctl.accounting.model import Window

_END_S = 1_000
_ALL = Window(0, _END_S)
jobs = st.tuples(st.just("lab"), st.integers(1, 3), st.none() | st.integers(0, 1))
causes = st.sampled_from([cause for cause in Cause if cause not in ENDED_WELL and cause is not Cause.GOING_ON])
_never = st.just(False)
ranked = st.lists(st.builds(Ranked, causes, st.just(""), st.sampled_from(["", "n1"])), max_size=2).map(tuple)


@st.composite
def records(draw: st.DrawFn, resized: st.SearchStrategy[bool] = _never) -> Place:
    """Its number is 0: a list of them has to count them."""
    submitted_s = draw(st.integers(0, 800))
    started_s = submitted_s + draw(st.integers(0, 50))
    ended_s = draw(st.none() | st.integers(started_s, started_s + 150))
    why = draw(ranked) if ended_s is not None else ()
    nodes = draw(st.frozensets(st.just("n1")))
    return Place(
        *(0, draw(jobs), submitted_s, started_s, ended_s, "ada", "lab", draw(st.sampled_from("pq"))),
        part=draw(st.none() | st.integers(0, 1)),
        resized=draw(resized),
        nodes=nodes,
        ranked=why,
    )


def counted(places: list[Place]) -> list[Place]:
    return [replace(place, record=number) for number, place in enumerate(places)]


@st.composite
def attempts(draw: st.DrawFn) -> list[Tried]:
    """Attempts of one run, all in one start of its job: each number once."""
    run = draw(st.integers(1, 3))
    ran_in = tuple(draw(st.lists(st.integers(0, 8), max_size=2)))
    numbers = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), max_size=4, unique=True))
    return [
        Tried(
            run=f"run {run}",
            task=-1,
            number=number,
            records=ran_in,
            finished=draw(st.booleans()),
            at_ms=draw(st.none() | st.integers(0, 999_999)),
            ranked=draw(ranked),
            by_person=draw(st.booleans()),
        )
        for number in numbers
    ]


def _flat(lists: list[list[Tried]]) -> list[Tried]:
    """Each attempt of a run once."""
    return list({(one.run, one.number): one for some in lists for one in some}.values())


inputs = st.tuples(
    st.lists(records(st.booleans()), max_size=8).map(counted), st.lists(attempts(), max_size=3).map(_flat)
)


@given(inputs, st.integers(0, _END_S))
def test_two_windows_that_meet_have_what_both_together_have(
    given_: tuple[list[Place], list[Tried]], cut_s: int
) -> None:
    places, tried = given_
    whole = merge(places, tried, _ALL)
    first, second = (merge(places, tried, part) for part in (Window(0, cut_s), Window(cut_s, _END_S)))

    assert Counter(whole.interruptions) == Counter(first.interruptions) + Counter(second.interruptions)
    assert whole.unplaced == first.unplaced + second.unplaced


@given(inputs, st.randoms(use_true_random=False))
def test_the_order_of_rows_in_the_database_means_nothing(
    given_: tuple[list[Place], list[Tried]], random: object
) -> None:
    places, tried = given_
    shuffled = [*places], [*tried]
    for rows in shuffled:
        random.shuffle(rows)  # type: ignore[attr-defined]

    assert merge(*shuffled, _ALL) == merge(places, tried, _ALL)


@given(inputs)
def test_each_end_of_a_job_and_each_attempt_is_counted_at_most_once(given_: tuple[list[Place], list[Tried]]) -> None:
    places, tried = given_
    found = merge(places, tried, Window(-10, 10**9)).interruptions
    starts = {(place.job, place.submitted_s) for place in places if place.ranked}
    of_runs = Counter(one.run for one in found if one.run is not None)

    assert sum(one.run is None for one in found) <= len(starts)
    assert all(count <= sum(one.run == run for one in tried) for run, count in of_runs.items())


@given(st.lists(records(), max_size=8).map(counted))
def test_without_runs_every_bad_end_of_a_start_counts(places: list[Place]) -> None:
    found: tuple[Interruption, ...] = merge(places, [], Window(-10, 10**9)).interruptions
    starts: dict[object, list[Place]] = {}
    for place in places:
        starts.setdefault((place.job, place.submitted_s), []).append(place)
    bad = [
        parts
        for parts in starts.values()
        if any(part.ranked for part in parts) and all(part.ended_s is not None for part in parts)
    ]

    assert len(found) == len(bad)
