"""NVLinks, the fabric, and peers."""

from __future__ import annotations

import pytest

from fleetctl.health.learn import learn
from fleetctl.health.model import Care, Mark, Outcome, Phase, Read, Readings
from fleetctl.health.rules import Rules
from fleetctl.health.wanted import Profile
from tests.unit.health import nodes
from tests.unit.health.nodes import closing, code, failures, healthy, judged

GPU = "GPU 3 (0000:33:00.0)"


@pytest.mark.parametrize(
    ("name", "down", "words"),
    [
        ("h100-sxm", [7], f"NVLink 7 of {GPU} is down"),
        ("b200", [3, 7], f"NVLinks 3, 7 of {GPU} are down"),
        ("h200", range(18), f"all 18 NVLinks of {GPU} are down"),
        ("a100-sxm", [11], f"NVLink 11 of {GPU} is down"),
        ("h100-pcie", [0], f"11 of 18 NVLinks of {GPU} are up, 0, 6, 12 or 18 are expected"),
    ],
)
def test_links_that_are_down_are_one_finding_that_names_them(name: str, down: list[int], words: str) -> None:
    found = judged(nodes.with_links(healthy(name), 3, down, state=0))
    assert failures(found) == [words]
    finding = nodes.one(found, "nvlink_state")
    assert finding.care is Care.RESET
    assert finding.part == "gpu/0000:33:00.0"
    assert (finding.value, finding.unit) == (nodes.KINDS[name].up - len(down), "links")


def test_all_links_of_all_gpus_down_is_no_healthy_node() -> None:
    node = healthy("b200")
    for index in range(8):
        node = nodes.with_links(node, index, range(18), state=0)
    assert closing(judged(node)) == ["nvlink_state"] * 8


def test_links_of_a_gpu_that_is_cut_up_close_nothing() -> None:
    node = nodes.with_reads(nodes.with_links(healthy(), 3, [7], state=0), 3, mig_mode=1)
    assert nodes.one(judged(node), "nvlink_state").care is Care.WATCH


def test_without_a_profile_unlike_links_are_only_told() -> None:
    node = nodes.with_links(healthy(), 3, [7], state=0)
    finding = nodes.one(judged(node, Profile("")), "nvlink_state")
    assert (finding.care, finding.words) == (Care.WATCH, f"NVLink 7 of {GPU} is down")
    node = nodes.with_links(healthy(), 3, range(18), state=0)
    assert failures(judged(node, Profile(""))) == []


@pytest.mark.parametrize("number", [4, 13, 17])
def test_a_link_whose_state_was_not_read_does_not_pass(number: int) -> None:
    finding = nodes.one(judged(nodes.with_links(healthy(), 3, [7], state=code(number))), "nvlink_state")
    assert finding.outcome is Outcome.CANNOT_TELL
    assert finding.words.startswith(f"the state of NVLink 7 of {GPU} cannot be read")
    assert finding.care <= Care.WATCH


@pytest.mark.parametrize("number", [2, 3])
def test_a_link_that_is_no_valid_question_does_not_exist(number: int) -> None:
    node = healthy()
    assert node.nvml is not None
    links = (*node.nvml.gpus[3].links, *({"state": code(number)} for _ in range(18)))
    finding = nodes.of(judged(nodes.with_gpu(node, 3, links=links)), "nvlink_state")[3]
    assert (finding.outcome, finding.value) == (Outcome.PASS, 18)
    finding = nodes.one(judged(nodes.with_gpu(node, 3, links=links[1:])), "nvlink_state")
    assert finding.words == f"17 of 17 NVLinks of {GPU} are up, 18 are expected"


def test_a_link_that_is_down_is_told_whatever_the_unread_ones_are() -> None:
    node = nodes.with_links(nodes.with_links(healthy(), 3, [7], state=code(17)), 3, [2, 4], state=0)
    finding = nodes.one(judged(node), "nvlink_state")
    assert (finding.outcome, finding.words) == (Outcome.FAIL, f"NVLinks 2, 4 of {GPU} are down")


