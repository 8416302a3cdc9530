"""The real readers, judge, clocks and disks, put together for one check. What only a child needs is imported there."""

from __future__ import annotations

import os
import select
import time
from typing import Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from fleetctl.health.apart import Done, Task, run_apart
from fleetctl.health.gather import MOST_KEPT, Gathered, Kept, Readers, Where
from fleetctl.health.judge_log import LogRules, app_keys, judge_log
from fleetctl.health.model import (
    Asked,
    Care,
    Event,
    Finding,
    Host,
    Mount,
    Nvml,
    Outcome,
    PciDevice,
    Phase,
    Port,
    Readings,
    Verdict,
)
from fleetctl.health.phases import Tools
from fleetctl.health.profile import device_ids, load_profile, profile_for
from fleetctl.health.rules import read_rules, with_site_care
from fleetctl.health.site import Budget, Site
from fleetctl.health.slow import excused
from fleetctl.health.state import Change
from fleetctl.health.tell import Run, bounded, environment
from fleetctl.health.wanted import Profile
from fleetctl.health.xid import XidTable, load_xids

_HERE = os.path.dirname(os.path.abspath(__file__))
_MOST_PROFILE = 1 << 20
_LOG_SHARE = 0.25  # of the time for a look: the files are read after the log


def tools_for(site: Site, asked: Asked, environ: Mapping[str, str]) -> Tools:
    """Everything that a phase needs, for real."""

    def apart(tasks: Sequence[Task]) -> Dict[str, Done]:
        return run_apart(tasks, stuck=site.stuck, monotonic=time.monotonic)

    def scontrol(until: float) -> Run:
        ours = {} if site.slurm_conf is None else {"SLURM_CONF": site.slurm_conf}
        return bounded(site.scontrol, {**ours, **environment(environ)}, until, time.monotonic)

    return Tools(
        readers=readers_for(site, asked),
        apart=apart,
        judged=judged_for(site, asked),
        epoch=time.time,
        monotonic=time.monotonic,
        sleep=sleep,
        scontrol=scontrol,
        token=_token,
        keep=lambda verdict, change, wait_s: _keep(site, verdict, change, wait_s),
        publish=lambda node: _publish(site, node),
        app_xids=lambda readings, since_s: _app_xids(site, asked, readings, since_s),
    )


def where_for(site: Site, node: str) -> Where:
    """This node, now."""
    from fleetctl.health.host import boot_id

    return Where(node, boot_id(site.proc), time.time(), time.monotonic(), site.mounts)


def sleep(seconds: float) -> None:
    """Wait; a signal may end it early."""
    select.select((), (), (), max(0.0, seconds))


def readers_for(site: Site, asked: Asked) -> Readers:
    """The readers of this site for what is asked."""

    def nvml() -> Nvml:
        from fleetctl.health.nvml import Wanted, read_nvml

        peers = asked.gpus is None or len(asked.gpus) > 1
        return read_nvml(Wanted(asked.phase, asked.gpus, peers, processes=True, library=site.library))

    def devices() -> Optional[Tuple[PciDevice, ...]]:
        from fleetctl.health.pci import read_pci

        return read_pci(site.sys)

    def ports() -> Optional[Tuple[Port, ...]]:
        from fleetctl.health.infiniband import read_ports

        return read_ports(site.sys, site.skip_ports)

    def host() -> Host:
        from fleetctl.health.host import read_closely, read_host

        found = read_host(site.sys, site.proc, site.shm)
        return found if asked.phase is Phase.PROLOG else read_closely(found, site.sys, site.proc)

    def log(after: Optional[int]) -> Tuple[Optional[Tuple[Event, ...]], Optional[int]]:
        from fleetctl.health.kernel_log import read_kernel_log

        return read_kernel_log(site.kmsg, after, MOST_KEPT, within_s=min(3.0, _LOG_SHARE * site.deadline_s))

    def mount(path: str) -> Mount:
        from fleetctl.health.mounts import read_mounts

        return read_mounts((path,), site.proc)[0]

    return Readers(nvml, devices, ports, host, lambda: _kept(site), log, mount, merge)


def merge(old: Sequence[Event], new: Sequence[Event]) -> Tuple[Event, ...]:
    """Two lists of events as one, folded."""
    if not new:
        return tuple(old)
    from fleetctl.health.kernel_fold import merge_events

    return merge_events(old, new, MOST_KEPT)


def judged_for(site: Site, asked: Asked) -> Callable[[Gathered], Tuple[Finding, ...]]:
    """The judge with this site's rules and profile."""
    rules, complaints = read_rules(site.limits, site.care)
    log_rules = LogRules(xid_window_s=site.xid_window_s, phase=asked.phase)
    of_site = _notes("site", (*_of_file(site), *complaints))

    def judged(gathered: Gathered) -> Tuple[Finding, ...]:
        readings, state = gathered.readings, gathered.state
        from fleetctl.health.judge import judge  # not before the readers' forks, which would carry it along

        profile, wrong = find_profile(gathered)
        table = table_for(site, readings.events or ())
        of_hardware = judge(readings, profile, asked, state.baseline, rules)
        found = (
            *excused(of_hardware, readings.nvml, asked.phase, state.nvml_s, site.deadline_s),
            *judge_log(readings, table, asked_pcis(readings, asked), log_rules, state.app_xids),
            *of_site,
            *_notes("site", wrong),
            *_notes("spool", gathered.notes),
        )
        return with_site_care(found, asked.phase, rules)

    return judged


