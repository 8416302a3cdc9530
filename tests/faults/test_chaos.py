"""Some seeds of chaos, on clusters that break: see docs/chaos.md. `./dev chaos` plays any others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.play import play, undisturbed_digest
from tests.chaos.scenario import scenario_of
from tests.chaos.site import a_site

pytestmark = pytest.mark.slurm

# One cluster each, so that each takes its turn beside the others
LAUNCH_ALONE = ((4, 7), (27, 26))
WITH_DAEMON = ((29, 3, 37),)


def faults(groups: tuple[tuple[int, ...], ...], *, daemon: bool) -> Counter[str]:
    return Counter(one.fault for seeds in groups for seed in seeds for one in scenario_of(seed, daemon=daemon).planned)


def test_at_least_fifteen_faults_are_played_here() -> None:
    planned = faults(LAUNCH_ALONE, daemon=False) + faults(WITH_DAEMON, daemon=True)
    assert planned.total() >= 15
    assert len(planned) >= 10, "of ten kinds"


def _play(seeds: tuple[int, ...], folder: Path, *, daemon: bool) -> None:
    with a_site() as site:
        digest = undisturbed_digest(site)
        for seed in seeds:
            result = play(scenario_of(seed, daemon=daemon), site, digest, folder / "evidence")
            print(*result.story, sep="\n")
            assert not result.broken, f"seed {seed}: {result.broken}"
            assert site.mend(), f"the cluster after seed {seed}"


@pytest.mark.parametrize("seeds", LAUNCH_ALONE, ids=str)
def test_the_job_side_alone_keeps_every_promise(seeds: tuple[int, ...], tmp_path: Path) -> None:
    _play(seeds, tmp_path, daemon=False)


@pytest.mark.parametrize("seeds", WITH_DAEMON, ids=str)
def test_with_the_daemon_beside_every_promise_is_kept(seeds: tuple[int, ...], tmp_path: Path) -> None:
    _play(seeds, tmp_path, daemon=True)
