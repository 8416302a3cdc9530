"""`python -I -m fleetctl.health PHASE [--site PATH]`: what Slurm runs on a node.

The exit status is 1 where a measured fault keeps a job away, else 0: our own bug, too, lets jobs go on. Nothing is
printed on the good path; one line on stderr says why a node is closed, or what is wrong with us.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from typing import List, Mapping, Optional, Sequence

from fleetctl.health.record import NamedTuple

_BEGAN = time.monotonic() - time.process_time()  # about when this process started
_USAGE = "usage: fleetctl.health prolog|epilog|periodic|boot [--site PATH]"
_PHASES = ("prolog", "epilog", "periodic", "boot")
_MOST_LINE = 500
_MOST_TRACE = 4000
_KEEP_S = 1.0


class Called(NamedTuple):
    """What the command line asks for; `phase` is "" where it makes no sense."""

    phase: str
    site: Optional[str] = None


def main(arguments: Sequence[str], environ: Mapping[str, str], beside: Optional[str] = None) -> int:
    """Run a phase; the exit status.

    :param beside: the folder of the code that was started, which may have a site.json.
    """
    gc.disable()  # a process that lives for a second need not look for garbage: up to a tenth of its CPU
    called = read_arguments(arguments)
    if not called.phase:
        say(_USAGE)
        return 0
    try:
        return _run(called, environ, beside)
    except Exception as error:  # noqa: BLE001 - the last line of defence: our bug must not cost a job
        say(f"fleetctl: a bug of fleetctl, the node stays as it is: {type(error).__name__}: {error}")
        try:
            _keep_bug(called, environ, beside, error)
        except Exception as second:  # noqa: BLE001 - as above
            say(f"fleetctl: the bug could not be written down: {type(second).__name__}: {second}")
        return 0


def read_arguments(arguments: Sequence[str]) -> Called:
    """The phase and the path of the site file."""
    words: List[str] = list(arguments)
    site = None
    for index, word in enumerate(words):
        if word.startswith("--site="):
            site = word[len("--site=") :]
            del words[index]
            break
        if word == "--site" and index + 1 < len(words):
            site = words[index + 1]
            del words[index : index + 2]
            break
    if len(words) != 1 or words[0] not in _PHASES:
        return Called("")
    return Called(words[0], site)


def _run(called: Called, environ: Mapping[str, str], beside: Optional[str]) -> int:
    from fleetctl.health.asked import asked_from, uid_of
    from fleetctl.health.model import Phase
    from fleetctl.health.prolog import Job, run_prolog
    from fleetctl.health.site import find_site, load_site, node_name, with_profile
    from fleetctl.health.world import tools_for, where_for

    phase = Phase(called.phase)
    node = node_name(environ, os.uname().nodename)
    site = with_profile(load_site(find_site(called.site, beside), node), beside)
    asked, told = asked_from(environ, phase)
    tools, where = tools_for(site, asked, environ), where_for(site, node)
    if phase is Phase.PROLOG:
        ended = run_prolog(site, where, Job(asked, uid_of(environ), told), tools, _BEGAN)
    elif phase is Phase.EPILOG:
        from fleetctl.health.job_end import run_epilog

        ended = run_epilog(site, where, Job(asked, uid_of(environ), told), tools, environ, _BEGAN)
    else:
        from fleetctl.health.periodic import run_periodic

        ended = run_periodic(site, where, asked, tools, _BEGAN)
        for note in ended.notes:
            say(f"fleetctl: {note}")
    if ended.line:
        say(ended.line if ended.line.startswith("fleetctl: ") else f"fleetctl: {ended.line}")
    return ended.status


def _keep_bug(called: Called, environ: Mapping[str, str], beside: Optional[str], error: BaseException) -> None:
    """The traceback goes into the spool, by a child that may hang."""
    import traceback

    from fleetctl.health.apart import Task, run_apart
    from fleetctl.health.asked import job_of
    from fleetctl.health.model import Care, Decision, Finding, Outcome, Phase, Verdict
    from fleetctl.health.site import find_site, load_site, node_name

    node = node_name(environ, os.uname().nodename)
    site = load_site(find_site(called.site, beside), node)
    words = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-_MOST_TRACE:]
    finding = Finding("bug", Outcome.FAIL, "node", "node", words, care=Care.WATCH)
    reason = f"a bug of fleetctl: {type(error).__name__}"
    took_s = round(time.monotonic() - _BEGAN, 3)
    verdict = Verdict(
        node, Phase(called.phase), time.time(), "", Decision.BUG, reason, (finding,), 0, took_s, job_of(environ)
    )

    def work() -> bool:
        from fleetctl.health.spool import append_verdict

        return append_verdict(site.folder, verdict, wait_s=_KEEP_S / 3)

    run_apart([Task("bug", work, _KEEP_S)], stuck=None, monotonic=time.monotonic)


def say(text: str) -> None:
    """One line on stderr, whatever is in it, and whether anybody listens or not."""
    line = " ".join("".join(c if " " <= c <= "~" else " " if c.isspace() else "?" for c in text).split())
    try:
        os.write(2, line[:_MOST_LINE].encode("ascii") + b"\n")
    except OSError:
        return


if __name__ == "__main__":
    started = getattr(sys.modules["__main__"], "__file__", None)
    sys.exit(main(sys.argv[1:], os.environ, os.path.dirname(os.path.abspath(started)) if started else None))