@pytest.mark.parametrize(
    ("name", "count", "care"),
    [
        ("h100-sxm", code(3), Care.WATCH),
        ("h100-sxm", code(13), Care.WATCH),
        ("h100-sxm", Read(18), Care.WATCH),
        ("l40s", code(3), Care.IGNORE),
        ("l40s", None, Care.WATCH),
    ],
)
def test_links_that_were_not_read_at_all_do_not_pass(name: str, count: Read | None, care: Care) -> None:
    node = nodes.with_gpu(nodes.with_reads(healthy(name), 3, link_count=count), 3, links=())
    finding = next(f for f in nodes.of(judged(node), "nvlink_state") if f.part == "gpu/0000:33:00.0")
    assert (finding.outcome, finding.care) == (Outcome.CANNOT_TELL, care)


def test_a_gpu_that_says_it_has_no_link_passes_where_that_is_fine() -> None:
    node = nodes.with_reads(healthy("l40s"), 3, link_count=0)
    assert nodes.of(judged(node), "nvlink_state")[3].outcome is Outcome.PASS


def _rising(name: str, seconds: float, **counts: int) -> tuple[Readings, Readings]:
    """A node before and after these counters of NVLinks 2 and 5 of GPU 3 rose."""
    before = nodes.with_links(healthy(name), 3, [2, 5], **dict.fromkeys(counts, 10))
    after, _ = nodes.later(before, seconds)
    return before, nodes.with_links(after, 3, [2, 5], **{key: 10 + value for key, value in counts.items()})


@pytest.mark.parametrize(
    ("name", "counts", "check", "care", "words"),
    [
        ("h100-sxm", {"recoveries": 1}, "nvlink_errors", Care.RESET, "2 recoveries on NVLink 2, 5"),
        ("b200", {"recovery_failed": 1}, "nvlink_errors", Care.RESET, "2 failed recoveries on NVLink 2, 5"),
        ("h100-sxm", {"replays": 3}, "nvlink_replays", Care.WATCH, "6 replays on NVLink 2, 5"),
        ("h100-sxm", {"crc_errors": 3}, "nvlink_replays", Care.WATCH, "6 CRC errors on NVLink 2, 5"),
        ("b200", {"receive_errors": 4}, "nvlink_replays", Care.WATCH, "8 receive errors on NVLink 2, 5"),
        ("b200", {"integrity_errors": 1}, "nvlink_replays", Care.WATCH, "2 integrity errors on NVLink 2, 5"),
    ],
)
def test_link_errors_since_the_last_look_are_told(
    name: str, counts: dict[str, int], check: str, care: Care, words: str
) -> None:
    before, after = _rising(name, 600, **counts)
    found = judged(after, before=nodes.baseline_of(before))
    assert len(failures(found)) == 1
    finding = nodes.one(found, check)
    assert (finding.care, finding.words) == (care, f"{GPU} had {words} since the last look")


@pytest.mark.parametrize(("rise", "storms"), [(60_000, False), (60_001, True)])
def test_a_storm_of_crc_errors_closes(rise: int, storms: bool) -> None:
    before, after = _rising("h100-sxm", 600, crc_errors=rise)
    found = judged(after, before=nodes.baseline_of(before))
    assert (closing(found) == ["nvlink_errors"]) == storms


def test_errors_without_an_earlier_look_are_not_judged() -> None:
    _, after = _rising("h100-sxm", 600, recoveries=5)
    found = judged(after)
    assert failures(found) == []
    assert {f.outcome for f in nodes.of(found, "nvlink_errors")} == {Outcome.CANNOT_TELL}


