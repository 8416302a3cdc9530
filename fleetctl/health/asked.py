"""What a check is asked about, from the environment that Slurm gives it. Pure; every word there may be hostile."""

from __future__ import annotations

from typing import Mapping, Optional, Set, Tuple

from fleetctl.health.model import Asked, Care, Finding, Outcome, Phase

_MOST_GPUS = 1024  # /dev/nvidiaN goes to 255 on one node; a longer list is no list of GPUs
_MOST_ID = 64
_MOST_UID_DIGITS = 10  # 32 bits


def asked_from(environ: Mapping[str, str], phase: Phase) -> Tuple[Asked, Tuple[Finding, ...]]:
    """The job and its GPUs. A job without GPUs asks for none; what cannot be read asks for all, and says so."""
    if phase not in (Phase.PROLOG, Phase.EPILOG):
        return Asked(phase), ()
    job_id = job_of(environ)
    text = environ.get("SLURM_JOB_GPUS", "").strip()
    if not text:
        return Asked(phase, (), job_id), ()
    gpus = parse_gpus(text)
    if gpus is not None:
        return Asked(phase, gpus, job_id), ()
    words = f"SLURM_JOB_GPUS does not list GPU numbers ({_shown(text)}): all GPUs of the node were checked"
    note = Finding("job_gpus", Outcome.CANNOT_TELL, "node", "node", words, care=Care.WATCH)
    return Asked(phase, None, job_id), (note,)


def parse_gpus(text: str) -> Optional[Tuple[int, ...]]:
    """The numbers in `0,1` or `0-3,6`, in order; None: it is something else (MIG and UUID names)."""
    found: Set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low, high = _number(first), _number(last if dash else first)
        if low is None or high is None or not low <= high < _MOST_GPUS:
            return None
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def job_of(environ: Mapping[str, str]) -> Optional[str]:
    """SLURM_JOB_ID where it is a job's id."""
    text = environ.get("SLURM_JOB_ID", "")
    return text if 0 < len(text) <= _MOST_ID and text.isascii() and text.isdecimal() else None


def uid_of(environ: Mapping[str, str]) -> Optional[int]:
    """SLURM_JOB_UID where it is a uid."""
    text = environ.get("SLURM_JOB_UID", "")
    return int(text) if 0 < len(text) <= _MOST_UID_DIGITS and text.isascii() and text.isdecimal() else None


def _number(text: str) -> Optional[int]:
    return int(text) if 0 < len(text) <= 4 and text.isascii() and text.isdecimal() else None


def _shown(text: str) -> str:
    kept = "".join(c if " " < c <= "~" else "?" for c in text)
    return kept if len(kept) <= 60 else kept[:57] + "..."
