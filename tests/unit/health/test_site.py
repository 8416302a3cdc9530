from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fleetctl.health.service import Back
from fleetctl.health.site import Budget, Site, find_site, load_site, node_name, parse_site


def test_no_site_file_means_the_defaults() -> None:
    assert load_site(None, "n1") == Site()


def test_every_path_has_the_nodes_name_in_the_place_of_percent_n() -> None:
    raw = {
        "folder": "/a/%n",
        "shared": "/b/%n",
        "profile": "/c/%n.json",
        "library": "/d/%n/lib",
        "sys": "/e/%n",
        "proc": "/f/%n",
        "kmsg": "/g/%n",
        "shm": "/h/%n",
        "tmp": ["/i/%n", "/j"],
        "mounts": ["/k/%n"],
        "scontrol": "/l/%n",
        "stuck": "/m/%n",
        "budget": {"folder": "/n/%n", "most": 3},
    }
    site = parse_site(json.dumps(raw), "n1")
    assert "%n" not in repr(site)
    assert site.complaints == ()
    assert (site.tmp, site.budget, site.stuck) == (("/i/n1", "/j"), Budget("/n/n1", 3), "/m/n1")


def test_hanging_readers_are_remembered_in_memory_wherever_the_disk_of_the_state_is() -> None:
    assert parse_site('{"folder": "/x"}', "n1").stuck == "/run/fleetctl/stuck"
    assert parse_site('{"folder": "/x", "stuck": "/y"}', "n1").stuck == "/y"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("deadline_s", "8", "deadline_s must be"),
        ("deadline_s", True, "deadline_s must be"),
        ("deadline_s", 0, "deadline_s must be"),
        ("deadline_s", 1e300, "deadline_s must be"),
        ("deadline_s", float("nan"), "deadline_s must be"),
        ("deadline_s", float("inf"), "deadline_s must be"),
        ("settle_s", -1, "settle_s must be"),
        ("folder", "var/spool", "folder must be an absolute path"),
        ("folder", "/a\0b", "folder must be an absolute path"),
        ("folder", None, "folder must be an absolute path"),
        ("shared", 7, "shared must be an absolute path"),
        ("tmp", "/tmp", "tmp must be a list"),
        ("tmp", ["/tmp", 3], "tmp must be a list"),
        ("mounts", ["scratch"], "mounts must be an absolute path"),
        ("limits", {"a": "b"}, "limits.a must be a number"),
        ("limits", {"a": True}, "limits.a must be a number"),
        ("limits", {"a": float("nan")}, "limits.a must be a number"),
        ("xids", {"94": 3}, "xids.94 must be a text"),
        ("back", {"most": True}, "back.most must be a whole number"),
        ("no_such_key", 1, "unknown key no_such_key"),
    ],
)
def test_a_bad_value_keeps_its_default_and_is_named(key: str, value: Any, words: str) -> None:
    site = parse_site(json.dumps({"settle_s": 2.5, key: value} if key != "settle_s" else {key: value}), "n1")
    assert len(site.complaints) == 1
    assert words in site.complaints[0]
    assert site._replace(complaints=(), settle_s=3.0, limits={}, xids={}) == Site()


def test_a_typo_does_not_cost_the_values_beside_it() -> None:
    raw = {"budget": {"folder": "/b", "mots": 3}, "limits": {"a": 1, "b": []}, "back": {"most": 5, "x": 1}, "typo": 1}
    site = parse_site(json.dumps(raw), "n1")
    assert site.budget == Budget(most=0)
    assert site.limits == {"a": 1}
    assert site.back == Back(most=5)
    assert len(site.complaints) == 4


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"x"', "[" * 100_000, "\ud800", "{\x00}"])
def test_what_is_no_json_object_means_the_defaults_and_a_complaint(text: str) -> None:
    site = parse_site(text, "n1", "/etc/x.json")
    assert site._replace(complaints=(), source="", budget=Budget()) == Site()
    assert len(site.complaints) == 1


