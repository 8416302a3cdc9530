"""Whatever the text, load_spec answers with a Spec or with problems that have a place in it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fleetctl.errors import SpecError
from fleetctl.spec import compose as compose_module
from fleetctl.spec.load import load_spec
from fleetctl.spec.model import Spec
from fleetctl.spec.record import spec_to_builtins

VALID = """\
name: &name gpt
resources: {nodes: 4, gpus_per_node: 8, gpu_type: h100, memory: 512G, time: "4:00:00", switches: 1@2h}
launch: torchrun
command: [python, *name]
env:
  LR: 1e-4
  TEXT: |
    two
    lines
modules: [cuda/12.4]
container: {image: i, mounts: ["/a:/b:ro"]}
checkpoint: {dir: d, interval: 30m, keep: 2, load: none}
recovery: {requeue: false, chain: true}
health: {checks: [ecc, xid]}
sweep: {parameters: {SEED: [1, 2]}, max_parallel: 2}
"""
PIECES = (
    "\n", " ", "  ", "\t", ": ", "- ", "? ", "[", "]", "{", "}", ",", "&a ", "*a", "*name", "!!str ", "!x ", "<<: ",
    "|\n", ">-\n", "'", '"', "#", "---\n", "...\n", "%YAML 1.1\n", "\0", "\x85", "\u2028", "\ufeff", "\ud800", "\\",
    "null", "~", "4:00:00", "0", "name", "groups", "script", "env",
)  # fmt: skip
FROM_FILE = re.compile(r"t\.yaml:(\d+):(\d+): ")
# YAML 1.1, b-break: what PyYAML counts as the end of a line.
BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
# A busy machine is no failure: what takes long here is making the examples.
BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(params=["CSafeLoader", "SafeLoader"], autouse=True, scope="module")
def _loader(request: pytest.FixtureRequest) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose_module, "_LOADER", getattr(yaml, request.param))
        yield


def answer(text: str, *overrides: str) -> Spec | SpecError:
    try:
        return load_spec(text, "t.yaml", overrides)
    except SpecError as error:
        return error


def check_answer(text: str) -> None:
    """The error is whole: one line a problem, each in the file, in order."""
    got = answer(text)
    if isinstance(got, Spec):
        return
    lines = BREAK.split(text)
    places = []
    assert got.problems
    for problem in got.problems[:100]:
        assert problem.isprintable()
        assert len(problem) < 600
        match = FROM_FILE.match(problem)
        assert match, problem
        line, column = int(match[1]), int(match[2])
        assert 1 <= line <= len(lines)
        assert 1 <= column <= len(lines[line - 1]) + 1
        places.append((line, column))
    assert places == sorted(places)


@BUSY
@given(st.text())
@example('"\\U99999999"')
@example('"\\ud800"')
@example("%YAML 9.9\n---\n")
@example("!%ff a")
def test_any_text_is_answered(text: str) -> None:
    check_answer(text)


@BUSY
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_any_text_of_yamls_own_pieces_is_answered(text: str) -> None:
    check_answer(text)


@settings(BUSY, max_examples=500)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(VALID)), st.integers(0, 12), st.one_of(st.sampled_from(PIECES), st.text(max_size=3))
        ),
        max_size=4,
    )
)
def test_a_valid_spec_with_damage_is_answered(cuts: list[tuple[int, int, str]]) -> None:
    text = VALID
    for start, length, piece in cuts:
        text = text[:start] + piece + text[start + length :]
    check_answer(text)


@BUSY
@given(st.text(), st.text())
def test_any_override_is_answered(path: str, value: str) -> None:
    answer(VALID, f"{path}={value}", path)


@BUSY
@given(
    st.sampled_from(["name", "workdir", "resources.nodes", "resources.time", "env.A", "command", "launch"]), st.text()
)
def test_the_value_of_an_override_is_text(path: str, value: str) -> None:
    got = answer(VALID, f"{path}={value}")
    if isinstance(got, Spec) and path in ("name", "workdir", "env.A", "command"):
        assert (got.env if path == "env.A" else spec_to_builtins(got)).get(path.removeprefix("env.")) == value
