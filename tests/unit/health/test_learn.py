"""What a good node teaches."""

from __future__ import annotations

import pytest

from fleetctl.health.learn import learn
from fleetctl.health.model import Answer, Nvml, Readings
from fleetctl.health.profile import dump_profile, load_profile
from fleetctl.health.wanted import PortWanted
from tests.unit.health import nodes
from tests.unit.health.nodes import KINDS, healthy


@pytest.mark.parametrize("name", list(KINDS))
def test_what_a_good_node_teaches_can_be_written_and_read(name: str) -> None:
    kind, profile = KINDS[name], learn(healthy(name))
    assert load_profile(dump_profile(profile)) == profile
    assert profile.name == "learned from n1"
    assert profile.device_ids == (kind.device_id,)
    assert profile.gpus == kind.gpus
    assert profile.links == ((kind.up,) if kind.links else None)
    assert (profile.pcie_generation, profile.pcie_width) == (kind.generation, 16)
    assert profile.memory_mib == kind.memory_mib
    assert profile.fabric is (True if kind.fabric else None)
    assert (profile.ecc, profile.driver) == (True, "570.133.20")
    assert profile.ports == tuple(PortWanted(f"mlx5_{n}", 1, 400.0, 4) for n in range(kind.ports))
    assert profile.host_memory_bytes == 2048 * nodes.GIB
    assert profile.nic_links["0000:18:00.0"] == (32.0, 16)


def test_only_what_all_gpus_agree_on_is_learned() -> None:
    node = nodes.with_reads(healthy(), 3, memory_total_bytes=1 << 30, ecc_mode=0, pcie_max_generation=4, fabric_state=0)
    profile = learn(nodes.with_device(node, nodes.pci(3), width=8))
    assert (profile.memory_mib, profile.ecc, profile.pcie_generation, profile.pcie_width, profile.fabric) == (None,) * 5


def test_links_that_differ_from_gpu_to_gpu_are_all_fine() -> None:
    node = nodes.with_links(healthy("h100-pcie"), 3, range(18), state=0)
    assert learn(node).links == (0, 12)
    assert learn(nodes.with_links(node, 4, [0], state=nodes.code(17))).links == (0, 12)


@pytest.mark.parametrize(
    "node",
    [
        healthy()._replace(nvml=Nvml(Answer.HUNG)),
        healthy()._replace(nvml=None),
        nodes.with_gpu(healthy(), 3, code=15, reads={}, links=()),
    ],
    ids=["hung", "not asked", "lost"],
)
def test_a_node_whose_gpus_do_not_all_answer_teaches_nothing_about_them(node: Readings) -> None:
    profile = learn(node)
    assert (profile.gpus, profile.links, profile.memory_mib, profile.ecc) == (None,) * 4
    assert profile.ports


def test_gpus_that_are_cut_up_teach_no_links() -> None:
    node = healthy()
    for index in range(8):
        node = nodes.with_reads(node, index, mig_mode=1)
    assert learn(node).links is None


def test_ports_that_are_down_are_not_learned_and_unread_ones_are_not_none() -> None:
    node = nodes.with_port(nodes.with_port(healthy(), 0, state="DOWN"), 1, operstate="down")
    assert [port.device for port in learn(node).ports or ()] == [f"mlx5_{n}" for n in range(2, 8)]
    assert learn(node._replace(ports=())).ports == ()
    assert learn(node._replace(ports=None)).ports is None
