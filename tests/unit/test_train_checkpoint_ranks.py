"""Checkpointer with several ranks, and settings that cannot be meant."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest

from fleetctl.train.checkpointer import Loaded
from fleetctl.train.layout import MANIFEST, parse_manifest
from tests.unit.checkpoint_site import Site, load_rank, no_space, open_rank


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    for opened in site.opened:
        opened.__exit__(RuntimeError)  # ends its thread, whatever the test made of it


def test_each_rank_writes_and_reads_its_own(site: Site) -> None:
    site.checkpoints.mkdir()

    def train(rank: int) -> None:
        with open_rank(site, rank, 3) as checkpoints:
            for step in range(1, 5):
                checkpoints.save(step, {"rank": rank, "x": numpy.full(1000 * rank, step)})

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(train, range(3)))
    assert site.committed() == [site.path(step).name for step in range(1, 5)]
    assert parse_manifest((site.path(3) / MANIFEST).read_bytes()).shards == 3
    for rank in range(3):
        loaded = load_rank(site, 3, rank, 3)
        assert (loaded.training_step, loaded.state["rank"], loaded.state["x"].sum()) == (3, rank, 3000 * rank)
    assert [line["state"] for line in site.saves()] == ["committed"] * 4
    assert site.left() == []


def test_nothing_is_committed_without_every_shard(site: Site) -> None:
    with open_rank(site, 0, 2, commit_timeout_s=0.2) as first, open_rank(site, 1, 2) as second:
        first.save(1, {}, wait=True)
        assert site.committed() == []
        assert "rank 1 did not write its shard within 0.2 s" in site.saves()[0]["why"]
        assert site.left() == []
        second.save(1, {}, wait=True)  # late: it finds no folder, and makes one that nobody commits
        assert site.committed() == []
        second.save(2, {"x": 2}, wait=True)
        first.save(2, {"x": 2}, wait=True)
        assert site.committed() == [site.path(2).name]
        assert site.left() == [], "what the late rank left is gone too"


def test_a_shard_that_is_not_all_to_be_seen_yet_is_waited_for(site: Site) -> None:
    """On a network file system the rank's word may be seen before the end of its shard."""
    site.checkpoints.mkdir()
    with open_rank(site, 1, 2) as second:
        second.save(1, {"x": b"x" * 1000}, wait=True)
    (shard,) = site.checkpoints.glob(".staging/*/shard-00001.bin")
    whole = shard.read_bytes()
    os.truncate(shard, 100)
    with open_rank(site, 0, 2, sleep=lambda seconds: [shard.write_bytes(whole)].clear()) as first:
        first.save(1, {}, wait=True)
    assert load_rank(site, 1, 1, 2).state == {"x": b"x" * 1000}
    assert site.saves()[0]["state"] == "committed"


def test_a_rank_whose_disk_is_full_does_not_make_rank_0_wait(site: Site) -> None:
    site.checkpoints.mkdir()
    site.disk.before_write = lambda path: no_space() if path.endswith("shard-00001.bin") else None
    with open_rank(site, 0, 2, commit_timeout_s=5) as first, open_rank(site, 1, 2) as second:
        second.save(1, {}, wait=True)
        first.save(1, {}, wait=True)
    assert "rank 1 could not write its shard: [Errno 28]" in site.saves()[0]["why"]
    assert site.committed() == []


def test_a_killed_process_of_this_attempt_leaves_nothing_that_is_taken(site: Site) -> None:
    """torchrun restarts its ranks within an attempt: what the old ones said is not for the new ones' saves."""
    site.checkpoints.mkdir()
    with open_rank(site, 1, 2) as killed:
        killed.save(1, {"from": "killed"}, wait=True)
    again = {"TORCHELASTIC_RESTART_COUNT": "1"}
    with open_rank(site, 0, 2, env=again, commit_timeout_s=0.2) as first, open_rank(site, 1, 2, env=again) as second:
        first.save(1, {}, wait=True)
        assert site.committed() == []
        second.save(1, {}, wait=True)
        second.save(2, {"from": "new"}, wait=True)
        first.save(2, {}, wait=True)
    assert load_rank(site, 2, 1, 2).state == {"from": "new"}


def test_with_one_shard_only_rank_0_writes_and_all_load_it(site: Site) -> None:
    with open_rank(site, 3, 4, shards=1, every_steps=2) as other:
        assert [step for step in range(1, 5) if other.due(step)] == [2, 4]
        other.save(2, {"x": 1}, wait=True)
        assert not site.checkpoints.exists()
    with open_rank(site, 0, 4, shards=1) as zero:
        zero.save(2, {"x": 1})
    loaded = open_rank(site, 3, 4, shards=1, env={"FLEETCTL_RESUME_PATH": str(site.path(2))}).load()
    assert loaded == Loaded(2, {"x": 1})
    assert not (site.attempt() / "load.json").exists()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"shards": 3}, "either rank 0 writes all"),
        ({"shards": 0}, "either rank 0 writes all"),
        ({"rank": 4}, "rank 4 is not one of 4"),
        ({"every_steps": 0}, "every_steps=0"),
        ({"interval_s": 0}, "interval_s=0"),
        ({"interval_s": float("nan")}, "interval_s=nan"),
        ({"digest": "md5"}, "'md5' is unknown"),
        ({"env": {"FLEETCTL_RUN_ID": "a@b"}}, "not fleetctl's"),
        ({"env": {"FLEETCTL_ATTEMPT": "2"}}, "not fleetctl's"),
    ],
)
def test_wrong_settings_are_told_at_once(site: Site, more: dict[str, Any], told: str) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "4", **more.pop("env", {})}
    with pytest.raises(ValueError, match=re.escape(told)):
        site.open(env=env, **more)
