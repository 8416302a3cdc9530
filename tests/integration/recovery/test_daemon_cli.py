"""`fleetctl daemon` and `fleetctl bundle` without a cluster: what they read from the database and a run's folder."""

from __future__ import annotations

import json
import os
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from fleetctl.accounting.database import database_url, open_database
from fleetctl.cli.daemon_explain import ADVICE
from fleetctl.cli.runs import user_name
from fleetctl.clock import SystemClock
from fleetctl.recovery.journal import Journal
from fleetctl.recovery.lease import Leader, Place, boot_id
from fleetctl.recovery.model import (
    Action,
    Advice,
    CauseClass,
    Decision,
    Deed,
    Incident,
    Interruption,
    Outcome,
    Snapshot,
    Suspected,
    Verdict,
)
from fleetctl.recovery.passes import Passed, as_json
from fleetctl.recovery.recall import heard
from fleetctl.rundir.model import EventKind, RunKind, RunRecord
from fleetctl.rundir.store import RunDir, Store
from tests.support import Cli

HOLD = Action(Deed.HOLD, "r-1", "c/7/1", "its loss is nan twice", "nan", evidence=("log: loss is nan",))
CAUSE = Suspected(CauseClass.NAN, Advice.OLDER, "log: loss is nan at step 120", "n1")
RECORD = RunRecord(
    "r-1", "r", user_name(), datetime.now(UTC), RunKind.PLAIN, "d", "/s/train.yaml", "/s", 1, 1, "c", "0"
)
SPEC = {"name": "r", "command": "train --api-key abc123def456", "env": {"HF_TOKEN": "verysecretvalue", "LR": "0.1"}}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "FLEETCTL_DATABASE": str(tmp_path / "db.sqlite")}
    return Cli(environ, tmp_path / "runs")


@pytest.fixture
def run(cli: Cli) -> RunDir:
    """A run that was never submitted, so that nobody asks Slurm about it."""
    store = Store(cli.runs)
    store.ensure()
    assert store.reserve("r-1")
    return store.fill(RECORD, "name: r\nenv: {HF_TOKEN: verysecretvalue}\n", SPEC)


def engine_of(cli: Cli) -> Engine:
    return open_database(database_url(cli.environ, None), create=True)


@pytest.fixture
def journal(cli: Cli, run: RunDir) -> Path:
    """What a daemon of this user wrote: one pass, in which it held a run."""
    engine, clock = engine_of(cli), SystemClock()
    leader = Leader(engine, Place("c", f"user {user_name()}"), "h:1:x", clock, boot_id=boot_id())
    assert leader.lead()
    ours, now = Journal(engine, leader, clock), clock.now()
    end = Interruption("r-1", "1.1", "c/7/1", now - timedelta(seconds=9), (CAUSE,), "f", ("n1", "n2"), 100, ran_s=60)
    verdict = Verdict("r-1", "nan", "it is held: nobody may start it before a person looked at it")
    decision = Decision((HOLD,), (verdict,), interruptions=(end,))
    ours.remember(decision, now)
    number = ours.begin(HOLD)
    assert isinstance(number, int)
    ours.end(number, Outcome.DONE, "word written")
    snapshot = Snapshot(now, "c", (), (), (), (), failed={"findings": "no such folder"})
    done = ours.memory().done
    ours.save_pass(as_json(Passed(now, "c", leader.place.scope, 0.5, True, snapshot, decision, done)))
    engine.dispose()
    return cli.runs


def test_status_shows_the_last_pass_on_one_screen(cli: Cli, journal: Path) -> None:
    said = cli("daemon", "status")
    assert said.returncode == 0, said.stderr
    assert f"user {user_name()} on c" in said.stdout
    assert "hold r-1: done (word written): its loss is nan twice" in said.stdout
    assert "findings: no such folder" in said.stdout
    assert len(said.stdout.splitlines()) <= 24
    assert ["acts", "yes"] in [line.split() for line in said.stdout.splitlines()]


def test_status_as_json(cli: Cli, journal: Path) -> None:
    told = cli.json("daemon", "status")
    assert told["leader"] == "h:1:x"
    assert told["last_pass"]["actions"][0]["deed"] == "hold"
    assert told["last_pass"]["blind"] is False


