"""Looking at checkpoints in this very process: in the child that is made for it, and in tests."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.eyes import AUTO, Memory
from fleetctl.checkpoint.model import Checked, Entry, Level, Survey
from fleetctl.checkpoint.storage import Kind, LocalStorage, silent
from fleetctl.checkpoint.survey import single, survey
from fleetctl.checkpoint.verified import open_notes


class Here:
    """Eyes. `pulse` is told the size of every read, and 0 for whatever else the storage answers."""

    def __init__(self, pulse: Callable[[int], None] = silent) -> None:
        self.storage = LocalStorage(lambda _: pulse(0))
        self._pulse = pulse

    @property
    def answers(self) -> bool:
        return True

    def kind(self, path: Path) -> Kind | None:
        try:
            mode = os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a name with a zero byte
            return None
        if stat.S_ISDIR(mode):
            return Kind.FOLDER
        return Kind.FILE if stat.S_ISREG(mode) else Kind.OTHER

    def make(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)

    def survey(self, directory: Path, wanted: str) -> Survey:
        return survey(self.storage, directory, wanted)

    def single(self, path: Path, kind: Kind) -> Entry | None:
        return single(self.storage, path, kind)

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
        def both(size_bytes: int) -> None:
            self._pulse(size_bytes)
            pulse(size_bytes)

        path = Path(memory.path) if memory is not None and level is Level.CONTENT else None
        with open_notes(path, trusted=memory is not None and memory.trusted) as notes:
            return examine(self.storage, directory, entry, level, wanted=wanted, ranks=ranks, pulse=both, notes=notes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass
