"""Children that look at checkpoints with a fault in them: the real program, with lines of a test before its `main`."""

from __future__ import annotations

import sys


def child_that(does: str) -> tuple[str, ...]:
    """`does` is run in the child before it answers anything."""
    code = f"""
import os, signal, sys, time
from fleetctl.checkpoint import __main__ as child, here, examine, storage
{does}
child.main()
"""
    return (sys.executable, "-I", "-c", code)


def in_open(does: str, name: str, *, before: str = "") -> tuple[str, ...]:
    """What happens when a file of a checkpoint is opened in whose name this is."""
    return child_that(f"""
{before}
whole = storage.LocalStorage.open
def fault(self, directory, *inside):
    if {name!r} in inside[0]:
        {does}
    return whole(self, directory, *inside)
storage.LocalStorage.open = fault
""")
