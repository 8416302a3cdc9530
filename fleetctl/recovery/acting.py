"""`python -m fleetctl.recovery.acting`: the process that does one deed. It reads an Order and writes an Answer.

It is a process so that it can be killed before the lease of its daemon may be another's. It has no database, and looks
again before it does the one thing. It ends itself at the deadline, and with itself the Slurm command that it waits for:
whoever kills it from outside would leave that one behind.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from fleetctl.clock import SystemClock
from fleetctl.errors import FleetctlError, JobUnknown, SlurmError, SlurmUnreachable, UsageError
from fleetctl.recovery import act_job, act_nodes, act_operator, act_owner
from fleetctl.recovery.look_again import LEAST_S, Hands, target
from fleetctl.recovery.model import Deed, Outcome
from fleetctl.recovery.order import Answer, Order, Seat
from fleetctl.recovery.policy import Mode
from fleetctl.recovery.wire import read, written
from fleetctl.render.steps import Style
from fleetctl.rundir.store import Store
from fleetctl.slurm.commands import Limits
from fleetctl.slurm.connect import connect
from fleetctl.submission.decide import Policy
from fleetctl.submission.plan import Scripts
from fleetctl.submission.settle import Settler
from fleetctl.submission.submit import Site

Doing = Callable[[Hands], Answer]
_QUERY_S = 20.0  # a controller that hangs makes its commands give up after as long by themselves


class TimeIsUp(Exception):
    """The deadline of the order has come. No error of ours: nothing on its way may take it for one and try again."""


_OWNER: Mapping[Deed, Doing] = {
    Deed.EXCLUDE: act_owner.exclude,
    Deed.START_NOW: act_owner.start_now,
    Deed.REQUEUE: act_owner.bring_back,
    Deed.REQUEUE_ENDED: act_owner.bring_back,
    Deed.RESUBMIT: act_owner.bring_back,
    Deed.HOLD: act_owner.hold,
    Deed.ROLL_BACK: act_owner.roll_back,
    Deed.DRAIN: act_nodes.drain,
    Deed.SET_DOWN: act_nodes.set_down,
}
_OPERATOR: Mapping[Deed, Doing] = {
    **_OWNER,
    Deed.EXCLUDE: act_job.exclude,
    Deed.START_NOW: act_job.start_now,
    Deed.REQUEUE: act_operator.bring_back,
    Deed.REQUEUE_ENDED: act_operator.bring_back,
    Deed.RESUBMIT: act_operator.resubmit,
    Deed.HOLD: act_operator.say_word,
    Deed.ROLL_BACK: act_operator.say_word,
}


def main() -> int:
    """One order, one answer, each a line."""
    order = read(sys.stdin.readline(), Order)
    clock = SystemClock()
    left_s = order.deadline_s - clock.monotonic_s()
    if left_s < LEAST_S:
        answer = Answer(Outcome.CHANGED, "the time of this lease is over")
    else:
        signal.signal(signal.SIGALRM, _time_is_up)
        signal.setitimer(signal.ITIMER_REAL, left_s)
        os.umask(0o022)  # words are for others to read, and for nobody else to write
        answer = do(Hands(order, site_of(order.seat, os.environ)))
        signal.setitimer(signal.ITIMER_REAL, 0)
    print(written(answer), flush=True)
    return 0


def do(hands: Hands) -> Answer:
    """The deed, or the look whether it happened; what went wrong is an answer, too."""
    deeds = _OPERATOR if hands.order.mode is Mode.OPERATOR else _OWNER
    doing = look if hands.order.look_only else deeds.get(hands.order.action.deed, _nothing)
    try:
        return doing(hands)
    except (UsageError, JobUnknown) as error:
        return Answer(Outcome.CHANGED, error.message)
    except SlurmError as error:
        return Answer(Outcome.REFUSED, error.message)
    except (SlurmUnreachable, TimeIsUp) as error:
        return Answer(Outcome.OPEN, str(error))  # whether it was done is to be looked at
    except FleetctlError as error:
        return Answer(Outcome.FAILED, error.message)
    except Exception as error:  # noqa: BLE001 - a mistake of ours: nobody reads what this process writes elsewhere
        return Answer(Outcome.OPEN, f"{type(error).__name__}: {error}")


def look(hands: Hands) -> Answer:
    """Whether the deed has happened, without doing anything: DONE, FAILED for no, OPEN where that cannot be told."""
    owner = hands.order.mode is Mode.OWNER
    match hands.order.action.deed:
        case Deed.EXCLUDE:
            return act_job.see_excluded(hands, tuple(sorted({*hands.order.ours, *hands.order.action.nodes})))
        case Deed.START_NOW:
            return act_job.see_begun(hands, wait=False)
        case Deed.REQUEUE | Deed.REQUEUE_ENDED:
            return _see_restarted(hands)
        case Deed.RESUBMIT:
            return act_owner.see_resubmitted(hands) if owner else act_operator.resubmit(hands)
        case Deed.HOLD:
            return act_owner.see_held(hands) if owner else act_operator.see_said(hands)
        case Deed.ROLL_BACK:
            return act_owner.see_said(hands) if owner else act_operator.see_said(hands)
        case Deed.DRAIN | Deed.SET_DOWN:
            return act_nodes.see(hands, wait=False)
    return _nothing(hands)


def site_of(seat: Seat, environ: Mapping[str, str]) -> Site:
    """What submission needs, from what the daemon told."""
    clock = SystemClock()
    slurm = connect(environ, clock, limits=Limits(query_s=_QUERY_S, accounting_s=_QUERY_S))
    policy = Policy(message_timeout_s=seat.message_timeout_s)
    return Site(
        slurm=slurm,
        settler=Settler(slurm, clock, seat.host, seat.cluster, seat.comments_proved, policy),
        store=Store(Path(seat.root)),
        clock=clock,
        scripts=Scripts(
            seat.python,
            Style(seat.gpu_style, seat.memory_style),
            seat.max_array_size,
            tuple(Path(each) for each in seat.template_dirs),
        ),
        user=seat.user,
        host=seat.host,
        cluster=seat.cluster,
        note=lambda line: print(line, file=sys.stderr),
    )


def _see_restarted(hands: Hands) -> Answer:
    found = target(hands)
    if isinstance(found, Answer):
        return found
    if found.restarts > found.start.restarts:
        return Answer(Outcome.DONE, f"Slurm has requeued job {found.job_id} (restart {found.restarts})")
    return Answer(Outcome.FAILED, f"Slurm has not requeued job {found.job_id}, which is {found.rows[0].state}")


def _nothing(hands: Hands) -> Answer:
    return Answer(Outcome.FAILED, f"{hands.order.action.deed} is nothing that a process does")


def _time_is_up(*_: object) -> None:
    raise TimeIsUp("its time was over")


if __name__ == "__main__":
    sys.exit(main())
