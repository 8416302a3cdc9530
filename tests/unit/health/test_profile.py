"""Profiles: reading one, and choosing the one for a node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleetctl.health.model import Answer, Nvml
from fleetctl.health.profile import BUILT_IN, device_ids, load_profile, profile_for
from fleetctl.health.wanted import Profile
from tests.unit.health.nodes import KINDS, PLATFORMS, PROFILES, healthy


def test_every_file_of_a_platform_is_built_in_under_its_name() -> None:
    assert sorted(path.stem for path in PLATFORMS.iterdir()) == sorted(BUILT_IN)
    assert [profile.name for profile in PROFILES] == list(BUILT_IN)


def test_no_gpu_is_of_two_platforms() -> None:
    every = [device for profile in PROFILES for device in profile.device_ids]
    assert len(every) == len(set(every))
    assert all(device & 0xFFFF == 0x10DE for device in every)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_a_built_in_profile_knows_nothing_that_differs_from_server_to_server(profile: Profile) -> None:
    """As many GPUs as a virtual machine gets, the slot's generation, ECC as the admin likes it, any driver."""
    known = {key for key, value in profile._asdict().items() if value not in (None, (), {})}
    assert known <= {"name", "device_ids", "links", "pcie_width"}


@pytest.mark.parametrize("name", list(KINDS))
def test_a_nodes_profile_is_found_by_its_gpus(name: str) -> None:
    chosen = profile_for(device_ids(healthy(name)), PROFILES, None)
    assert chosen is not None
    assert chosen.name == name


def test_gpus_are_known_by_pcie_where_nvml_is_silent() -> None:
    node = healthy("h200")._replace(nvml=Nvml(Answer.HUNG))
    assert device_ids(node) == (0x233510DE,)
    assert device_ids(node._replace(devices=None)) == ()


@pytest.mark.parametrize(
    ("devices", "learned", "name"),
    [
        ((0x233510DE,), Profile("mine", (0x233510DE,)), "mine"),
        ((0x233510DE,), Profile("mine"), "mine"),
        ((0x233510DE,), Profile("mine", (0x290110DE,)), "h200"),
        ((), Profile("mine", (0x290110DE,)), "mine"),
        ((0x233510DE,), None, "h200"),
        ((0x123410DE,), None, None),
        ((0x123410DE,), Profile("mine", (0x290110DE,)), None),
        ((), None, None),
    ],
)
def test_the_learned_profile_stands_for_its_own_gpus_only(
    devices: tuple[int, ...], learned: Profile | None, name: str | None
) -> None:
    chosen = profile_for(devices, PROFILES, learned)
    assert (None if chosen is None else chosen.name) == name


GOOD: dict[str, Any] = {"name": "x"}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "must be one JSON object"),
        ("{}", "has no name"),
        ({"name": ""}, "name must be a text"),
        ({"gpu": 8}, "unknown keys: gpu; it may have name, device_ids, gpus"),
        ({"gpus": "8"}, "gpus must be a whole number"),
        ({"gpus": True}, "gpus must be a whole number"),
        ({"gpus": -1}, "gpus must be a whole number"),
        ({"links": 18}, "links must be a list"),
        ({"links": []}, "links must be a list of one number or more"),
        ({"links": [1.5]}, "links must be a whole number"),
        ({"device_ids": ["2335"]}, 'device_ids must be a list of texts like "0x233510de"'),
        ({"device_ids": [0x233510DE]}, "device_ids must be a list of texts"),
        ({"ecc": 1}, "ecc must be true or false"),
        ({"driver": 570}, "driver must be a text"),
        ({"ports": [{"device": "mlx5_0"}]}, "ports[0] must be an object with device and port"),
        ({"ports": [{"device": "mlx5_0", "port": 1, "speed": 4}]}, "ports[0] must be an object"),
        ({"ports": [{"device": "mlx5_0", "port": 1, "rate_gbps": 0}]}, "ports[0].rate_gbps must be a number above 0"),
        ({"nic_links": []}, "nic_links must be an object"),
        ({"nic_links": {"0000:18:00.0": {"gts": 32}}}, "nic_links.0000:18:00.0 must be an object with gts and width"),
        ({"nic_links": {"0000:18:00.0": {"gts": True, "width": 1}}}, "nic_links.0000:18:00.0.gts must be a number"),
    ],
)
def test_a_mistake_in_a_profile_is_named(raw: Any, words: str) -> None:
    text = raw if isinstance(raw, str) else json.dumps({**GOOD, **raw})
    with pytest.raises(ValueError, match="profile") as raised:
        load_profile(text)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_a_profile_says_nothing_of_is_not_known() -> None:
    assert load_profile('{"name": "x", "gpus": null, "ports": []}') == Profile("x", ports=())
