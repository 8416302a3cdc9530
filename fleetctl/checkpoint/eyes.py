"""Who looks at checkpoints: a process that may hang or die in our place (apart.Apart), or this one (here.Here)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from msgspec import Struct

from fleetctl.checkpoint.model import Checked, Entry, Level, Survey
from fleetctl.checkpoint.storage import Kind, Storage, silent

AUTO = "auto"


class Memory(Struct, frozen=True):
    """Where it is noted what of a checkpoint was read and found right; only `trusted` notes spare a read."""

    path: str
    trusted: bool


class Eyes(Protocol):
    """To be opened and closed by `with`, once for all that a command looks at."""

    @property
    def storage(self) -> Storage:
        """For names; what is read is read by the verbs below."""
        ...

    @property
    def answers(self) -> bool:
        """Whether there is any use in asking on."""
        ...

    def kind(self, path: Path) -> Kind | None:
        """What is there, by whatever links; None for nothing, OTHER for what is no file and no folder.

        :raises OSError: that cannot be told.
        """
        ...

    def make(self, directory: Path) -> None:
        """Make a folder and those above it, if it is not there. :raises OSError: it cannot be made."""
        ...

    def survey(self, directory: Path, wanted: str) -> Survey:
        """As fleetctl.checkpoint.survey. :raises CannotTell: it cannot be listed."""
        ...

    def single(self, path: Path, kind: Kind) -> Entry | None:
        """As fleetctl.checkpoint.survey. :raises OSError: it cannot be told."""
        ...

    def examine(
        self,
        directory: Path,
        entry: Entry,
        level: Level,
        *,
        wanted: str = AUTO,
        ranks: int | None = None,
        pulse: Callable[[int], None] = silent,
        memory: Memory | None = None,
    ) -> Checked:
        """As fleetctl.checkpoint.examine: never raises for what lies there."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
