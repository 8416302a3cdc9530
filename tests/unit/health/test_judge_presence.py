"""NVML as a whole, and GPUs that do not answer or are not there."""

from __future__ import annotations

import pytest

from fleetctl.health.decide import decide
from fleetctl.health.learn import learn
from fleetctl.health.model import Answer, Care, Mark, Nvml, Outcome, PciDevice, PciLink, Phase, Readings
from fleetctl.health.service import Back, Seen, may_return
from fleetctl.health.state import Drain
from fleetctl.health.wanted import Profile
from tests.unit.health import nodes
from tests.unit.health.nodes import closing, healthy, judged


def _failed(nvml: Nvml, devices: int | None = 8) -> Readings:
    return nodes.with_host(healthy()._replace(nvml=nvml, devices=None), nvidia_devices=devices)


@pytest.mark.parametrize(
    ("nvml", "care", "words"),
    [
        (Nvml(Answer.HUNG, took_s=6.0), Care.DRAIN, "NVML did not answer within 6 s"),
        (Nvml(Answer.HUNG), Care.DRAIN, "NVML did not answer in time: it hangs, or persistence mode is off"),
        (Nvml(Answer.BUSY, detail="pid 7"), Care.DRAIN, "NVML still hangs since an earlier check (pid 7)"),
        (Nvml(Answer.CRASHED, detail="killed by signal 11"), Care.DRAIN, "NVML crashes when it is asked (killed by"),
        (Nvml(Answer.FAILED, 12), Care.DRAIN, "libnvidia-ml.so.1 cannot be loaded, and the node has 8 GPUs"),
        (Nvml(Answer.FAILED, 9), Care.DRAIN, "the NVIDIA driver is not loaded, and the node has 8 GPUs"),
        (Nvml(Answer.FAILED, 18), Care.DRAIN, "NVML and the driver are of different versions"),
        (Nvml(Answer.FAILED, 999), Care.DRAIN, "NVML cannot be used: unknown error (NVML 999)"),
        (Nvml(Answer.FAILED, 15), Care.REBOOT, "NVML cannot be used: GPU is lost (NVML 15)"),
    ],
)
def test_without_nvml_a_node_with_gpus_is_closed(nvml: Nvml, care: Care, words: str) -> None:
    for phase in Phase:
        finding = nodes.one(judged(_failed(nvml), phase=phase), "nvml")
        assert finding.care is care
        assert finding.words.startswith(words)
        assert finding.outcome is not Outcome.PASS


@pytest.mark.parametrize("nvml", [Nvml(Answer.HUNG), Nvml(Answer.FAILED, 12), Nvml(Answer.FAILED, 999)], ids=str)
def test_a_job_without_gpus_may_start_without_nvml(nvml: Nvml) -> None:
    finding = nodes.one(judged(_failed(nvml), phase=Phase.PROLOG, gpus=()), "nvml")
    assert finding.care is Care.WATCH
    assert finding.mark is Mark.NONE
    assert closing(judged(_failed(nvml), gpus=())) == ["nvml"]


@pytest.mark.parametrize("number", [9, 12])
def test_a_job_that_asks_for_gpus_does_not_start_where_none_show(number: int) -> None:
    node = _failed(Nvml(Answer.FAILED, number), devices=0)
    assert closing(judged(node, phase=Phase.PROLOG, gpus=(0,))) == ["nvml"]
    assert closing(judged(node, phase=Phase.PERIODIC)) == []


def test_a_node_that_lost_all_its_gpus_on_pcie_is_closed_by_its_learned_profile() -> None:
    """Where this boot has seen GPUs, or Slurm gives the job some."""
    node, profile = _failed(Nvml(Answer.FAILED, 9), devices=0), Profile("p", gpus=8)
    assert closing(judged(node, profile, before=nodes.baseline_of(healthy()))) == ["nvml"]
    for gpus in ((0,), None):
        assert closing(judged(node, profile, Phase.PROLOG, gpus)) == ["nvml"]
    old = nodes.baseline_of(healthy()._replace(boot_id="boot-0"))
    assert closing(judged(node, profile, before=old)) == []


def _without_gpus(nvml: Nvml) -> Readings:
    return nodes.with_host(healthy()._replace(nvml=nvml, devices=(), ports=()), nvidia_devices=0)


@pytest.mark.parametrize(
    ("phase", "gpus"), [(Phase.PERIODIC, None), (Phase.BOOT, None), (Phase.PROLOG, ()), (Phase.EPILOG, ())]
)
@pytest.mark.parametrize("nvml", [Nvml(Answer.FAILED, 12), Nvml(Answer.FAILED, 9), Nvml(Answer.ANSWERED)], ids=str)
def test_a_node_without_gpus_is_not_held_to_the_clusters_profile(
    nvml: Nvml, phase: Phase, gpus: tuple[int, ...] | None
) -> None:
    found = judged(_without_gpus(nvml), learn(healthy()), phase, gpus)
    told = [finding for finding in found if finding.care > Care.IGNORE and finding.check != "driver"]
    assert [(finding.check, finding.care) for finding in told] == [("gpu_count", Care.WATCH)]
    assert told[0].words == "the profile is for nodes with GPUs; PCIe shows none here"


def test_a_node_that_lost_its_gpus_does_not_come_back_for_want_of_them() -> None:
    found = judged(_without_gpus(Nvml(Answer.FAILED, 9)), learn(healthy()))
    for check in ("nvml", "gpu_count"):
        assert not [f for f in nodes.of(found, check) if f.outcome is Outcome.PASS]


def test_where_pcie_is_not_known_or_nvml_shows_gpus_the_profile_stands() -> None:
    silent = nodes.with_host(_without_gpus(Nvml(Answer.FAILED, 9)), nvidia_devices=None)._replace(devices=None)
    assert "port_state" in closing(judged(silent, learn(healthy())))
    assert "port_state" in closing(judged(nodes.with_host(healthy()._replace(ports=()), nvidia_devices=0),
                                          learn(healthy())))  # fmt: skip


@pytest.mark.parametrize("number", [9, 12])
def test_a_display_that_no_profile_knows_needs_no_driver(number: int) -> None:
    card = PciDevice("gpu", PciLink("0000:65:00.0", 8.0, 16, 8.0, 16), 0x1EB110DE)
    node = _failed(Nvml(Answer.FAILED, number), devices=1)._replace(devices=(card,))
    finding = nodes.one(judged(node), "nvml")
    assert (finding.outcome, finding.care) == (Outcome.FAIL, Care.WATCH)
    assert closing(judged(node, phase=Phase.PROLOG, gpus=(0,))) == ["nvml"]
    assert closing(judged(node, Profile("p", gpus=1))) == ["nvml"]
    assert closing(judged(node._replace(devices=healthy().devices))) == ["nvml"], "an H100 without its driver"


def test_our_own_error_in_the_reader_of_nvml_keeps_no_job_away() -> None:
    finding = nodes.one(judged(_failed(Nvml(Answer.FAILED, 0, "TypeError: x"))), "nvml")
    assert (finding.outcome, finding.care) == (Outcome.CANNOT_TELL, Care.WATCH)
    assert "TypeError: x" in finding.words


@pytest.mark.parametrize("detail", ["it was killed by signal 9", "it printed nonsense", ""])
def test_a_reader_that_was_killed_keeps_no_job_away(detail: str) -> None:
    finding = nodes.one(judged(_failed(Nvml(Answer.CRASHED, detail=detail))), "nvml")
    assert (finding.outcome, finding.care) == (Outcome.CANNOT_TELL, Care.WATCH)


def test_a_library_that_cannot_be_loaded_is_told_where_pcie_is_not_known() -> None:
    finding = nodes.one(judged(_failed(Nvml(Answer.FAILED, 12), devices=None)), "nvml")
    assert (finding.outcome, finding.care) == (Outcome.CANNOT_TELL, Care.WATCH)


def test_nvml_that_was_not_asked_is_not_judged() -> None:
    assert nodes.of(judged(healthy()._replace(nvml=None)), "nvml") == []


@pytest.mark.parametrize(
    ("number", "care", "outcome", "mark"),
    [
        (15, Care.REBOOT, Outcome.FAIL, Mark.LOST_GPU),
        (999, Care.REBOOT, Outcome.CANNOT_TELL, Mark.LOST_GPU),
        (16, Care.RESET, Outcome.FAIL, Mark.NONE),
        (14, Care.DRAIN, Outcome.FAIL, Mark.NONE),
        (4, Care.WATCH, Outcome.CANNOT_TELL, Mark.NONE),
        (17, Care.WATCH, Outcome.CANNOT_TELL, Mark.NONE),
    ],
)
def test_a_gpu_without_a_handle_is_told_by_its_code(number: int, care: Care, outcome: Outcome, mark: Mark) -> None:
    node = nodes.with_gpu(healthy(), 3, code=number, pci=None, minor=None, reads={}, links=())
    for phase, gpus in ((Phase.PERIODIC, None), (Phase.PROLOG, None), (Phase.PROLOG, (2, 3)), (Phase.EPILOG, (3,))):
        finding = nodes.one(judged(node, phase=phase, gpus=gpus), "gpu_lost")
        assert (finding.care, finding.outcome, finding.mark) == (care, outcome, mark)
        assert finding.words.startswith("GPU 3 (0000:33:00.0) is counted and cannot be reached: ")
        assert finding.part == "gpu/0000:33:00.0", "the only one that PCIe shows and NVML does not name"


