"""A node that is looked at in one process: readers that answer what a test says, a clock that only moves when asked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

from fleetctl.health.apart import Done, Task
from fleetctl.health.gather import Gathered, Kept, Readers, Where
from fleetctl.health.kernel_fold import merge_events
from fleetctl.health.model import (
    Answer,
    Asked,
    Care,
    Event,
    EventKind,
    Finding,
    Gpu,
    Host,
    Mark,
    Mount,
    Nvml,
    Outcome,
    Phase,
    Port,
    Readings,
    Verdict,
)
from fleetctl.health.phases import Tools
from fleetctl.health.prolog import Job
from fleetctl.health.site import Budget, Site
from fleetctl.health.state import Change, Drain, State
from fleetctl.health.tell import Ran, Run

NODE = "node1"
BOOT = "11111111-1111-1111-1111-111111111111"
AT = 1_700_000_000.0
GPU3 = "gpu/0000:1b:00.0"
SHOWN_IDLE = f"NodeName={NODE} Arch=x86_64\n   State=IDLE ThreadsPerCore=1\n"
WHERE = Where(NODE, BOOT, AT, 1000.0)
PROLOG = Job(Asked(Phase.PROLOG, (0, 1), "42"), uid=1000)


def shown(state: str, reason: str = "", at: float = AT) -> str:
    """What `scontrol show node` prints; the reason was set at `at`."""
    signed = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
    line = f"   Reason={reason} [root@{signed}]\n" if reason else ""
    return f"NodeName={NODE} Arch=x86_64\n   State={state} ThreadsPerCore=1\n{line}"


def fail(
    check: str = "nvlink_state",
    care: Care = Care.DRAIN,
    part: str = GPU3,
    mark: Mark = Mark.NONE,
    words: str = "17 of 18 NVLinks are up",
    outcome: Outcome = Outcome.FAIL,
) -> Finding:
    return Finding(check, outcome, "GPU 3 (0000:1b:00.0)", part, words, care=care, mark=mark)


def good(check: str = "nvlink_state", part: str = GPU3) -> Finding:
    return Finding(check, Outcome.PASS, "GPU 3 (0000:1b:00.0)", part, "18 of 18 NVLinks are up")


def drain_of(*findings: Finding, reason: str = "fleetctl: NVLink 3 is down [nvlink_state]", at: float = AT) -> Drain:
    parts = tuple((f.check, f.part) for f in findings)
    return Drain(reason, at, BOOT, parts, max(f.care for f in findings))


def xid(sequence: int = 7, number: int = 79, pci: str = "0000:1b:00", last_s: float = 990.0) -> Event:
    return Event(sequence, 990.0, last_s, EventKind.XID, pci, number, "GPU has fallen off the bus.")


class Fake:
    """The world of one node. `judged` are the findings of each look, the last one for all further looks. A child
    called `nvml` takes `nvml_s`, if it gets them."""

    def __init__(
        self,
        *judged: Sequence[Finding],
        state: State | None = None,
        slurm: str = SHOWN_IDLE,
        events: Sequence[Event] = (),
        token: tuple[bool, str] = (True, ""),
        hung: Iterable[str] = (),
        update: int = 0,
        nvml_s: float = 0.0,
    ) -> None:
        self.looks = [tuple(one) for one in judged] or [()]
        self.state = State(boot_id=BOOT) if state is None else state
        self.slurm, self.events, self.update = slurm, tuple(events), update
        self.nvml_s = nvml_s
        self.granted, self.hung = token, set(hung)
        self.now, self.slept = 100.0, 0.0
        self.calls: list[tuple[str, ...]] = []
        self.tokens = 0
        self.tasks: list[str] = []
        self.verdicts: list[Verdict] = []
        self.published: list[str] = []

    def tools(self) -> Tools:
        return Tools(
            readers=Readers(
                nvml=lambda: Nvml(Answer.ANSWERED, gpus=(Gpu(0, minor=0, uuid="GPU-a", pci="0000:1b:00.0"),)),
                devices=lambda: (),
                ports=lambda: (Port("mlx5_0", 1, "InfiniBand", "ACTIVE", "LinkUp", counters={"link_downed": 2}),),
                host=Host,
                kept=lambda: Kept(self.state, None, ()),
                log=lambda after: (tuple(e for e in self.events if after is None or e.sequence > after), 9),
                mount=lambda path: Mount(path, "ok"),
                merge=lambda old, new: merge_events(old, new, 256),
            ),
            apart=self.apart,
            judged=self._judged,
            epoch=lambda: AT,
            monotonic=lambda: self.now,
            sleep=self._sleep,
            scontrol=self._scontrol,
            token=self._token,
            keep=self._keep,
            publish=self._publish,
            app_xids=lambda readings, since_s: ("0000:1b:00/31",),
        )

    def apart(self, tasks: Sequence[Task]) -> dict[str, Done]:
        done = {}
        for task in tasks:
            self.tasks.append(task.name)
            assert task.deadline_s > 0
            if task.name in self.hung or (task.name == "nvml" and task.deadline_s < self.nvml_s):
                done[task.name] = Done(Answer.HUNG, detail="no answer", took_s=task.deadline_s)
            else:
                done[task.name] = Done(Answer.ANSWERED, json.loads(json.dumps(task.work())))
        reads_s = [min(self.nvml_s, task.deadline_s) for task in tasks if task.name == "nvml"]
        self.now += max((*reads_s, *(task.deadline_s for task in tasks if task.name in self.hung)), default=0.0)
        return done

    def _judged(self, gathered: Gathered) -> tuple[Finding, ...]:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds

    def _scontrol(self, until: float) -> Run:
        def run(arguments: list[str]) -> Ran:
            self.calls.append(tuple(arguments))
            return Ran(0, self.slurm) if arguments[0] == "show" else Ran(self.update, "")

        return run

    def _token(self, budget: Budget, node: str, now: float) -> Sequence[Any]:
        self.tokens += 1
        return list(self.granted)

    def _keep(self, verdict: Verdict | None, change: Change, wait_s: float) -> list[str]:
        self.state = change(self.state)
        self.verdicts += [] if verdict is None else [verdict]
        return []

    def _publish(self, node: str) -> list[str]:
        self.published.append(node)
        return []


def readings(**others: Any) -> Readings:
    return Readings(NODE, BOOT, AT, 1000.0, **others)


def site(**others: Any) -> Site:
    return Site()._replace(**others)
