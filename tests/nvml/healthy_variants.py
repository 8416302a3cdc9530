"""Healthy nodes that public checks drain by mistake: HEALTHY, name -> Variant. None of them may be drained.

Each docstring names the report, or the project whose source does it.
"""

from __future__ import annotations

from tests.nvml.gpus import ByInit, Code, Process
from tests.nvml.kernel_log import USER
from tests.nvml.machine import UNREADABLE, PciFunction, end
from tests.nvml.platforms import MIB
from tests.nvml.port_files import port
from tests.nvml.scenario import Card, Node, Paths
from tests.nvml.variants import Table

_table = Table()
HEALTHY = _table.variants


@_table.add()
def pcie_generation_1_while_idle(node: Node) -> None:
    """Idle GPUs train their link down to save power: rtx6kpro#88, nvtop#6."""
    for gpu in node.gpus:
        gpu.run_pcie_at(1)
        gpu.performance_state = 8


@_table.add("h100-pcie")
def bridges_not_fitted(node: Node) -> None:
    """H100 PCIe without NVLink bridges, all links down: NVSentinel#1481."""
    for gpu in node.gpus:
        gpu.lose_links()


@_table.add("a100-pcie")
def bridges_not_fitted_on_a100(node: Node) -> None:
    """A100 PCIe without NVLink bridges, all twelve links down: NVSentinel#1481."""
    for gpu in node.gpus:
        gpu.lose_links()


@_table.add("h100-pcie")
def pairs_with_12_of_18_links(node: Node) -> None:
    """Three bridges make 12 of 18 links: azurehpc-health-checks#162."""
    for gpu in node.gpus:
        for number, link in enumerate(gpu.links):
            link.state = int(number < 12)


@_table.add("a100-sxm")
def fabric_not_supported_on_a100(node: Node) -> None:
    """A100 has no fabric to probe: gpud#1147 took `Not Supported` for unhealthy."""
    for gpu in node.gpus:
        gpu.fabric_state = Code(3)


@_table.add("h100-pcie")
def fabric_state_not_supported(node: Node) -> None:
    """The call works and the state is 0, `not supported`, on H100 PCIe: gpud#1147."""
    for gpu in node.gpus:
        gpu.fabric_state = 0


@_table.add("h200")
def links_past_the_last_are_invalid(node: Node) -> None:
    """Links 18 to 35 answer INVALID_ARGUMENT, not NOT_SUPPORTED: TensorRT-LLM#17060, #19210."""
    for gpu in node.gpus:
        gpu.link_end = 2


@_table.add()
def uncorrectable_errors_of_last_year(node: Node) -> None:
    """Aggregate counts never go back to 0: oci-hpc check_gpu_setup.py and azurehpc fail for ever."""
    gpu = node.gpu(3)
    gpu.ecc_uncorrected_aggregate, gpu.sram_uncorrected, gpu.remap_uncorrected = 4, 3, 1


@_table.add()
def millions_of_corrected_errors(node: Node) -> None:
    """Corrected is corrected: gcm fails above 50 million, azurehpc above 20 million."""
    node.gpu(3).ecc_corrected_volatile = node.gpu(3).ecc_corrected_aggregate = 60_000_000


@_table.add()
def errors_of_applications(node: Node) -> None:
    """Faults of the program: azurehpc's fatal list has 68 and 69, gpud calls both fatal, dcgm warns of 13, 31, 43."""
    log, pci = node.log, node.gpu(3).pci
    log.xid(pci, 31, "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0", pid="4711", name="python")
    for word in ("ESR 0x57c730=0xc04000b 0x57c734=0x24", "ESR 0x57c738=0xc04000b 0x57c73c=0x24"):
        log.xid(pci, 13, f"Graphics Exception: {word}", pid="'<unknown>'", name="<unknown>")
    log.xid(pci, 43, "channel 0x0b00000a", pid="4711", name="python3")
    log.xid(pci, 45, "Ch 00000001", pid="4711", name="python3")
    log.xid(node.gpu(4).pci, 68, "video decoder exception, Ch 00000009", pid="4712", name="python3")
    log.xid(node.gpu(4).pci, 69, "Class Error: ChId 0008, Class 0000c7c0, Offset 00000000", pid="4712", name="python3")


@_table.add()
def a_burst_of_45(node: Node) -> None:
    """Xid 45 is the clearing up after a killed program: NVSentinel#1629 cordoned 77 nodes of 11 racks."""
    for channel in range(200):
        node.log.xid(node.gpu(channel % 8).pci, 45, f"Ch {channel:08x}", pid="1818990", name="python3")


@_table.add()
def a_row_remapped_long_ago(node: Node) -> None:
    """Xid 63 in the log and nothing pending now: in azurehpc's fatal list, gpud calls it fatal."""
    node.log.xid(
        node.gpu(3).pci,
        63,
        "Row Remapper: New row marked for remapping, reset gpu to activate.",
        pid="'<unknown>'",
        name="<unknown>",
    )
    node.gpu(3).remap_corrected = 1


