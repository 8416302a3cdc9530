"""The fuzzer, a fixed number of inputs for each parser. `python -m tests.fuzz TARGET FOLDER -runs=N` runs it longer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.fuzz.targets import FEWER_RUNS, RUNS, SEEDS, TARGETS
from tests.support import ROOT

_TIMEOUT_S = 120


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_bad_words_comes_out(name: str, real_python: Path, tmp_path: Path) -> None:
    assert SEEDS[name]
    runs = FEWER_RUNS.get(name, RUNS)
    argv = [str(real_python), "-m", "tests.fuzz", name, str(tmp_path / "corpus")]
    limits = [f"-runs={runs}", "-seed=1", "-rss_limit_mb=2048", "-timeout=10", "-max_len=20000"]
    where = [f"-artifact_prefix={tmp_path}/"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*argv, *limits, *where], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    kept = [path.name for path in tmp_path.iterdir() if path.is_file()]
    assert (done.returncode, kept) == (0, []), done.stderr[-4000:]
    assert f"Done {runs} " in done.stderr
