"""How a head finds its attempt hung: what it waits for first, and what it takes for life."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from fleetctl.launch.environment import beats_folder
from fleetctl.launch.head import Head
from fleetctl.launch.judge import Verdict
from fleetctl.launch.lead import Lead, World
from fleetctl.launch.liveness import FLOOR_S, Learned, Phase
from fleetctl.launch.model import JobIdentity, Order, Step
from fleetctl.launch.moved import Moved
from fleetctl.launch.pulse import Pulses, Seen
from fleetctl.launch.vigil import Hang, Vigil, _everywhere, floor_in
from fleetctl.launch.watching import NodeWatch
from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.model import Progress
from fleetctl.rundir.store import Store
from fleetctl.train.beats import START, Beats
from tests.support import wait_until
from tests.unit.clocks import START as NOON
from tests.unit.clocks import StillClock
from tests.unit.test_rundir import make_run

HOUR_S = 3600


class Agents:
    """The watch of one other node, n2, whose ranks 2 and 3 are as old as we say."""

    def __init__(self) -> None:
        self.told: list[dict[str, object]] = []
        self.asked: list[tuple[str, dict[str, object]]] = []
        self.hears = True
        self.heard_s = 0.0
        self.step, self.nic, self.io, self.kept = 1, 0, 0, ["rank-2.txt"]

    def hearts(self) -> dict[str, object]:
        ranks = [[rank, "step", self.step, self.heard_s, "S"] for rank in (2, 3)]
        word = {"attempt": "1.0", "world": 4, "nic": self.nic, "io": self.io, "ranks": ranks}
        word["kept"] = self.kept if self.asked else []
        return {"n2": word} if self.hears else {}

    def linked(self) -> tuple[str, ...]:
        return ("n2",)

    def tell_all(self, **message: object) -> None:
        self.told.append(message)

    def tell(self, node: str, **message: object) -> None:
        self.asked.append((node, message))


class Told(Pulses):
    """A pulse that is not written: what it was told, and what it knows of the progress."""

    def __init__(self, lead: Lead) -> None:
        super().__init__(lead)
        self.seen = Seen()
        self.known: Progress | None = None

    def tell(self, seen: Seen) -> None:
        self.seen = seen

    @property
    def progress(self) -> Progress | None:
        return self.known


class Scene:
    """An attempt on n1, where the head is, and n2, on a clock that stands still."""

    def __init__(self, tmp_path: Path, environ: dict[str, str]) -> None:
        store = Store(tmp_path)
        store.ensure()
        run = make_run(store, f"r-{tmp_path.name[-40:]}")
        self.clock, self.said = StillClock(), list[str]()
        order = Order(str(run.path), 1, None, (), (Step("train", 0, ("true",)),), nodes=2, max_failures=3)
        world = World(
            *(self.clock, environ, (), cast("Any", None), lambda: None, lambda: False, lambda: 0, self.said.append)
        )
        job = JobIdentity("7", "7", None, "c", "n1", 0)
        self.lead = Lead(
            *(run, order, job, run.event_log("job-7"), Attempts(run.attempts_dir(None)), ({},), world, None)
        )
        self.lead.attempts.claim((1, 0))
        self.log = run.attempt_dir("1.0", None) / "output.log"
        self.evidence = self.log.parent / "evidence"
        self.agents, self.pulses = Agents(), Told(self.lead)
        self.folder = beats_folder(run.run_id, "1.0", job)
        self.vigil = self.watch()

    def watch(self, learned: Learned | None = None) -> Vigil:
        return Vigil(self.lead, (1, 0), cast("NodeWatch", self.agents), self.pulses, ("n1", "n2"), learned)

    def begin(self, steps: int = 8, every_s: float = 2.0) -> list[Beats]:
        """All four ranks have made so many steps."""
        ranks = [Beats({"FLEETCTL_BEATS": self.folder, "WORLD_SIZE": "4"}, rank, START) for rank in (0, 1)]
        for step in range(1, steps + 1):
            for one in ranks:
                one.step(step)
            self.agents.step, self.agents.heard_s = step, 0.0
            self.pass_(every_s)
        return ranks

    def pass_(self, duration_s: float, by_s: float = 2.0) -> Hang | None:
        """Time goes by; the first hang that is found in it."""
        until_s = self.clock.slept_s + duration_s
        while self.clock.slept_s < until_s:
            self.clock.slept_s += by_s
            self.agents.heard_s += by_s
            if (found := self.vigil.tend()) is not None:
                return found
        return None


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(Moved, "look", lambda *_: 0)  # the ranks' process is this one, whose children may do anything
    made = Scene(tmp_path, {})
    yield made
    shutil.rmtree(made.folder, ignore_errors=True)


def test_agents_are_told_where_ranks_beat(scene: Scene) -> None:
    assert scene.agents.told == [{"t": "hearts", "attempt": "1.0", "folder": scene.folder}]


def test_a_hang_is_found_with_the_evidence_that_was_asked_for_shortly_before(scene: Scene) -> None:
    scene.log.write_text("the end of it\n")
    scene.begin()
    assert scene.pass_(FLOOR_S - 40) is None
    assert scene.pulses.seen == Seen("step", 8, 4, 4)
    assert not scene.agents.asked
    assert scene.pass_(20) is None
    assert scene.pulses.seen.suspected_at is not None
    assert [one.limit_s for one in scene.pulses.seen.silent] == [FLOOR_S] * 4
    assert not scene.pulses.seen.hung
    (asked,) = scene.agents.asked
    assert asked == ("n2", {"t": "gather", "attempt": "1.0", "ranks": [2]})
    wait_until((scene.evidence / "output-end.log").exists, "the end of the output", 10)
    found = scene.pass_(60)
    assert found is not None
    assert (found.node, found.rank, found.phase, found.limit_s) == ("", None, Phase.STEP, FLOOR_S)
    assert FLOOR_S < found.silent_s <= FLOOR_S + 25
    assert {"output-end.log", "rank-2.txt"} <= set(found.evidence)
    assert scene.pulses.seen.hung


def test_who_is_behind_is_named(scene: Scene) -> None:
    scene.begin()
    scene.agents.step = 7
    found = scene.pass_(2 * FLOOR_S)
    assert found is not None
    assert (found.node, found.rank) == ("n2", 2)
    assert scene.pulses.seen.silent[0].rank == 2


def test_the_end_waits_for_evidence_only_for_a_while(scene: Scene) -> None:
    scene.begin()
    scene.agents.kept = []
    found = scene.pass_(2 * FLOOR_S)
    assert found is not None
    assert found.silent_s <= FLOOR_S + 10


def test_a_silence_that_ends_is_forgotten(scene: Scene) -> None:
    ranks = scene.begin()
    assert scene.pass_(FLOOR_S - 10) is None
    for one in ranks:
        one.step(9)
    scene.agents.heard_s = 0.0
    assert scene.pass_(4) is None
    assert (scene.pulses.seen.suspected_at, scene.pulses.seen.silent) == (None, ())
    assert scene.pass_(FLOOR_S - 40) is None


def test_a_save_of_one_rank_is_no_hang(scene: Scene) -> None:
    rank, _ = scene.begin()
    with rank.during("save"):
        assert scene.pass_(HOUR_S) is None
        assert scene.pulses.seen.suspected_at is None
    rank.step(9)
    assert scene.pass_(FLOOR_S - 20) is None


def test_an_output_that_grows_puts_it_off(scene: Scene) -> None:
    scene.begin()
    for _ in range(10):
        with scene.log.open("a") as file:
            file.write("Watchdog ...\n")
        assert scene.pass_(60) is None
    found = scene.pass_(2 * FLOOR_S)
    assert found is not None
    assert 600 < found.silent_s < 3 * FLOOR_S


def test_traffic_puts_it_off_but_not_for_ever(scene: Scene) -> None:
    scene.begin()
    scene.agents.nic = 1 << 30
    found = scene.pass_(4 * FLOOR_S)
    assert found is not None
    assert 3 * FLOOR_S < found.silent_s < 3 * FLOOR_S + 20


def test_a_training_that_is_done_hangs_not(scene: Scene) -> None:
    scene.begin()
    scene.pulses.known = Progress(8, 8, None, done=True)
    assert scene.pass_(HOUR_S, by_s=4) is None


def test_an_old_copy_that_tells_progress_alone_has_an_hour(scene: Scene) -> None:
    scene.agents.hears = False
    assert scene.pass_(2 * HOUR_S, by_s=4) is None, "nothing is known before it tells something"
    scene.pulses.known = Progress(8, None, None, at=NOON)
    assert scene.pass_(HOUR_S - 60, by_s=4) is None
    assert (scene.pulses.seen.ranks, scene.pulses.seen.heard) == (None, 0)
    found = scene.pass_(200, by_s=4)
    assert found is not None
    assert (found.phase, found.rank, found.node) == (Phase.UNTOLD, None, "")


def test_a_node_that_never_told_gives_the_others_an_hour(scene: Scene) -> None:
    scene.agents.hears = False
    scene.begin()
    assert scene.pass_(HOUR_S - 60) is None
    assert scene.pass_(200) is not None


def test_a_pause_of_the_head_begins_anew(scene: Scene) -> None:
    scene.begin()
    assert scene.pass_(FLOOR_S - 40) is None
    scene.clock.slept_s += 1000
    scene.agents.heard_s = 0.0  # the whole job was suspended
    assert scene.pass_(FLOOR_S - 40) is None
    assert scene.pass_(1200) is not None, "five times the silence before it"


def test_evidence_is_gathered_a_few_times_only(scene: Scene) -> None:
    ranks = scene.begin()
    for step in range(9, 15):
        while scene.pulses.seen.suspected_at is None:  # each silence makes the next limit longer
            assert scene.pass_(2) is None
        for one in ranks:
            one.step(step)
        scene.agents.heard_s = 0.0
        scene.pass_(2)
    assert len(scene.agents.asked) == 3


def test_the_floor_is_the_environments(tmp_path: Path) -> None:
    for text, floor_s in (("5", 5.0), ("1e9", 1e9), ("", FLOOR_S), ("-1", FLOOR_S), ("nan", FLOOR_S), ("x", FLOOR_S)):
        assert floor_in({"FLEETCTL_HANG_FLOOR_S": text}) == floor_s
    assert floor_in({}) == FLOOR_S
    scene = Scene(tmp_path, {"FLEETCTL_HANG_FLOOR_S": "5"})
    scene.begin()
    found = scene.pass_(60)
    shutil.rmtree(scene.folder, ignore_errors=True)
    assert found is not None
    assert found.limit_s == pytest.approx(20.0, abs=1)


def test_where_slurm_places_the_steps_all_nodes_of_the_groups_count(scene: Scene) -> None:
    environ = {"SLURM_JOB_NODELIST_HET_GROUP_0": "a[1-2]", "SLURM_JOB_NODELIST_HET_GROUP_1": "b3"}
    order = replace(scene.lead.order, steps=scene.lead.order.steps * 2, nodes=0)
    lead = replace(scene.lead, order=order, world=replace(scene.lead.world, environ=environ))
    assert _everywhere(lead) == ("a1", "a2", "b3")


def test_the_beats_are_gone_after_the_attempt(scene: Scene) -> None:
    scene.begin()
    scene.vigil.close()
    assert not Path(scene.folder).exists()


def test_a_node_that_an_attempt_hung_for_is_taken_last(scene: Scene) -> None:
    class Well:
        def verdict(self, node: str) -> Verdict:
            return Verdict.AWAITED if node == "n4" else Verdict.LIVE

        def is_usable(self, node: str) -> bool:
            return True

    head = Head(scene.lead, cast("NodeWatch", Well()), ("n1", "n2", "n3", "n4"))
    assert head._see().alive == ("n1", "n2", "n3", "n4")
    head._suspects |= {"n1"}  # its own host, too: it leads, and others train
    assert head._see().alive == ("n2", "n3", "n4", "n1")


def test_bytes_that_ranks_move_put_it_off_but_not_for_ever(scene: Scene) -> None:
    scene.begin()
    scene.agents.io = 2 << 20
    found = scene.pass_(4 * FLOOR_S)
    assert found is not None
    assert 3 * FLOOR_S < found.silent_s < 3 * FLOOR_S + 20


def test_work_that_nobody_marked_is_not_ended_again_and_again(scene: Scene) -> None:
    scene.begin()
    found = scene.pass_(2 * FLOOR_S)
    assert found is not None
    assert found.node == ""
    learned = scene.vigil.learned()
    scene.vigil.close()
    scene.vigil = scene.watch(learned)
    scene.begin()
    assert scene.pass_(5 * FLOOR_S - 20) is None
    assert scene.pass_(FLOOR_S) is not None


def test_a_suspended_job_that_tells_its_progress_alone_begins_anew(scene: Scene) -> None:
    scene.agents.hears = False
    scene.pulses.known = Progress(8, None, None, at=NOON)
    assert scene.pass_(60) is None
    scene.clock.slept_s += 3 * HOUR_S
    assert scene.pass_(HOUR_S - 120, by_s=4) is None
    assert scene.pass_(300, by_s=4) is not None
