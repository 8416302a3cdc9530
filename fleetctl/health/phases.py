"""What all phases share: how long each step may take, looking until nothing is on its way up, and what is kept."""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

from fleetctl.health.apart import Task
from fleetctl.health.decide import Choice, closes
from fleetctl.health.gather import Apart, Gathered, Readers, Where, gather, look_again
from fleetctl.health.model import Answer, Care, Finding, Mark, Outcome, Phase, Readings, Verdict
from fleetctl.health.record import NamedTuple
from fleetctl.health.site import Budget, Site
from fleetctl.health.state import Change
from fleetctl.health.tell import Reply, Run, Told

AGAIN_S = 0.5  # between two looks at what is on its way up
_AMPLE = 1.5  # times what a look took: a driver without persistence mode takes its 2 s each time, more or less
Verb = Callable[[Run], Reply]
_MOST_KEEP_S = 2.0  # a job need not wait longer for our notes
_EARLY_S = 0.15  # for scontrol to be killed, and for the child to say so, before the child itself is killed
_LEAST_S = 0.05  # what a step gets when the time is over: enough to fork and to be killed


class Tools(NamedTuple):
    """The world, passed in. `judged` is pure; `scontrol` makes a Run that ends at the given moment; `keep` and
    `publish` write to disks and run in a child, as does `token`. `app_xids` names the Xids of applications on the GPUs
    that are asked about, logged since that moment (CLOCK_MONOTONIC), as `0000:1b:00/31`."""

    readers: Readers
    apart: Apart
    judged: Callable[[Gathered], Tuple[Finding, ...]]
    epoch: Callable[[], float]
    monotonic: Callable[[], float]
    sleep: Callable[[float], object]
    scontrol: Callable[[float], Run]
    token: Callable[[Budget, str, float], Sequence[Any]]
    keep: Callable[[Optional[Verdict], Change, float], List[str]]
    publish: Callable[[str], List[str]]
    app_xids: Callable[[Readings, float], Tuple[str, ...]]


class Plan(NamedTuple):
    """When each step must have ended, on the monotonic clock: each earlier one leaves the later ones their time."""

    look: float
    ask: float  # whose word stands in Slurm: asked before a token is spent
    token: float
    slurm: float
    keep: float
    intent: float  # what is about to be done is written down by then


class Look(NamedTuple):
    """A look and what was found; `findings` has those that passed, too."""

    gathered: Gathered
    findings: Tuple[Finding, ...]

    @property
    def readings(self) -> Readings:
        return self.gathered.readings


def plan(site: Site, began: float) -> Plan:
    """The whole is over `site.deadline_s` after `began`, even where every step hangs."""
    end = began + site.deadline_s
    slurm = min(site.slurm_wait_s, 0.25 * site.deadline_s)
    short = min(0.5, 0.1 * site.deadline_s)  # one small file: a disk that takes longer is not well
    token = short if site.budget.folder is not None else 0.0
    ask = 0.5 * slurm if limited(site) else 0.0
    intent = end - short - (slurm - ask)
    look = intent - 0.5 * short - token - ask
    return Plan(look=look, ask=look + ask, token=look + ask + token, intent=intent, slurm=end - short, keep=end)


def limited(site: Site) -> bool:
    """Whether a drain costs a token of the fleet's budget."""
    return site.budget.folder is not None and site.budget.most > 0


def look(tools: Tools, where: Where, until: float, settle_s: float) -> Look:
    """Read and judge. While all that keeps jobs away may pass within seconds, read that again for `settle_s`, if there
    is ample time for it: a read that is cut short looks like a driver that hangs."""
    began = tools.monotonic()
    gathered = gather(tools.readers, where, left(tools, until), tools.apart)
    seen = Look(gathered, tools.judged(gathered))
    now = tools.monotonic()
    settled = min(until, now + settle_s)
    while _on_its_way(seen.findings) and settled - now > AGAIN_S and until - now - AGAIN_S >= _AMPLE * (now - began):
        tools.sleep(AGAIN_S)
        began = tools.monotonic()
        gathered = look_again(seen.gathered, tools.readers, left(tools, until), tools.apart)
        seen = Look(gathered, tools.judged(gathered))
        now = tools.monotonic()
    return seen


