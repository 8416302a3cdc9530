"""Every variant of a node through the real prolog: the healthy ones in silence, the sick ones with their own words."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.nvml.healthy_variants import HEALTHY
from tests.nvml.scenario import healthy, site_settings
from tests.nvml.sick_variants import SICK
from tests.nvml.variants import Variant
from tests.support import Cli

SOON_S = 1.0  # the prolog is quicker than this, where it need not wait
SCONTROL = "#!/bin/sh\n[ $1 = show ] && echo 'NodeName=n1 Arch=x' && echo '   State=IDLE ThreadsPerCore=1'\nexit 0\n"

Learned = Callable[[str], Path]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Learned:
    """Profiles as `fleetctl node learn` writes them on a healthy node, one for each platform that is asked for."""
    folder = tmp_path_factory.mktemp("learned")

    def profile(platform: str) -> Path:
        out = folder / f"{platform}.json"
        if not out.exists():
            healthy(platform, "good").write(folder)
            site = folder / "site.json"
            site.write_text(json.dumps(site_settings(folder)))
            cli = Cli({"SLURMD_NODENAME": "good"}, folder)
            done = cli("node", "learn", "--site", str(site), "--out", str(out))
            assert done.returncode == 0, done.stderr
        return out

    return profile


def prolog(variant: Variant, folder: Path, learned: Learned) -> subprocess.CompletedProcess[str]:
    """The prolog of a job on such a node, as slurmd runs it."""
    node = variant.node("n1")
    paths = node.write(folder)
    scontrol = folder / "scontrol"
    scontrol.write_text(SCONTROL)
    scontrol.chmod(0o755)
    site: dict[str, Any] = {**site_settings(folder), "scontrol": str(scontrol), "limits": {"shm_free_share": 0}}
    site |= {"deadline_s": 6, **variant.site}
    if variant.learned:
        site["profile"] = str(learned(variant.platform))
    (folder / "site.json").write_text(json.dumps(site))
    gpus = variant.gpus or f"0-{len(variant.node().platform.gpus) - 1}"
    environ = {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "42", "SLURM_JOB_UID": "4242", "SLURM_JOB_GPUS": gpus}
    change = threading.Timer(SOON_S, variant.later or (lambda _: None), [paths])
    change.start()
    command = [sys.executable, "-I", "-m", "fleetctl.health", "prolog", "--site", str(folder / "site.json")]
    done = subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, timeout=100, check=False)
    change.join() if variant.later else change.cancel()
    return done


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_node_that_peers_drain_takes_the_job_in_silence(tmp_path: Path, learned: Learned, name: str) -> None:
    done = prolog(HEALTHY[name], tmp_path, learned)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", SICK)
def test_a_sick_node_is_drained_in_the_words_of_its_fault(tmp_path: Path, learned: Learned, name: str) -> None:
    done = prolog(SICK[name], tmp_path, learned)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("fleetctl: ")
    assert len(done.stderr.splitlines()) == 1
    assert SICK[name].lacks(done.stderr) == []
