"""When a file was made."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fleetctl.health.births import births


def test_the_birth_of_a_file_is_told_or_unknown_and_never_wrong(tmp_path: Path) -> None:
    before = time.time()
    (tmp_path / "file").write_bytes(b"x")
    os.utime(tmp_path / "file", (5.0, 5.0))
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        born = births()(folder, "file")
        assert births()(folder, "none") is None
    finally:
        os.close(folder)
    assert born is None or before - 1 <= born <= time.time()
