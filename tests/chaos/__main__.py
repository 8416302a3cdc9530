"""`./dev chaos --seeds A..B [--daemon] [--table]`: play scenarios on a real Slurm until a promise breaks, or none does.

Results go to a file, one line each: what stands there is not played again, so that several may share the seeds out.
Exit 1 when a promise was broken.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.chaos import results
from tests.chaos.play import play, undisturbed_digest
from tests.chaos.scenario import Scenario, scenario_of
from tests.chaos.site import a_site


def _seeds(text: str) -> range:
    first, dots, last = text.partition("..")
    try:
        return range(int(first), int(last if dots else first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: expected A..B, such as 1..40") from None


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev chaos", description="Break a real Slurm under real runs.")
    parser.add_argument("--seeds", type=_seeds, default=range(0), help="A..B: which scenarios to play")
    parser.add_argument("--daemon", action="store_true", help="with `fleetctl daemon run --act` beside")
    parser.add_argument("--results", type=Path, default=Path("chaos-results.jsonl"), help="default: %(default)s")
    parser.add_argument("--again", action="store_true", help="play also what stands in the results already")
    parser.add_argument("--plan", action="store_true", help="only say what the seeds play")
    parser.add_argument("--table", action="store_true", help="print the table of all results")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    options = _options(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C: the sandbox is taken down
    scenarios = [scenario_of(seed, daemon=options.daemon) for seed in options.seeds]
    if options.plan:
        print(*map(_plan, scenarios), sep="\n")
        return 0
    known = set() if options.again else {(one.seed, one.daemon) for one in results.read(options.results)}
    broken = _play([one for one in scenarios if (one.seed, one.daemon) not in known], options.results)
    if options.table:
        print(results.table(results.newest(results.read(options.results))))
    return 1 if broken else 0


def _play(scenarios: Sequence[Scenario], path: Path) -> int:
    """How many promises were broken. A site that cannot be mended is taken down, and another one made."""
    waiting, broken, evidence = list(scenarios), 0, path.with_suffix(".evidence").absolute()
    while waiting:
        with a_site() as site:
            digest, whole = undisturbed_digest(site), True
            while waiting and whole:
                result = play(waiting.pop(0), site, digest, evidence)
                results.append(path, result)
                print(results.line(result), flush=True)
                broken += len(result.broken)
                whole = site.mend()
    return broken


def _plan(scenario: Scenario) -> str:
    planned = "; ".join(f"{one.fault}, {one.moment}, after {one.delay_s} s" for one in scenario.planned)
    return f"seed {scenario.seed}: {scenario.nodes} nodes, {scenario.spares} spare: {planned}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
