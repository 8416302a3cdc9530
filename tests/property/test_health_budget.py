"""Whoever asks when: the fleet never loses more nodes in the length of a window than its budget allows."""

from __future__ import annotations

from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.health.budget import take_token


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 40)), max_size=30),
)
def test_no_span_of_one_window_sees_more_nodes_granted_than_the_budget(most: int, asks: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder:
        now = 1000.0
        first: dict[str, float] = {}
        for node, later in asks:
            now += later
            had = first.get(node)
            if take_token(folder, most, 60.0, node, now).granted and (had is None or now - had >= 60.0):
                first[node] = now
            assert sum(1 for at in first.values() if now - at < 60.0) <= most
