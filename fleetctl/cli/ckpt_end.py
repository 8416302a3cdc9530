"""How a look at checkpoints ends: the exit code, and in words why it is not 0."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from fleetctl.checkpoint.model import Checked, Level, Validity, one_line
from fleetctl.checkpoint.select import ALONE, NOT_KNOWN
from fleetctl.cli.ckpt_place import Place, near
from fleetctl.errors import CannotTell, NoValidCheckpoint


def conclude(place: Place, found: Sequence[Checked]) -> None:
    """Return when one is valid that training can go on from, or that was named itself.

    :raises NoValidCheckpoint, CannotTell: none is, or that is not known.
    """
    valid = [one for one in found if one.validity is Validity.VALID]
    if any(one.resumable or place.is_one for one in valid):
        return
    looked = [one for one in found if place.counts(one)]
    none = f"none of {len(looked)} is valid" if looked else "none is there that counts"
    fail(place, found, ALONE if valid else none)


def fail(place: Place, found: Sequence[Checked], reason: str, remedy: str | None = None) -> None:
    """:raises NoValidCheckpoint, CannotTell: always."""
    where = one_line(str(place.directory))
    if place.is_empty:
        raise NoValidCheckpoint(f"no checkpoint in {where}", remedy=_where_else(place))
    if place.is_one and found and found[0].reason == NOT_KNOWN:
        remedy = "name a checkpoint, or the folder that holds them"
        raise NoValidCheckpoint(f"{one_line(found[0].name)} in {where} is {NOT_KNOWN}", remedy=remedy)
    unknown = [one for one in found if one.validity is Validity.UNKNOWN and place.counts(one)]
    unjudged = [one for one in unknown if one.level is not Level.NAMES or one.faults]
    if unjudged:
        first = f"{one_line(unjudged[0].name)}: {unjudged[0].reason}"
        raise CannotTell(f"not all checkpoints in {where} could be judged: {first}", remedy="that may pass: ask again")
    if unknown:
        raise CannotTell(f"looked at names only in {where}, and names prove nothing", remedy="--level structure")
    raise NoValidCheckpoint(f"no valid checkpoint in {where}: {reason}", remedy=remedy)


def list_of(target: str) -> str:
    """The command that lists them all."""
    return one_line(f"fleetctl ckpt ls {shlex.quote(target)}")


def _where_else(place: Place) -> str | None:
    held = near(place)
    if place.run is not None:
        return held or None
    return f"name the folder that holds them{held and f': {held}'}"
