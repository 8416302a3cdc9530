"""Memory of the GPUs."""

from __future__ import annotations

import pytest

from fleetctl.health.model import Care, Outcome, Phase, Process
from fleetctl.health.wanted import Profile
from tests.unit.health import nodes
from tests.unit.health.nodes import closing, failures, healthy, judged

SICK = [
    ("row_remap_pending", {"remap_pending": 1}, Care.RESET, "a row of the memory of GPU 3 (0000:33:00.0) waits"),
    ("row_remap_failure", {"remap_failure": 1}, Care.HUMAN, "row remapping has failed on GPU 3 (0000:33:00.0)"),
    ("row_remap_count", {"remap_uncorrected": 513}, Care.HUMAN, "GPU 3 (0000:33:00.0) has 513 rows remapped"),
    ("ecc_sram", {"sram_threshold": 1}, Care.HUMAN, "GPU 3 (0000:33:00.0) has passed NVIDIA's limit of SRAM errors"),
    ("sram_uncorrected", {"sram_uncorrected": 5}, Care.WATCH, "GPU 3 (0000:33:00.0) has had 5 uncorrected SRAM"),
    ("ecc_corrected", {"ecc_corrected_volatile": 20_000_001}, Care.WATCH, "GPU 3 (0000:33:00.0) corrected 20000001"),
    ("ecc_volatile", {"ecc_uncorrected_volatile": 3}, Care.WATCH, "GPU 3 (0000:33:00.0) had 3 uncorrected memory"),
    ("retired_pending", {"retired_pending": 1}, Care.RESET, "a page of the memory of GPU 3 (0000:33:00.0) waits"),
    ("retired_pages", {"retired_pages": 64}, Care.HUMAN, "GPU 3 (0000:33:00.0) has 64 retired pages"),
    ("retired_pages", {"retired_pages": 16}, Care.WATCH, "GPU 3 (0000:33:00.0) has 16 retired pages"),
    ("ecc_mode", {"ecc_mode": 0}, Care.WATCH, "error correction is off on GPU 3 (0000:33:00.0)"),
    ("ecc_mode", {"ecc_pending": 0}, Care.WATCH, "error correction of GPU 3 (0000:33:00.0) will be off"),
]


@pytest.mark.parametrize(("check", "reads", "care", "words"), SICK)
def test_what_is_wrong_with_memory_is_one_finding(check: str, reads: dict[str, int], care: Care, words: str) -> None:
    found = judged(nodes.with_reads(healthy(), 3, **reads))
    assert len(failures(found)) == 1
    finding = nodes.one([one for one in found if one.outcome is Outcome.FAIL], check)
    assert finding.care is care
    assert finding.words.startswith(words)
    assert finding.part == "gpu/0000:33:00.0"
    assert finding.subject == "GPU 3 (0000:33:00.0)"


@pytest.mark.parametrize(
    ("check", "reads"),
    [
        ("row_remap_count", {"remap_uncorrected": 512}),
        ("sram_uncorrected", {"sram_uncorrected": 4}),
        ("ecc_corrected", {"ecc_corrected_volatile": 20_000_000}),
        ("retired_pages", {"retired_pages": 15}),
    ],
)
def test_a_value_at_its_limit_passes_and_is_told(check: str, reads: dict[str, int]) -> None:
    found = nodes.of(judged(nodes.with_reads(healthy(), 3, **reads)), check)
    finding = next(finding for finding in found if finding.part == "gpu/0000:33:00.0")
    assert finding.outcome is Outcome.PASS
    assert finding.value == next(iter(reads.values()))


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        ({"remap_pending": 1}, "a row waits to be remapped"),
        ({"remap_failure": 1}, "row remapping has failed"),
        ({"sram_threshold": 1}, "the SRAM limit is passed"),
        ({"recovery_action": 1}, "the driver asks for recovery"),
    ],
)
def test_uncorrected_errors_close_beside_the_drivers_own_verdict(beside: dict[str, int], words: str) -> None:
    found = judged(nodes.with_reads(healthy(), 3, ecc_uncorrected_volatile=2, **beside))
    finding = nodes.one(found, "ecc_volatile")
    assert finding.care is Care.RESET
    assert finding.words.endswith(words)
    assert "ecc_volatile" in closing(found)


