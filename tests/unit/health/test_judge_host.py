"""The machine around the GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from fleetctl.health.model import Answer, Care, Host, Mount, Outcome, Phase, Stuck
from fleetctl.health.rules import Rules
from fleetctl.health.wanted import Profile
from tests.unit.health import nodes
from tests.unit.health.nodes import closing, failures, healthy, judged


@pytest.mark.parametrize(
    ("mount", "words"),
    [
        (Mount("/scratch", "missing"), "file system /scratch is not mounted"),
        (Mount("/scratch", "read_only"), "file system /scratch is read-only"),
        (Mount("/scratch", "hung"), "file system /scratch does not answer"),
        (Mount("/scratch", "failed", "Stale file handle"), "file system /scratch cannot be read (Stale file handle)"),
        (Mount("/scratch", "odd"), "file system /scratch odd"),
    ],
)
def test_a_file_system_that_does_not_work_closes_in_every_phase(mount: Mount, words: str) -> None:
    for phase in Phase:
        found = judged(nodes.with_host(healthy(), mounts=(mount, Mount("/home", "ok", free=0.5))), phase=phase)
        finding = nodes.one(found, "file_systems")
        assert (finding.care, finding.words, finding.part) == (Care.DRAIN, words, "mount//scratch")


@pytest.mark.parametrize(
    ("free", "inodes", "words"),
    [
        (0.04, 0.9, "file system / has 4.0% of its space left, 5% is the least"),
        (0.5, 0.001, "file system / has 0.1% of its inodes left, 5% is the least"),
        (0.05, 0.05, None),
        (0.5, None, None),
        (0.0, 0.0, "file system / has 0.0% of its space left, 5% is the least"),
    ],
)
def test_a_full_file_system_is_told_once(free: float, inodes: float | None, words: str | None) -> None:
    found = judged(nodes.with_host(healthy(), mounts=(Mount("/", "ok", free=free, free_inodes=inodes),)))
    assert failures(found) == ([] if words is None else [words])
    assert closing(found) == []


def test_space_that_was_not_read_does_not_pass() -> None:
    found = judged(nodes.with_host(healthy(), mounts=(Mount("/", "ok"),)))
    assert nodes.one(found, "file_space").outcome is Outcome.CANNOT_TELL


@pytest.mark.parametrize(
    ("change", "check", "care", "words"),
    [
        ({"shm_free_bytes": 51 * nodes.GIB}, "shm", Care.WATCH, "only 5% of /dev/shm is free, 10% is the least"),
        ({"clock_synchronised": False}, "clock", Care.IGNORE, "the clock is not synchronised: is chronyd running?"),
        ({"clock_source": "hpet"}, "clock_source", Care.WATCH, "the kernel uses the slow clock hpet"),
        ({"governors": ("performance", "powersave")}, "governor", Care.WATCH, "CPUs run with performance, powersave"),
        ({"stuck": tuple(Stuck(n, "x", "D") for n in range(49))}, "stuck", Care.WATCH, "49 processes wait"),
        ({"stuck": tuple(Stuck(n, "x", "Z") for n in range(1001))}, "stuck", Care.WATCH, "1001 are dead"),
    ],
)
def test_what_is_odd_about_the_machine_is_told(change: dict[str, Any], check: str, care: Care, words: str) -> None:
    found = judged(nodes.with_host(healthy(), **change))
    assert len(failures(found)) == 1
    assert nodes.one(found, check).care is care
    assert words in nodes.one(found, check).words


@pytest.mark.parametrize(
    "change",
    [
        {"clock_source": "arch_sys_counter"},
        {"clock_source": "kvm-clock"},
        {"governors": ("powersave",)},
        {"governors": ("schedutil",) * 8},
        {"stuck": (Stuck(7, "nvidia-smi", "Z"), Stuck(8, "python", "D"))},
        {"stuck": tuple(Stuck(n, "x", "D") for n in range(48))},
        {"stuck": (Stuck(7, "nvidia-smi", "D"),)},
        {"shm_free_bytes": 103 * nodes.GIB},
    ],
    ids=str,
)
def test_what_is_normal_is_not(change: dict[str, Any]) -> None:
    assert failures(judged(nodes.with_host(healthy(), **change))) == []


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"shm_bytes": 0}, "shm"),
        ({"shm_free_bytes": None}, "shm"),
        ({"memory_bytes": None}, "host_memory"),
        ({"clock_synchronised": None}, "clock"),
        ({"clock_source": None}, "clock_source"),
        ({"governors": ()}, "governor"),
    ],
    ids=str,
)
def test_what_was_not_read_does_not_pass(change: dict[str, Any], check: str) -> None:
    found = judged(nodes.with_host(healthy(), **change), Profile("p", host_memory_bytes=1))
    assert nodes.one(found, check).outcome is Outcome.CANNOT_TELL
    assert closing(found) == []


@pytest.mark.parametrize(("gib", "fine"), [(2048, True), (2010, True), (1984, False), (1024, False)])
def test_a_node_that_lost_memory_closes(gib: int, fine: bool) -> None:
    found = judged(nodes.with_host(healthy(), memory_bytes=gib * nodes.GIB), Profile("p", host_memory_bytes=2 << 41))
    assert closing(found) == ["host_memory"]  # the profile has 4 TiB
    profile = Profile("p", host_memory_bytes=2048 * nodes.GIB)
    found = judged(nodes.with_host(healthy(), memory_bytes=gib * nodes.GIB), profile, Phase.PROLOG, ())
    assert (closing(found) == []) == fine


@pytest.mark.parametrize(
    ("uncorrected", "corrected", "closes", "told"),
    [(1, 0, ["edac"], ["edac"]), (0, 9, [], []), (0, 10, [], ["edac_corrected"]), (0, 0, [], [])],
)
def test_errors_of_the_nodes_memory_are_judged_from_look_to_look(
    uncorrected: int, corrected: int, closes: list[str], told: list[str]
) -> None:
    old = nodes.with_host(healthy(), edac_uncorrected=5, edac_corrected=1000)
    after, before = nodes.later(old, 3600)
    node = nodes.with_host(after, edac_uncorrected=5 + uncorrected, edac_corrected=1000 + corrected)
    found = judged(node, before=before)
    assert closing(found) == closes
    assert [f.check for f in found if f.outcome is Outcome.FAIL] == told
    assert failures(judged(node)) == []


@pytest.mark.parametrize(
    ("answer", "care"),
    [
        (Answer.HUNG, Care.DRAIN),
        (Answer.BUSY, Care.DRAIN),
        (Answer.CRASHED, Care.WATCH),
        (Answer.FAILED, Care.WATCH),
    ],
)
def test_files_that_hang_close_and_our_own_bugs_do_not(answer: Answer, care: Care) -> None:
    node = healthy()._replace(devices=None, ports=None, host=None, events=None, failed={"files": answer})
    finding = nodes.one(judged(node), "files")
    assert (finding.outcome, finding.care) == (Outcome.CANNOT_TELL, care)


def test_a_moment_of_the_driver_in_the_kernel_is_told_by_name_and_no_fault() -> None:
    finding = nodes.of(judged(nodes.with_host(healthy(), stuck=(Stuck(7, "nvidia-smi", "D"),))), "stuck")[0]
    assert finding.words == "1 processes wait in the kernel, nvidia-smi (pid 7) among them"


def test_a_site_may_ask_for_a_synchronised_clock() -> None:
    node = nodes.with_host(healthy(), clock_synchronised=False)
    assert nodes.one(judged(node, rules=Rules(care={"clock": Care.WATCH})), "clock").care is Care.WATCH


def test_a_prolog_that_looked_for_no_stuck_process_says_nothing_of_them() -> None:
    assert nodes.of(judged(healthy(), phase=Phase.PROLOG), "stuck") == []
    assert nodes.of(judged(healthy()._replace(host=Host()), phase=Phase.PROLOG), "clock") == []
