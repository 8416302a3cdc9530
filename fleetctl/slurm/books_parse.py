"""Replies of squeue, sdiag, sacctmgr, sreport and sshare about accounting, as values. Times are epoch seconds."""

from __future__ import annotations

import re

from fleetctl.errors import CannotTell
from fleetctl.slurm.books import Happened, Share, Used

# Reason is what operators write, with any separator and newline in it: it stands between fields of a known form.
EVENT_FIELDS = ("NodeName", "TimeStart", "TimeEnd", "State", "User", "Reason", "StateRaw")  # sacctmgr.1
USED_FIELDS = ("Accounts", "Login", "TresName", "Used")  # sreport.1, AccountUtilizationByUser
SHARE_FIELDS = ("Account", "User", "RawShares", "NormShares", "RawUsage", "EffectvUsage", "FairShare", "LevelFS")

_EVENT = r"[^|\n]+\|[0-9]+\|(?:[0-9]+|[A-Za-z]+)\|[^|\n]*\|[^|\n]*\|"
_EVENTS = rf"(?s)({_EVENT})(.*?)\|[0-9]+\n(?=\Z|{_EVENT})"
_SEPARATOR = "|"


def parse_ids(text: str) -> frozenset[int]:
    """One raw job id a line.

    :raises CannotTell: a line is none.
    """
    words = text.split()
    if odd := next((word for word in words if not (word.isascii() and word.isdigit() and len(word) < 11)), None):
        raise CannotTell(f"squeue: {odd[:80]!r} is no job id")
    return frozenset(map(int, words))


def parse_waiting(text: str) -> int:
    """The length of slurmctld's queue to slurmdbd, from sdiag.

    :raises CannotTell: sdiag does not tell.
    """
    match = re.search(r"(?m)^DBD Agent queue size:\s*([0-9]{1,18})\s*$", text)
    if match is None:
        raise CannotTell("sdiag: the reply has no DBD Agent queue size")
    return int(match[1])


def tracks_gpus(tracked: str | None) -> bool | None:
    """Whether GPUs of any type are among these TRES (slurm.conf.5, AccountingStorageTRES)."""
    if tracked is None:
        return None
    return any(name.strip().lower().partition(":")[0] == "gres/gpu" for name in tracked.split(","))


def hides_jobs(text: str) -> bool | None:
    """Whether slurmdbd keeps records from other users: `PrivateData` of `sacctmgr show configuration`.

    None: its section is missing. The one before it repeats slurm.conf, which does not count here.
    """
    _, heading, section = text.partition("SlurmDBD configuration")
    match = re.search(r"(?m)^PrivateData\s*=\s*(.*)$", section)
    if not heading or match is None:
        return None
    return names_jobs(match[1])


def names_jobs(private: str) -> bool:
    """Whether jobs are among the PrivateData of slurm.conf or slurmdbd.conf."""
    return "jobs" in re.split(r"[\s,]+", private.strip().lower())


def is_slurm_user(text: str, user: str) -> bool:
    """Root and SlurmUser see everything; `SlurmUserId = slurm(64030)`."""
    match = re.search(r"(?m)^SlurmUserId\s*=\s*([^\s(]+)", text)
    return user == "root" or (match is not None and match[1] == user)


def parse_events(text: str) -> tuple[Happened, ...]:
    """`sacctmgr --noheader --parsable2 show event` over EVENT_FIELDS.

    :raises CannotTell: it is no such reply.
    """
    found, at = [], 0
    for match in re.finditer(_EVENTS, text):
        if match.start() != at:
            break
        node, start, end, state, user, _ = match[1].split(_SEPARATOR)
        at = match.end()
        found.append(
            Happened(node, int(start), int(end) or None if end.isdigit() else None, state, match[2], _name(user))
        )
    if at != len(text):
        raise CannotTell(f"sacctmgr show event: the reply cannot be read: {text[at : at + 80]!r}")
    return tuple(found)


def _name(user: str) -> str:
    return user.partition("(")[0]  # root(0)


def parse_used(text: str) -> tuple[Used, ...]:
    """`sreport --noheader --parsable2 -t Seconds cluster AccountUtilizationByUser` over USED_FIELDS.

    :raises CannotTell: it is no such reply.
    """
    found = []
    for account, user, tres, seconds in _rows("sreport", text, len(USED_FIELDS)):
        if not (seconds.isascii() and seconds.isdigit()):
            raise CannotTell(f"sreport: {seconds[:80]!r} is no number of seconds")
        found.append(Used(account, user, tres, int(seconds)))
    return tuple(found)


def parse_shares(text: str) -> tuple[Share, ...]:
    """`sshare --noheader --parsable2 --all` over SHARE_FIELDS; it indents the accounts by their depth.

    :raises CannotTell: it is no such reply.
    """
    return tuple(
        Share(
            account, user, _whole(shares), _number(norm), _whole(usage), _number(effective), _number(fair), _number(fs)
        )
        for account, user, shares, norm, usage, effective, fair, fs in _rows("sshare", text, len(SHARE_FIELDS))
    )


def _rows(command: str, text: str, width: int) -> list[list[str]]:
    rows = [[field.strip() for field in line.split(_SEPARATOR)] for line in text.splitlines() if line.strip()]
    if odd := next((row for row in rows if len(row) != width), None):
        raise CannotTell(f"{command}: a line has {len(odd)} fields instead of {width}: {'|'.join(odd)[:80]!r}")
    return rows


def _whole(text: str) -> int | None:
    """None for a word, such as `parent` (sshare.1)."""
    return int(text) if text.isascii() and text.isdigit() else None


def _number(text: str) -> float | None:
    """Infinity is a number here (`inf` of LevelFS); None where there is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return None if number != number else number