def _on_its_way(findings: Tuple[Finding, ...]) -> bool:
    """Something is not up yet, and nothing else is wrong that no waiting can mend."""
    open_ones = [f for f in findings if f.outcome is not Outcome.PASS]
    waiting = any(f.mark is Mark.TRANSIENT for f in open_ones)
    return waiting and not any(closes(f) and f.mark is not Mark.TRANSIENT for f in open_ones)


def left(tools: Tools, until: float) -> float:
    """Seconds until then, and never none at all."""
    return max(_LEAST_S, until - tools.monotonic())


def take(tools: Tools, site: Site, where: Where, until: float) -> Tuple[bool, str]:
    """Whether this node may be drained: a token of the fleet's budget, taken in a child. No answer is a no."""
    budget = site.budget
    if budget.most == 0:
        return False, "the site lets fleetctl drain no node"
    if budget.folder is None:
        return True, ""
    task = Task("budget", lambda: tools.token(budget, where.node, where.at), left(tools, until))
    done = tools.apart([task])["budget"]
    if done.answer is Answer.ANSWERED:
        granted, why = done.value
        return bool(granted), str(why)
    return False, f"the fleet's budget in {budget.folder} cannot be read ({done.answer.value}: {done.detail})"


def slurm(tools: Tools, verb: Verb, until: float) -> Reply:
    """Ask Slurm for something, in a child."""

    def work() -> List[Any]:
        reply = verb(tools.scontrol(until - _EARLY_S))
        return [reply.told.value, reply.reason, reply.detail]

    done = tools.apart([Task("slurm", work, left(tools, until))])["slurm"]
    if done.answer is not Answer.ANSWERED:
        return Reply(Told.UNKNOWN, None, f"scontrol: {done.answer.value}: {done.detail}")
    told, reason, detail = done.value
    return Reply(Told(told), reason, detail)


def keep(tools: Tools, verdict: Optional[Verdict], change: Change, until: float) -> Tuple[str, ...]:
    """Write the state and the verdict (None: the state alone), in a child: a dead disk must not hold a job up. Returns
    what went wrong."""
    wait_s = min(_MOST_KEEP_S, left(tools, until))
    done = tools.apart([Task("keep", lambda: tools.keep(verdict, change, wait_s / 3), wait_s)])["keep"]
    if done.answer is Answer.ANSWERED:
        return tuple(str(note) for note in done.value)
    return (f"state and verdict not kept: {done.answer.value}: {done.detail}",)


def publish(tools: Tools, node: str, wait_s: float) -> Tuple[str, ...]:
    """Copy the verdicts to the fleet's folder, in a child."""
    done = tools.apart([Task("publish", lambda: tools.publish(node), wait_s)])["publish"]
    if done.answer is Answer.ANSWERED:
        return tuple(str(note) for note in done.value)
    return (f"verdicts not published: {done.answer.value}: {done.detail}",)


def verdict_of(
    seen: Look,
    phase: Phase,
    choice: Choice,
    took_s: float,
    *,
    job_id: Optional[str] = None,
    usage: Optional[Mapping[str, Any]] = None,
) -> Verdict:
    """What the look came to. What is normal (a value that this GPU does not have) is left out: the spool is small."""
    kept = tuple(f for f in seen.findings if f.outcome is not Outcome.PASS and f.care is not Care.IGNORE)
    return Verdict(
        node=seen.readings.node,
        phase=phase,
        at=seen.readings.at,
        boot_id=seen.readings.boot_id,
        decision=choice.decision,
        reason=choice.reason,
        findings=kept,
        passed=sum(1 for f in seen.findings if f.outcome is Outcome.PASS),
        took_s=round(took_s, 3),
        job_id=job_id,
        usage=usage,
    )