@_table.add()
def a_contained_memory_error(node: Node) -> None:
    """Xid 94 costs the program, not the GPU: k8s-device-plugin marks it unhealthy for ever, gpud fatal."""
    node.log.xid(node.gpu(3).pci, 94, "Contained: SM (0x1). RST: No, D-RST: No", pid="4711", name="python3")


@_table.add("b200")
def a_packet_lost_by_a_peer(node: Node) -> None:
    """`145, RLW_SRC_TRACK Nonfatal`, taken for fatal by its number: NVSentinel#1357."""
    registers = "(0x00000082 0x00000004 0x00000000 0x00000000 0x00000000 0x00000000)"
    node.log.xid(node.gpu(3).pci, 145, f"RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 {registers}", pid="1234", name="python")


@_table.add()
def switches_talk_while_the_driver_loads(node: Node) -> None:
    """SXid 22013, three lines for each link, at each start: nvtrust#124; gpud counts each."""
    for link in range(44, 48):
        words = ", ".join(["0x0000002b", "0x0000002b", "0x00000000", "0x0000002b", "0x80005302", *["0x00000000"] * 4])
        node.log.sxid(3, "0000:08:00.0", 22013, f"Data {{{words}}}")
        node.log.sxid(3, "0000:08:00.0", 22013, f"Non-fatal, Link {link} Minion Link DLREQ interrupt")
        node.log.sxid(3, "0000:08:00.0", 22013, f"Severity 0 Engine instance {link} Sub-engine instance 00")


@_table.add()
def switches_mend_themselves(node: Node) -> None:
    """Non-fatal and correctable SXids: imbue needs a white list of them, gpud counts them."""
    node.log.sxid(2, "0000:07:00.0", 12028, "Non-fatal, Link 61 egress non-posted PRIV error (First)")
    node.log.sxid(2, "0000:07:00.0", 11012, "Correctable, Link 12 ingress ECC soft limit exceeded")


@_table.add()
def a_process_named_like_a_lost_gpu(node: Node) -> None:
    """Anyone may name a process: `grep Xid.*154` of the AWS sample matches even `pid=1154`."""
    name = "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."
    node.log.xid(node.gpu(0).pci, 31, "Ch 00000008, intr 00000000. MMU Fault", pid="1154", name=name)


@_table.add()
def a_user_writes_to_the_kernel_log(node: Node) -> None:
    """logger(1) and /dev/kmsg are open to words of others: gcm greps them all, gpud#870 injects such lines."""
    node.log.line("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.", facility=USER)
    node.log.line("root: NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.", facility=USER)


@_table.add(site={"xid_window_s": 60})
def an_old_xid_79(node: Node) -> None:
    """The GPU was seen to, the line is still there: gcm fails until the ring buffer wraps."""
    node.log.xid(node.gpu(3).pci, 79, "GPU has fallen off the bus.", pid="'<unknown>'", name="<unknown>", ago_s=600)


@_table.add()
def recovery_action_back_to_none(node: Node) -> None:
    """Xid 154 says that a reset is needed and, after it, that none is: OCI's and AWS's checks search for the first."""
    for change in ("from 0x0 (None) to 0x1 (GPU Reset Required)", "from 0x1 (GPU Reset Required) to 0x0 (None)"):
        node.log.xid(node.gpu(3).pci, 154, f"GPU recovery action changed {change}")


@_table.add("a100-sxm")
def driver_without_recovery_action(node: Node) -> None:
    """Field 230 is refused inside of a good answer: nvidia-resiliency-ext uses the value without a look at its code."""
    for gpu in node.gpus:
        gpu.fields[230] = Code(2)


@_table.add()
def old_driver(node: Node) -> None:
    """Driver 535 lacks newer symbols: gpud#1183 crashed on it."""
    node.driver = "535.161.08"
    node.without = (
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetSramEccErrorStatus",
    )
    for gpu in node.gpus:
        gpu.fields[230] = Code(2)


@_table.add("a100-sxm")
def much_older_driver(node: Node) -> None:
    """Driver 470 knows the second version of the process list alone: nvidia-ml-py raises what is no NVMLError."""
    make_470(node)
    node.gpu(3).processes = [Process(4242)]


def make_470(node: Node) -> None:
    """The symbols that driver 470 lacks."""
    node.driver = "470.57.02"
    node.without = (
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetGpuFabricInfo",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetSramEccErrorStatus",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
    )
    for gpu in node.gpus:
        gpu.fields[230] = Code(2)


@_table.add()
def memory_reserved_by_the_driver(node: Node) -> None:
    """The first version of the call counts it as used, 912 MB of it: nvml-wrapper#57, gcm's limit is 15 MiB."""
    for gpu in node.gpus:
        gpu.memory_reserved_bytes = 912 * MIB


