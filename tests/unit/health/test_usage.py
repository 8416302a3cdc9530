"""What a job used: differences that are told, and all that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from fleetctl.health.model import Answer, Asked, Gpu, Host, Nvml, Phase, Port, Read, Readings
from fleetctl.health.state import JobStart
from fleetctl.health.usage import job_counters, start_of, use_of

ASKED = Asked(Phase.EPILOG, (0, 1), "7")


def gpu(minor: int, energy: object = 1000, *, replays: tuple[int, ...] = (0, 0), **reads: Read) -> Gpu:
    links = tuple({"state": Read(1), "replays": Read(count)} for count in replays)
    given = {"energy_mj": Read(energy), "memory_used_bytes": Read(4096), **reads}
    return Gpu(minor, 0, f"0000:{minor:02x}:00.0", minor, f"GPU-{minor}", reads=given, links=links)


def node(
    *gpus: Gpu, at: float = 100.0, uptime: float = 50.0, boot: str = "boot", downs: int = 0, **more: Any
) -> Readings:
    port = Port("mlx5_0", 1, "InfiniBand", "ACTIVE", "LinkUp", counters={"link_downed": downs})
    return Readings("n1", boot, at, uptime, Nvml(Answer.ANSWERED, gpus=gpus), ports=(port,), **more)


BEFORE = node(gpu(0), gpu(1, 5000), gpu(2))


def use(after: Readings, before: Readings = BEFORE, asked: Asked = ASKED) -> dict[str, Any]:
    return use_of(start_of(before, asked, 1000), after, asked)


def test_the_start_of_a_job_is_about_its_own_gpus() -> None:
    start = start_of(BEFORE, ASKED, 1000)
    assert (start.at, start.boot_id, start.gpus, start.uptime_s, start.uid) == (
        100.0,
        "boot",
        ("GPU-0", "GPU-1"),
        50.0,
        1000,
    )
    assert not [key for key in start.counters if "GPU-2" in key]


def test_energy_is_the_difference_of_the_counter_in_joules() -> None:
    used = use(node(gpu(0, 4500), gpu(1, 5000), gpu(2, 9), at=200.0, uptime=150.0))
    assert [(one["gpu"], one["uuid"], one["energy_j"]) for one in used["gpus"]] == [
        ("0000:00:00.0", "GPU-0", 3.5),
        ("0000:01:00.0", "GPU-1", 0.0),
    ]
    assert used["seconds"] == 100.0


@pytest.mark.parametrize(
    "reading",
    [Read(999), Read(None, 3), Read(5000, 15), Read("many"), Read(-1), Read(True)],
    ids=["backwards", "not supported", "lost", "text", "negative", "boolean"],
)
def test_energy_that_cannot_be_told_is_none(reading: Read) -> None:
    assert use(node(gpu(0, energy_mj=reading)))["gpus"][0]["energy_j"] is None


def test_energy_that_could_not_be_read_at_the_start_is_none() -> None:
    before = node(gpu(0, energy_mj=Read(None, 999)))
    assert use(node(gpu(0, 9000)), before)["gpus"][0]["energy_j"] is None


def test_memory_is_what_is_in_use_now_and_none_where_it_is_not_told() -> None:
    lost = gpu(1)._replace(reads={})
    used = use(node(gpu(0, memory_used_bytes=Read(77)), lost))
    assert [one["memory_bytes"] for one in used["gpus"]] == [77, None]


def test_errors_are_those_that_moved_and_links_of_a_gpu_count_together() -> None:
    used = use(node(gpu(0, 2000, replays=(3, 4)), gpu(1, 5000), downs=2))
    assert used["errors"] == {"gpu/GPU-0/links/replays": 7, "port/mlx5_0/1/link_downed": 2}


def test_a_counter_that_went_backwards_is_none_and_one_without_a_past_is_left_out() -> None:
    before = node(gpu(0, replays=(5, 5)))
    after = node(gpu(0, replays=(1, 1)), host=Host(edac_corrected=4))
    assert use(after, before)["errors"] == {"gpu/GPU-0/links/replays": None}


@pytest.mark.parametrize(
    "start",
    [
        None,
        JobStart(90.0, "other", counters={"gpu/GPU-0/energy_mj": 1}),
        JobStart(90.0, "", counters={"gpu/GPU-0/energy_mj": 1}),
        JobStart(90.0, "boot", counters={"gpu/GPU-0/energy_mj": 1}, ended_at=95.0),
    ],
    ids=["no start", "another boot", "unknown boot", "ended already"],
)
def test_without_a_start_to_compare_with_nothing_is_counted(start: JobStart | None) -> None:
    used = use_of(start, BEFORE, ASKED)
    assert used["errors"] is None
    assert [one["energy_j"] for one in used["gpus"]] == [None, None]
    assert used["gpus"][0]["memory_bytes"] == 4096


def test_two_unknown_boots_are_not_the_same_boot() -> None:
    used = use(node(gpu(0, 9000), boot=""), node(gpu(0), boot=""))
    assert used["gpus"][0]["energy_j"] is None


@pytest.mark.parametrize(
    ("start", "seconds"),
    [
        (JobStart(40.0, "boot", uptime_s=20.0), 30.0),  # the clock that never jumps
        (JobStart(40.0, "other", uptime_s=20.0), 60.0),
        (JobStart(40.0, "boot"), 60.0),
        (JobStart(400.0, "boot"), None),  # the clock was set back
        (JobStart(40.0, "boot", uptime_s=20.0, ended_at=90.0), 50.0),
        (None, None),
    ],
)
def test_the_duration_is_by_the_best_clock_there_is(start: JobStart | None, seconds: float | None) -> None:
    assert use_of(start, BEFORE, ASKED)["seconds"] == seconds


def test_a_job_on_all_gpus_counts_all_and_one_on_none_counts_none() -> None:
    assert len(use(BEFORE, asked=Asked(Phase.EPILOG, None))["gpus"]) == 3
    assert use(BEFORE, asked=Asked(Phase.EPILOG, ()))["gpus"] == []


def test_without_nvml_the_ports_still_count() -> None:
    blind = node(downs=3)._replace(nvml=None)
    assert job_counters(blind, ASKED) == {"port/mlx5_0/1/link_downed": 3}
    assert use(blind)["errors"] == {"port/mlx5_0/1/link_downed": 3}


def test_the_counters_of_a_whole_node_are_few_enough_for_every_look_to_read() -> None:
    links = (0,) * 18
    whole = node(*(gpu(n, replays=links) for n in range(8)))
    assert len(job_counters(whole, Asked(Phase.PROLOG, None))) < 8 * 12
