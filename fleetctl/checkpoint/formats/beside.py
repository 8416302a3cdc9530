"""What lies beside a checkpoint and tells about it: the next older one, and the pointer to the newest.

Some formats have no commit marker inside. There, these say whether a save was ever finished. What cannot be read here
says nothing: nobody may be kept from a good checkpoint by a bad neighbour.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from fleetctl.checkpoint.look import Look
from fleetctl.checkpoint.model import Validity

_MOST_POINTER_BYTES = 4096  # a name, or a number


def next_older(look: Look, step_named: Callable[[str], int | None]) -> Look | None:
    """The newest of the checkpoints in the same folder whose names say an older step."""
    step = step_named(look.name)
    older = dict[int, str]()
    with contextlib.suppress(OSError):
        for name in look.siblings() if step is not None else ():
            said = step_named(name)
            if step is not None and said is not None and said < step:
                older[said] = name
    return look.beside(older[max(older)]) if older else None


def names_in(look: Look | None) -> frozenset[str]:
    """What a neighbour holds; nothing when there is none, or it cannot be listed."""
    with contextlib.suppress(OSError):
        return frozenset() if look is None else look.names()
    return frozenset()


def never_finished(look: Look, pointer: str, step_of: Callable[[str], int | None]) -> bool:
    """Something is missing, and the pointer beside it, which is written after all else, has not come to this step.

    `step_of` reads a step from what the pointer says. One that says nothing is no reason to think so.
    """
    worst = look.ledger.worst
    if worst is None or worst.validity is not Validity.INCOMPLETE:
        return False
    aside, step = look.beside(pointer), step_of(look.name)
    with aside.judging(""), aside.open() as blob:
        said = blob.read(0, min(blob.size_bytes, _MOST_POINTER_BYTES)).decode("ascii", "replace").strip()
        pointed = step_of(said)
        return pointed is not None and step is not None and pointed < step
    return aside.ledger.worst is not None and aside.ledger.worst.validity is Validity.INCOMPLETE