def test_explain_says_what_was_seen_decided_done_and_what_came_of_it(cli: Cli, journal: Path) -> None:
    said = cli("daemon", "explain", "r-1").stdout
    parts = [
        "Attempt 1.1 ended after 60 s on n1, n2; checkpoint at training step 100.",
        "Likeliest cause: nan on n1, by log: loss is nan at step 120. Advice: start it again from an older checkpoint.",
        "Decided: hold, since its loss is nan twice [nan].",
        "Evidence: log: loss is nan",
        "Outcome: done: word written.",
        "it is held: nobody may start it before a person looked at it [nan]",
    ]
    places = [said.index(part) for part in parts]
    assert places == sorted(places)


def test_every_advice_has_words() -> None:
    assert set(ADVICE) == {one.value for one in Advice}


def test_explain_takes_the_start_of_an_id_and_says_when_it_knows_nothing(cli: Cli, journal: Path) -> None:
    assert cli.json("daemon", "explain", "r-")["run_id"] == "r-1"
    assert "knows nothing of r-1/3" in cli("daemon", "explain", "r-1/3").stdout
    assert cli("daemon", "explain", "nothing").returncode == 12


def test_explain_without_a_run_tells_of_nodes(cli: Cli, journal: Path) -> None:
    assert "Nothing was decided about nodes" in cli("daemon", "explain").stdout
    engine, clock = engine_of(cli), SystemClock()
    leader = Leader(engine, Place("c", f"user {user_name()}"), "h:1:x", clock, boot_id=boot_id())
    assert leader.lead()
    ours = Journal(engine, leader, clock)
    number = ours.begin(Action(Deed.DRAIN, "", "", "three runs of two users failed on it", "lemon", nodes=("n7",)))
    assert isinstance(number, int)
    ours.end(number, Outcome.DONE)
    ours.remember(
        Decision((), (), incidents=(Incident("class", "hang", clock.now(), None, ("r-1",), ()),)), clock.now()
    )
    engine.dispose()
    said = cli("daemon", "explain").stdout
    assert "Decided: drain n7, since three runs of two users failed on it [lemon]." in said
    assert "An incident (class hang, 1 run)" in said
    assert "An incident (class hang" in cli("daemon", "explain", "r-1").stdout


def test_a_pause_of_one_run_or_of_all_until_it_is_ended(cli: Cli, journal: Path) -> None:
    assert cli("daemon", "pause", "r-1", "--why", "I look at it").returncode == 0
    assert cli("daemon", "pause").returncode == 0
    told = cli.json("daemon", "status")
    assert told["paused_runs"] == {"r-1": f"user {user_name()}: I look at it"}
    assert told["paused"] == f"user {user_name()}"
    assert "nothing is done until `fleetctl daemon resume r-1`" in cli("daemon", "explain", "r-1").stdout
    assert "no: paused" in cli("daemon", "status").stdout
    assert "r-1 is still paused" in cli("daemon", "resume").stderr
    assert cli.json("daemon", "status")["paused"] is None
    assert cli.json("daemon", "status")["paused_runs"], "that of one run has its own end"
    assert cli.json("daemon", "resume", "r-1")["was"] is True
    assert cli.json("daemon", "resume", "r-1")["was"] is False


def test_status_of_a_database_that_knows_no_daemon_says_how_to_begin(cli: Cli) -> None:
    engine_of(cli).dispose()
    said = cli("daemon", "status")
    assert said.returncode == 2
    assert "knows no daemon" in said.stderr


def test_a_blind_or_an_old_pass_is_told_by_the_exit_code(cli: Cli, journal: Path) -> None:
    engine, clock = engine_of(cli), SystemClock()
    leader = Leader(engine, Place("c", f"user {user_name()}"), "h:1:x", clock, boot_id=boot_id())
    assert leader.lead()
    blind = Passed(clock.now(), "c", leader.place.scope, 0.5, True, trouble="Slurm does not answer")
    Journal(engine, leader, clock).save_pass(as_json(blind))
    engine.dispose()
    said = cli("daemon", "status")
    assert said.returncode == 3
    assert "Slurm does not answer" in said.stdout


