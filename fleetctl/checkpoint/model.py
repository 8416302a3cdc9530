"""What is known of checkpoints, as frozen values: names, how valid they are, and which of them a run may take.

A checkpoint is taken by its *place in the history* and its *state*, both: the fence says whose commits count, the
validity says what was read of it and found whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import IntEnum, StrEnum

from msgspec import Struct

from fleetctl.train import layout

AttemptNumber = tuple[int, int]  # 3.1 is (3, 1); the higher one is newer
NOBODY: AttemptNumber = (0, 0)
_SHOWN_CHARS = 200  # of words that quote what somebody else wrote


class Level(IntEnum):
    """How deep somebody looked; each level includes those before it."""

    NAMES = 1  # the folder and its manifest are there
    STRUCTURE = 2  # the manifest holds together, and every shard has its size and a whole header
    CONTENT = 3  # every byte was read and has its digest


class Validity(StrEnum):
    """What was found. Only VALID may be resumed from; UNKNOWN is neither good nor bad."""

    VALID = "valid"
    IN_PROGRESS = "in_progress"  # an attempt that lives is writing it
    INCOMPLETE = "incomplete"  # a part is missing
    CORRUPT = "corrupt"  # a part is there and wrong
    SUSPECT = "suspect"  # nothing wrong was found, but an attempt died while it loaded this
    UNKNOWN = "unknown"  # it could not be read now, or is nothing that we know


class Entry(Struct, frozen=True):
    """What a name says. `staging`: not committed (yet).

    Only names of our own format say whose it is: `run_id` is empty and `attempt` NOBODY for the others. What a
    framework names without a training step has the one that was found inside.
    """

    name: str
    training_step: int
    run_id: str = ""
    attempt: AttemptNumber = NOBODY
    staging: bool = False

    @property
    def is_own(self) -> bool:
        """Whether its name is of our own format."""
        return self.run_id != ""

    @property
    def age_order(self) -> tuple[int, AttemptNumber, str, str]:
        """Greater is newer: by training step, then by attempt; names only make the order total."""
        return self.training_step, self.attempt, self.run_id, self.name


class Survey(Struct, frozen=True):
    """One listing of a folder of checkpoints: what may be one by its name, and what is none."""

    entries: tuple[Entry, ...] = ()
    foreign: tuple[str, ...] = ()


class Piece(Struct, frozen=True):
    """One part of a checkpoint that is missing, wrong or unreadable. `name` is a path below the checkpoint."""

    name: str
    validity: Validity
    reason: str


class Checked(Struct, frozen=True):
    """One checkpoint, or one name that is none (`entry` is None), and what was found.

    `level` is the deepest level that it passed, None if none, and `deepest` the deepest that its format can pass: what
    carries no checksum cannot pass CONTENT. `bytes_read` is what looking has cost. `pieces` are the first faults, of
    `faults` in all. `ranks`: only so many can load it; None: any number, or not known.
    """

    entry: Entry | None
    name: str
    validity: Validity
    level: Level | None
    reason: str
    bytes_read: int = 0
    size_bytes: int | None = None
    saved_at: datetime | None = None
    format: str | None = None
    pieces: tuple[Piece, ...] = ()
    faults: int = 0
    deepest: Level = Level.CONTENT
    resumable: bool = True
    uncommitted: bool = False  # what its writer puts last is not there: the save was never finished
    ranks: int | None = None
    touched_at: datetime | None = None  # when anything in it was written last, by the file server's clock
    training_step: int | None = None  # as its inside says, where that was read


class Fence(Struct, frozen=True):
    """Whose commits count: those that stood in the newest claim, and those of the attempts since it.

    A rank of an older attempt may be frozen between its check and its rename; what it commits when it wakes is in no
    claim and older than the newest one, so it is never taken.

    What a framework writes has no attempt in its name. Of that everything counts that was not there before the run
    began: `aside` are the names that were, and that nobody has written to since.
    """

    run_id: str
    stands: frozenset[str]
    since: AttemptNumber | None
    everything: bool = False
    aside: frozenset[str] = frozenset()

    @classmethod
    def open(cls, run_id: str) -> Fence:
        """For the first claim of a run with `load: latest`: whatever is in the folder counts, of any run."""
        return cls(run_id, frozenset(), None, everything=True)

    def accepts(self, entry: Entry) -> bool:
        """Whether this name counts. What is still in staging never does."""
        if entry.staging:
            return False
        if self.everything or entry.name in self.stands:
            return True
        if not entry.is_own:
            return self.since is not None and entry.name not in self.aside
        return entry.run_id == self.run_id and self.since is not None and entry.attempt >= self.since


class Needs(Struct, frozen=True):
    """What a checkpoint must be for a start to take it. `ranks` None: how many there are is not known."""

    level: Level = Level.STRUCTURE
    ranks: int | None = None


class Outcome(StrEnum):
    """What a start does."""

    RESUME = "resume"
    SCRATCH = "scratch"  # nothing was ever saved
    HOLD = "hold"  # something was saved, and nothing valid is left: a person decides


class Choice(Struct, frozen=True):
    """What a start takes, and why it takes nothing newer. `passed_over` is newest first."""

    outcome: Outcome
    chosen: Checked | None
    passed_over: tuple[Checked, ...]
    reason: str


class Load(Struct, frozen=True):
    """What one rank of an attempt wrote about loading one checkpoint: `loading`, `loaded` or `failed`."""

    attempt: AttemptNumber
    name: str
    state: str


def entry_of(name: str) -> Entry | None:
    """What the name of a committed checkpoint says; None for a foreign name."""
    try:
        said = layout.parse_committed(name)
    except ValueError:
        return None
    return Entry(name, said.training_step, said.run_id, layout.attempt_number(said.attempt))


def staged_entry_of(name: str) -> Entry | None:
    """What the name of a folder in staging says; None for a foreign name."""
    try:
        said, _ = layout.parse_staging(name)
    except ValueError:
        return None
    return Entry(name, said.training_step, said.run_id, layout.attempt_number(said.attempt), staging=True)


def load_of(attempt: AttemptNumber, raw: object) -> Load | None:
    """The content of a load.json or load-failed-RANK.json; None when it says nothing usable."""
    if not isinstance(raw, dict):
        return None
    path, state = raw.get("path"), raw.get("state")
    if not isinstance(path, str) or state not in ("loading", "loaded", "failed"):
        return None
    return Load(attempt, path.rstrip("/").rpartition("/")[2], state)


def suspects(loads: Iterable[Load], before: AttemptNumber) -> frozenset[str]:
    """Names whose load killed an attempt older than `before`, so far as their newest load tells.

    An attempt that ended while it loaded, or said that it failed, makes a suspect; one that loaded it since, with all
    of its ranks, clears it.
    """
    tried: dict[str, tuple[AttemptNumber, bool]] = {}
    for load in loads:
        if load.attempt >= before:
            continue
        newest, well = tried.get(load.name, ((-1, -1), True))
        if load.attempt > newest:
            tried[load.name] = load.attempt, load.state == "loaded"
        elif load.attempt == newest:
            tried[load.name] = newest, well and load.state == "loaded"
    return frozenset(name for name, (_, well) in tried.items() if not well)


def one_line(text: str) -> str:
    """Words that may quote a file somebody else wrote: printable ASCII, one line, not too long."""
    cut = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
    return "".join(char if " " <= char <= "~" else ascii(char)[1:-1] for char in cut)
