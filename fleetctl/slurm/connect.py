"""Chooses the ways to Slurm and to its accounting; the only module that names one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fleetctl.clock import Clock
from fleetctl.slurm.commands import Limits
from fleetctl.slurm.text import TextSlurm
from fleetctl.slurm.wrap import Logged, Retrying

if TYPE_CHECKING:
    from fleetctl.slurm.books import Books
    from fleetctl.slurm.port import Slurm


def connect(
    environ: Mapping[str, str],
    clock: Clock,
    debug_log: Callable[[str], None] | None = None,
    limits: Limits = Limits(),
) -> Slurm:
    """The cluster that `environ` points to (SLURM_CONF, PATH). Reads are tried again; contacts nothing yet."""
    slurm: Slurm = TextSlurm(environ, limits)
    if debug_log is not None:
        slurm = Logged(slurm, debug_log, clock)
    return Retrying(slurm, clock)


def connect_books(
    environ: Mapping[str, str],
    clock: Clock,
    debug_log: Callable[[str], None] | None = None,
    limits: Limits = Limits(),
) -> Books:
    """The accounting of the cluster that `environ` points to; contacts nothing yet."""
    from fleetctl.slurm.text_books import TextBooks  # most commands read no accounting
    from fleetctl.slurm.wrap_books import LoggedBooks, RetryingBooks

    books: Books = TextBooks(environ, limits)
    if debug_log is not None:
        books = LoggedBooks(books, debug_log, clock)
    return RetryingBooks(books, clock)