# The bundle


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for member in archive:
            assert member.isreg()
            assert member.mode == 0o600
            file = archive.extractfile(member)
            assert file is not None
            found[member.name.removeprefix("r-1-bundle/")] = file.read().decode(errors="replace")
        return found


def attempt(run: RunDir) -> Path:
    folder = run.attempt_dir("1.0", None)
    (folder / "evidence").mkdir(parents=True)
    (folder / "output.log").write_bytes(b"x" * (2 << 20) + b"\nHF_TOKEN=verysecretvalue\nloss is nan \xff\n")
    (folder / "evidence" / "stacks.txt").write_text("rank 3 waits in all_reduce\n")
    (folder / "head.json").write_text('{"nonce": "where agents find the head"}')
    log = run.event_log("job-1")
    log.append(RECORD.created_at, EventKind.ATTEMPT_STARTED, submission=1, attempt="1.0", job_id="7", host="n1")
    return folder


def bundle(cli: Cli, tmp_path: Path, *options: str) -> dict[str, Any]:
    told: dict[str, Any] = cli.json("bundle", "r-1", "-o", str(tmp_path / "b.tar.gz"), *options)
    return told


def test_a_bundle_has_what_a_person_needs_and_no_secret(cli: Cli, journal: Path, run: RunDir, tmp_path: Path) -> None:
    attempt(run)
    told = bundle(cli, tmp_path)
    found = contents(tmp_path / "b.tar.gz")
    assert {
        "run.json",
        "spec.json",
        "attempts/1.0/output.log",
        "attempts/1.0/evidence/stacks.txt",
        "daemon.json",
    } <= set(found)
    everything = "".join(found.values())
    assert "verysecretvalue" not in everything
    assert "abc123def456" not in everything
    assert "where agents find" not in everything
    assert "loss is nan" in found["attempts/1.0/output.log"]
    assert len(found["attempts/1.0/output.log"]) <= 1 << 20
    assert json.loads(found["daemon.json"])[0]["actions"][0]["deed"] == "hold"
    assert json.loads(found["spec.json"])["env"] == {"HF_TOKEN": "(redacted)", "LR": "(redacted)"}
    assert set(told["left_out"]) == {"sacct.json", "nodes.json"}, "there is no Slurm here, and nobody said --shared"
    assert "sacct.json" in found["LEFT_OUT"]
    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o077 == 0


def test_a_bundle_never_overwrites(cli: Cli, run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "b.tar.gz").write_text("mine")
    said = cli("bundle", "r-1", "-o", str(tmp_path / "b.tar.gz"))
    assert said.returncode == 2
    assert (tmp_path / "b.tar.gz").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".b.tar")] == []