@pytest.mark.parametrize(
    ("reads", "care", "mark", "words"),
    [
        ({"fabric_state": 1}, Care.DRAIN, Mark.TRANSIENT, "is not started"),
        ({"fabric_state": 2}, Care.DRAIN, Mark.TRANSIENT, "is in progress"),
        ({"fabric_status": 999}, Care.DRAIN, Mark.NONE, "has failed: unknown error (NVML 999)"),
        ({"fabric_status": 7}, Care.DRAIN, Mark.NONE, "has failed: insufficient size (NVML 7)"),
        ({"fabric_mask": 1}, Care.DRAIN, Mark.NONE, "is unhealthy: its bandwidth is degraded"),
        ({"fabric_mask": 1 << 2}, Care.DRAIN, Mark.TRANSIENT, "a route is recovering"),
        ({"fabric_mask": 1 << 4}, Care.DRAIN, Mark.NONE, "is unhealthy: a route is unhealthy"),
        ({"fabric_mask": 1 << 6}, Care.DRAIN, Mark.TRANSIENT, "it recovers from an access time-out"),
        ({"fabric_mask": 2 << 8}, Care.DRAIN, Mark.NONE, "is unhealthy: wrong configuration: wrong system GUID"),
        ({"fabric_mask": 5 << 8}, Care.DRAIN, Mark.NONE, "is unhealthy: wrong configuration: too few NVLinks"),
        ({"fabric_mask": 15 << 8}, Care.DRAIN, Mark.NONE, "is unhealthy: wrong configuration: 15"),
        ({"fabric_summary": 2}, Care.DRAIN, Mark.NONE, "is unhealthy: the driver says no more"),
        ({"fabric_summary": 3}, Care.WATCH, Mark.NONE, "it has a limited capacity"),
        ({"fabric_mask": 2 << 12}, Care.WATCH, Mark.NONE, "no partition is assigned"),
        ({"fabric_mask": 2 << 14}, Care.WATCH, Mark.NONE, "the fabric manager is disconnected"),
        ({"fabric_mask": 1 << 4 | 2 << 14}, Care.DRAIN, Mark.NONE, "is unhealthy: a route is unhealthy"),
        ({"fabric_state": 9}, Care.WATCH, Mark.NONE, "has the unknown state 9"),
    ],
    ids=str,
)
def test_the_fabric_is_judged_by_state_status_mask_and_summary(
    reads: dict[str, int], care: Care, mark: Mark, words: str
) -> None:
    finding = nodes.one(judged(nodes.with_reads(healthy("b200"), 3, **reads)), "fabric")
    assert (finding.outcome, finding.care, finding.mark) == (Outcome.FAIL, care, mark)
    assert words in finding.words
    assert GPU in finding.words


@pytest.mark.parametrize("state", [1, 2])
@pytest.mark.parametrize(
    ("uptime_s", "phase", "care"),
    [(299.0, Phase.PERIODIC, Care.WATCH), (299.0, Phase.BOOT, Care.WATCH), (300.0, Phase.PERIODIC, Care.DRAIN),
     (10.0, Phase.PROLOG, Care.DRAIN), (10.0, Phase.EPILOG, Care.DRAIN)],
)  # fmt: skip
def test_a_fabric_that_comes_up_after_the_boot_refuses_jobs_and_does_not_drain_the_node(
    uptime_s: float, phase: Phase, care: Care, state: int
) -> None:
    node = nodes.with_reads(healthy("b200"), 3, fabric_state=state)._replace(uptime_s=uptime_s)
    finding = nodes.one(judged(node, phase=phase), "fabric")
    assert (finding.care, finding.mark) == (care, Mark.TRANSIENT), "it is read again in any case"


@pytest.mark.parametrize(
    "mask", [0, 1 << 12, 1 << 14, 2, 2 << 2, 2 << 4, 2 << 6, 1 << 8, 3 << 12, 2 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8]
)
@pytest.mark.parametrize("summary", [0, 1])
def test_a_mask_that_says_false_or_nothing_is_well(mask: int, summary: int) -> None:
    node = nodes.with_reads(healthy("b200"), 3, fabric_mask=mask, fabric_summary=summary)
    assert failures(judged(node)) == []


def test_no_fabric_is_a_fault_only_where_the_profile_wants_one() -> None:
    node = nodes.with_reads(healthy(), 3, fabric_state=0)
    assert failures(judged(node)) == []
    assert closing(judged(node, Profile("p", fabric=True))) == ["fabric"]


def test_a_status_that_was_not_read_does_not_pass() -> None:
    finding = nodes.one(judged(nodes.with_reads(healthy(), 3, fabric_status=code(17))), "fabric")
    assert (finding.outcome, finding.care) == (Outcome.CANNOT_TELL, Care.WATCH)


def _peers(node: Readings, first: int, second: int, status: Read) -> Readings:
    assert node.nvml is not None
    pair = {first, second}
    peers = tuple(p._replace(status=status) if {p.first, p.second} == pair else p for p in node.nvml.peers)
    return nodes.with_nvml(node, peers=peers)


