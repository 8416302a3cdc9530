"""Who can read whose memory. Pure."""

from __future__ import annotations

from typing import Sequence

from fleetctl.health.findings import NODE, Findings, Scene, code_words, failed, mig_on, number, passed, untold
from fleetctl.health.judge_links import part_of_board
from fleetctl.health.model import Care, Finding, Gpu, PeerToPeer

# nvml.h, nvmlGpuP2PStatus_t
_PEER = {
    1: "the chipset does not support it",
    2: "a GPU does not support it",
    3: "the I/O hub is between them",
    4: "switched off by a registry key",
    5: "not supported",
    6: "unknown",
}
_BY_WISH = frozenset({4, 5})  # registry key, confidential computing


def judge_peers(gpus: Sequence[Gpu], scene: Scene) -> Findings:
    """Whether each pair of the chosen GPUs can read each other's memory: one finding."""
    nvml = scene.readings.nvml
    whole = {gpu.index for gpu in gpus if not mig_on(gpu)}
    pairs = [] if nvml is None else [peer for peer in nvml.peers if {peer.first, peer.second} <= whole]
    if not pairs:
        return ()
    bad = [peer for peer in pairs if number(peer.status) not in (None, 0)]
    if bad:
        return (_no_peers(bad, len(pairs), scene),)
    dumb = [peer for peer in pairs if number(peer.status) is None]
    if dumb:
        words = f"whether GPUs {dumb[0].first} and {dumb[0].second} can read each other's memory is not known"
        return (untold("p2p", NODE, f"{words}: {code_words(dumb[0].status.code)}", code=dumb[0].status.code),)
    return (passed("p2p", NODE, f"{len(pairs)} pairs of GPUs can read each other's memory", len(pairs), len(pairs)),)


def _no_peers(bad: Sequence[PeerToPeer], pairs: int, scene: Scene) -> Finding:
    linked = bool(scene.profile.links) and min(scene.profile.links or (0,)) > 0
    worst = next((peer for peer in bad if peer.status.value not in _BY_WISH), bad[0])
    every = len(bad) == pairs
    more = f" (and {len(bad) - 1} more pairs)" if len(bad) > 1 else ""
    why = _PEER.get(int(number(worst.status) or 0), f"status {worst.status.value}")
    words = f"GPUs {worst.first} and {worst.second} cannot read each other's memory: {why}{more}"
    if every and pairs > 1:
        words = (
            f"none of {len({n for one in bad for n in (one.first, one.second)})} GPUs can read another's memory: {why}"
        )
    closes = linked and worst.status.value not in _BY_WISH and not (every and part_of_board(scene))
    return failed("p2p", NODE, words, Care.DRAIN if closes else Care.WATCH, len(bad), 0, "pairs")