def test_links_pipes_and_huge_files_in_a_run_are_left_out_or_cut(cli: Cli, run: RunDir, tmp_path: Path) -> None:
    folder = attempt(run)
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_text("not for others")
    (folder / "output.log").unlink()
    (folder / "output.log").symlink_to(tmp_path / "private" / "key")
    os.mkfifo(folder / "progress.json")
    os.mkfifo(folder / "evidence" / "pipe")
    (folder / "evidence" / "link").symlink_to(tmp_path / "private" / "key")
    run.attempts_dir(None).joinpath("1.1").symlink_to(tmp_path / "private")
    with (folder / "evidence" / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    told = bundle(cli, tmp_path)
    found = contents(tmp_path / "b.tar.gz")
    assert "not for others" not in "".join(found.values())
    assert {"attempts/1.0/output.log", "attempts/1.0/progress.json", "attempts/1.0/evidence/pipe"} <= set(
        told["left_out"]
    )
    assert len(found["attempts/1.0/evidence/sparse"]) <= 1 << 20


def test_values_of_the_env_file_never_leave(cli: Cli, run: RunDir, tmp_path: Path) -> None:
    secret = tmp_path / "secret.env"
    secret.write_text("PLAIN_LOOKING=hunter2hunter2\n")
    secret.chmod(0o600)
    spec = {**SPEC, "env_file": str(secret)}
    (run.path / "spec.json").write_text(json.dumps(spec))
    (run.path / "logs" / "slurm-7.out").write_text("connecting with hunter2hunter2\n")
    bundle(cli, tmp_path)
    found = contents(tmp_path / "b.tar.gz")
    assert "hunter2" not in "".join(found.values())
    assert not [name for name in found if "secret.env" in name]


def test_an_env_file_that_cannot_be_read_is_told(cli: Cli, run: RunDir, tmp_path: Path) -> None:
    (run.path / "spec.json").write_text(json.dumps({**SPEC, "env_file": str(tmp_path / "gone.env")}))
    said = cli("bundle", "r-1", "-o", str(tmp_path / "b.tar.gz"))
    assert "gone.env" in said.stderr
    assert "gone.env" in contents(tmp_path / "b.tar.gz")["LEFT_OUT"]


def test_a_hostile_folder_neither_holds_up_nor_breaks_a_bundle(cli: Cli, run: RunDir, tmp_path: Path) -> None:
    attempt(run)
    for make in (os.mkfifo, lambda path: Path(path).write_text("[" * 200_000)):
        (run.path / "spec.json").unlink()
        make(run.path / "spec.json")
        (tmp_path / "b.tar.gz").unlink(missing_ok=True)
        assert "spec.json" in bundle(cli, tmp_path)["left_out"]
    os.mkfifo(run.path / "events" / "job-2.jsonl")
    (tmp_path / "b.tar.gz").unlink()
    assert "events/job-2.jsonl" in bundle(cli, tmp_path)["left_out"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can own files of two users")
def test_a_second_name_of_somebody_elses_file_is_left_out(cli: Cli, run: RunDir, tmp_path: Path) -> None:
    folder = attempt(run)
    (tmp_path / "theirs").write_text("not for others")
    os.chown(tmp_path / "theirs", 65534, -1)
    os.link(tmp_path / "theirs", folder / "evidence" / "theirs")
    assert "attempts/1.0/evidence/theirs" in bundle(cli, tmp_path)["left_out"]
    assert "not for others" not in "".join(contents(tmp_path / "b.tar.gz").values())


# One that only observes, beside one that acts


def observed(cli: Cli, clock: SystemClock | None = None) -> None:
    """A pass of a daemon that only observes."""
    engine, clock = engine_of(cli), clock or SystemClock()
    leader = Leader(engine, Place("c", f"user {user_name()}").observing, "h:2:y", clock, boot_id=boot_id())
    assert leader.lead(), "it leads, whoever acts"
    ours, now = Journal(engine, leader, clock), clock.now()
    ours.remember(Decision((), (Verdict("r-1", "healthy", "only looked at"),)), now)
    seen = Snapshot(now, "c", (), (), (), ())
    ours.save_pass(as_json(Passed(now, "c", leader.place.scope, 0.5, False, seen, Decision((), ()))))
    engine.dispose()


def test_one_that_only_observes_keeps_no_other_from_leading_and_the_acting_ones_words_win(
    cli: Cli, journal: Path
) -> None:
    observed(cli)
    assert cli.json("daemon", "status")["leader"] == "h:1:x"
    assert "only looked at" not in cli("daemon", "explain", "r-1").stdout


def test_one_that_only_observes_is_shown_where_none_acts_and_hears_of_pauses(cli: Cli, run: RunDir) -> None:
    observed(cli)
    told = cli.json("daemon", "status")
    assert (told["leader"], told["scope"]) == ("h:2:y", f"user {user_name()} observing")
    assert "only looked at" in cli("daemon", "explain", "r-1").stdout
    assert cli.json("daemon", "pause", "--why", "work")["scope"] == f"user {user_name()}"
    assert cli.json("daemon", "status")["paused"].endswith("work")


def test_an_acting_daemon_that_fell_silent_gives_way_to_one_that_observes(cli: Cli, journal: Path) -> None:
    engine = engine_of(cli)
    place, now = Place("c", f"user {user_name()}"), SystemClock().now()
    assert heard(engine, place, now + timedelta(hours=1)) == place, "nobody has spoken since"
    observed(cli)
    assert heard(engine, place.observing, now) == place
    assert heard(engine, place, now + timedelta(hours=1)) == place.observing
    engine.dispose()
