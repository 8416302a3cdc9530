"""`fleetctl node check`, `learn`, `ls`, `show` and `history`: as a person calls them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from fleetctl.cli.node_check import _for_login
from fleetctl.health.check import Checked, check
from fleetctl.health.model import Care, Decision, Finding, Outcome, Phase, Verdict
from fleetctl.health.site import load_site
from fleetctl.health.spool import append_verdict, publish
from fleetctl.health.store import load_state
from tests.integration.conftest import short_dir
from tests.nvml.scenario import Node, healthy, site_settings
from tests.support import Cli

NOW = time.time()
LINK = Finding("nvlink", Outcome.FAIL, "GPU 3 (0000:1b:00.0)", "gpu/0000:1b:00.0", "NVLink 7 is down", care=Care.DRAIN)


def said(
    node: str, decision: Decision, *, ago_s: float = 10, phase: Phase = Phase.PERIODIC, reason: str = ""
) -> Verdict:
    findings = (LINK,) if decision in (Decision.DRAIN, Decision.NO_BUDGET) else ()
    return Verdict(node, phase, NOW - ago_s, "b", decision, reason, findings, 40, 0.2)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(
        {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "FLEETCTL_NODES": str(tmp_path / "shared")}, tmp_path
    )


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """What five nodes published."""
    folder = tmp_path / "shared"
    folder.mkdir()
    words = {
        "n1": [said("n1", Decision.CLEAN)],
        "n2": [said("n2", Decision.DRAIN, ago_s=7200, reason="fleetctl: NVLink 7 is down [nvlink]")],
        "n3": [said("n3", Decision.CLEAN, ago_s=7200)],
        "n4": [
            said("n4", Decision.DRAIN, ago_s=60, reason="fleetctl: NVLink 7 is down [nvlink]"),
            said("n4", Decision.CLEAN, ago_s=5, phase=Phase.EPILOG)._replace(job_id="12"),
        ],
        "n5": [said("n5", Decision.CLEAN, ago_s=-7200)],
    }
    for node, verdicts in words.items():
        for verdict in verdicts:
            assert append_verdict(str(tmp_path / f"spool-{node}"), verdict)
        assert publish(str(tmp_path / f"spool-{node}"), str(folder), node)
    (folder / "n6.json").write_text("{torn")
    return folder


def site(tmp_path: Path, node: Node) -> list[str]:
    node.write(tmp_path)
    path = tmp_path / "site.json"
    of_this_machine = {"clock": "ignore", "shm": "ignore"}  # these it has from the kernel, not from the node's files
    settings = {**site_settings(tmp_path), "settle_s": 0, "care": of_this_machine}
    path.write_text(json.dumps(settings).replace("%n", node.name))
    return [f"--site={path}"]


# check


def test_a_healthy_node_is_ok(cli: Cli, tmp_path: Path) -> None:
    done = cli("node", "check", *site(tmp_path, healthy("h100-sxm")))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("OK:  ")
    assert done.stdout.count("\n") == 1


def test_a_sick_node_is_critical_in_the_words_of_the_finding(cli: Cli, tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    node.gpu(3).links[7].state = 0
    words = site(tmp_path, node)
    done = cli("node", "check", *words)
    assert done.returncode == 2
    assert done.stdout.startswith("CRITICAL:  ")
    assert "GPU 3" in done.stdout.splitlines()[0]
    assert not (tmp_path / "nodes" / "n1" / "spool" / "verdicts.jsonl").exists()
    others = cli("node", "check", *words, "--phase=prolog", SLURM_JOB_GPUS="0,1", SLURM_JOB_ID="5")
    assert others.returncode < 2


def test_something_to_watch_is_a_warning(cli: Cli, tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    words = site(tmp_path, node)
    path = tmp_path / "site.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "dedline_s": 3}))
    done = cli("node", "check", *words)
    assert done.returncode == 1
    assert "unknown key dedline_s" in done.stdout.splitlines()[0]


def test_explain_shows_what_passed_with_its_values(cli: Cli, tmp_path: Path) -> None:
    words = site(tmp_path, healthy("h100-sxm"))
    done = cli("node", "check", "--explain", *words)
    rows = [line.split("\t") for line in done.stdout.splitlines()[1:]]
    assert rows[0] == ["OUTCOME", "CARE", "CHECK", "PART", "VALUE", "EXPECTED", "WORDS"]
    assert {len(row) for row in rows} == {7}
    assert any(row[0] == "pass" and "NVLink" in row[6] for row in rows)
    plain = json.loads(cli("node", "check", "--json", *words).stdout)
    explained = json.loads(cli("node", "check", "--json", "--explain", *words).stdout)
    assert plain["status"] == explained["status"] == "OK"
    assert plain["findings"] == []
    assert [one["outcome"] for one in explained["findings"]].count("pass") == explained["passed"] > 100


@pytest.fixture
def seen_by_nobody(tmp_path: Path) -> Checked:
    """A healthy node of which neither the kernel's log nor the state may be read."""
    site(tmp_path, healthy("h100-sxm", "n1"))
    (tmp_path / "nodes" / "n1" / "kmsg").unlink()
    notes: list[str] = []
    spool = short_dir()
    spool.chmod(0o700)
    os.seteuid(65534)
    try:
        load_state(str(spool), note=notes.append)
    finally:
        os.seteuid(0)
        spool.rmdir()
    assert len(notes) == 1
    notes.append("log: PermissionError: [Errno 1] Operation not permitted: '/dev/kmsg'")
    checked = check(load_site(str(tmp_path / "site.json"), "n1"), environ={"SLURMD_NODENAME": "n1"})
    judged = [one for one in checked.findings if one.check != "spool"]
    spools = [Finding("spool", Outcome.FAIL, "node", "node", words, care=Care.WATCH) for words in notes]
    spoiled = (*judged, *spools)
    kept = tuple(one for one in spoiled if one.outcome is not Outcome.PASS and one.care > 0)
    assert len(kept) > len(spools)  # the log that is missing
    verdict = checked.verdict._replace(findings=kept, decision=Decision.NOTED)
    return checked._replace(findings=spoiled, notes=(*notes, "another"), verdict=verdict)


