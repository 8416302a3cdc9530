"""Fuzz one target: `python -m tests.fuzz TARGET FOLDER [ARGUMENT OF LIBFUZZER...]`; FOLDER gets the seeds."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]

with atheris.instrument_imports(include=["fleetctl.checkpoint"]):
    from tests.fuzz.targets import SEEDS, TARGETS


def main() -> None:
    """Ends the process: libFuzzer does."""
    name, folder, *arguments = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[name]):
        (Path(folder) / f"seed{number}").write_bytes(seed)
    target = TARGETS[name]
    atheris.Setup([sys.argv[0], *arguments, folder], target)
    atheris.Fuzz()


main()