def find_profile(gathered: Gathered) -> Tuple[Optional[Profile], Tuple[str, ...]]:
    """What this node should have: the site's profile, else the built-in one of its GPUs; and what is wrong with it."""
    learned: Optional[Profile] = None
    wrong: Tuple[str, ...] = ()
    if gathered.profile is not None:
        try:
            learned = load_profile(gathered.profile)
        except ValueError as error:
            wrong = (str(error),)
    devices = device_ids(gathered.readings)
    profile = profile_for(devices, (), learned)
    if profile is None and devices:
        profile = profile_for(devices, built_in(devices), learned)
    return profile, wrong


def built_in(devices: Sequence[int]) -> Tuple[Profile, ...]:
    """The profiles that fleetctl brings along and that name one of these kinds of GPU."""
    folder = os.path.join(_HERE, "platforms")
    texts = (_text(os.path.join(folder, name)) for name in sorted(os.listdir(folder)))
    kinds = tuple(f'"{device:#010x}"' for device in devices)
    return tuple(load_profile(text) for text in texts if any(kind in text for kind in kinds))


def table_for(site: Site, events: Sequence[Event]) -> XidTable:
    """What is known of Xids; without the large table where the log names no fault."""
    if not events:
        return load_xids("{}", site.xids)
    names = (os.path.join(_HERE, name) for name in ("xids.json", "link_rules.json"))
    xids, links = (_text(name) for name in names)
    return load_xids(xids, site.xids, links)


def asked_pcis(readings: Readings, asked: Asked) -> Optional[FrozenSet[str]]:
    """The places on PCIe of the GPUs that are asked about, as the kernel log writes them; None: all, or unknown."""
    if asked.gpus is None:
        return None
    gpus = () if readings.nvml is None else readings.nvml.gpus
    places = {gpu.minor: gpu.pci.rpartition(".")[0] for gpu in gpus if gpu.pci is not None and gpu.minor is not None}
    if any(minor not in places for minor in asked.gpus):
        return None  # a GPU that NVML does not show may be the one that the log is about
    return frozenset(places[minor] for minor in asked.gpus)


def _app_xids(site: Site, asked: Asked, readings: Readings, since_s: float) -> Tuple[str, ...]:
    events, pcis = readings.events or (), asked_pcis(readings, asked)
    keys = app_keys(events, table_for(site, events), since_s) if events else ()
    return tuple(key for key in keys if pcis is None or key.partition("/")[0] in pcis)


def _of_file(site: Site) -> Tuple[str, ...]:
    return tuple(f"site file {site.source}: {wrong}" for wrong in site.complaints)


def _notes(check: str, notes: Sequence[str]) -> Tuple[Finding, ...]:
    return tuple(Finding(check, Outcome.FAIL, "node", "node", note, care=Care.WATCH) for note in notes)


def _kept(site: Site) -> Kept:
    """In a child: our state of this boot, and the site's profile."""
    from fleetctl.health.host import boot_id
    from fleetctl.health.store import load_state

    notes: List[str] = []
    state = load_state(site.folder, boot_id=boot_id(site.proc), note=notes.append)
    profile = None
    if site.profile is not None:
        try:
            profile = _text(site.profile)
        except (OSError, ValueError) as error:
            notes.append(f"the profile {site.profile} cannot be read: {error}")
    return Kept(state, profile, tuple(notes))


def _text(path: str) -> str:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(handle, encoding="utf-8") as stream:
        return stream.read(_MOST_PROFILE)


def _token(budget: Budget, node: str, now: float) -> Tuple[bool, str]:
    from fleetctl.health.budget import take_token

    return take_token(budget.folder or "", budget.most, budget.window_s, node, now)


def _keep(site: Site, verdict: Optional[Verdict], change: Change, wait_s: float) -> List[str]:
    from fleetctl.health.host import boot_id
    from fleetctl.health.spool import append_verdict
    from fleetctl.health.store import update_state

    notes: List[str] = []
    update_state(site.folder, change, boot_id=boot_id(site.proc), note=notes.append, wait_s=wait_s)
    if verdict is not None:
        append_verdict(site.folder, verdict, note=notes.append, wait_s=wait_s)
    return notes


def _publish(site: Site, node: str) -> List[str]:
    from fleetctl.health.spool import publish

    notes: List[str] = []
    if site.shared is not None:
        publish(site.folder, site.shared, node, note=notes.append)
    return notes
