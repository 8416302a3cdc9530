"""CPU of whole processes, children included: what a login node pays. Ratios within one run; the machine is noisy."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Row:
    """One line of the table: ours against a peer or a physical limit, and the most that we allow ourselves."""

    what: str
    peer: str
    peer_ms: float
    ours_ms: float
    most: float  # ratio ours / peer, or milliseconds when `peer_ms` is 0

    @property
    def ratio(self) -> float:
        return self.ours_ms / self.peer_ms if self.peer_ms else self.ours_ms

    @property
    def holds(self) -> bool:
        return self.ratio <= self.most


def cpu_ms(argv: Sequence[str], environ: Mapping[str, str]) -> float:
    """User and system time of one run of `argv` and all its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, (argv, done.stderr)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def alternate(peer: Callable[[], float], ours: Callable[[], float], rounds: int) -> tuple[float, float]:
    """Medians of both, run in turns so that noise meets both alike; the first round warms the caches."""
    pairs = [(peer(), ours()) for _ in range(rounds + 1)][1:]
    return median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'what':<38} {'peer or limit':<44} {'peer ms':>8} {'ours ms':>8} {'ratio':>6} {'most':>6}"]
    for row in rows:
        ratio = f"{row.ratio:.2f}" if row.peer_ms else "-"
        most = f"{row.most:.2f}" if row.peer_ms else f"{row.most:.0f} ms"
        verdict = "" if row.holds else "  OVER"
        lines.append(
            f"{row.what:<38} {row.peer:<44} {row.peer_ms:>8.1f} {row.ours_ms:>8.1f} {ratio:>6} {most:>6}{verdict}"
        )
    return "\n".join(lines)
