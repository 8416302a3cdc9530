"""Readings of a node against its profile: findings that say what was seen, what is expected and how bad it is. Pure.

The kernel's log is judged in `judge_log.py`.
"""

from __future__ import annotations

from typing import List, Optional, Tuple

from fleetctl.health.checks import CHECKS
from fleetctl.health.deltas import changes
from fleetctl.health.findings import NODE, Scene, failed
from fleetctl.health.judge_gpu import judge_gpu
from fleetctl.health.judge_host import judge_files, judge_host
from fleetctl.health.judge_links import judge_links
from fleetctl.health.judge_memory import judge_memory
from fleetctl.health.judge_pcie import judge_aer, judge_cards, judge_pcie
from fleetctl.health.judge_peers import judge_peers
from fleetctl.health.judge_ports import judge_ports
from fleetctl.health.judge_presence import chosen, gpus_on_pcie, judge_count, judge_kind, judge_lost, judge_nvml
from fleetctl.health.model import Asked, Baseline, Care, Finding, Outcome, Readings
from fleetctl.health.rules import Rules, with_site_care
from fleetctl.health.wanted import Profile

_NOTHING = Profile("")
_FOR_OTHERS = "the profile is for nodes with GPUs; PCIe shows none here"


def judge(
    readings: Readings, profile: Optional[Profile], asked: Asked, before: Optional[Baseline], rules: Rules
) -> Tuple[Finding, ...]:
    """One finding or more for each check that applies.

    :param profile: what the node should have; None: nobody knows, so only what is wrong anywhere is found.
    :param asked: for a job only its GPUs are judged one by one, and a GPU of others that is lost keeps it not away.
    :param before: counters at an earlier look; of another boot they do not count.
    """
    scene = Scene(readings, profile or _NOTHING, asked, changes(before, readings), rules)
    found: List[Finding] = []
    if _for_others(scene, before):
        scene = scene._replace(profile=_NOTHING)
        found.append(failed("gpu_count", NODE, _FOR_OTHERS, Care.WATCH, 0))
    gpus = chosen(scene)
    found += (*judge_nvml(scene), *judge_count(scene), *judge_lost(scene), *judge_kind(scene))
    for gpu in gpus:
        for judged in (judge_gpu, judge_memory, judge_pcie, judge_links):
            found += judged(gpu, scene)
    found += judge_peers(gpus, scene)
    for of_node in (judge_ports, judge_cards, judge_aer, judge_host, judge_files):
        found += of_node(scene)
    if found[0].words == _FOR_OTHERS:  # a node that lost all its GPUs must not come back for want of them
        found = [one._replace(outcome=Outcome.CANNOT_TELL) if one.check == "nvml" else one for one in found]
    made = [finding for finding in found if asked.phase in CHECKS[finding.check].phases]
    return with_site_care(made, asked.phase, rules)


def _for_others(scene: Scene, before: Optional[Baseline]) -> bool:
    """Whether the profile, one for the whole cluster, is not for this node: one without GPUs.

    A node that lost every GPU looks the same. It is told by a job that was given GPUs there, and by a baseline of this
    boot that counted some.
    """
    readings, profile, asked = scene.readings, scene.profile, scene.asked
    for_gpus = bool(profile.gpus or profile.device_ids)
    none = gpus_on_pcie(scene) == 0 and not (readings.nvml and readings.nvml.gpus)
    given = scene.for_a_job and asked.gpus != ()
    return for_gpus and none and not given and not _had_gpus(readings, before)


def _had_gpus(readings: Readings, before: Optional[Baseline]) -> bool:
    same_boot = before is not None and before.boot_id == readings.boot_id
    return before is not None and same_boot and any(key.startswith("gpu/") for key in before.counters)
