"""Why Slurm lets a job wait, in plain words, and what its owner can do (job_reason_codes.html; 22.05 to 26.05)."""

from __future__ import annotations

import re

_ASK_ADMIN = "Ask the cluster's administrators."
_WAIT = "Nothing to do but wait."

_EXACT = {
    "None": "Slurm has not looked at it yet. " + _WAIT,
    "Resources": "It is next, but the nodes or GPUs it asks for are in use. " + _WAIT,
    "Priority": "Other jobs in this partition come first. "
    + _WAIT
    + " A shorter time limit may let it slip into a gap.",
    "BeginTime": "Its start time is not reached; a requeued job waits about two minutes. " + _WAIT,
    "Dependency": "It waits for another job. " + _WAIT,
    "DependencyNeverSatisfied": "A job it depends on failed, so it will never start. Cancel it and submit again.",
    "JobArrayTaskLimit": "As many elements of its array run as the array's %limit allows. " + _WAIT,
    "JobHeldUser": "Its owner holds it. `scontrol release JOB` lets it go.",
    "JobHeldAdmin": "An administrator holds it, or it was requeued too often. " + _ASK_ADMIN,
    "JobHoldMaxRequeue": "It was requeued too often (MaxBatchRequeue), so Slurm holds it. Find out why it fails, then"
    " release it.",
    "ReqNodeNotAvail": "A node it needs is down, drained or reserved. Wait, or ask for other nodes.",
    "NodeDown": "A node it needs is down. Wait, or ask for other nodes.",
    "PartitionDown": "Its partition is down. " + _ASK_ADMIN,
    "PartitionInactive": "Its partition takes no jobs now. " + _ASK_ADMIN,
    "PartitionNodeLimit": "It asks for more, or fewer, nodes than its partition allows. Change `nodes`.",
    "PartitionTimeLimit": "It asks for more time than its partition allows. Lower `time`.",
    "PartitionConfig": "Its partition cannot give what it asks for. Change the resources, or the partition.",
    "BadConstraints": "No node can ever give what it asks for. Change the resources and submit again.",
    "Reservation": "Its reservation has not started, or is full. " + _WAIT,
    "ReservationDeleted": "Its reservation was deleted. Submit again without it.",
    "RequiresReservation": "Its partition takes only jobs with a reservation. Name one, or take another partition.",
    "ReqResv": "Its partition takes only jobs with a reservation. Name one, or take another partition.",
    "Licenses": "A licence it needs is in use. " + _WAIT,
    "Prolog": "Its nodes are being prepared. " + _WAIT,
    "PrologSlurmctld": "Its nodes are being prepared. " + _WAIT,
    "Cleaning": "Its earlier start is still being cleaned up. " + _WAIT,
    "InvalidAccount": "Its account is not valid any more. Submit again with another account.",
    "InvalidQOS": "Its QOS is not valid any more. Submit again with another QOS.",
    "AccountNotAllowed": "Its account may not use this partition. Change the account, or the partition.",
    "QOSNotAllowed": "Its QOS may not be used with this account or partition. Change one of them.",
    "QOSUsageThreshold": "Its QOS has used up its share. " + _WAIT,
    "AccountingPolicy": "A limit of its account or QOS is reached. Wait, or ask for less.",
    "JobLaunchFailure": "It could not be started on its nodes. " + _ASK_ADMIN,
    "FailedLaunch": "It could not be started on its nodes. " + _ASK_ADMIN,
    "launch failed requeued held": "Its nodes could not be prepared (a failed prolog), so Slurm holds it."
    " `scontrol release JOB` tries again.",
    "job requeued in held state": "It was requeued and held. `scontrol release JOB` lets it go.",
    "SystemFailure": "Slurm itself failed. " + _ASK_ADMIN,
    "OutOfMemory": "Slurm itself ran out of memory. " + _ASK_ADMIN,
    "DeadLine": "It cannot end before its deadline any more.",
    "NonZeroExitCode": "It ended with an error.",
    "TimeLimit": "It reached its time limit.",
    "FrontEndDown": "The front end it needs is down. " + _ASK_ADMIN,
    "SchedDefer": "The scheduler looks at it later. " + _WAIT,
    "BurstBufferOperation": "A burst buffer operation failed. " + _ASK_ADMIN,
    "BurstBufferResources": "The burst buffer is full. " + _WAIT,
    "BurstBufferStageIn": "Its data is being copied to the burst buffer. " + _WAIT,
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": "Nodes it needs are"
    " down, drained or kept for other partitions. Wait, or ask for other nodes.",
    "MaxPoweredUpNodes": "As many cloud nodes run as this cluster allows. " + _WAIT,
    "ResourcesPending": "The nodes it asks for are in use. " + _WAIT,
}

_RESOURCE = {
    "bb": "burst buffer space",
    "billing": "billing units",
    "cpu": "CPUs",
    "energy": "energy",
    "gres": "GPUs",
    "jobs": "running jobs",
    "job": "running jobs",
    "license": "licences",
    "mem": "memory",
    "memory": "memory",
    "node": "nodes",
    "submitjobs": "queued jobs",
    "submitjob": "queued jobs",
    "wall": "run time",
    "wallduration": "run time",
    "unknown": "a resource",
}

# AssocGrpGRESRunMinutes, QOSMaxGRESPerUser, QOSMaxWallDurationPerJobLimit, MaxGRESPerAccount, QOSMinGRES ...
_LIMIT = re.compile(
    r"(?P<owner>Assoc|QOS|)(?P<kind>Grp|Max|Min)(?P<what>[A-Za-z]+?)(?P<run>Run)?(?P<minutes>Minutes)?"
    r"(?P<per>Per(?:Job|Node|User|Account))?(?:Limit|NotSatisfied)?"
)


def explain(reason: str) -> str:
    """One or two sentences on Slurm's `reason`; Slurm's own word is kept where we do not know it."""
    if not reason:
        return _EXACT["None"]
    if (known := _EXACT.get(reason)) is not None:
        return known
    head, _, detail = reason.partition(",")  # ReqNodeNotAvail, UnavailableNodes:n1
    if detail and (known := _EXACT.get(head.strip())) is not None:
        return f"{known} ({detail.strip()})"
    if (match := _LIMIT.fullmatch(reason)) is not None and match["what"].lower() in _RESOURCE:
        return _explain_limit(match)
    if reason.startswith("QOS") and reason.endswith("Limit"):
        return f"A limit of its QOS is reached ({reason}). Wait, or take another QOS."
    return f"Slurm says {reason!r}, which fleetctl does not know. {_ASK_ADMIN}"


def _explain_limit(match: re.Match[str]) -> str:
    owner = {"Assoc": "account or user", "QOS": "QOS", "": "account"}[match["owner"]]
    what = _RESOURCE[match["what"].lower()]
    if match["minutes"]:
        what += " over time"
    if match["kind"] == "Min":
        return f"It asks for too few {what} for its {owner}. Ask for more, or change the {owner}."
    if match["kind"] == "Grp":
        return f"The jobs of its {owner} together use as many {what} as they may. {_WAIT}"
    if match["per"] in {"PerUser", "PerAccount"} or match["what"] in {"Jobs", "SubmitJob", "SubmitJobs"}:
        return f"You use as many {what} as the {owner} allows at once. {_WAIT}"
    return f"It asks for more {what} than one job of its {owner} may use. Ask for less, or change the {owner}."
