"""The model as JSON: what comes back is the same, and nothing else comes back."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, NamedTuple, Optional

import pytest

from fleetctl.health import model
from fleetctl.health.model import Answer, Care, Event, EventKind, Finding, Gpu, Nvml, Outcome, Phase, Read, Readings
from fleetctl.health.wanted import Profile
from fleetctl.health.wire import NotOurs, from_wire, to_wire

KINDS = [kind for kind in vars(model).values() if isinstance(kind, type) and hasattr(kind, "_fields")]
EVENT = Event(1, 2.0, 3.0, EventKind.XID, "0000:1b:00", 79, "GPU has fallen off the bus.")
GPU = Gpu(0, pci="0000:1b:00.0", reads={"ecc_mode": Read(1)}, links=({"state": Read(None, 3)}, {}))


class Drawer(NamedTuple):
    """A class of another module, as the state on disk has."""

    at: float
    event: Optional[Event] = None  # noqa: UP045 - as the node's Python writes it
    findings: tuple[int, ...] = ()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__name__))
def test_every_class_of_the_model_can_be_read(kind: Any) -> None:
    with pytest.raises(NotOurs):
        from_wire(kind, None)


def test_readings_come_back_the_same() -> None:
    readings = Readings(
        "n1", "b", 1.0, 2.0, nvml=Nvml(Answer.ANSWERED, gpus=(GPU,)), events=(EVENT,), failed={"files": Answer.HUNG}
    )
    assert from_wire(Readings, json.loads(json.dumps(to_wire(readings)))) == readings


def test_a_reading_is_a_pair() -> None:
    assert to_wire(GPU)["reads"] == {"ecc_mode": [1, 0]}


def test_enums_travel_by_value() -> None:
    finding = Finding("gpu_count", Outcome.FAIL, "node", "node", "7 of 8 GPUs", care=Care.REBOOT)
    wire = to_wire(finding)
    assert (wire["outcome"], wire["care"], type(wire["care"])) == ("fail", 4, int)
    assert from_wire(Phase, to_wire(Phase.BOOT)) is Phase.BOOT


def test_a_class_of_another_module_travels_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Drawer.__annotations__, "findings", "Tuple[int, ...]")
    drawer = Drawer(1.0, EVENT, (1, 2))
    assert from_wire(Drawer, json.loads(json.dumps(to_wire(drawer)))) == drawer


def test_fields_of_a_newer_version_are_ignored_and_those_of_an_older_one_have_defaults() -> None:
    raw = {**to_wire(EVENT), "colour": "red"}
    del raw["count"], raw["told"]
    assert from_wire(Event, raw) == EVENT


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sequence": "1"}, "Event: str where int is due"),
        ({"sequence": True}, "Event: bool where int is due"),
        ({"sequence": None}, "Event: NoneType where int is due"),
        ({"at_s": "now"}, "Event: str where float is due"),
        ({"kind": "volcano"}, "Event: 'volcano' is no EventKind"),
        ({"kind": []}, "Event: '[]' is no EventKind"),
        ({"told": 1}, "Event: int where bool is due"),
        ({"text": ["x"]}, "Event: list where str is due"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(change: dict[str, object], words: str) -> None:
    with pytest.raises(NotOurs) as caught:
        from_wire(Event, {**to_wire(EVENT), **change})
    assert str(caught.value) == words


def test_a_missing_field_is_named() -> None:
    raw = to_wire(EVENT)
    del raw["pci"]
    with pytest.raises(NotOurs, match="Event: no pci"):
        from_wire(Event, raw)


@pytest.mark.parametrize("raw", [5, [1], [1, 0, 2], [1, "0"], [1, True], [[1], 0], [{}, 0], {"value": 1, "code": 0}])
def test_what_is_no_pair_of_value_and_code_is_no_reading(raw: object) -> None:
    with pytest.raises(NotOurs):
        from_wire(Gpu, {"index": 0, "reads": {"ecc_mode": raw}})


@pytest.mark.parametrize("links", [{}, "ab", [[]], [None], 3])
def test_a_list_must_be_one(links: object) -> None:
    with pytest.raises(NotOurs):
        from_wire(Gpu, {"index": 0, "links": links})


def test_pairs_of_fixed_length_keep_it() -> None:
    profile = {"name": "x", "nic_links": {"0000:0c:00.0": [32.0, 16]}}
    assert from_wire(Profile, profile).nic_links == {"0000:0c:00.0": (32.0, 16)}
    with pytest.raises(NotOurs, match="3 values where 2 are due"):
        from_wire(Profile, {"name": "x", "nic_links": {"a": [1.0, 2, 3]}})


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize("value", [{1}, b"bytes", object()])
def test_what_json_cannot_carry_is_not_sent(value: object) -> None:
    with pytest.raises(TypeError, match="cannot carry"):
        to_wire({"a": [value]})


def test_plain_values_are_sent_as_they_are() -> None:
    assert to_wire({"a": (1, 2.5, None, True, "x", Colour.RED)}) == {"a": [1, 2.5, None, True, "x", "red"]}
