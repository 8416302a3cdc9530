"""What recovery may do, and how patient it is: every number of `decide`. Pure. Times in seconds.

Numbers without a source beside them are judgements; a site changes them here or through `daemon run`.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from fleetctl.recovery.model import CauseClass, Outcome
from fleetctl.slurm.model import AdminLevel

_S_PER_DAY = 86_400.0
_STANDING = frozenset({Outcome.OPEN, Outcome.DONE})


class Mode(StrEnum):
    """With whose rights the daemon runs."""

    OWNER = "owner"  # those of the runs' user
    OPERATOR = "operator"  # of a service account: nothing below a user's directory is ever written


class Deeds(StrEnum):
    """What becomes of a decision."""

    ACT = "act"
    OBSERVE = "observe"  # it is written down, and nothing else


class Policy(Struct, frozen=True):
    """The limits. Counts are of runs, nodes or interruptions, shares of 1."""

    mode: Mode = Mode.OWNER
    level: AdminLevel = AdminLevel.NONE  # what Slurm lets the daemon's user do
    deeds: Deeds = Deeds.OBSERVE

    # After slurmctld began, it takes silent nodes for living ones until it has pinged them all
    controller_s: float = 120.0
    evidence_s: float = 60.0  # how long the evidence of an end is waited for
    settle_s: float = 600.0  # an action that nobody could settle is given up after so long, and told
    fresh_s: float = _S_PER_DAY  # what ended longer ago than that is for a person

    # Liveness of a head. It writes its pulse every 5 s
    pulse_stale_s: float = 60.0
    head_silent_s: float = 900.0
    silent_share: float = 0.5  # of all heads, more than one: so many silent ones at once are no heads' fault
    stuck_s: float = 900.0  # after a head found its attempt hung, or a job began, and nothing follows

    # Budgets of one run (facts 7.8): 73 % of failing tasks fail within ten minutes (Aegis, NSDI 2025)
    quick_s: float = 600.0
    quick_failures: int = 2
    infrastructure_share: int = 2  # of max_failures: node losses and the like, without a newer checkpoint
    older_checkpoints: int = 2
    retry_s: float = 30.0  # between an end and the next start, of what may pass by itself
    retries: int = 3  # of an action that did not happen, until a person is told; it is tried on, later and later
    longest_retry_s: float = 1_800.0
    exclusion_s: float = _S_PER_DAY

    # `StartTime=now` is only for Slurm's own wait after a requeue: AuthInfo's cred_expire, 120 s, and 1 s
    begin_wait_s: float = 125.0

    # Many at once
    burst_runs: int = 5
    burst_share: float = 0.05  # of all runs, where that is more
    burst_s: float = 600.0
    quiet_s: float = 900.0
    switch_nodes: int = 3
    switch_share: float = 0.5  # of the nodes of one switch

    # Nodes: Meta's lemons took part in failures of several jobs (Kokolis, HPCA 2025)
    pattern_s: float = 7 * _S_PER_DAY
    pattern_interruptions: int = 3
    pattern_runs: int = 2
    black_hole_runs: int = 2
    black_hole_s: float = 3_600.0
    drains_per_hour: int = 2
    drain_share: float = 0.02  # of the fleet, one node at least

    urgent_s: float = 2.0  # the next look while a node is about to be called DOWN: Slurm's requeue follows at once
    busy_s: float = 5.0  # while something else goes on
    quiet_look_s: float = 30.0

    @property
    def standing(self) -> frozenset[Outcome]:
        """Outcomes of a deed that counts as done. A daemon that only observes takes its own word for it."""
        return _STANDING if self.deeds is Deeds.ACT else _STANDING | {Outcome.OBSERVED}

    @property
    def may_drain(self) -> bool:
        """Drain and down need Slurm's Administrator level, and a daemon for the cluster."""
        return self.mode is Mode.OPERATOR and self.level is AdminLevel.ADMINISTRATOR


# Ends that are nobody's failure: they cost no budget.
FREE = frozenset(
    {CauseClass.PREEMPTED, CauseClass.REQUEUED, CauseClass.CANCELLED, CauseClass.MAINTENANCE, CauseClass.TIME_LIMIT}
)
# What a bad node looks like where nothing names it.
UNEXPLAINED = frozenset({CauseClass.UNKNOWN, CauseClass.PROGRAM, CauseClass.RENDEZVOUS, CauseClass.HANG})
# The machine's failures: elsewhere the same program would have gone on.
INFRASTRUCTURE = frozenset(
    {
        CauseClass.NODE,
        CauseClass.GPU,
        CauseClass.NETWORK,
        CauseClass.HOST,
        CauseClass.PROLOG,
        CauseClass.HEAD,
    }
)
