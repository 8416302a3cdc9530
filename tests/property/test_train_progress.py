"""Any sequence of updates, failures and closes: the file is always one whole update, and the last wins."""

from __future__ import annotations

import contextlib
import io
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.train.progress import Progress

Step = tuple[str, float, float | None]

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["update", "update", "update", "done", "close", "break", "mend"]),
        st.sampled_from([0.0, 0.25, 1.0, 3.0, 100.0]),  # seconds since the step before
        st.one_of(st.none(), st.floats()),
    ),
    max_size=40,
)


class World:
    """One Progress, the file that it writes, and what may be in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.away = folder / "run", folder / "away"
        self.folder.mkdir()
        self.now_s = 0.0
        self.sent: list[float | None] = []  # the loss of update number i
        environ = {"FLEETCTL_PROGRESS_FILE": str(self.folder / "progress.json")}
        self.progress = Progress(clock=lambda: 0.0, monotonic=lambda: self.now_s, environ=environ)

    def do(self, what: str, loss: float | None) -> None:
        if what in ("update", "done"):
            self.sent.append(loss)
            self.progress.update(training_step=len(self.sent), loss=loss, done=what == "done")
        elif what == "close":
            self.progress.close()
        elif what == "break" and self.folder.exists():
            self.folder.rename(self.away)
        elif what == "mend" and self.away.exists():
            self.away.rename(self.folder)

    def on_disk(self) -> int:
        """Number of the update in the file, 0 for none; fails unless it is whole and nothing lies beside it."""
        folder = self.folder if self.folder.exists() else self.away
        names = [path.name for path in folder.iterdir()]
        if not names:
            return 0
        assert names == ["progress.json"]
        record: dict[str, Any] = json.loads((folder / names[0]).read_text("utf-8"), parse_constant=lambda _: 1 / 0)
        number: int = record["training_step"]
        sent = self.sent[number - 1]
        if sent is None or math.isfinite(sent):
            assert record["loss"] == sent
            assert "loss_text" not in record
        else:
            assert (record["loss"], record["loss_text"]) == (None, str(sent))
        return number


@given(STEPS)
def test_file_is_always_whole_and_the_last_update_wins(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as stderr:
        world = World(Path(folder))
        before = 0
        for what, wait_s, loss in steps:
            world.now_s += wait_s
            world.do(what, loss)
            now = world.on_disk()
            assert now >= before, "an older update replaced a newer one"
            if what in ("done", "close") and world.folder.exists():
                assert now == len(world.sent)
            before = now
        world.do("mend", None)
        world.do("close", None)
        assert world.on_disk() == len(world.sent)
        assert stderr.getvalue().count("\n") <= 1


@given(STEPS)
def test_writes_are_no_more_often_than_asked(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        world = World(Path(folder))
        last_write_s, before = -math.inf, 0
        for what, wait_s, loss in steps:
            world.now_s += wait_s
            world.do(what, loss)
            now = world.on_disk()
            if now != before:
                assert what in ("done", "close") or world.now_s - last_write_s >= 1.0
                last_write_s, before = world.now_s, now
