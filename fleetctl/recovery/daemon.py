"""Puts the daemon together: Slurm, the folders, the journal, the lease, what people are told, and the loop over them.

What it may do is checked when it begins, and named: Slurm's level of its user decides which deeds are possible.
"""

from __future__ import annotations

import functools
import os
import re
import secrets
import shlex
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Engine

from fleetctl.clock import Clock
from fleetctl.errors import SlurmRefused, UsageError
from fleetctl.recovery import act, notify
from fleetctl.recovery.after import Recovered
from fleetctl.recovery.classify import classify
from fleetctl.recovery.decide import decide, wanted
from fleetctl.recovery.evidence import gather_evidence
from fleetctl.recovery.fence import Fence
from fleetctl.recovery.journal import Journal
from fleetctl.recovery.kept import Seen
from fleetctl.recovery.lease import Leader, Place, boot_id
from fleetctl.recovery.loop import Ledger, Loop, Parts
from fleetctl.recovery.metrics import Numbers, Site, serve
from fleetctl.recovery.model import Deed, Memory, Snapshot
from fleetctl.recovery.mounts import Readers
from fleetctl.recovery.notify import Channel, Teller
from fleetctl.recovery.observe import observe
from fleetctl.recovery.policy import Deeds, Mode, Policy
from fleetctl.recovery.read_patterns import load_patterns
from fleetctl.recovery.recall import Cost
from fleetctl.recovery.sd_notify import manager_of
from fleetctl.recovery.sources import Sources, nobody
from fleetctl.recovery.stop import STOP, stopped
from fleetctl.recovery.topology import load_topology
from fleetctl.rundir.words import FOLDER
from fleetctl.slurm.model import AdminLevel
from fleetctl.submission.submit import Site as SlurmSite

Say = Callable[[str], None]
_PINGED_S = 20.0  # for the answers to slurmctld's pings


class Asked(Struct, frozen=True):
    """What its command line asked for; `every_s` is the longest time between two passes."""

    scope: str
    operator: bool
    acts: bool
    every_s: float
    listen: str
    patterns: Path | None
    topology: Path | None
    fence: str
    channels: tuple[Channel, ...]
    shared: Path | None


class Daemon(Struct, frozen=True):
    """One that may begin. To be closed."""

    loop: Loop
    engine: Engine
    readers: Readers
    metrics: Site | None

    def close(self) -> None:
        if self.metrics is not None:
            self.metrics.close()
        self.readers.close()
        self.engine.dispose()


def begin(asked: Asked, site: SlurmSite, engine: Engine, environ: Mapping[str, str], clock: Clock, say: Say) -> Daemon:
    """:raises UsageError: a file that it is told to read has a mistake.
    :raises CannotTell: Slurm does not answer.
    """
    mode = Mode.OPERATOR if asked.operator else Mode.OWNER
    level = level_of(site)
    say(can(mode, level, acts=asked.acts))
    numbers, readers = Numbers(), Readers(clock.monotonic_s)
    stop_file = Path(environ[STOP]) if environ.get(STOP) else None
    # A fence may switch the node off before it says that it is dead: only a daemon that acts asks it
    fence = Fence(shlex.split(asked.fence), clock, say) if asked.fence and asked.acts else None
    sources = _sources(asked, site, readers, level, fence)
    place = Place(site.cluster, asked.scope)
    place = place if asked.acts else place.observing
    leader = Leader(engine, place, _holder(site.host), clock, boot_id=boot_id())
    journal = Journal(engine, leader, clock)
    world = act.World(
        journal, leader, clock, mode, level, site, stop_file=stop_file, words=_words(asked, environ), note=say
    )
    policy = policy_of(site, mode, level, acts=asked.acts)
    judge = functools.partial(classify, patterns=load_patterns(None if asked.patterns is None else str(asked.patterns)))
    parts = Parts(
        cluster=site.cluster,
        scope=place.scope,
        acts=asked.acts,
        ledger=_ledger(journal, leader, world),
        observe=Eyes(sources, policy).look,
        decide=lambda snapshot, memory: decide(snapshot, memory, policy, judge),
        act=lambda action, run: act.act(action, run, world),
        stopped=lambda: stopped(stop_file),
        teller=Teller(asked.channels, notify.deliver),
        numbers=numbers,
        manager=manager_of(environ),
        clock=clock,
        say=say,
        every_s=asked.every_s,
    )
    metrics = serve(asked.listen, numbers, lambda: clock.now().timestamp()) if asked.listen else None
    if metrics is not None:
        say(f"metrics at http://127.0.0.1:{metrics.port}/metrics")
    return Daemon(Loop(parts), engine, readers, metrics)


