"""What the kernel log makes of a node: what closes it, what does not, and in which words."""

from __future__ import annotations

import pytest

from fleetctl.health.judge_log import CHECK, LOGGED, LogRules, app_keys, judge_log, mark_told
from fleetctl.health.model import (
    CLOSING,
    Care,
    Event,
    EventKind,
    Finding,
    Mark,
    Outcome,
    PciDevice,
    PciLink,
    Phase,
    Readings,
)
from tests.unit.health.logged import CLEARED, NOW, OTHER, PCI, RESET, logged, parsed, readings, table, xid

WEEK = 7 * 86400.0
CONTAINED_BY_PEER = "RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 (0x040868e2 0x00000008 0x00000000 0x00000000)"


def failed(*events: Event, asked: frozenset[str] | None = None, **told: object) -> list[Finding]:
    found = judge_log(readings(events), table(), asked, **told)  # type: ignore[arg-type]
    return [finding for finding in found if finding.outcome is Outcome.FAIL]


def closing(*events: Event, asked: frozenset[str] | None = None) -> list[str]:
    return [finding.words for finding in failed(*events, asked=asked) if finding.care >= CLOSING]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([xid(79)], "GPU 3 (0000:1b:00) has fallen off the bus (Xid 79)"),
        ([xid(95, count=29)], "GPU 3 (0000:1b:00) reports an uncontained memory error (Xid 95), 29 times"),
        (
            [xid(95, "a"), xid(95, "b", count=3)],
            "GPU 3 (0000:1b:00) reports an uncontained memory error (Xid 95), 4 times",
        ),
        ([xid(64, pci="0008:01:00")], "GPU 0008:01:00 could not remap a memory row (Xid 64)"),
        ([xid(62, pci=None)], "a GPU reports that its micro-controller halted (Xid 62)"),
        (
            [parsed("NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.")],
            "GPU 3 (0000:1b:00) has fallen off the bus",
        ),
        (
            [parsed("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")],
            "NVSwitch 0000:05:00 reports a fatal error (SXid 20034): Fatal, Link 30 LTSSM Fault Up",
        ),
        (
            [parsed("nvme nvme2: controller is down; will reset: CSTS=0xffffffff")],
            "an NVMe disk does not answer: nvme nvme2: controller is down; will reset: CSTS=0xffffffff",
        ),
        (
            [parsed("EXT4-fs (sda1): Remounting filesystem read-only")],
            "a file system was made read-only: EXT4-fs (sda1): Remounting filesystem read-only",
        ),
        (
            [parsed("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0")],
            "an error was not corrected: EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0",
        ),
    ],
)
def test_what_closes_a_node_and_its_words(events: list[Event], words: str) -> None:
    assert closing(*events) == [words]