only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@only_root
def test_what_only_root_may_read_is_one_note_and_no_warning(seen_by_nobody: Checked) -> None:
    seen = _for_login(seen_by_nobody, 1000)
    assert seen.notes == ("another", "as root it sees the kernel log and the node's state, too")
    assert (seen.verdict.decision, seen.verdict.findings) == (Decision.CLEAN, ())
    assert {one.care for one in seen.findings if one.outcome is not Outcome.PASS} == {Care.IGNORE}
    assert len(seen.findings) == len(seen_by_nobody.findings)


@only_root
def test_for_root_what_cannot_be_read_is_a_fault(seen_by_nobody: Checked) -> None:
    assert _for_login(seen_by_nobody, 0) == seen_by_nobody


@only_root
def test_what_is_wrong_besides_counts_for_any_login(seen_by_nobody: Checked) -> None:
    damaged = Finding("spool", Outcome.FAIL, "node", "node", "state.json is damaged", care=Care.WATCH)
    more = seen_by_nobody._replace(findings=(*seen_by_nobody.findings, damaged, LINK))
    seen = _for_login(more, 1000)
    assert (seen.verdict.decision, seen.verdict.findings) == (Decision.DRAIN, (damaged, LINK))
    assert "NVLink 7 is down" in seen.verdict.reason
    whole = seen_by_nobody._replace(findings=(LINK,), notes=())
    assert _for_login(whole, 1000) == whole  # nothing was hidden: no note


@pytest.mark.parametrize("words", [["--bogus"], ["--phase=sometime"], ["--site=/nonexistent"], ["extra"]])
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_mistake_on_the_command_line_of_check_is_unknown(words: list[str], as_json: list[str], cli: Cli) -> None:
    done = cli("node", "check", *words, *as_json)
    assert done.returncode == 3
    assert not as_json or json.loads(done.stderr)["exit_code"] == 3
    assert cli("node", "ls", "--bogus", *as_json).returncode == 2


# learn


def test_a_good_node_teaches_a_profile_that_it_passes(cli: Cli, tmp_path: Path) -> None:
    words = site(tmp_path, healthy("h100-sxm"))
    out = tmp_path / "profile.json"
    done = cli("node", "learn", f"--out={out}", *words)
    assert (done.returncode, done.stdout) == (0, "")
    profile = json.loads(out.read_text())
    assert (profile["gpus"], profile["links"]) == (8, [18])
    assert json.loads(cli("node", "learn", *words).stdout) == profile
    path = tmp_path / "site.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "profile": str(out)}))
    assert cli("node", "check", *words).returncode == 0


