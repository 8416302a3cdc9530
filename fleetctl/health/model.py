"""The words of a node check: readings come in, findings go out. Pure; standard library only, Python 3.9 and newer.

A reading that could not be taken is a code or None, never a zero: unknown is not empty.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any, Dict, Mapping, Optional, Tuple, Union

from fleetctl.health.record import NamedTuple

Scalar = Union[int, float, str]


class Phase(str, Enum):
    """When a node is looked at."""

    PROLOG = "prolog"
    EPILOG = "epilog"
    PERIODIC = "periodic"
    BOOT = "boot"
    HAND = "hand"


class Outcome(str, Enum):
    """What one check found."""

    PASS = "pass"
    FAIL = "fail"
    CANNOT_TELL = "cannot_tell"


class Care(IntEnum):
    """What a finding asks for, the mildest first. From RESET on no job may start on the node."""

    IGNORE = 0  # normal, or the echo of something else
    WATCH = 1  # worth a line in the history
    APP = 2  # the application's own fault
    RESET = 3  # the GPU must be reset
    REBOOT = 4  # the node must be rebooted
    DRAIN = 5  # the node must not run jobs until the part works again
    HUMAN = 6  # a person must look: never back by itself


CLOSING = Care.RESET  # this and more keep jobs away


class Mark(str, Enum):
    """What is special about a finding."""

    NONE = "none"
    LOST_GPU = "lost_gpu"  # drained even when the fleet's budget is spent
    TRANSIENT = "transient"  # may pass within seconds: read again before it is believed


class Finding(NamedTuple):
    """What one check says about one part.

    `check` is an id of `checks.CHECKS`. `subject` names the part for a person ("GPU 3 (0000:1b:00.0)",
    "port mlx5_0/1", "node"); `part` is its stable key, the same after a reboot ("gpu/0000:1b:00.0",
    "port/mlx5_0/1", "node"). `words` is one sentence that a tired person understands. `code` is an nvmlReturn.
    """

    check: str
    outcome: Outcome
    subject: str
    part: str
    words: str
    value: Optional[Scalar] = None
    expected: Optional[Scalar] = None
    unit: str = ""
    care: Care = Care.IGNORE
    mark: Mark = Mark.NONE
    code: Optional[int] = None


class Read(NamedTuple):
    """One value that NVML was asked for: `code` is its nvmlReturn, and `value` means something only when that is 0."""

    value: Any
    code: int = 0


class Answer(str, Enum):
    """How a reader ended."""

    ANSWERED = "answered"
    FAILED = "failed"  # `code` and `detail` say why
    HUNG = "hung"  # not within its deadline; its process was abandoned
    BUSY = "busy"  # an earlier process still hangs: none was started
    CRASHED = "crashed"  # it died, or printed nonsense


class Process(NamedTuple):
    """A process on a GPU, as NVML's own pid namespace sees it. `memory_bytes` None: not told."""

    pid: int
    memory_bytes: Optional[int]


class Gpu(NamedTuple):
    """One GPU. `code` is what asking for its handle returned: not 0 means that nothing else could be asked.

    `pci` is `0000:1b:00.0`, as sysfs writes it (domain of four digits or more, lower case). `minor` is the N of
    /dev/nvidiaN. The keys of `reads` and of each of `links` (one mapping per NVLink) are listed in readings.py.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    code: int = 0
    pci: Optional[str] = None
    minor: Optional[int] = None
    uuid: Optional[str] = None
    device_id: Optional[int] = None
    reads: Mapping[str, Read] = {}
    links: Tuple[Mapping[str, Read], ...] = ()
    processes: Optional[Tuple[Process, ...]] = None


class PeerToPeer(NamedTuple):
    """Whether two GPUs (by index) can read each other's memory: nvmlGpuP2PStatus, 0 is OK."""

    first: int
    second: int
    status: Read


class Nvml(NamedTuple):
    """All that NVML told. `calls` counts NVML calls made."""

    answer: Answer
    code: int = 0
    detail: str = ""
    driver: Optional[str] = None
    library: Optional[str] = None
    gpus: Tuple[Gpu, ...] = ()
    peers: Tuple[PeerToPeer, ...] = ()
    calls: int = 0
    took_s: float = 0.0


class PciLink(NamedTuple):
    """One end of a PCIe link: speeds in GT/s, widths in lanes; None: not readable, or nonsense (0, 63, Unknown)."""

    address: str
    speed_gts: Optional[float]
    width: Optional[int]
    max_speed_gts: Optional[float]
    max_width: Optional[int]


class PciDevice(NamedTuple):
    """A GPU or a network card on PCIe, with the bridges above it, nearest first. `errors` are AER totals by kind."""

    kind: str  # "gpu", "nic" or "nvme"
    link: PciLink
    device_id: Optional[int]  # device in the upper 16 bits, vendor in the lower, as NVML writes it
    bridges: Tuple[PciLink, ...] = ()
    errors: Mapping[str, int] = {}


