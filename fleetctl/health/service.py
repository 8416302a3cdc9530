"""Whether a node that fleetctl drained may run jobs again. Pure.

Only what we closed is opened, only on evidence, and not for ever: a part that fails, heals and fails again is worn out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, FrozenSet, Iterable, Optional, Sequence

from fleetctl.health.judge_log import LOGGED
from fleetctl.health.model import CLOSING, Care, Finding, Outcome
from fleetctl.health.record import NamedTuple

if TYPE_CHECKING:
    from fleetctl.health.state import Drain


class Back(NamedTuple):
    """How often a node may come back: `most` times in `window_s`, and `cool_down_s` after its drain or last return."""

    most: int = 2
    window_s: float = 86400.0
    cool_down_s: float = 600.0


class Seen(NamedTuple):
    """What a look saw: every finding, the ones that passed included. `at` is in seconds since the epoch."""

    findings: Sequence[Finding]
    boot_id: str
    at: float


class Return(NamedTuple):
    """`why` says what the node waits for, or what proved it well."""

    back: bool
    why: str


def may_return(
    drain: Optional[Drain],
    reason: Optional[str],
    seen: Seen,
    returned: Sequence[float],
    back: Back,
    logged: FrozenSet[str] = LOGGED,
) -> Return:
    """Whether the node comes back now.

    :param reason: what Slurm says now, without who set it and when; None: it did not tell.
    :param returned: when it came back before, seconds since the epoch.
    :param logged: the checks that read the kernel's log, which forgets: after them only a reboot proves anything.
    """
    if drain is None:
        return Return(False, "no drain of ours stands")
    why = _not_ours(drain, reason) or _too_soon(drain, seen.at, returned, back) or _not_well(drain, seen, logged)
    return Return(False, why) if why else Return(True, f"what failed passes now: {_names(drain)}")


def _not_ours(drain: Drain, reason: Optional[str]) -> str:
    if reason is None:
        return "Slurm did not tell why the node is drained"
    if reason != drain.reason or not reason:
        return "the reason in Slurm is not the one that fleetctl wrote"
    return ""


def _too_soon(drain: Drain, now: float, returned: Sequence[float], back: Back) -> str:
    """Times in the future come of a clock that was set back: they count as just now."""
    if drain.care >= Care.HUMAN:
        return "a person must look at it first"
    if sum(1 for at in returned if now - at < back.window_s) >= back.most:
        return f"it came back {back.most} times in {back.window_s:.0f} s already: a person must look at it"
    waited = min(now - at for at in (drain.at, *returned))
    if waited < back.cool_down_s:
        return f"{back.cool_down_s - max(0.0, waited):.0f} s of the cool-down are left"
    return ""


def _not_well(drain: Drain, seen: Seen, logged: FrozenSet[str]) -> str:
    failing = next((f for f in seen.findings if f.outcome is not Outcome.PASS and f.care >= CLOSING), None)
    if failing is not None:
        return f"{failing.subject} fails still: {failing.check}"
    if not drain.findings:
        return "it is not known what failed"
    rebooted = bool(seen.boot_id) and bool(drain.boot_id) and seen.boot_id != drain.boot_id
    if not rebooted and (drain.care is Care.REBOOT or any(check in logged for check, _ in drain.findings)):
        return "only a reboot proves it well"
    for check, part in drain.findings:
        if not _passes(check, None if rebooted else part, seen.findings, rebooted and check in logged):
            return f"{check} of {part} was not seen to pass"
    return ""


def _passes(check: str, part: Optional[str], findings: Iterable[Finding], new_log: bool) -> bool:
    """The check was made and all its answers about this part (None: about any) are good: parts may be named anew by a
    reboot, or be replaced. In a new log milder lines are about something else."""
    about = [f for f in findings if f.check == check and part in (None, f.part)]
    return bool(about) and all(f.outcome is Outcome.PASS or (new_log and f.outcome is Outcome.FAIL) for f in about)


def _names(drain: Drain) -> str:
    return ", ".join(sorted({check for check, _ in drain.findings}))
