"""What the process that does one deed is told, and what it answers. Pure.

That process has no database and no lease: it is told until when it may act, and is killed then.
"""

from __future__ import annotations

from msgspec import Struct

from fleetctl.recovery.model import Action, Outcome
from fleetctl.recovery.policy import Mode
from fleetctl.slurm.model import GpuStyle, MemoryStyle


class Seat(Struct, frozen=True):
    """Who acts, and from where: what submission.submit.Site is made of. Paths as text."""

    root: str
    user: str
    host: str
    cluster: str
    python: str
    gpu_style: GpuStyle
    memory_style: MemoryStyle
    max_array_size: int
    template_dirs: tuple[str, ...]
    comments_proved: bool
    message_timeout_s: float


class Order(Struct, frozen=True):
    """One deed. `ours` are nodes that this daemon has put on the job's exclusions, and nobody else has.

    `deadline_s` is of the host's monotonic clock, which all its processes share. `look_only`: somebody began this deed
    and died; only whether it happened is told.
    """

    action: Action
    mode: Mode
    seat: Seat
    path: str  # of the run's folder; "" for nodes
    attempts: int  # that the run, or its element, has had, and how often persons have asked for a requeue of it
    wishes: int
    deadline_s: float
    stop_file: str = ""
    words: str = ""  # the folder of the site's words
    ours: tuple[str, ...] = ()
    look_only: bool = False


class Answer(Struct, frozen=True):
    """What came of it. OPEN: that cannot be told now. `ours` as in Order, from now on; None: as before."""

    outcome: Outcome
    detail: str = ""
    ours: tuple[str, ...] | None = None


class Start(Struct, frozen=True):
    """The start of a job that an action is about; `raw_id` is the number of that one row."""

    cluster: str
    raw_id: int
    restarts: int


def start_of(text: str) -> Start | None:
    """CLUSTER/JOB/RESTARTS; None where it names no start of a job."""
    cluster, *numbers = text.rsplit("/", 2)
    if len(numbers) != 2 or not all(number.isascii() and number.isdigit() for number in numbers):
        return None
    return Start(cluster, int(numbers[0]), int(numbers[1]))


def run_of(key: str) -> tuple[str, int | None]:
    """The run's id, and the element of a sweep: `r-1/3`."""
    run_id, _, index = key.partition("/")
    return run_id, int(index) if index.isascii() and index.isdigit() else None


def note_of(key: str) -> str:
    """The note that keeps `ours` of a run, as a host list."""
    return f"excluded/{key}"