@_table.add("a100-sxm", gpus="MIG-00000000-0000-0000-0000-000000000000")
def mig_is_on(node: Node) -> None:
    """No row remap, no process list, names for numbers: gcm's int(device) crashes, azurehpc counts the instances."""
    for gpu in node.gpus:
        gpu.turn_mig_on()
    text = "NVRM: Xid (PCI:0000:1b:00 GPU-I:05): 13, pid=4711, name=python3, Graphics SM Warp Exception on (GPC 7)"
    node.log.line(text, level=3)


@_table.add()
def counters_at_their_ceilings(node: Node) -> None:
    """255, 15, 65535: they stopped counting years ago: gpud#943."""
    node.port("mlx5_1").saturate()


@_table.add()
def counters_that_cannot_be_read(node: Node) -> None:
    """`N/A (no PMA)` and failing reads: node_exporter#966, #3434, #3823."""
    counters = node.port("mlx5_1").counters
    counters["symbol_error"] = "N/A (no PMA)"
    counters["link_downed"] = UNREADABLE


@_table.add(site={"skip_ports": ["mlx5_8"]})
def a_port_without_a_cable_by_design(node: Node) -> None:
    """A port that nobody uses, as 8 of 12 on CX8 cards, for which sichek has a list; gpud#1164 on reading them."""
    unused = port("400 Gb/sec (4X NDR)", "ens9np0", ethernet=True)
    unused.disable()
    node.cards.append(Card("mlx5_8", PciFunction(end("0000:0b:00.0", 5), 0x102115B3, 0x020000), [unused]))


def _becomes_active(paths: Paths) -> None:
    (paths.sys / "class/infiniband/mlx5_2/ports/1/state").write_text("4: ACTIVE\n")


@_table.add(later=_becomes_active, learned=True)
def a_port_that_comes_up(node: Node) -> None:
    """INIT until the subnet manager has swept: gpud#1247 kept its first verdict after the port was well."""
    node.port("mlx5_2").state = "2: INIT"


@_table.add("h200")
def fabric_still_in_progress(node: Node) -> None:
    """The fabric manager needs seconds after a start: oci-hpc's check_gpu_setup.py looks once."""
    for gpu in node.gpus:
        gpu.fabric_state = ByInit(2, 2, 3)


@_table.add()
def fabric_without_a_summary(node: Node) -> None:
    """H100 completes and tells no health summary: 0 is `not supported`, not `unhealthy` (gpud#1147 is of this kind)."""
    for gpu in node.gpus:
        gpu.fabric_state, gpu.fabric_status, gpu.fabric_mask, gpu.fabric_summary = 3, 0, 0, 0


@_table.add()
def clocks_held_for_good_reasons(node: Node) -> None:
    """Idle, application clocks, software power cap: sichek and NVSentinel fail on reasons."""
    for gpu, reasons in zip(node.gpus, (1, 2, 4, 5, 0, 1, 2, 4), strict=True):
        gpu.clock_reasons = reasons


@_table.add()
def persistence_is_off(node: Node) -> None:
    """Slow, not sick: gpud fails it."""
    for gpu in node.gpus:
        gpu.persistence = 0


@_table.add(gpus="0,1,2,3")
def another_job_computes(node: Node) -> None:
    """Processes and memory on GPUs that are not of this job: gcm counts them outside of a job's environment."""
    for gpu in node.gpus[4:]:
        gpu.processes = [Process(4242, 60_000 * MIB)]
        gpu.memory_used_bytes, gpu.utilization, gpu.clock_reasons = 60_000 * MIB, 99, 4
        gpu.pcie_replays = 3


@_table.add(gpus="0,1,2,3")
def processes_start_while_we_look(node: Node) -> None:
    """More processes at the second call than the wrapper made room for: nvidia-ml-py raises INSUFFICIENT_SIZE."""
    node.gpu(1).processes = [Process(4242)]
    node.gpu(1).processes_then = [Process(4242 + number) for number in range(12)]


@_table.add("a100-sxm")
def no_retired_pages_to_tell_of(node: Node) -> None:
    """`[N/A]` since Ampere: azurehpc hands it to `-gt`."""
    for gpu in node.gpus:
        gpu.retired_pages = gpu.retired_pending = Code(3)


@_table.add(gpus="0,1")
def minors_in_another_order(node: Node) -> None:
    """/dev/nvidia0 is NVML's index 7, in use by another job: gcm takes one for the other."""
    for index, gpu in enumerate(node.gpus):
        gpu.minor = 7 - index
    node.gpu(0).processes = [Process(4242, 60_000 * MIB)]
    node.gpu(0).memory_used_bytes = 60_000 * MIB


@_table.add("gb200")
def four_gpus_on_grace(node: Node) -> None:
    """Four GPUs in PCI domains 8, 9, 18, 19: gcm's default is 8 GPUs."""
    node.log.xid(node.gpu(0).pci, 43, "channel 0x0b00000a", pid="4711", name="python3")


@_table.add("l40s")
def neither_nvlink_nor_fabric(node: Node) -> None:
    """NOT_SUPPORTED from link 0 on, and RoCE in place of InfiniBand: imbue wants eight NDR ports."""
    for gpu in node.gpus:
        gpu.link_count = Code(3)