@pytest.mark.parametrize(
    ("name", "status", "care"),
    [("h100-sxm", 2, Care.DRAIN), ("h100-sxm", 6, Care.DRAIN), ("h100-sxm", 5, Care.WATCH), ("h100-sxm", 4, Care.WATCH),
     ("h100-pcie", 1, Care.WATCH)],
)  # fmt: skip
def test_gpus_that_cannot_read_each_other_are_one_finding(name: str, status: int, care: Care) -> None:
    node = _peers(_peers(healthy(name), 1, 2, Read(status)), 1, 5, Read(status))
    finding = nodes.one(judged(node), "p2p")
    assert finding.care is care
    assert finding.words.startswith("GPUs 1 and 2 cannot read each other's memory: ")
    assert finding.words.endswith(" (and 1 more pairs)")


def test_peers_outside_the_job_or_with_mig_are_nobodys_business() -> None:
    node = _peers(healthy(), 1, 2, Read(2))
    assert closing(judged(node, phase=Phase.PROLOG, gpus=(0, 1, 3))) == []
    assert closing(judged(node, phase=Phase.PROLOG, gpus=(1, 2))) == ["p2p"]
    assert closing(judged(nodes.with_reads(node, 2, mig_mode=1))) == []


def test_a_pair_that_was_not_read_does_not_pass() -> None:
    found = nodes.of(judged(_peers(healthy(), 1, 2, code(13))), "p2p")
    assert [finding.outcome for finding in found] == [Outcome.CANNOT_TELL]


def test_a_sites_limit_of_recoveries_stands() -> None:
    before, after = _rising("h100-sxm", 600, recoveries=1)
    rules = Rules(limits={"nvlink_recoveries": 1})
    assert closing(judged(after, before=nodes.baseline_of(before), rules=rules)) == []


def _part(node: Readings, gpus: int, *, links: bool, peers: int) -> Readings:
    """The first GPUs of a board, as a virtual machine has them."""
    assert node.nvml is not None
    between = tuple(peer._replace(status=Read(peers)) for peer in node.nvml.peers if peer.second < gpus)
    node = nodes.with_host(nodes.with_nvml(node, gpus=node.nvml.gpus[:gpus], peers=between), nvidia_devices=gpus)
    for index in range(0 if links else gpus):
        node = nodes.with_links(node, index, range(len(node.nvml.gpus[0].links if node.nvml else ())), state=0)
    return node


@pytest.mark.parametrize("name", ["a100-sxm", "h100-sxm", "h200", "b200"])
@pytest.mark.parametrize("gpus", [1, 2, 4])
@pytest.mark.parametrize("links", [False, True])
def test_a_part_of_a_board_without_links_and_peers_is_told(name: str, gpus: int, links: bool) -> None:
    node = _part(healthy(name), gpus, links=links, peers=1)
    found = judged(node)
    assert closing(found) == []
    assert {f.care for f in found if f.outcome is Outcome.FAIL} <= {Care.WATCH}


def test_a_learned_profile_knows_what_a_part_of_a_board_should_have() -> None:
    node = _part(healthy(), 4, links=False, peers=1)
    good = learn(_part(healthy(), 4, links=True, peers=0))
    assert closing(judged(node, good)) == [*["nvlink_state"] * 4, "p2p"]
    assert closing(judged(node, learn(node))) == ["p2p"] * 0


@pytest.mark.parametrize("gpus", [4, 8])
def test_one_link_or_pair_of_many_is_no_wish_of_anybody(gpus: int) -> None:
    node = _part(healthy(), gpus, links=True, peers=0)
    assert closing(judged(nodes.with_links(node, 3, range(18), state=0))) == ["nvlink_state"]
    assert closing(judged(_peers(node, 0, 1, Read(1)))) == ["p2p"]


def test_a_whole_board_without_links_or_peers_closes() -> None:
    assert closing(judged(_part(healthy(), 8, links=True, peers=1))) == ["p2p"]
    finding = nodes.one(judged(_part(healthy(), 8, links=True, peers=1)), "p2p")
    assert finding.words == "none of 8 GPUs can read another's memory: the chipset does not support it"
    assert set(closing(judged(_part(healthy(), 8, links=False, peers=0)))) == {"nvlink_state"}