def test_error_correction_that_is_off_closes_only_where_the_profile_says_on() -> None:
    node = nodes.with_reads(healthy(), 3, ecc_mode=0)
    assert closing(judged(node, Profile("p", ecc=True))) == ["ecc_mode"]
    assert closing(judged(node, Profile("p", ecc=None))) == []
    found = nodes.of(judged(node, Profile("p", ecc=False)), "ecc_mode")
    assert {finding.outcome for finding in found} == {Outcome.PASS}


@pytest.mark.parametrize(
    "reads",
    [
        {"remap_pending": nodes.code(3)},
        {"remap_pending": nodes.code(999)},
        {"remap_pending": "nonsense"},
        {"remap_pending": float("nan")},
        {"remap_pending": True},
        {"remap_pending": 1 << 70},
        {"remap_pending": None},
    ],
    ids=str,
)
def test_a_value_that_is_none_is_neither_good_nor_bad(reads: dict[str, object]) -> None:
    found = nodes.of(judged(nodes.with_reads(healthy(), 3, **reads)), "row_remap_pending")
    finding = next(finding for finding in found if finding.part == "gpu/0000:33:00.0")
    assert finding.outcome is Outcome.CANNOT_TELL
    assert finding.value is None


@pytest.mark.parametrize(("mib", "fine"), [(81559, True), (80000, True), (78000, False)])
def test_memory_is_weighed_against_the_profile(mib: int, fine: bool) -> None:
    node = nodes.with_reads(healthy(), 3, memory_total_bytes=mib << 20)
    assert (failures(judged(node, Profile("p", memory_mib=81559))) == []) == fine
    assert failures(judged(node)) == []


_OF_JOB = {phase: (2, 3) if phase in (Phase.PROLOG, Phase.EPILOG) else None for phase in Phase}


@pytest.mark.parametrize("phase", [Phase.PROLOG, Phase.EPILOG], ids=lambda phase: phase.value)
def test_where_nobody_knows_whose_gpu_it_is_another_job_may_use_it(phase: Phase) -> None:
    node = nodes.with_reads(healthy(), 3, memory_used_bytes=1025 << 20)
    found = judged(nodes.with_gpu(node, 3, processes=(Process(10, None),)), phase=phase)
    for check, words in (("memory_in_use", "perhaps by another job"), ("processes", "perhaps another job's")):
        finding = nodes.one(found, check)
        assert (finding.outcome, finding.care) == (Outcome.CANNOT_TELL, Care.IGNORE)
        assert words in finding.words


@pytest.mark.parametrize("phase", list(Phase), ids=lambda phase: phase.value)
def test_memory_in_use_and_processes_are_told_when_no_job_should_be_there(phase: Phase) -> None:
    node = nodes.with_reads(healthy(), 3, memory_used_bytes=1025 << 20)
    node = nodes.with_gpu(node, 3, processes=tuple(Process(pid, None) for pid in range(10, 17)))
    found = [finding for finding in judged(node, phase=phase, gpus=_OF_JOB[phase]) if finding.outcome is Outcome.FAIL]
    if phase in (Phase.PERIODIC, Phase.HAND):
        assert found == []
        return
    assert {finding.check: finding.care for finding in found} == {
        "memory_in_use": Care.WATCH,
        "processes": Care.WATCH,
    }
    assert nodes.one(found, "memory_in_use").value == 1025
    assert "7 processes" in nodes.one(found, "processes").words
    assert "(pid 10, 11, 12, 13, 14, ...)" in nodes.one(found, "processes").words


def test_the_memory_of_a_gpu_that_is_cut_up_belongs_to_other_jobs() -> None:
    node = nodes.with_reads(healthy(), 3, memory_used_bytes=40 << 30, mig_mode=1)
    assert failures(judged(node, phase=Phase.PROLOG)) == []
