"""Compiles the stand-in libnvidia-ml.so.1: once per source and set of left-out symbols, kept in the temp folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

NAME = "libnvidia-ml.so.1"
SOURCE = Path(__file__).with_name("stand_in.c")
FLAGS = ("-shared", "-fPIC", "-O1", f"-Wl,-soname,{NAME}", "-Wall", "-Wextra", "-Werror")


def build_library(folder: Path, without: tuple[str, ...] = ()) -> Path:
    """`<folder>/libnvidia-ml.so.1`; leaving out symbols makes it an older driver's."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / NAME
    fresh = folder / f".{NAME}.{os.getpid()}"
    shutil.copyfile(_compiled(tuple(sorted(without))), fresh)
    fresh.replace(target)  # a process that has the old one loaded keeps it
    return target


def _compiled(without: tuple[str, ...]) -> Path:
    source = SOURCE.read_bytes()
    unknown = [name for name in without if name.encode() not in source]
    if unknown:
        raise ValueError(f"the stand-in never had {unknown}")
    digest = hashlib.sha256(b"\0".join([source, " ".join(FLAGS).encode(), *map(str.encode, without)])).hexdigest()[:16]
    kept = Path(tempfile.gettempdir()) / f"fleetctl-stand-in-{os.getuid()}"
    kept.mkdir(mode=0o700, exist_ok=True)
    library = kept / f"{digest}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=kept) as scratch:
        symbols = Path(scratch) / "symbols"
        hidden = "".join(f" {name};" for name in without)
        symbols.write_text(f"{{ global: nvml*; stand_in_*; local:{hidden} *; }};\n")
        built = Path(scratch) / NAME
        command = ["cc", *FLAGS, f"-Wl,--version-script={symbols}", str(SOURCE), "-o", str(built)]
        subprocess.run(command, check=True, timeout=120)
        built.replace(library)
    return library
