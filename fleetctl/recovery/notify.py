"""Tells people: by a webhook, by e-mail, or by a program of the site. Nothing of it can hold the daemon up.

Each delivery is a child that is killed at its deadline, started by one thread beside the loop. A notice that was sent
is not sent again for a day; one that failed is tried again by later passes, and then given up.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from msgspec import Struct

from fleetctl import process
from fleetctl.errors import FleetctlError, UsageError
from fleetctl.recovery.model import Deed, Done, Outcome

LIMIT_S = 30.0  # of one delivery, name look-ups and all
AGAIN_S = 86_400.0  # the day: the same notice is said once in it
_TRIES = 5
_MOST_WAITING = 256  # notices; a fleet that has more to say has one incident to tell
NOTE = "told "  # begins the names of our notes in the journal
_FORMS = "webhook:URL, mail:ADDRESS or command:PROGRAM"
_WORTH_TELLING = (Deed.TELL, Deed.HOLD, Deed.PAUSE, Deed.DRAIN, Deed.SET_DOWN)


class Way(StrEnum):
    WEBHOOK = "webhook"  # POST of JSON
    MAIL = "mail"
    COMMAND = "command"  # a program that reads JSON


class Channel(Struct, frozen=True):
    """Where notices go."""

    way: Way
    target: str


class Notice(Struct, frozen=True):
    """What is told. `identity` makes two notices the same one."""

    identity: str
    at: datetime
    cluster: str
    deed: str
    run: str
    nodes: tuple[str, ...]
    subject: str
    why: str
    evidence: tuple[str, ...] = ()
    outcome: str = ""

    def as_json(self) -> dict[str, Any]:
        """Stable keys; docs/json.md describes them."""
        return {
            "time": self.at.isoformat(),
            "cluster": self.cluster,
            "deed": self.deed,
            "run_id": self.run or None,
            "nodes": list(self.nodes),
            "subject": self.subject,
            "why": self.why,
            "evidence": list(self.evidence),
            "outcome": self.outcome or None,
        }


class Sent(Struct, frozen=True):
    """What came of a delivery; `trouble` "": it arrived."""

    identity: str
    trouble: str


def channels_of(said: Iterable[str]) -> tuple[Channel, ...]:
    """:raises UsageError: one of them is none."""
    found = []
    for text in said:
        way, _, target = text.partition(":")
        if way not in {*Way} or not target:
            raise UsageError(f"--notify {_hidden(text)}: expected {_FORMS}")
        if way == Way.WEBHOOK and not target.startswith(("http://", "https://")):
            raise UsageError(f"--notify {_hidden(text)}: a webhook begins with https:// or http://")
        found.append(Channel(Way(way), target))
    return tuple(found)


def _hidden(text: str) -> str:
    """A webhook's path is its secret."""
    return text if len(text) <= 24 else f"{text[:24]}..."


def notices(done: Iterable[Done], cluster: str) -> tuple[Notice, ...]:
    """What a person should hear of these entries of the journal: holds, tells, drains, incidents, and what failed."""
    told = []
    for one in done:
        failed = one.outcome is Outcome.FAILED
        if one.outcome in (Outcome.CHANGED, Outcome.OPEN) or not (one.action.deed in _WORTH_TELLING or failed):
            continue
        told.append(_notice(one, cluster))
    return tuple(told)


def _notice(one: Done, cluster: str) -> Notice:
    action = one.action
    about = action.key or ", ".join(action.nodes[:8]) or cluster
    words = {Deed.TELL: "look at", Deed.HOLD: "held", Deed.PAUSE: "paused", Deed.DRAIN: "drain of"}
    subject = f"fleetctl: {words.get(action.deed, action.deed.value.replace('_', ' '))} {about}"
    if one.outcome is not Outcome.DONE and action.deed is not Deed.TELL:
        subject += f" ({one.outcome.value})"
    return Notice(
        identity=f"{action.identity}|{action.rule}|{one.outcome.value}",
        at=one.at,
        cluster=cluster,
        deed=action.deed.value,
        run=action.key,
        nodes=action.nodes,
        subject=subject,
        why=action.why,
        evidence=action.evidence,
        outcome=one.outcome.value,
    )


def fresh(found: Sequence[Notice], notes: Mapping[str, str], now: datetime) -> tuple[Notice, ...]:
    """Those that were not told within a day, and did not fail too often in it. Pure."""
    return tuple(one for one in found if not _settled(notes.get(name_of(one.identity), ""), now))


