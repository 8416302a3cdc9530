"""A training that writes what frameworks write, without them. It does what FOLDER/plan.ATTEMPT says, and then ends.

save STEP   a whole checkpoint        lose STEP   it is gone           point NAME  the framework's own pointer
tear STEP   one that was cut off      cut STEP    it is damaged        crash       status 1
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from fleetctl.train.progress import Progress
from tests.formats.deepspeed import write_zero
from tests.formats.huggingface import write_trainer

IS_DEEPSPEED = os.environ.get("FORMAT") == "deepspeed"
PARTS = ("zero_pp_rank_0_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt")
FILES = PARTS if IS_DEEPSPEED else ("trainer_state.json", "optimizer.pt")


def path_of(directory: Path, step: str) -> Path:
    return directory / f"{'global_step' if IS_DEEPSPEED else 'checkpoint-'}{step}"


def save(directory: Path, step: str) -> None:
    shutil.rmtree(path_of(directory, step), ignore_errors=True)
    if IS_DEEPSPEED:
        write_zero(directory, int(step), data_ranks=1)  # and its pointer
    else:
        write_trainer(directory, int(step))
    for path in path_of(directory, step).rglob("*"):
        os.utime(path)  # the builders give every file one time of their own


def lose(directory: Path, step: str) -> None:
    shutil.rmtree(path_of(directory, step))


def tear(directory: Path, step: str) -> None:
    pointer = directory / "latest"
    before = pointer.read_text() if pointer.exists() else None
    save(directory, step)
    (path_of(directory, step) / FILES[0]).unlink()
    if before is not None:
        pointer.write_text(before)


def cut(directory: Path, step: str) -> None:
    os.truncate(path_of(directory, step) / FILES[1], 30)


def point(directory: Path, name: str) -> None:
    (directory / "latest").write_text(name)


def crash(directory: Path, step: str) -> None:
    sys.exit(1)


DEEDS = {"save": save, "lose": lose, "tear": tear, "cut": cut, "point": point, "crash": crash}


def main() -> None:
    folder, attempt = Path(sys.argv[1]), os.environ["FLEETCTL_ATTEMPT"]
    directory = Path(os.environ["FLEETCTL_CHECKPOINT_DIR"])
    pointer = directory / "latest"
    seen = {
        "argv": sys.argv[2:],
        "path": os.environ.get("FLEETCTL_RESUME_PATH"),
        "step": os.environ.get("FLEETCTL_RESUME_STEP"),
        "pointer": pointer.read_text() if pointer.exists() else None,
    }
    (folder / f"seen.{attempt}").write_text(json.dumps(seen))
    with Progress() as progress:
        for line in json.loads((folder / f"plan.{attempt}").read_text()):
            word, _, what = line.partition(" ")
            if what.isdigit():
                progress.update(training_step=int(what))
            DEEDS[word](directory, what)
        progress.update(training_step=1000, target_step=1000, done=True)


if __name__ == "__main__":
    main()