def test_a_gpu_without_a_handle_keeps_its_number_where_its_place_is_a_guess() -> None:
    for others in (2, 3):
        node = healthy()
        for index in (others, 3):
            node = nodes.with_gpu(node, index, code=15, pci=None, minor=None, reads={}, links=())
        node = node if others == 2 else node._replace(devices=(node.devices or ())[4:])
        parts = [f.part for f in nodes.of(judged(node), "gpu_lost") if f.outcome is not Outcome.PASS]
        assert parts == sorted({f"gpu/index-{others}", "gpu/index-3"})


def test_a_gpu_that_nvml_does_not_count_is_named_by_its_place() -> None:
    finding = nodes.one(judged(_counted(7, 8), phase=Phase.PROLOG, gpus=(6, 7)), "gpu_lost")
    assert finding.words.endswith("not among the 7 GPUs that NVML counts, PCIe shows 8, the other at 0000:53:00.0")


@pytest.mark.parametrize("phase", [Phase.PROLOG, Phase.EPILOG])
@pytest.mark.parametrize("number", [15, 999, 16])
def test_a_lost_gpu_of_others_is_told_and_keeps_no_job_of_ours_away(phase: Phase, number: int) -> None:
    node = nodes.with_gpu(healthy(), 3, code=number, minor=None, reads={}, links=())
    found = judged(node, phase=phase, gpus=(0, 1))
    assert closing(found) == []
    assert nodes.one(found, "gpu_lost").care is Care.WATCH


def test_a_gpu_of_the_job_that_is_not_there_keeps_it_away() -> None:
    found = judged(healthy(), phase=Phase.PROLOG, gpus=(0, 11))
    finding = nodes.one(found, "gpu_lost")
    assert (finding.care, finding.mark, finding.part) == (Care.DRAIN, Mark.NONE, "gpu/minor-11")
    assert "/dev/nvidia11" in finding.words


@pytest.mark.parametrize(("pcie", "mark"), [(8, Mark.LOST_GPU), (7, Mark.NONE), (None, Mark.NONE)])
def test_a_gpu_of_the_job_is_lost_beyond_the_budget_only_where_pcie_shows_it(pcie: int | None, mark: Mark) -> None:
    node = _counted(7, pcie)._replace(devices=None)
    finding = nodes.one(judged(node, Profile("p"), Phase.PROLOG, (0, 7)), "gpu_lost")
    assert (finding.care, finding.mark) == (Care.DRAIN, mark)


def test_two_missing_gpus_and_one_lost_one_are_two_findings() -> None:
    node = nodes.with_gpu(healthy(), 3, code=15, minor=None, reads={}, links=())
    found = nodes.of(judged(node, phase=Phase.PROLOG, gpus=(3, 11)), "gpu_lost")
    assert [finding.part for finding in found if finding.care is not Care.IGNORE] == [
        "gpu/0000:33:00.0",
        "gpu/minor-11",
    ]


def test_gpus_that_tell_no_minor_may_be_any_and_none_of_them_is_missing() -> None:
    node = healthy()
    for index in range(8):
        node = nodes.with_gpu(node, index, minor=None)
    assert closing(judged(node, phase=Phase.PROLOG, gpus=(0, 11))) == []
    node = nodes.with_reads(node, 7, remap_failure=1)
    assert closing(judged(node, phase=Phase.PROLOG, gpus=(0,))) == ["row_remap_failure"]


def test_a_gpu_that_was_asked_nothing_is_not_called_well() -> None:
    found = judged(nodes.with_gpu(healthy(), 3, reads={}, links=(), processes=None))
    assert (nodes.one(found, "gpu_lost").outcome, nodes.one(found, "gpu_lost").care) == (
        Outcome.CANNOT_TELL,
        Care.WATCH,
    )
    assert not [f for f in found if f.part == "gpu/0000:33:00.0" and f.outcome is Outcome.PASS and "pcie" not in f.check
                and f.check != "gpu_model"]  # fmt: skip