# What peers drain by mistake, or would.
HEALTHY = {
    "a fault in a kernel, in three lines": [xid(13, text, count=40) for text in ("a", "b", "c")],
    "a page fault": [xid(31, "MMU Fault")],
    "a burst of 43 and 45": [xid(43, count=900), xid(45, "Ch 1", count=9000)],
    "a lonely 45": [xid(45, "Ch 00000001")],
    "a 45 on each GPU": [xid(45, "Ch 1"), xid(45, "Ch 1", pci=OTHER)],
    "a row remapped": [xid(63)],
    "a contained error": [xid(94, "Contained: SM (0x1). RST: No, D-RST: No")],
    "corrected errors": [xid(92, count=100_000)],
    "packets lost by a peer": [xid(145, CONTAINED_BY_PEER, count=872)],
    "bits that went wrong on a link": [xid(149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001)")],
    "a C2C error": [xid(121)],
    "a number that nobody knows": [xid(201)],
    "NVDEC": [xid(68)],
    "driver load": [
        parsed(
            "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt", NOW - 38
        )
    ],
    "a non-fatal SXid": [
        parsed(
            "nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 12028, Non-fatal, Link 61 egress non-posted PRIV error (First)"
        )
    ],
    "a correctable SXid": [parsed("nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 12028, Correctable, Link 61 ECC")],
    "a process called 79": [parsed("NVRM: Xid (PCI:0000:1b:00): 13, pid=1, name=Xid (PCI:1): 79, 79, GPU has fallen")],
    "a process called Fatal": [
        parsed(f"NVRM: Xid (PCI:0000:1b:00): 145, pid=1, name=a, A Fatal (0x1, {CONTAINED_BY_PEER}")
    ],
    "an old fault": [xid(95, ago=3601)],
    "a fault that was acted upon": [xid(95)._replace(told=True)],
    "a fault that the driver cleared": [xid(95, ago=90), xid(154, RESET, ago=89), xid(154, CLEARED, ago=20)],
    "a verdict that the driver took back": [xid(154, RESET, ago=89), xid(154, CLEARED, ago=20)],
    "a hung task": [parsed("INFO: task kworker/u8:1:123 blocked for more than 120 seconds.")],
    "a corrected machine check": [parsed("mce: [Hardware Error]: Machine check events logged")],
    "a deferred error": [logged(EventKind.MEMORY, "Deferred error", severity="Uncorrected")],
    "an error that asks for nothing": [logged(EventKind.MEMORY, "No action required.", severity="Uncorrected")],
    "a command of a card that came too late": [
        logged(EventKind.NIC, "mlx5_core: QUERY_Q timeout. Will cause a leak of a command resource", severity="Fatal")
    ],
    "a page put aside": [
        parsed("Memory failure: 0x1d3f: recovery action for clean LRU page: Recovered"),
    ],
    "no memory left": [parsed("Memory cgroup out of memory: Killed process 12 (python) total-vm:1kB")],
    "a card with too little power": [
        parsed("mlx5_core 0000:51:00.0: Detected insufficient power on the PCIe slot (27W).")
    ],
    "a hot card": [parsed("mlx5_core 0000:51:00.0: High temperature on sensors with bit set 0 1")],
    "a port that may not be read": [
        parsed("mlx5_core 0000:51:00.0: mlx5_cmd_out_err: ACCESS_REG(0x805) op_mod(0x1) failed, status bad parameter")
    ],
    "a disk that was slow": [parsed("nvme nvme0: I/O 256 QID 1 timeout, aborting")],
    "an image of a container": [parsed("EXT4-fs (loop3): Remounting filesystem read-only")],
    "a disk of the network": [parsed("EXT4-fs (nbd0): Remounting filesystem read-only")],
    "a log that was overwritten": [logged(EventKind.LOST, count=70_000)],
    "an unused code": [xid(56), xid(65), xid(81)],
    "a threshold of an NVLink": [xid(74, "NVLink: error on link 3(0x0, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0)")],
}


@pytest.mark.parametrize("events", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_node_stays_open(events: list[Event]) -> None:
    assert closing(*events) == []


def test_all_of_it_at_once_keeps_a_node_open_as_well() -> None:
    assert closing(*(event for name in HEALTHY if "cleared" not in name for event in HEALTHY[name])) == []


@pytest.mark.parametrize(
    ("line", "check", "care"),
    [
        ("mlx5_core 0000:51:00.0: Fatal error 1 detected", "nic_log", Care.DRAIN),
        ("mlx5_core 0000:51:00.0: Detected insufficient power on the PCIe slot (27W).", "nic_log", Care.WATCH),
        ("XFS (nvme0n1p2): Please unmount the filesystem and rectify the problem(s)", "read_only", Care.DRAIN),
        ("nvme nvme2: Disabling device after reset failure: -19", "nvme_log", Care.DRAIN),
        ("nvme nvme0: I/O 256 QID 1 timeout, aborting", "nvme_log", Care.WATCH),
        ("INFO: task kworker/u8:1:123 blocked for more than 120 seconds.", "stuck_log", Care.WATCH),
        ("Out of memory: Killed process 12 (python) total-vm:1kB", "oom", Care.APP),
        ("mce: [Hardware Error]: Machine check events logged", "memory_log", Care.WATCH),
        ("nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 12028, Non-fatal, Link 61 egress", "sxid", Care.WATCH),
    ],
)
def test_other_lines_and_what_they_ask_for(line: str, check: str, care: Care) -> None:
    assert [(finding.check, finding.care) for finding in failed(parsed(line))] == [(check, care)]


@pytest.mark.parametrize(
    "event",
    [
        xid(43, count=900),
        parsed("nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 12028, Correctable, Link 61 ECC"),
        parsed("mlx5_core 0000:51:00.0: mlx5_cmd_out_err: ACCESS_REG(0x805) op_mod(0x1) failed"),
    ],
)
def test_what_means_nothing_is_not_told(event: Event) -> None:
    assert failed(event) == []


def test_what_a_switch_says_while_the_driver_loads_is_noise() -> None:
    line = "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt"
    always = LogRules(xid_window_s=2 * NOW)
    assert failed(parsed(line, ago=NOW - 299), rules=always) == []
    assert [f.care for f in failed(parsed(line, ago=NOW - 300), rules=always)] == [Care.WATCH]
    fatal = parsed(line.replace("Non-fatal", "Fatal"), ago=NOW - 38)
    assert [f.care for f in failed(fatal, rules=always)] == [Care.RESET]


def test_an_old_fault_changes_nothing_about_a_new_one() -> None:
    assert closing(xid(61), xid(62, ago=9000)) == []
    assert [f.care for f in failed(xid(44), xid(44, ago=9000))] == []


def test_the_worst_line_of_a_number_speaks_for_it() -> None:
    fatal, mild = xid(149, "NETIR Fatal XC0 i0 Link 4 (0x6 0x0)", ago=60), xid(149, "something Nonfatal", ago=10)
    (finding,) = failed(fatal, mild)
    assert (finding.care, finding.value) == (Care.RESET, 2)
    assert finding.words == "GPU 3 (0000:1b:00) reports a fatal NVLink error in NETIR on link 4 (Xid 149), 2 times"


def test_a_lost_gpu_is_marked_where_it_closes() -> None:
    bus = parsed("NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.")
    assert [(f.check, f.care, f.mark) for f in failed(xid(79), bus)] == [
        ("off_the_bus", Care.REBOOT, Mark.LOST_GPU),
        ("xid", Care.REBOOT, Mark.LOST_GPU),
    ]
    others = failed(xid(79), bus, asked=frozenset({OTHER}))
    assert {(f.care, f.mark) for f in others} == {(Care.WATCH, Mark.NONE)}


def test_a_gpu_of_another_job_is_watched_and_closes_nothing() -> None:
    mine, theirs = xid(95), xid(95, pci=OTHER)
    assert closing(mine, theirs, asked=frozenset({PCI})) == [
        "GPU 3 (0000:1b:00) reports an uncontained memory error (Xid 95)"
    ]
    assert [f.words for f in failed(theirs, asked=frozenset({PCI}))] == [
        "GPU 4 (0000:43:00) reports an uncontained memory error (Xid 95); it is not a GPU of this job"
    ]
    assert len(closing(mine, theirs)) == 2
    assert closing(mine, asked=frozenset()) == []


@pytest.mark.parametrize(
    "line",
    [
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "mlx5_core 0000:51:00.0: Fatal error 1 detected",
        "EXT4-fs (sda1): Remounting filesystem read-only",
    ],
)
def test_what_is_no_gpu_counts_for_every_job(line: str) -> None:
    assert len(closing(parsed(line), asked=frozenset())) == 1


def test_a_gpu_that_nobody_can_name_counts_for_every_job() -> None:
    assert len(closing(xid(62, pci=None), asked=frozenset())) == 1


@pytest.mark.parametrize(
    ("ago", "closes"), [(-5.0, True), (0.0, True), (3599.0, True), (3600.0, False), (9000.0, False)]
)
def test_an_event_counts_for_the_window(ago: float, closes: bool) -> None:
    assert bool(closing(xid(95, ago=ago))) is closes
    burst = xid(95, ago=9000)._replace(last_s=NOW - ago)
    assert bool(closing(burst)) is closes


def test_a_site_sets_the_window() -> None:
    assert [f.care for f in failed(xid(95, ago=60), rules=LogRules(xid_window_s=59))] == [Care.WATCH]


def test_what_closed_a_node_once_is_still_told_but_small_things_are_forgotten() -> None:
    assert [(f.care, f.words.partition("; ")[2]) for f in failed(xid(95, ago=9000), xid(13, ago=9000))] == [
        (Care.WATCH, "some time ago")
    ]
    told = [event._replace(told=True) for event in (xid(95), xid(13))]
    assert [f.words.partition("; ")[2] for f in failed(*told)] == ["it was acted upon before"]


def test_marked_events_do_not_close_the_node_again_and_new_ones_do() -> None:
    events = (xid(95), xid(95, pci=OTHER), parsed("EXT4-fs (sda1): Remounting filesystem read-only"))
    drained = [(f.check, f.part) for f in failed(*events, asked=frozenset({PCI})) if f.care >= CLOSING]
    marked = mark_told(events, drained)
    assert [event.told for event in marked] == [True, False, True]
    assert closing(*marked, asked=frozenset({PCI})) == []
    assert len(closing(*marked, xid(95, ago=1), asked=frozenset({PCI}))) == 1


def test_the_worst_comes_first_and_a_fault_before_the_verdict_on_it() -> None:
    found = failed(xid(13, pci=OTHER), xid(158, ago=60), xid(154, RESET, ago=59), xid(79, pci=OTHER))
    assert [f.words.partition("(Xid ")[2] for f in found] == [
        "79)",
        "158); its driver asks for a GPU reset (Xid 154)",
        "154, after Xid 158)",
        "13)",
    ]


def test_the_same_xid_in_several_jobs_makes_a_gpu_suspect() -> None:
    at = 0.0  # of the look
    jobs = {f"{PCI}/31": (("7", at), ("9", at)), f"{PCI}/13": (("7", at), ("7", at)), f"{OTHER}/31": (("7", at),)}
    assert [(f.check, f.care, f.part, f.value, f.words) for f in failed(app_xids=jobs)] == [
        (
            "app_xids",
            Care.WATCH,
            "gpu/0000:1b:00.0",
            2,
            "GPU 3 (0000:1b:00) had Xid 31 in 2 different jobs: the GPU may be the cause, not the programs",
        )
    ]
    assert failed(app_xids=jobs, asked=frozenset({OTHER})) == []


@pytest.mark.parametrize(("ago_s", "suspect"), [(WEEK, True), (WEEK + 1, False), (-WEEK, True), (-WEEK - 1, False)])
def test_jobs_that_failed_alike_years_apart_say_nothing_of_the_gpu(ago_s: float, suspect: bool) -> None:
    jobs = {f"{PCI}/31": (("7", -ago_s), ("9", 0.0))}
    assert [f.check for f in failed(app_xids=jobs)] == ["app_xids"] * suspect
    assert failed(app_xids={f"{PCI}/31": (("7", -9 * WEEK), ("9", -9 * WEEK))}) == []


def test_what_a_job_is_remembered_with() -> None:
    events = [xid(31, ago=50), xid(13, pci=OTHER, ago=50), xid(31, pci=OTHER, ago=500), xid(79), xid(31, pci=None)]
    assert app_keys(events, table(), NOW - 100) == (f"{PCI}/31", f"{OTHER}/13")


def test_a_log_that_was_not_read_is_no_quiet_log() -> None:
    found = judge_log(readings(None), table(), None)
    assert {finding.check for finding in found} == LOGGED
    assert {finding.outcome for finding in found} == {Outcome.CANNOT_TELL}
    assert [finding.check for finding in found if finding.care is Care.WATCH] == ["xid"]


@pytest.mark.parametrize("phase", list(Phase), ids=lambda phase: phase.value)
def test_that_the_log_is_closed_to_us_is_not_told_at_each_job(phase: Phase) -> None:
    worst = max(finding.care for finding in judge_log(readings(None), table(), None, LogRules(phase=phase)))
    assert worst is (Care.IGNORE if phase in (Phase.PROLOG, Phase.EPILOG) else Care.WATCH)


def test_a_quiet_log_passes_every_check_for_each_gpu() -> None:
    found = judge_log(readings([]), table(), frozenset({PCI}))
    assert {finding.outcome for finding in found} == {Outcome.PASS}
    assert {finding.check for finding in found} == LOGGED
    assert [finding.part for finding in found if finding.check == "xid"] == ["gpu/0000:1b:00.0"]
    everywhere = judge_log(readings([xid(95)]), table(), None)
    assert [(f.part, f.outcome.value) for f in everywhere if f.check == "xid"] == [
        ("gpu/0000:1b:00.0", "fail"),
        ("gpu/0000:43:00.0", "pass"),
    ]


def test_a_node_whose_nvml_is_silent_names_gpus_by_their_place() -> None:
    device = PciDevice("gpu", PciLink(f"{PCI}.0", None, None, None, None), None)
    look = Readings("n1", "boot", 0.0, NOW, devices=(device,), events=(xid(79),))
    found = judge_log(look, table(), None)
    assert found[0].words == "GPU 0000:1b:00 has fallen off the bus (Xid 79)"
    assert [f.part for f in found if f.check == "off_the_bus"] == ["gpu/0000:1b:00.0"]


def test_a_mistake_in_the_sites_xids_is_a_finding() -> None:
    found = judge_log(readings([]), table({"94": "rest"}), None)
    assert [(f.check, f.care, f.outcome) for f in found if "rest" in f.words] == [("site", Care.WATCH, Outcome.FAIL)]


def test_a_site_has_its_way_with_an_sxid() -> None:
    fatal = parsed("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    found = judge_log(readings([fatal]), table({"20034": "watch"}), None)
    assert [f.care for f in found if f.outcome is Outcome.FAIL] == [Care.WATCH]


def test_every_kind_of_event_has_a_check() -> None:
    assert set(CHECK) == set(EventKind)