NO_DRAIN = "; until it is mended only a lost GPU drains a node"


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ([], "budget must be an object"),
        ("/shared/drains", "budget must be an object"),
        (None, "budget must be an object"),
        ({"foldr": "/shared/drains", "most": 10}, "unknown key budget.foldr"),
        ({"folder": "shared/drains", "most": 10}, "budget.folder must be an absolute path"),
        ({"folder": "/b", "most": -1}, "budget.most must be a whole number, 0 or more"),
        ({"folder": "/b", "most": 1.5}, "budget.most must be a whole number, 0 or more"),
        ({"folder": "/b", "most": "3"}, "budget.most must be a whole number, 0 or more"),
        ({"folder": "/b", "window_s": 0}, "budget.window_s must be 60 seconds or more"),
        ({"folder": "/b", "window_s": "day"}, "budget.window_s must be a number of seconds"),
        ({"most": 10}, "budget needs the folder that its nodes share"),
    ],
)
def test_a_mistake_in_the_budget_never_takes_the_limit_away(budget: Any, words: str) -> None:
    site = parse_site(json.dumps({"settle_s": 2.5, "budget": budget}), "n1")
    assert site.budget.most == 0
    assert site.complaints[0] == words + NO_DRAIN
    assert site.settle_s == 2.5


@pytest.mark.parametrize("budget", [{}, {"most": 0}, {"folder": None, "most": 10}, {"folder": "/b", "window_s": 60}])
def test_a_budget_without_a_mistake_counts_as_it_stands(budget: Any) -> None:
    site = parse_site(json.dumps({"budget": budget}), "n1")
    assert (site.budget, site.complaints) == (Budget(**budget), ())


def test_a_care_that_is_no_text_is_watched_and_the_others_stand() -> None:
    site = parse_site('{"care": {"clock": 3, "shm@prolog": "drain"}}', "n1")
    assert site.care == {"clock": "watch", "shm@prolog": "drain"}
    assert site.complaints == ("care.clock must be a text; it is watched",)
    assert site.budget == Budget()


@pytest.mark.parametrize("care", [[], "ignore", None])
def test_where_no_care_can_be_read_only_a_lost_gpu_drains_a_node(care: Any) -> None:
    site = parse_site(json.dumps({"care": care, "budget": {"folder": "/b", "most": 5}}), "n1")
    assert (site.care, site.budget.most) == ({}, 0)
    assert site.complaints == ("care must be an object" + NO_DRAIN,)


def test_a_file_that_makes_no_sense_drains_no_node() -> None:
    assert parse_site("{", "n1").budget.most == 0
    assert load_site("/no/such/file", "n1").budget.most == 0
    assert parse_site('{"typo": 1}', "n1").budget == Budget()


def test_a_file_that_is_not_there_is_a_complaint(tmp_path: Path) -> None:
    site = load_site(str(tmp_path / "none.json"), "n1")
    assert site.complaints == ("cannot be read: No such file or directory" + NO_DRAIN,)


def test_files_that_nobody_should_read_are_a_complaint(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b" " * (1 << 21))
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    os.mkfifo(tmp_path / "pipe")
    for name in ("large", "binary", "pipe", "."):
        site = load_site(str(tmp_path / name), "n1")
        assert len(site.complaints) == 1, name
        assert site.deadline_s == 8.0


def test_the_given_file_wins_over_that_beside_the_code(tmp_path: Path) -> None:
    (tmp_path / "site.json").write_text("{}")
    assert find_site("/given", str(tmp_path)) == "/given"
    assert find_site(None, str(tmp_path)) == str(tmp_path / "site.json")
    assert find_site(None, str(tmp_path / "elsewhere")) in (None, "/etc/fleetctl/site.json")


@pytest.mark.parametrize(
    ("environ", "host", "name"),
    [
        ({"SLURMD_NODENAME": "gpu-001"}, "login.cluster", "gpu-001"),
        ({}, "gpu-002.cluster.example", "gpu-002"),
        ({"SLURMD_NODENAME": ""}, "gpu-003", "gpu-003"),
        ({"SLURMD_NODENAME": "../../etc"}, "x", ".._.._etc"),
        ({"SLURMD_NODENAME": "a b\nc"}, "x", "a_b_c"),
        ({"SLURMD_NODENAME": ".."}, "x", "unknown"),
        ({}, "", "unknown"),
        ({"SLURMD_NODENAME": "n" * 999}, "x", "n" * 255),
    ],
)
def test_the_nodes_name_is_safe_as_the_name_of_a_file(environ: dict[str, str], host: str, name: str) -> None:
    assert node_name(environ, host) == name