def test_a_sick_node_teaches_nothing_unless_told_to(cli: Cli, tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    node.gpu(3).links[7].state = 0
    words = site(tmp_path, node)
    done = cli("node", "learn", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert "this node has faults" in done.stderr
    assert cli("node", "learn", "--anyway", *words).returncode == 0


def test_a_node_without_gpus_teaches_nothing_unless_told_to(cli: Cli, tmp_path: Path) -> None:
    node = healthy("h100-pcie")
    node.gpus.clear()
    words = site(tmp_path, node)
    done = cli("node", "learn", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no GPU is seen here" in done.stderr
    assert "--anyway" in done.stderr
    assert cli("node", "learn", "--anyway", *words).returncode == 0


# ls, show, history


def test_ls_puts_what_is_not_well_first_and_calls_nothing_unknown_fine(cli: Cli, shared: Path) -> None:
    done = cli("node", "ls")
    states = dict(line.split("\t")[:2] for line in done.stdout.splitlines()[1:])
    assert states == {"n2": "drained", "n5": "unknown", "n6": "unknown", "n3": "stale", "n1": "ok", "n4": "ok"}
    assert list(states) == ["n2", "n5", "n6", "n3", "n1", "n4"]
    assert "GPUs of job 12" in done.stdout
    assert "NVLink 7 is down" in done.stdout


def test_ls_of_named_nodes_shows_those_that_never_said_anything(cli: Cli, shared: Path) -> None:
    found = cli.json("node", "ls", "n[1,9]")
    assert [(one["node"], one["state"]) for one in found] == [("n9", "unknown"), ("n1", "ok")]
    assert found[0]["trouble"] == "it has published nothing"
    assert found[0]["findings"] is None


def test_stale_is_as_long_as_one_says(cli: Cli, shared: Path) -> None:
    found = {one["node"]: one["state"] for one in cli.json("node", "ls", "--stale", "10000")}
    assert (found["n3"], found["n1"]) == ("ok", "ok")


def test_show_tells_the_whole_node_beside_a_jobs_gpus_and_its_drains(cli: Cli, shared: Path) -> None:
    found = cli.json("node", "show", "n4")
    assert (found["state"], found["covers"], found["job_id"]) == ("ok", "job", "12")
    assert found["whole"]["state"] == "drained"
    assert [one["reason"] for one in found["drains"]] == ["fleetctl: NVLink 7 is down [nvlink]"]
    text = cli("node", "show", "n2").stdout
    assert "drain: GPU 3 (0000:1b:00.0): NVLink 7 is down [nvlink]" in text


def test_history_is_newest_first(cli: Cli, shared: Path) -> None:
    assert [one["phase"] for one in cli.json("node", "history", "n4")] == ["epilog", "periodic"]
    assert [line.split("\t")[3] for line in cli("node", "history", "n4").stdout.splitlines()] == [
        "DECISION",
        "clean",
        "drain",
    ]


def test_a_long_history_says_how_much_it_left_out(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    for number in range(52):
        append_verdict(str(tmp_path / "s"), said("n1", Decision.CLEAN, ago_s=1000 - number))
    publish(str(tmp_path / "s"), str(tmp_path / "shared"), "n1")
    done = cli("node", "history", "n1")
    assert (len(done.stdout.splitlines()), done.stderr) == (51, "2 more: --all\n")
    assert len(cli.json("node", "history", "n1", "--all")) == 52


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["show", "n9"], 3, "n9 has published nothing in"),
        (["history", "../n1"], 3, "is no node name"),
        (["show", "n6"], 3, "n6 has published nothing in"),
        (["ls", "n[1-"], 2, "not a Slurm host list"),
        (["ls", "--shared=/nonexistent"], 3, "/nonexistent cannot be read: No such file or directory"),
        (["show", "n1", "--shared=/nonexistent"], 3, "in /nonexistent"),
    ],
)
def test_what_cannot_be_told_is_said_so(words: list[str], code: int, text: str, cli: Cli, shared: Path) -> None:
    done = cli("node", *words)
    assert (done.returncode, text in done.stderr) == (code, True), done.stderr


def test_without_a_folder_it_asks_for_one(cli: Cli) -> None:
    done = cli("node", "ls", FLEETCTL_NODES="")
    assert done.returncode == 2
    assert "where do the nodes publish?" in done.stderr


def test_a_hostile_file_moves_no_cursor(cli: Cli, shared: Path, tmp_path: Path) -> None:
    evil = said("n7", Decision.DRAIN)._replace(reason="x\x1b[2Jy\nz")
    append_verdict(str(tmp_path / "evil"), evil)
    publish(str(tmp_path / "evil"), str(shared), "n7")
    for words in (["ls"], ["show", "n7"], ["history", "n7"]):
        assert "\x1b" not in cli("node", *words).stdout
