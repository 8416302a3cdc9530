"""Which code an attempt runs: git's word about the working directory, for the record only."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from fleetctl import process
from fleetctl.errors import FleetctlError

_LIMIT_S = 5.0  # a large repository on a slow file system must not keep nodes waiting


def code_state(workdir: Path, environ: Mapping[str, str]) -> dict[str, object] | None:
    """`commit`, `dirty` (tracked files differ) and `diff_sha256` of the difference; None when git cannot say."""
    quiet = {**environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}  # read only, and ask nobody

    def git(*words: str) -> str | None:
        try:
            said = process.run(("git", "-C", str(workdir), *words), timeout_s=_LIMIT_S, env=quiet)
        except FleetctlError:
            return None
        return said.stdout if said.returncode == 0 else None

    commit = git("rev-parse", "--verify", "HEAD")
    diff = git("diff", "--no-ext-diff", "--no-textconv", "HEAD", "--", ".") if commit is not None else None
    if commit is None or diff is None:
        return None
    digest = hashlib.sha256(diff.encode("utf-8", "surrogateescape")).hexdigest() if diff else None
    return {"commit": commit.strip(), "dirty": bool(diff), "diff_sha256": digest}
