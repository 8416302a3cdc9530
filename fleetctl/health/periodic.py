"""Between jobs and beside them: the whole node is looked at, drained by us where it is not well, and returned to
service where a drain of ours is healed. Slurm's HealthCheckProgram; the boot phase is the same with a longer patience.

Nothing depends on Slurm answering: before slurmd has registered, scontrol hangs. A healthy node asks it nothing, unless
a drain of ours is remembered: then one question tells whether that still stands.
"""

from __future__ import annotations

from typing import Callable, Optional, Tuple

from fleetctl.health import phases, remember
from fleetctl.health.decide import decide
from fleetctl.health.gather import Where
from fleetctl.health.model import Asked, Decision, Phase, Verdict
from fleetctl.health.phases import Look, Plan, Tools
from fleetctl.health.prolog import Closed, Ended, close, log_and_counters
from fleetctl.health.service import Return, Seen, may_return
from fleetctl.health.site import Site
from fleetctl.health.slow import PATIENT_S
from fleetctl.health.state import Change, Drain
from fleetctl.health.tell import Meant, Reply, Told, meant, resume

_KEEP_S = 1.0
_SHARED_S = 3.0  # for the fleet's folder; nobody waits for us here, but slurmd kills at 60 s


def run_periodic(site: Site, where: Where, asked: Asked, tools: Tools, began: float) -> Ended:
    """The whole of the periodic or the boot phase. The exit status is 0 whatever was found."""
    boot = asked.phase is Phase.BOOT
    settle_s = site.boot_settle_s if boot else site.settle_s
    until = max(phases.plan(site, began).look + (site.boot_settle_s if boot else 0.0), began + PATIENT_S)
    seen = phases.look(tools, where, until, settle_s)
    choice = decide(seen.findings)
    if choice.decision is Decision.DRAIN:
        closed = close(site, where, asked, tools, _plan(site, tools.monotonic()), began, seen, choice)
        ended = Ended(0, _line(closed), closed.verdict, closed.findings, closed.notes)
    else:
        verdict = phases.verdict_of(seen, asked.phase, choice, tools.monotonic() - began)
        ended = _open(site, where, tools, seen, verdict)
    if site.shared is None:
        return ended
    return ended._replace(notes=(*ended.notes, *phases.publish(tools, where.node, _SHARED_S)))


def _plan(site: Site, now: float) -> Plan:
    """After the look: no job waits, and every step has its full time."""
    ask = now + site.slurm_wait_s
    token = ask + _SHARED_S
    intent = token + _KEEP_S
    slurm = intent + site.slurm_wait_s
    return Plan(look=now, ask=ask, token=token, intent=intent, slurm=slurm, keep=slurm + _KEEP_S)


def _open(site: Site, where: Where, tools: Tools, seen: Look, verdict: Verdict) -> Ended:
    """Note what was found; return the node to service where a drain of ours stands and everything speaks for it."""
    stands, now = seen.gathered.state.drain, seen.readings.at
    evidence = Seen(seen.findings, seen.readings.boot_id, now)

    def rules(reason: Optional[str]) -> Return:
        return may_return(stands, reason, evidence, seen.gathered.state.returned, site.back)

    answer = rules(None if stands is None else stands.reason)
    if answer.back:
        verdict = verdict._replace(reason=f"about to return to service: {answer.why}")
    changes = log_and_counters(seen, tools, anew=True)
    notes = phases.keep(tools, verdict, remember.all_of(changes), tools.monotonic() + _KEEP_S)
    known = meant(stands, where.boot_id)
    if stands is None or known is None:
        return Ended(0, "", verdict, seen.findings, notes)
    line, change = _resumed(_resume(site, where, tools, stands, known, rules), stands, answer, now)
    if answer.back:  # the first word said what was about to be done, this one what came of it
        verdict = verdict._replace(at=tools.epoch(), reason=line, findings=())
    if answer.back or change is not None:
        change = remember.all_of(()) if change is None else change
        notes += phases.keep(tools, verdict if answer.back else None, change, tools.monotonic() + _KEEP_S)
    return Ended(0, line, verdict, seen.findings, notes)


def _resume(
    site: Site, where: Where, tools: Tools, stands: Drain, known: Meant, rules: Callable[[str], Return]
) -> Reply:
    """One question, and the end of the drain if the answer allows it."""

    def may(reason: str) -> Return:
        """In the child, at the last moment: the epilog of the last job may have found more since this look began."""
        answer = rules(reason)
        if answer.back and tools.readers.kept().state.drain != stands:
            return Return(False, "another look at the node has found more meanwhile")
        return answer

    until = tools.monotonic() + site.slurm_wait_s
    return phases.slurm(tools, lambda run: resume(run, where.node, known, may), until)


def _resumed(reply: Reply, stands: Drain, answer: Return, now: float) -> Tuple[str, Optional[Change]]:
    if reply.told is Told.TOLD:
        return f"the node is back in service: {answer.why}", remember.came_back(stands, now)
    if reply.told is Told.THEIRS:
        shows = f"its reason is {reply.reason}" if reply.reason else "no reason stands there"
        return f"Slurm does not show fleetctl's drain any more: {shows}", remember.forgotten(stands, now)
    if reply.told is Told.OURS:
        return f"the node stays drained: {reply.detail}", None
    why = reply.detail if answer.back else f"{answer.why}; {reply.detail}"
    return f"the node was not returned to service: {why}", None


def _line(closed: Closed) -> str:
    if closed.choice.decision is not Decision.DRAIN:
        return f"{closed.choice.reason}: not drained, the fleet's budget is spent"
    return closed.line