class Eyes:
    """Looks once a pass, and keeps what makes the next look cheap."""

    def __init__(self, sources: Sources, policy: Policy) -> None:
        self._sources, self._policy, self._seen = sources, policy, Seen()

    def look(self, memory: Memory, at: datetime) -> Snapshot:
        """What there is to see, with evidence where an end is to be looked into."""
        snapshot, self._seen = observe(self._sources, self._seen, at)
        ended = wanted(snapshot, memory, self._policy)
        snapshot, self._seen = gather_evidence(self._sources, self._seen, snapshot, ended)
        return snapshot


def level_of(site: SlurmSite) -> AdminLevel:
    """What Slurm lets this process do: root and SlurmUser may do everything (slurm.conf.5, SlurmUser).

    :raises CannotTell: Slurm does not answer.
    """
    if os.geteuid() == 0 or site.slurm.config().get("SlurmUser", "").partition("(")[0] == site.user:
        return AdminLevel.ADMINISTRATOR
    try:
        return site.slurm.admin_level(site.user)
    except SlurmRefused:  # no accounting: then nobody but those two has a level
        return AdminLevel.NONE


def policy_of(site: SlurmSite, mode: Mode, level: AdminLevel, *, acts: bool) -> Policy:
    """The usual policy. A controller that began has missed every silent node after a third of SlurmdTimeout, when it
    pings them (slurm.conf.5; 100 s by default; 0: it never does), and some seconds.

    :raises CannotTell: Slurm does not answer.
    """
    said = re.match(r"\d+", site.slurm.config().get("SlurmdTimeout", ""))
    deeds = Deeds.ACT if acts else Deeds.OBSERVE
    usual = Policy(mode=mode, level=level, deeds=deeds)
    return usual if said is None or int(said[0]) == 0 else replace(usual, controller_s=int(said[0]) / 3 + _PINGED_S)


def can(mode: Mode, level: AdminLevel, *, acts: bool) -> str:
    """What a daemon of this level may do and what not, in one sentence. Pure."""
    order = [AdminLevel.NONE, AdminLevel.OPERATOR, AdminLevel.ADMINISTRATOR]
    of_nodes = (Deed.DRAIN, Deed.SET_DOWN)  # a daemon of one user's runs leaves nodes alone, whatever his level is
    needs = {deed: act.needs(deed, mode) for deed in Deed if mode is Mode.OPERATOR or deed not in of_nodes}
    may = [deed for deed, need in needs.items() if need is not None and order.index(need) <= order.index(level)]
    lacks = [
        f"{_name(deed)} ({need.value if need else 'the owner alone'})"
        for deed, need in needs.items()
        if deed not in may
    ]
    doing = "acts" if acts else "only observes (--act acts)"
    said = f"{mode.value} mode, {doing}; with Slurm's level {level.value} it may {', '.join(map(_name, may))}"
    return said + (f"; not {', '.join(lacks)}" if lacks else "")


def _name(deed: Deed) -> str:
    return deed.value.replace("_", " ")


def _holder(host: str) -> str:
    return f"{host}:{os.getpid()}:{secrets.token_hex(4)}"


def _sources(asked: Asked, site: SlurmSite, readers: Readers, level: AdminLevel, fence: Fence | None) -> Sources:
    return Sources(
        slurm=site.slurm,
        cluster=site.cluster,
        user=site.user,
        root=None if asked.operator else str(site.store.root),
        readers=readers,
        shared=None if asked.shared is None else str(asked.shared),
        switches={} if asked.topology is None else load_topology(str(asked.topology)),
        prove_dead=nobody if fence is None else fence.prove_dead,
        hears_all=not asked.operator or _hears_all(site, level),
    )


def _hears_all(site: SlurmSite, level: AdminLevel) -> bool:
    """PrivateData=jobs hides other users' jobs from whoever has no level (slurm.conf.5)."""
    hidden = site.slurm.config().get("PrivateData", "").lower().split(",")
    return level is not AdminLevel.NONE or "jobs" not in hidden


def _words(asked: Asked, environ: Mapping[str, str]) -> Path | None:
    """:raises UsageError: an operator's daemon has no other place for its words."""
    if not asked.operator:
        return None
    if not environ.get(FOLDER):
        if asked.acts:
            raise UsageError(
                f"{FOLDER} is not set: the folder for words to runs, which users can read and only we can write",
                remedy=f"set {FOLDER} for the daemon and in the jobs' environment",
            )
        return None
    return Path(environ[FOLDER])


def _ledger(journal: Journal, leader: Leader, world: act.World) -> Ledger:
    def recovered(found: Recovered) -> None:
        journal.recovered(found.interruption, Cost(found.detection_s, found.restart_s, found.lost_s), found.at)

    return Ledger(
        lead=leader.lead,
        other=lambda: leader.other,
        release=leader.release,
        memory=journal.memory,
        settle=lambda: act.settle(world),
        remember=journal.remember,
        observe=journal.observe,
        recovered=recovered,
        save=journal.save_pass,
    )
