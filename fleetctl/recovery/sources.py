"""Where a pass looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from fleetctl.recovery.kept import Limits
from fleetctl.recovery.mounts import Question
from fleetctl.recovery.read_wire import Told
from fleetctl.slurm.port import Slurm


def nobody(_: Sequence[str]) -> frozenset[str]:
    """A site without a fence command proves no death."""
    return frozenset()


class Reading(Protocol):
    """Who reads folders: processes that may hang (mounts.Readers)."""

    def ask(self, questions: Sequence[Question]) -> list[tuple[Told, ...]]:
        """The answers, in the order of the questions, one at least for each. Never raises for what lies there."""
        ...


class Sources(Struct, frozen=True):
    """`root` is the folder of the runs of `user`, in owner mode; None: the daemon watches all users' runs, and finds
    their folders through their jobs. `shared` is the folder of the node checks. `prove_dead` says which of these nodes
    are proved dead. `hears_all` False: Slurm may hide other users' jobs, so that none is no answer.
    """

    slurm: Slurm
    cluster: str
    user: str
    root: str | None
    readers: Reading
    shared: str | None = None
    switches: Mapping[str, str] = {}
    prove_dead: Callable[[Sequence[str]], frozenset[str]] = nobody
    hears_all: bool = True
    limits: Limits = Limits()