def test_many_bad_answers_of_a_gpu_are_one_finding_that_counts_them() -> None:
    node = nodes.with_reads(healthy(), 3, ecc_mode=code(15), remap_pending=code(15), power_mw=code(999))
    node = nodes.with_links(node, 3, range(4), state=code(15))
    found = judged(node)
    assert closing(found) == ["gpu_lost"]
    words = "NVML says of GPU 3 (0000:33:00.0): GPU is lost (NVML 15), when asked for remap pending and 5 more"
    assert nodes.one(found, "gpu_lost").words == words
    assert nodes.one(found, "ecc_mode").care is Care.IGNORE
    assert nodes.one(found, "nvlink_state").outcome is Outcome.CANNOT_TELL


code = nodes.code


def _counted(gpus: int, pcie: int | None) -> Readings:
    node = healthy()
    assert node.nvml is not None
    return nodes.with_host(nodes.with_nvml(node, gpus=node.nvml.gpus[:gpus], peers=()), nvidia_devices=pcie)


@pytest.mark.parametrize(
    ("gpus", "pcie", "wanted", "care"),
    [
        (8, 8, 8, Care.IGNORE),
        (7, 7, 8, Care.DRAIN),
        (0, 1, 8, Care.DRAIN),
        (7, 8, 8, Care.DRAIN),
        (8, 8, 4, Care.WATCH),
        (7, 8, None, Care.WATCH),
        (8, 8, None, Care.IGNORE),
        (8, None, None, Care.IGNORE),
    ],
)
def test_gpus_are_counted_against_the_profile_and_else_against_pcie(
    gpus: int, pcie: int | None, wanted: int | None, care: Care
) -> None:
    finding = nodes.of(judged(_counted(gpus, pcie), Profile("p", gpus=wanted)), "gpu_count")[0]
    assert finding.care is care
    assert (finding.outcome is Outcome.PASS) == (care is Care.IGNORE)
    assert finding.value == gpus
    lost = care is Care.DRAIN and pcie is not None and pcie > gpus
    assert finding.mark is (Mark.LOST_GPU if lost else Mark.NONE)
    if care is Care.DRAIN:
        assert finding.words == f"NVML counts {gpus} GPUs, 8 are expected"


def test_a_wrong_profile_on_every_node_drains_no_more_of_them_than_the_budget_allows() -> None:
    for phase in (Phase.PROLOG, Phase.PERIODIC):
        found = judged(_counted(4, 4), Profile("p", gpus=8), phase)
        assert closing(found) == ["gpu_count"]
        assert not decide(found).lost


def test_nvml_that_answers_again_may_bring_the_node_back() -> None:
    for answer in (Answer.HUNG, Answer.BUSY):
        finding = nodes.one(judged(_failed(Nvml(answer))), "nvml")
        drain = Drain("fleetctl: x", 1000.0, "boot-1", (("nvml", finding.part),), finding.care)
        assert not may_return(drain, "fleetctl: x", Seen(judged(_failed(Nvml(answer))), "boot-1", 5e3), (), Back()).back
        assert may_return(drain, "fleetctl: x", Seen(judged(healthy()), "boot-1", 5e3), (), Back()).back
        assert "reboot the node" in finding.words


def test_a_missing_gpu_of_others_keeps_a_job_not_away() -> None:
    node = _counted(7, 7)
    assert closing(judged(node, Profile("p", gpus=8), Phase.PROLOG, (0, 1))) == []
    assert closing(judged(node, Profile("p", gpus=8), Phase.PROLOG)) == ["gpu_count"]


def test_another_model_or_driver_than_the_profiles_is_told() -> None:
    profile = Profile("p", device_ids=(0x26B910DE,), driver="575.57.08")
    found = judged(healthy(), profile)
    assert {finding.care for finding in nodes.of(found, "gpu_model")} == {Care.WATCH}
    assert "0x233010de" in nodes.of(found, "gpu_model")[0].words
    assert nodes.one(found, "driver").words == "the driver is 570.133.20, 575.57.08 is expected"


def test_a_driver_or_model_that_is_not_told_does_not_pass() -> None:
    node = nodes.with_nvml(nodes.with_gpu(healthy(), 0, device_id=None), driver=None)
    found = judged(node)
    assert nodes.one(found, "driver").outcome is Outcome.CANNOT_TELL
    assert nodes.one(found, "gpu_model").outcome is Outcome.CANNOT_TELL


def test_without_a_profile_no_model_is_called_right() -> None:
    found = nodes.of(judged(healthy(), Profile("")), "gpu_model")
    assert {finding.outcome for finding in found} == {Outcome.CANNOT_TELL}
