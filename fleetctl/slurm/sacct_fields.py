"""The columns that accounting asks of sacct, and in which order.

The first column is the DBIndex and the last the JobIDRaw: neither can be edited, so both ends of a row are certain.
After each text that people write (JobName, Comment, AdminComment) stands one that Slurm writes and that is no job id:
see slurm.framing, which finds the rows again after a damaged one.
"""

from __future__ import annotations

# sacct.1 --format; all of them exist from 22.05 on.
RECORD_FIELDS = (
    *("DBIndex", "JobID", "User", "UID", "Account", "Partition", "QOS", "JobName", "State", "ExitCode"),
    *("DerivedExitCode", "Submit", "Eligible", "Start", "End", "Suspended", "TimelimitRaw", "AllocTRES", "NodeList"),
    *("Comment", "Reason", "AdminComment", "JobIDRaw"),
)
STEP_FIELDS = (*("DBIndex", "JobID", "JobName", "State", "ExitCode", "Start", "End", "NodeList", "NTasks", "JobIDRaw"),)
# Asked for where `sacct --helpformat` lists them; they stand before the last column. SLUID and Restarts are of 24.11,
# OriginalSLUID, which tells what is left of a resized job, of 26.05.
NEWER_RECORD_FIELDS = ("SLUID", "OriginalSLUID", "Restarts", "FailedNode")
NEWER_STEP_FIELDS = ("SLUID",)


def offered(fields: tuple[str, ...], newer: tuple[str, ...], known: frozenset[str]) -> tuple[str, ...]:
    """`fields` with those of `newer` that this sacct knows."""
    return (*fields[:-1], *(name for name in newer if name in known), fields[-1])
