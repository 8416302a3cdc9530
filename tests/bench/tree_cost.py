"""`python -I -S tree_cost.py PROGRAM [ARGUMENT...]`: what a program and all that it left behind cost, as one JSON line.

A small process of its own: it adopts what the program abandons (a child forked twice counts, too), and a big parent's
memory would count as that of its children until they start their program.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def main(argv: list[str]) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    began = time.monotonic()
    program = os.posix_spawn(argv[0], argv, os.environ)
    wall_s, status, buried = 0.0, 0, 0
    while True:
        try:
            pid, ended = os.wait()
        except ChildProcessError:  # nobody is left
            break
        buried += 1
        if pid == program:
            wall_s, status = time.monotonic() - began, os.waitstatus_to_exitcode(ended)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = {"status": status, "wall_ms": 1000 * wall_s, "cpu_ms": 1000 * (used.ru_utime + used.ru_stime)}
    print(json.dumps({**told, "peak_mib": used.ru_maxrss / 1024, "left": buried - 1}))


if __name__ == "__main__":
    main(sys.argv[1:])
