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
    """What a name says. `staging`: not committed (yet)."""

    name: str
    training_step: int
    run_id: str
    attempt: AttemptNumber
    staging: bool = False

    @property
    def age_order(self) -> tuple[int, AttemptNumber, str, str]:
        """Greater is newer: by training step, then by attempt; names only make the order total."""
        return self.training_step, self.attempt, self.run_id, self.name


class Checked(Struct, frozen=True):
    """One checkpoint, or one foreign name (`entry` is None), and what was found.

    `level` is the deepest level that it passed, None if none; `bytes_read` what looking has cost. `size_bytes` and
    `saved_at` are the manifest's word, None until that was found whole.
    """

    entry: Entry | None
    name: str
    validity: Validity
    level: Level | None
    reason: str
    bytes_read: int = 0
    size_bytes: int | None = None
    saved_at: datetime | None = None


class Fence(Struct, frozen=True):
    """Whose commits count: those that stood in the newest claim, and those of the attempts since it.

    A rank of an older attempt may be frozen between its check and its rename; what it commits when it wakes is in no
    claim and older than the newest one, so it is never taken.
    """

    run_id: str
    stands: frozenset[str]
    since: AttemptNumber | None
    everything: bool = False

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
        return entry.run_id == self.run_id and self.since is not None and entry.attempt >= self.since


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
