"""Causes are total and their ranks depend on nothing but what is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.accounting.causes import Cause, slurm_cause
from fleetctl.accounting.model import NodeEvent
from fleetctl.accounting.ranks import Found, Said, Told, rank
from fleetctl.health.checks import CHECKS
from fleetctl.rundir.model import Ending
from fleetctl.slurm.model import BaseState, StateFlag

AT_MS = 1_800_000_000_000
WORDS = st.sampled_from([*BaseState.__members__, *StateFlag.__members__]) | st.text(max_size=8)
NUMBERS = st.none() | st.integers(0, 300) | st.integers()
TEXTS = st.text(max_size=6)
NODES = st.sampled_from(["", "n1", "n2"])
TIMES = st.integers(AT_MS - 2_000_000, AT_MS + 2_000_000)

TOLD = st.builds(
    Told,
    st.just(AT_MS),
    st.sampled_from(["", *Ending]),
    TEXTS,
    NUMBERS,
    st.lists(st.tuples(NODES, TEXTS), max_size=3).map(tuple),
    st.sampled_from(["", "time limit", "preemption", "x"]),
    TEXTS,
)
SAID = st.builds(Said, st.sampled_from(Cause) | TEXTS, WORDS, NUMBERS, NUMBERS, NUMBERS, NODES)
FOUND = st.builds(
    Found,
    NODES,
    TIMES,
    st.sampled_from(sorted(CHECKS)) | TEXTS,
    st.sampled_from(["human", "reset", "watch", "x"]),
    TEXTS,
)
EVENTS = st.builds(
    NodeEvent, NODES, TIMES.map(lambda ms: ms // 1000), st.none(), st.sampled_from(["DOWN*", "DRAIN"]), TEXTS, TEXTS
)


@given(WORDS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, TEXTS, TEXTS)
def test_any_state_and_exit_code_give_one_cause(
    state: str, status: int | None, signal: int | None, derived: int | None, derived_signal: int | None,
    by: int | None, owner: int | None, failed_node: str, reason: str,
) -> None:  # fmt: skip
    cause = slurm_cause(
        state,
        status=status,
        signal=signal,
        derived_status=derived,
        derived_signal=derived_signal,
        state_by=by,
        owner=owner,
        failed_node=failed_node,
        reason=reason,
    )
    assert isinstance(cause, Cause)
    assert (cause is Cause.GOING_ON) <= (state.replace("+", " ").split()[:1] != ["COMPLETED"])


@given(TOLD, st.lists(SAID, max_size=4), st.lists(FOUND, max_size=4), st.lists(EVENTS, max_size=4), st.randoms())
def test_ranks_do_not_depend_on_the_order_in_which_things_are_read(
    told: Told, said: list[Said], found: list[Found], events: list[NodeEvent], random: object
) -> None:
    first = rank(told, said, found, events)
    for many in (said, found, events):
        random.shuffle(many)  # type: ignore[attr-defined]
    assert rank(told, said, found, events) == first


@given(TOLD, st.lists(SAID, max_size=4), st.lists(FOUND, max_size=4), st.lists(EVENTS, max_size=4))
def test_there_is_always_a_cause_each_at_most_once_for_each_node(
    told: Told, said: list[Said], found: list[Found], events: list[NodeEvent]
) -> None:
    ranked = rank(told, said, found, events)
    assert ranked
    assert len({(one.cause, one.node) for one in ranked}) == len(ranked)
    assert not {Cause.GOING_ON, Cause.COMPLETED} & {one.cause for one in ranked}
