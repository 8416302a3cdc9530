"""Sick nodes: SICK, name -> Variant. Each of them must be drained, with a reason that holds the variant's `words`."""

from __future__ import annotations

from tests.nvml.gpus import Code
from tests.nvml.healthy_variants import make_470
from tests.nvml.platforms import ALL_WELL
from tests.nvml.scenario import Node, function_of
from tests.nvml.variants import Table

_table = Table()
SICK = _table.variants

GPU_3 = "0000:61:00|GPU 3"


@_table.add(words=(GPU_3, "NVLink"))
def nvlink_down(node: Node) -> None:
    """One link of 18."""
    node.gpu(3).links[7].state = 0


@_table.add("a100-sxm", words=("GPU 3", "NVLink"))
def nvlink_down_under_an_older_driver(node: Node) -> None:
    """One link of 12, and the driver lacks what newer ones have."""
    make_470(node)
    node.gpu(3).links[7].state = 0


@_table.add(words=(GPU_3, "NVLink"))
def nvlink_state_unknown(node: Node) -> None:
    """One link's state answers 999, by field and by call."""
    node.gpu(3).links[7].state = Code(999)


@_table.add("b200", words=("NVLink",))
def all_nvlinks_down(node: Node) -> None:
    """`all links are inActive` on a B200, which gpud#1085 called healthy."""
    for gpu in node.gpus:
        gpu.lose_links()


@_table.add(words=(GPU_3, "SRAM"))
def sram_threshold_passed(node: Node) -> None:
    """Uncorrectable errors, and NVIDIA's own limit of them is passed."""
    gpu = node.gpu(3)
    gpu.ecc_uncorrected_volatile, gpu.ecc_uncorrected_aggregate = 2, 7
    gpu.sram_uncorrected, gpu.sram_threshold = 7, 1


@_table.add(words=(GPU_3, "remap"))
def row_remap_failed(node: Node) -> None:
    """No spare rows are left."""
    node.gpu(3).remap_failure, node.gpu(3).remap_uncorrected = 1, 8


@_table.add(words=(GPU_3, "remap"))
def row_remap_pending(node: Node) -> None:
    """A row waits for a reset."""
    node.gpu(3).remap_pending, node.gpu(3).remap_uncorrected = 1, 1


@_table.add(words=("mlx5_2", "2X|width|200"), learned=True)
def infiniband_width_2x(node: Node) -> None:
    """Two lanes of four, ACTIVE and LinkUp."""
    node.port("mlx5_2").rate = "200 Gb/sec (2X NDR)"


@_table.add(words=("mlx5_2", "DOWN"), learned=True)
def infiniband_port_down(node: Node) -> None:
    """No cable."""
    node.port("mlx5_2").go_down()


@_table.add(words=("mlx5_2", "INIT"), learned=True)
def infiniband_port_stays_in_init(node: Node) -> None:
    """No subnet manager."""
    node.port("mlx5_2").state = "2: INIT"


@_table.add(words=(GPU_3, "79"))
def xid_79(node: Node) -> None:
    """A lost GPU by the log, while NVML still answers."""
    node.log.xid(node.gpu(3).pci, 79, "GPU has fallen off the bus.", pid="'<unknown>'", name="<unknown>")


@_table.add(words=(GPU_3, "bus"))
def fallen_off_the_bus_without_xid(node: Node) -> None:
    """The three-line message alone: NVSentinel#155, gpud#1209."""
    node.log.fallen_off(node.gpu(3).pci)


@_table.add(words=(GPU_3, "119|GSP"))
def gsp_does_not_answer(node: Node) -> None:
    """Xid 119."""
    text = "Timeout after 45s of waiting for RPC response from GPU3 GSP! Expected function 76 (GSP_RM_CONTROL)."
    node.log.xid(node.gpu(3).pci, 119, text, pid="1234", name="python")


@_table.add("b200", words=(GPU_3, "149"))
def nvlink_fatal_by_the_log(node: Node) -> None:
    """`149, NETIR_LINK_EVT Fatal`."""
    registers = "(0x021425c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
    node.log.xid(node.gpu(3).pci, 149, f"NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 {registers}")


@_table.add(words=("20034",))
def nvswitch_fatal(node: Node) -> None:
    """A fatal SXid."""
    node.log.sxid(3, "0000:08:00.0", 20034, "Fatal, Link 30 LTSSM Fault Up")


