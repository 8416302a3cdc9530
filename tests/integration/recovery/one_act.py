"""A daemon in a process of its own, to be killed and stopped: it leads, does one thing and says what came of it.

python -m tests.integration.recovery.one_act DATABASE RUNS RUN_ID DEED
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fleetctl.recovery.model import Deed
from tests.integration.recovery.scene import Run, a_world, done
from tests.support import Cli


def main(database: str, runs: str, run_id: str, deed: str) -> None:
    run = Run(Cli(os.environ, Path(runs)), Path(runs))
    run.run_id = run_id
    run.job_id = run.dir.history().job_id or ""
    with a_world(database, run.cli) as world:
        found = done(world, run, Deed(deed))
    print(found.outcome, found.detail, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
