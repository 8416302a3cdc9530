"""What is chosen never depends on the order of a listing, never lies behind the fence, and is never nothing where
something was."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.checkpoint import select
from fleetctl.checkpoint.model import (
    Checked,
    Choice,
    Entry,
    Fence,
    Level,
    Load,
    Needs,
    Outcome,
    Survey,
    Validity,
    entry_of,
    suspects,
)
from fleetctl.checkpoint.resolve import resolve
from fleetctl.checkpoint.survey import survey_names
from fleetctl.train import layout

NUMBERS = st.tuples(st.integers(0, 3), st.integers(0, 2))
COMMITTED = st.builds(
    lambda step, run, attempt: layout.committed_name(step, run, f"{attempt[0]}.{attempt[1]}"),
    st.integers(0, 5),
    st.sampled_from(["run-a", "run-b"]),
    NUMBERS,
)
# As a framework names them: nothing says whose they are. Two kinds of name, so that two may have one training step
FRAMEWORK = st.builds(lambda kind, step: f"{kind}_{step}", st.sampled_from(["ours", "theirs"]), st.integers(0, 5))
FOREIGN = st.text(max_size=8) | st.sampled_from(["step-1", ".staging", "step-000000001@run-a@1.0@1", "latest"])
NAMES = st.lists(COMMITTED | FOREIGN, max_size=12)
STEPS = st.none() | st.integers(0, 5)
BOTH = COMMITTED | FRAMEWORK
FENCES = st.builds(
    Fence,
    st.just("run-a"),
    st.frozensets(BOTH, max_size=4),
    st.none() | NUMBERS,
    st.booleans(),
    st.frozensets(FRAMEWORK, max_size=4),
)


def entry(name: str) -> Entry:
    return entry_of(name) or Entry(name, int(name.rpartition("_")[2]))


SURVEYS = st.builds(
    lambda entries, foreign: Survey(tuple(map(entry, entries)), tuple(foreign)),
    st.lists(BOTH, unique=True, max_size=10),
    st.lists(st.sampled_from(["notes", "latest", "step-1"]), unique=True),
)


def shuffled(found: Survey, seed: int) -> Survey:
    entries, foreign = list(found.entries), list(found.foreign)
    random.Random(seed).shuffle(entries)
    random.Random(seed).shuffle(foreign)
    return Survey(tuple(entries), tuple(foreign))


def behind(entry: Entry, fence: Fence) -> bool:
    """The rule of the contract, in other words."""
    if fence.everything or entry.name in fence.stands:
        return False
    if fence.since is None:
        return True
    if entry.run_id == "":  # a framework's: all but what was there before the run
        return entry.name in fence.aside
    return entry.run_id != fence.run_id or entry.attempt < fence.since


@given(found=SURVEYS, fence=FENCES, step=STEPS)
def test_nothing_behind_the_fence_is_acceptable_and_nothing_is_lost(
    found: Survey, fence: Fence, step: int | None
) -> None:
    entries, passed = select.acceptable(found, fence, step)
    late = [entry for entry in found.entries if step is not None and entry.training_step > step]
    assert set(entries) == {entry for entry in found.entries if not behind(entry, fence) and entry not in late}
    names = {entry.name for entry in found.entries} | set(found.foreign)
    assert {entry.name for entry in entries} | {one.name for one in passed} == names | fence.stands
    assert not {entry.name for entry in entries} & {one.name for one in passed}
    assert all(one.reason and one.validity in (Validity.UNKNOWN, Validity.INCOMPLETE) for one in passed)
    assert select.standing(found, fence, step) == tuple(entry.name for entry in entries)
    assert [e.training_step for e in entries] == sorted((e.training_step for e in entries), reverse=True)


@given(names=NAMES, fence=FENCES, step=STEPS, seed=st.integers())
def test_the_order_of_a_listing_is_nothing(names: list[str], fence: Fence, step: int | None, seed: int) -> None:
    """Nor is a name that it shows twice."""
    again = names + names[:3]
    random.Random(seed).shuffle(again)
    assert select.acceptable(survey_names(names, "own"), fence, step) == select.acceptable(
        survey_names(again, "own"), fence, step
    )


@given(found=SURVEYS, fence=FENCES, step=STEPS, seed=st.integers())
def test_the_order_of_a_survey_is_nothing(found: Survey, fence: Fence, step: int | None, seed: int) -> None:
    assert select.acceptable(found, fence, step) == select.acceptable(shuffled(found, seed), fence, step)


@given(names=st.lists(BOTH, max_size=10), fence=FENCES, newer=NUMBERS, late=st.lists(BOTH, max_size=10))
def test_a_late_commit_of_an_older_attempt_stays_behind_all_later_claims(
    names: list[str], fence: Fence, newer: tuple[int, int], late: list[str]
) -> None:
    """Whatever appears after a claim, of an attempt older than it, never counts again. A framework's names say of no
    attempt: those count but what is aside."""
    before = Survey(tuple(entry(name) for name in dict.fromkeys(names)))
    after = Survey(tuple(entry(name) for name in dict.fromkeys([*names, *late])))
    aside = fence.aside
    claim = Fence("run-a", frozenset(select.standing(before, fence, None)), newer, aside=aside)
    stands = select.standing(after, claim, None)
    for one in select.acceptable(after, claim, None)[0]:
        own = one.run_id == "run-a" and one.attempt >= newer
        assert one.name in claim.stands or own or (not one.is_own and one.name not in aside)
    again = Fence("run-a", frozenset(stands), (newer[0] + 1, 0), aside=aside)
    assert set(select.standing(after, again, None)) <= set(stands)


@given(found=SURVEYS, fence=FENCES, aside=st.frozensets(FRAMEWORK, max_size=4))
def test_what_is_aside_and_stood_in_no_claim_is_never_taken(found: Survey, fence: Fence, aside: frozenset[str]) -> None:
    fence = Fence(fence.run_id, fence.stands, fence.since, aside=aside)
    assert not set(select.standing(found, fence, None)) & (aside - fence.stands)


# What is decided

VERDICTS = st.fixed_dictionaries(
    {
        "validity": st.just(Validity.VALID) | st.sampled_from(list(Validity)),
        "level": st.none() | st.sampled_from(list(Level)),
        "resumable": st.booleans(),
        "uncommitted": st.booleans(),
        "ranks": st.none() | st.integers(1, 2),
        "deepest": st.sampled_from([Level.STRUCTURE, Level.CONTENT]),
    }
)
NEEDS = st.builds(Needs, st.sampled_from(list(Level)), st.none() | st.integers(1, 2))


def good(found: Checked, needs: Needs) -> bool:
    """Whole, at the wanted level or the deepest that its format has, resumable, and for as many ranks as there are."""
    if found.validity is not Validity.VALID or not found.resumable or found.level in (None, Level.NAMES):
        return False
    deep = needs.level <= Level.STRUCTURE or found.deepest is Level.STRUCTURE or found.level is Level.CONTENT
    return deep and (None in (needs.ranks, found.ranks) or needs.ranks == found.ranks)


def judged(names: Sequence[str], verdicts: Sequence[dict[str, object]]) -> list[Checked]:
    entries = select.acceptable(Survey(tuple(map(entry, names))), Fence.open("run-a"), None)[0]
    made = [
        msgspec.structs.replace(Checked(one, one.name, Validity.VALID, None, "why"), **verdict)
        for one, verdict in zip(entries, verdicts, strict=False)
    ]
    return [one for one in made if one.validity is not Validity.VALID or one.level is not None]


@settings(max_examples=500)
@given(
    names=st.lists(BOTH, unique=True, max_size=6),
    verdicts=st.lists(VERDICTS, min_size=6, max_size=6),
    bad=st.frozensets(BOTH, max_size=4),
    once=st.booleans(),
    needs=NEEDS,
    seed=st.integers(),
)
def test_what_is_decided(
    names: list[str],
    verdicts: list[dict[str, object]],
    bad: frozenset[str],
    once: bool,
    needs: Needs,
    seed: int,
) -> None:
    seen = judged(names, verdicts)
    choice = select.decide(seen, bad, once_valid=once, needs=needs)
    usable = [one for one in seen if good(one, needs)]
    clean = [one for one in usable if one.name not in bad]
    proved = [one for one in usable if one.name in bad and one.level is Level.CONTENT]
    if clean or proved:
        assert (choice.outcome, choice.chosen) == (Outcome.RESUME, (clean or proved)[0])
    else:
        assert choice.chosen is None
        may_start = not once and all(one.uncommitted or not one.resumable for one in seen)
        assert choice.outcome is (Outcome.SCRATCH if may_start else Outcome.HOLD)
    assert len(choice.passed_over) == len(seen) - (choice.chosen is not None)
    older = [one for one in choice.passed_over if _older(one, choice)]
    assert all(one.reason for one in choice.passed_over if one not in older), "each newer one says why not"
    shuffled = seen[:]
    random.Random(seed).shuffle(shuffled)
    assert select.decide(shuffled, bad, once_valid=once, needs=needs) == choice


def _older(one: Checked, choice: Choice) -> bool:
    chosen = choice.chosen.entry if choice.chosen is not None else None
    return chosen is not None and one.entry is not None and one.entry.age_order < chosen.age_order


@settings(max_examples=500)
@given(
    found=SURVEYS,
    fence=FENCES,
    step=STEPS,
    once=st.booleans(),
    bad=st.frozensets(BOTH, max_size=3),
    needs=NEEDS,
    verdicts=st.lists(VERDICTS, min_size=10, max_size=10),
)
def test_a_start_looks_from_the_newest_down_and_never_starts_anew_where_something_was(
    found: Survey,
    fence: Fence,
    step: int | None,
    once: bool,
    bad: frozenset[str],
    needs: Needs,
    verdicts: list[dict[str, object]],
) -> None:
    holds = {one.name: verdict for one, verdict in zip(found.entries, verdicts, strict=False)}
    looked = list[tuple[Entry, Level]]()

    def look(entry: Entry, level: Level) -> Checked:
        """One that reaches the level asked for, if it is valid."""
        looked.append((entry, level))
        checked = Checked(entry, entry.name, Validity.VALID, None, "why")
        checked = msgspec.structs.replace(checked, **holds[entry.name])
        whole = checked.validity is Validity.VALID
        return msgspec.structs.replace(checked, level=min(level, checked.deepest)) if whole else checked

    choice = resolve(look, found, fence, suspects=bad, once_valid=once, at_most_step=step, needs=needs)
    taken = select.acceptable(found, fence, step)[0]
    first = [entry for entry, _ in looked][: len(taken)]
    assert first == list(taken[: len(first)]), "newest first, each once"
    assert {entry for entry, _ in looked} <= set(taken), "nothing behind the fence is opened"
    proofs = [entry for entry, level in looked[len(taken) :] if level is Level.CONTENT]
    assert len(proofs) == max(0, len(looked) - len(taken)), "only a suspect is looked at twice, at its content"
    if choice.outcome is Outcome.SCRATCH:
        counts = [one for one in found.entries if fence.accepts(one)]
        assert not once
        assert all(not one.is_own for one in counts), "our own has its name only when it is whole"
        assert set(counts) == {one for one, _ in looked}, "all that counts was judged"
        assert all(holds[one.name]["uncommitted"] or not holds[one.name]["resumable"] for one in counts)
        assert fence.stands <= {one.name for one in found.entries} | set(found.foreign)
    at_all = [one for one in taken if good(look(one, max(needs.level, Level.STRUCTURE)), needs)]
    proved = [one for one in at_all if one.name in bad and look(one, Level.CONTENT).level is Level.CONTENT]
    best = next((one for one in at_all if one.name not in bad), next(iter(proved), None))
    assert (choice.chosen and choice.chosen.entry) == best
    assert (choice.outcome is Outcome.RESUME) == (best is not None)


@given(names=st.lists(FRAMEWORK, unique=True, min_size=1, max_size=4), step=STEPS)
def test_what_is_later_than_wanted_was_never_judged_so_nothing_starts_anew(names: list[str], step: int | None) -> None:
    found = Survey(tuple(map(entry, names)))

    def torn(entry: Entry, level: Level) -> Checked:
        return Checked(entry, entry.name, Validity.INCOMPLETE, None, "torn", uncommitted=True)

    choice = resolve(
        torn, found, Fence.open("run-a"), suspects=frozenset(), once_valid=False, at_most_step=step, needs=Needs()
    )
    late = step is not None and any(one.training_step > step for one in found.entries)
    assert choice.outcome is (Outcome.HOLD if late else Outcome.SCRATCH)


@given(
    name=BOTH,
    once=st.booleans(),
    verdict=VERDICTS,
    needs=NEEDS,
)
def test_weights_alone_and_another_world_are_never_taken(
    name: str, once: bool, verdict: dict[str, object], needs: Needs
) -> None:
    for change in ({"resumable": False}, {"ranks": 3}):
        (one,) = judged([name], [{**verdict, "validity": Validity.VALID, "level": Level.CONTENT, **change}])
        choice = select.decide([one], frozenset(), once_valid=once, needs=Needs(needs.level, 1))
        assert choice.chosen is None
        assert choice.passed_over[0].reason


# Suspects

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
