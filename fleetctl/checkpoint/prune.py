"""Apply a retention policy to a folder: look at everything in it, plan, and remove what the plan lets go."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from pathlib import Path

from fleetctl.checkpoint import select
from fleetctl.checkpoint.model import Fence, Level, Survey
from fleetctl.checkpoint.pointers import pointed
from fleetctl.checkpoint.remove import Permit, always, remove, tagged
from fleetctl.checkpoint.resolve import Examine
from fleetctl.checkpoint.retention import NOTHING, Keep, Plan, Shunned, plan
from fleetctl.checkpoint.survey import is_guess
from fleetctl.errors import CannotTell


def plan_folder(
    examine: Examine,
    directory: Path,
    found: Survey,
    fence: Fence,
    keep: Keep,
    *,
    run_id: str,
    now: datetime,
    may_be_written: bool,
    used: Collection[str] = (),
    shunned: Shunned = NOTHING,
) -> Plan:
    """Look into everything that counts, and judge it. Nothing is removed.

    :raises CannotTell: the tags or pointers beside the checkpoints cannot be read.
    """
    try:
        named, kept = pointed(directory), tagged(directory)
    except OSError as error:
        raise CannotTell(f"cannot read what is kept in {directory}: {error.strerror or error}") from error
    looked = [examine(entry, Level.STRUCTURE) for entry in select.acceptable(found, fence, None)[0]]
    return plan(
        looked,
        keep,
        run_id=run_id,
        now=now,
        may_be_written=may_be_written,
        tagged=kept,
        used=frozenset({*named, *used}),
        shunned=shunned,
        guessed=frozenset(one.name for one in looked if is_guess(one)),
    )


def carry_out(directory: Path, made: Plan, *, permit: Permit = always) -> tuple[str, ...]:
    """Remove what the plan lets go, the oldest first, as long as it is permitted; the names that went.

    :raises CannotTell: not all of it could be removed. What is left goes next time.
    """
    try:
        return remove(directory, made.removed, made.guard, permit=permit)
    except OSError as error:
        raise CannotTell(
            f"not all of it could be removed from {directory}: {error.strerror or error}",
            remedy="nothing that is kept was touched; the rest goes next time",
        ) from error
