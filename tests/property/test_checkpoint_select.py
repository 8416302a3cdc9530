"""What is chosen never depends on the order of a listing, never lies behind the fence, and is never nothing where
something was."""

from __future__ import annotations

import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.checkpoint import select
from fleetctl.checkpoint.model import Checked, Entry, Fence, Level, Load, Outcome, Validity, suspects
from fleetctl.train import layout

NUMBERS = st.tuples(st.integers(0, 3), st.integers(0, 2))
COMMITTED = st.builds(
    lambda step, run, attempt: layout.committed_name(step, run, f"{attempt[0]}.{attempt[1]}"),
    st.integers(0, 5),
    st.sampled_from(["run-a", "run-b"]),
    NUMBERS,
)
FOREIGN = st.text(max_size=8) | st.sampled_from(["step-1", ".staging", "step-000000001@run-a@1.0@1", "latest"])
NAMES = st.lists(COMMITTED | FOREIGN, max_size=12)
FENCES = st.builds(Fence, st.just("run-a"), st.frozensets(COMMITTED, max_size=4), st.none() | NUMBERS, st.booleans())
STEPS = st.none() | st.integers(0, 5)
VERDICTS = st.tuples(st.sampled_from(list(Validity)), st.sampled_from(list(Level)))


def behind(entry: Entry, fence: Fence) -> bool:
    """The rule of the contract, in other words."""
    if fence.everything or entry.name in fence.stands:
        return False
    return entry.run_id != fence.run_id or fence.since is None or entry.attempt < fence.since


@given(names=NAMES, fence=FENCES, step=STEPS)
def test_nothing_behind_the_fence_is_acceptable_and_nothing_is_lost(
    names: list[str], fence: Fence, step: int | None
) -> None:
    entries, passed = select.acceptable(names, fence, step)
    assert not [entry for entry in entries if behind(entry, fence)]
    assert not [entry for entry in entries if step is not None and entry.training_step > step]
    assert {entry.name for entry in entries} | {one.name for one in passed} == set(names) - {".staging"} | fence.stands
    assert not {entry.name for entry in entries} & {one.name for one in passed}
    assert select.standing(names, fence, step) == tuple(entry.name for entry in entries)
    assert [e.training_step for e in entries] == sorted((e.training_step for e in entries), reverse=True)


@given(names=NAMES, fence=FENCES, step=STEPS, seed=st.integers())
def test_the_order_of_a_listing_is_nothing(names: list[str], fence: Fence, step: int | None, seed: int) -> None:
    shuffled = names + names[:3]
    random.Random(seed).shuffle(shuffled)
    assert select.acceptable(names, fence, step) == select.acceptable(shuffled, fence, step)


@given(names=NAMES, fence=FENCES, newer=NUMBERS, late=NAMES)
def test_a_late_commit_of_an_older_attempt_stays_behind_all_later_claims(
    names: list[str], fence: Fence, newer: tuple[int, int], late: list[str]
) -> None:
    """Whatever appears after a claim, of an attempt older than it, never counts again."""
    claim = Fence("run-a", frozenset(select.standing(names, fence, None)), newer)
    after = select.standing([*names, *late], claim, None)
    for entry in select.acceptable([*names, *late], claim, None)[0]:
        assert entry.name in claim.stands or (entry.run_id == "run-a" and entry.attempt >= newer)
    again = Fence("run-a", frozenset(after), (newer[0] + 1, 0))
    assert set(select.standing([*names, *late], again, None)) <= set(after)


@given(
    entries=st.lists(COMMITTED, unique=True, max_size=6),
    verdicts=st.lists(VERDICTS, min_size=6, max_size=6),
    bad=st.frozensets(COMMITTED, max_size=4),
    once=st.booleans(),
    seed=st.integers(),
)
def test_what_is_decided(
    entries: list[str], verdicts: list[tuple[Validity, Level]], bad: frozenset[str], once: bool, seed: int
) -> None:
    known = select.acceptable(entries, Fence.open("run-a"), None)[0]
    seen = [Checked(e, e.name, v, level, "why") for e, (v, level) in zip(known, verdicts, strict=False)]
    choice = select.decide(seen, bad, once_valid=once)
    valid = [one for one in seen if one.validity is Validity.VALID]
    good = [one for one in valid if one.name not in bad]
    proved = [one for one in valid if one.name in bad and one.level is Level.CONTENT]
    if good or proved:
        assert (choice.outcome, choice.chosen) == (Outcome.RESUME, (good or proved)[0])
    else:
        assert choice.chosen is None
        assert choice.outcome is (Outcome.HOLD if once or seen else Outcome.SCRATCH)
    assert len(choice.passed_over) == len(seen) - (choice.chosen is not None)
    assert all(one.reason for one in choice.passed_over)
    shuffled = seen[:]
    random.Random(seed).shuffle(shuffled)
    assert select.decide(shuffled, bad, once_valid=once) == choice


LOADS = st.lists(
    st.builds(Load, NUMBERS, st.sampled_from(["a", "b"]), st.sampled_from(["loading", "loaded", "failed"])), max_size=8
)


@given(loads=LOADS, before=NUMBERS)
def test_the_newest_load_before_us_says_whether_it_is_a_suspect(loads: list[Load], before: tuple[int, int]) -> None:
    for name in ("a", "b"):
        tried = [load for load in loads if load.name == name and load.attempt < before]
        newest = max((load.attempt for load in tried), default=None)
        ill = any(load.attempt == newest and load.state != "loaded" for load in tried)
        assert (name in suspects(loads, before)) == ill
    assert suspects(reversed(loads), before) == suspects(loads, before)
    later = [msgspec.structs.replace(load, attempt=before) for load in loads]
    assert suspects(later, before) == frozenset()