class Port(NamedTuple):
    """One InfiniBand or RoCE port. `width` is the 4 of `400 Gb/sec (4X NDR)`; `unreadable` names counters."""

    device: str
    port: int
    link_layer: Optional[str]  # "InfiniBand" or "Ethernet"
    state: Optional[str]  # "ACTIVE", "INIT", "DOWN", ...
    phys_state: Optional[str]  # "LinkUp", "Polling", "Disabled", ...
    rate_gbps: Optional[float] = None
    width: Optional[int] = None
    speed: Optional[str] = None  # "NDR"
    pci: Optional[str] = None
    netdev: Optional[str] = None
    operstate: Optional[str] = None
    counters: Mapping[str, int] = {}
    unreadable: Tuple[str, ...] = ()


class EventKind(str, Enum):
    """What a line of the kernel log is about."""

    XID = "xid"
    SXID = "sxid"
    OFF_THE_BUS = "off_the_bus"  # "fallen off the bus", with or without an Xid
    NIC = "nic"
    NVME = "nvme"
    READ_ONLY = "read_only"
    MEMORY = "memory"  # machine check, EDAC
    STUCK = "stuck"  # hung task, soft lock-up
    OOM = "oom"
    LOST = "lost"  # records were overwritten before we read them; `count` says how many, if known


class Event(NamedTuple):
    """One fault that the kernel logged, a storm folded into one with `count`.

    `at_s` is CLOCK_MONOTONIC of the first line, `last_s` of the last one. `pci` is `0000:1b:00`, without function.
    `told`: a drain of ours has named it already, so that it does not count again after a resume.
    """

    sequence: int
    at_s: float
    last_s: float
    kind: EventKind
    pci: Optional[str]
    number: Optional[int]
    text: str
    process: Optional[str] = None
    severity: Optional[str] = None  # as the line says: "Fatal", "Nonfatal", "Correctable", "Uncorrected", ...
    count: int = 1  # type: ignore[assignment]  # hides tuple.count
    told: bool = False


class Mount(NamedTuple):
    """A file system: `state` "ok", "missing", "read_only", "hung" or "failed"; free shares from 0 to 1."""

    path: str
    state: str
    detail: str = ""
    free: Optional[float] = None
    free_inodes: Optional[float] = None


class Stuck(NamedTuple):
    """A process in uninterruptible sleep (`D`) or dead and not buried (`Z`)."""

    pid: int
    name: str
    state: str


class Host(NamedTuple):
    """The machine around the GPUs."""

    memory_bytes: Optional[int] = None
    mounts: Tuple[Mount, ...] = ()
    shm_bytes: Optional[int] = None
    shm_free_bytes: Optional[int] = None
    edac_corrected: Optional[int] = None
    edac_uncorrected: Optional[int] = None
    clock_synchronised: Optional[bool] = None
    clock_source: Optional[str] = None
    governors: Tuple[str, ...] = ()
    stuck: Tuple[Stuck, ...] = ()
    nvidia_devices: Optional[int] = None  # NVIDIA GPUs that PCIe shows, whatever NVML counts


class Readings(NamedTuple):
    """One look at a node. None: that reader did not run, or did not come back (then `failed` says so)."""

    node: str
    boot_id: str
    at: float  # seconds since the epoch
    uptime_s: float  # CLOCK_MONOTONIC at the same moment
    nvml: Optional[Nvml] = None
    devices: Optional[Tuple[PciDevice, ...]] = None
    ports: Optional[Tuple[Port, ...]] = None
    events: Optional[Tuple[Event, ...]] = None
    host: Optional[Host] = None
    failed: Mapping[str, Answer] = {}  # reader ("files", "mounts", ...) -> how it ended, where not ANSWERED


class Asked(NamedTuple):
    """What a check is about. `gpus` are minor numbers; None: every GPU of the node."""

    phase: Phase
    gpus: Optional[Tuple[int, ...]] = None
    job_id: Optional[str] = None


class Baseline(NamedTuple):
    """Counters at an earlier moment of the same boot, by stable key ("port/mlx5_0/1/link_downed")."""

    boot_id: str
    at: float
    counters: Dict[str, int]


class Move(str, Enum):
    """How a counter moved since the baseline."""

    FIRST = "first"  # no baseline of this boot
    SAME = "same"
    ROSE = "rose"
    BACKWARDS = "backwards"  # it was reset, or lies
    CEILING = "ceiling"  # it cannot count further (some saturate at 15, 255 or 65535)


class Change(NamedTuple):
    """One counter's move; `by` is how far it rose, over `over_s` seconds."""

    move: Move
    now: int
    by: int = 0
    over_s: float = 0.0


class Decision(str, Enum):
    """What a phase does about its findings."""

    CLEAN = "clean"
    NOTED = "noted"  # findings, none of which keeps jobs away
    DRAIN = "drain"
    NO_BUDGET = "no_budget"  # it would drain, but enough nodes of the fleet were drained already
    BUG = "bug"  # fleetctl itself failed: jobs go on


class Verdict(NamedTuple):
    """What one look came to. `findings` are those that did not pass."""

    node: str
    phase: Phase
    at: float
    boot_id: str
    decision: Decision
    reason: str
    findings: Tuple[Finding, ...]
    passed: int
    took_s: float
    job_id: Optional[str] = None
    usage: Optional[Mapping[str, Any]] = None