def name_of(identity: str) -> str:
    """The name of a notice's note in the journal."""
    import hashlib

    return NOTE + hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:32]


def noted(sent: Sent, before: str, now: datetime) -> str:
    """The note after a delivery: `sent TIME` or `failed COUNT TIME`. Pure."""
    at = now.astimezone(UTC).isoformat()
    if not sent.trouble:
        return f"sent {at}"
    words = before.split()
    count = int(words[1]) if words[:1] == ["failed"] and len(words) == 3 and words[1].isdigit() else 0
    return f"failed {count + 1} {at}"


def stale(notes: Mapping[str, str], now: datetime) -> dict[str, str]:
    """Our notes that are older than a day, as they are to be forgotten. Pure."""
    return {name: "" for name, text in notes.items() if name.startswith(NOTE) and not _recent(text, now)}


def _settled(note: str, now: datetime) -> bool:
    if not note or not _recent(note, now):
        return False
    words = note.split()
    return words[0] == "sent" or (words[0] == "failed" and words[1].isdigit() and int(words[1]) >= _TRIES)


def _recent(note: str, now: datetime) -> bool:
    try:
        at = datetime.fromisoformat(note.split()[-1])
        return abs(now - at) < timedelta(seconds=AGAIN_S)  # a clock may step back
    except (ValueError, IndexError, TypeError):
        return False


Deliver = Callable[[Channel, Notice], str]


class Teller:
    """A thread that delivers; nobody waits for it but `close`. What came of each delivery is asked with `results`."""

    def __init__(self, channels: Sequence[Channel], deliver: Deliver) -> None:
        self._channels = tuple(channels)
        self._deliver = deliver
        self._waiting: queue.Queue[Notice | None] = queue.Queue(_MOST_WAITING)
        self._results: queue.SimpleQueue[Sent] = queue.SimpleQueue()
        self._under_way = set[str]()
        self._thread = threading.Thread(target=self._work, name="notices", daemon=True)
        self._thread.start()

    @property
    def has_channels(self) -> bool:
        return bool(self._channels)

    def tell(self, notice: Notice) -> bool:
        """Returns at once. False: too many wait already, or there is nobody to tell."""
        if not self._channels:
            return False
        if notice.identity in self._under_way:
            return True
        try:
            self._waiting.put_nowait(notice)
        except queue.Full:
            return False
        self._under_way.add(notice.identity)
        return True

    def results(self) -> tuple[Sent, ...]:
        """What came of deliveries since the last call."""
        found = []
        while not self._results.empty():
            found.append(self._results.get_nowait())
        self._under_way -= {sent.identity for sent in found}
        return tuple(found)

    def close(self, within_s: float) -> tuple[Sent, ...]:
        """Let what waits be delivered for so long, and leave the rest; then the last results."""
        try:
            self._waiting.put(None, timeout=within_s)
        except queue.Full:
            return self.results()
        self._thread.join(within_s)
        return self.results()

    def _work(self) -> None:
        while (notice := self._waiting.get()) is not None:
            troubles = [trouble for one in self._channels if (trouble := self._one(one, notice))]
            self._results.put(Sent(notice.identity, "; ".join(troubles)))

    def _one(self, channel: Channel, notice: Notice) -> str:
        try:
            return self._deliver(channel, notice)
        except (FleetctlError, OSError, ValueError) as error:
            return f"{channel.way.value}: {error}"


def deliver(channel: Channel, notice: Notice) -> str:
    """Deliver by a child that is killed after LIMIT_S. "" or what went wrong, in one line without secrets."""
    body = json.dumps(notice.as_json())
    if channel.way is Way.COMMAND:
        argv, text = [channel.target], body + "\n"
    else:  # the target may be a secret: not in an argument, which everybody sees
        argv = [sys.executable, "-I", "-m", "fleetctl.recovery.deliver"]
        text = json.dumps({"way": channel.way.value, "target": channel.target, "notice": notice.as_json()})
    done = process.run(argv, timeout_s=LIMIT_S, stdin=text)
    if done.returncode == 0:
        return ""
    said = " ".join((done.stderr or done.stdout).split())[-200:]
    return f"{channel.way.value} ended with status {done.returncode}: {said}"