@_table.add(words=(GPU_3,))
def handle_unknown_error(node: Node) -> None:
    """`Unable to determine the device handle ... Unknown Error`: shine-cluster#171, open-gpu-kernel-modules#387."""
    node.gpu(3).handle = Code(999)


@_table.add(words=(GPU_3, "lost"))
def handle_gpu_is_lost(node: Node) -> None:
    """GPU_IS_LOST for the handle; NVML still counts the GPU."""
    node.gpu(3).handle = Code(15)


@_table.add(words=(GPU_3, "lost"))
def lost_behind_its_handle(node: Node) -> None:
    """The handle is there, and everything asked through it answers GPU_IS_LOST."""
    node.returns("*", 15, gpu=3)
    node.returns("nvmlDeviceGetHandleByIndex_v2", 0, gpu=3)


@_table.add(words=("7", "8"))
def one_gpu_too_few(node: Node) -> None:
    """PCIe shows eight, NVML counts seven."""
    node.others.append(function_of(node.gpus.pop(), node.platform))


@_table.add(words=(GPU_3, "reboot"))
def driver_asks_for_a_reboot(node: Node) -> None:
    """Recovery action 2."""
    node.gpu(3).recovery_action = 2


@_table.add(words=(GPU_3, "reset"))
def driver_asks_for_a_reset(node: Node) -> None:
    """Recovery action 1."""
    node.gpu(3).recovery_action = 1


@_table.add("b200", words=(GPU_3, "fabric|route"))
def fabric_route_unhealthy(node: Node) -> None:
    """The health mask says `route unhealthy`."""
    node.gpu(3).fabric_mask = ALL_WELL & ~(3 << 4) | 1 << 4
    node.gpu(3).fabric_summary = 2


@_table.add(words=(GPU_3, "fabric"))
def fabric_has_insufficient_resources(node: Node) -> None:
    """`Completed / Insufficient Resources`: azhpc-images#506, NVSentinel#883, gpud#1151 passed it."""
    node.gpu(3).fabric_status = 23


@_table.add(words=("fabric",))
def fabric_never_completes(node: Node) -> None:
    """In Progress for ever: the fabric manager is dead."""
    for gpu in node.gpus:
        gpu.fabric_state = 2


@_table.add(words=(GPU_3, "PCIe"))
def pcie_width_8(node: Node) -> None:
    """Eight lanes of sixteen; the slot says that it could do more."""
    node.gpu(3).run_pcie_at(width=8)


@_table.add(words=(GPU_3, "PCIe"))
def pcie_width_8_since_boot(node: Node) -> None:
    """Eight lanes of sixteen, and the slot trained so: NVML says that no more is possible."""
    node.gpu(3).run_pcie_at(width=8)
    node.gpu(3).pcie_max_width = 8


@_table.add(words=("PCIe|GT/s",), learned=True)
def upstream_bridge_slow(node: Node) -> None:
    """The switch above a card and a GPU runs at generation 1; their own links look well (sichek's pcie_tree)."""
    node.card("mlx5_2").function.bridges[1].run_at(1)


@_table.add(words=("version|mismatch|driver",))
def library_of_another_driver(node: Node) -> None:
    """An upgrade without a reboot: shine-cluster#30."""
    node.returns("nvmlInitWithFlags", 18)


@_table.add(words=("driver",))
def driver_not_loaded(node: Node) -> None:
    """nvmlInit answers 9."""
    node.returns("nvmlInitWithFlags", 9)


@_table.add(words=("NVML",))
def init_unknown_error(node: Node) -> None:
    """nvmlInit answers 999."""
    node.returns("nvmlInitWithFlags", 999)


@_table.add(words=("NVML", "answer|hang|hung"))
def init_hangs(node: Node) -> None:
    """nvmlInit does not come back: gpud#117."""
    node.hangs("nvmlInitWithFlags")


@_table.add(words=("NVML", "answer|hang|hung"))
def a_call_hangs_uninterruptibly(node: Node) -> None:
    """One GPU's field values: the process is in state D and deaf to SIGTERM."""
    node.hangs("nvmlDeviceGetFieldValues", gpu=3, uninterruptibly=True)


@_table.add(words=("P2P|peer",))
def no_peer_to_peer_inside_the_node(node: Node) -> None:
    """`chipset not supported` between two GPUs that are linked."""
    node.peer(0, 1, p2p=1)
