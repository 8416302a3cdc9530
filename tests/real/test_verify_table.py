"""What `fleetctl ckpt verify` says of real checkpoints: each format, each damage, each level, in one table."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.formats.damage import Damage, cut, flip, remove, zeros
from tests.real.conftest import MakeReal
from tests.support import Cli

INDEX = "model.safetensors.index.json"
# `names` looks into nothing, so nothing is valid by it. Weights alone have no checksum: a flipped bit cannot be seen.
EXPECTED = """
format       damage        names       structure   content
torch_dcp    none          unknown     valid       valid
torch_dcp    cut in half   unknown     corrupt     corrupt
torch_dcp    hole          unknown     valid       corrupt
torch_dcp    flipped bit   unknown     valid       corrupt
torch_dcp    part missing  unknown     incomplete  incomplete
torch_dcp    no marker     incomplete  incomplete  incomplete
safetensors  none          unknown     valid       valid
safetensors  cut in half   unknown     corrupt     corrupt
safetensors  hole          unknown     valid       valid
safetensors  flipped bit   unknown     valid       valid
safetensors  part missing  incomplete  incomplete  incomplete
safetensors  no marker     incomplete  incomplete  incomplete
huggingface  none          unknown     valid       valid
huggingface  cut in half   unknown     corrupt     corrupt
huggingface  hole          unknown     valid       corrupt
huggingface  flipped bit   unknown     valid       corrupt
huggingface  part missing  incomplete  incomplete  incomplete
huggingface  no marker     incomplete  incomplete  incomplete
lightning    none          unknown     valid       valid
lightning    cut in half   unknown     corrupt     corrupt
lightning    hole          unknown     valid       corrupt
lightning    flipped bit   unknown     valid       corrupt
deepspeed    none          unknown     valid       valid
deepspeed    cut in half   unknown     corrupt     corrupt
deepspeed    hole          unknown     valid       corrupt
deepspeed    flipped bit   unknown     valid       corrupt
deepspeed    part missing  unknown     incomplete  incomplete
"""


@pytest.fixture(scope="module")
def made(make_real: MakeReal, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A checkpoint of each format, by its own library."""
    folder = tmp_path_factory.mktemp("table")
    make_real("make_dcp.py", "ranks", folder / "dcp" / "ckpt_500", 2)
    make_real("make_safetensors.py", "save", folder / "safetensors")
    make_real("make_huggingface.py", "train", folder / "huggingface")
    make_real("make_lightning.py", "files", folder / "lightning")
    make_real("make_deepspeed.py", "save", folder / "deepspeed", 1)
    return {
        "torch_dcp": folder / "dcp" / "ckpt_500",
        "safetensors": folder / "safetensors" / "sharded",
        "huggingface": folder / "huggingface" / "checkpoint-4",
        "lightning": folder / "lightning" / "plain" / "epoch=0-step=4.ckpt",
        "deepspeed": folder / "deepspeed" / "zero1" / "global_step4",
    }


def damages(form: str, path: Path) -> Mapping[str, Damage]:
    """The part that has most of the data is damaged in the middle of it; the marker is what is written last."""
    folder = path if path.is_dir() else path.parent
    part, marker = {
        "torch_dcp": ("__1_0.distcp", ".metadata"),
        "safetensors": (min((one.name for one in folder.glob("*.safetensors")), default=""), INDEX),
        "huggingface": ("optimizer.pt", "trainer_state.json"),
        "lightning": (path.name, ""),
        "deepspeed": ("zero_pp_rank_1_mp_rank_00_optim_states.pt", ""),
    }[form]
    raw = (folder / part).read_bytes()
    middle = longest_run(raw)
    found = {
        "none": lambda _: None,
        "cut in half": cut(part, lambda size: size // 2),
        "hole": zeros(part, lambda _: middle, lambda _: 16),
        "flipped bit": flip(part, lambda _: middle),
    }
    if form != "lightning":
        found["part missing"] = remove(part)
    return found | ({"no marker": remove(marker)} if marker else {})


def longest_run(raw: bytes) -> int:
    """A place within tensor data: what directories and pickles are made of is mostly text or zeros."""
    best, start = (0, 0), 0
    for at in range(len(raw) + 1):
        if at == len(raw) or raw[at] == 0:
            best, start = max(best, (at - start, start)), at + 1
    return best[1] + best[0] // 2


def age(folder: Path) -> None:
    """An hour ago, all of it: what was written to just now may be being written."""
    for path in (*folder.rglob("*"), folder):
        times = path.stat()
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns - 3600 * 10**9))


def test_the_table(made: Mapping[str, Path], tmp_path: Path) -> None:
    cli = Cli({"HOME": str(tmp_path), "PATH": os.environ["PATH"]}, tmp_path / "runs")
    rows = [("format", "damage", "names", "structure", "content")]
    for form, whole in made.items():
        for number, (name, damage) in enumerate(damages(form, whole).items()):
            copy = tmp_path / f"{form}-{number}" / whole.name
            copy.parent.mkdir()
            shutil.copytree(whole, copy) if whole.is_dir() else shutil.copy2(whole, copy)
            damage(copy if copy.is_dir() else copy.parent)
            age(copy.parent)
            found = []
            for level in ("names", "structure", "content"):
                done = cli("ckpt", "verify", str(copy), "--level", level, "--json")
                assert done.returncode in (0, 3, 11), done.stderr
                (one,) = json.loads(done.stdout)
                assert one["format"] == form, one
                assert (one["validity"] in ("valid", "unknown")) == (not one["pieces"]), one
                found.append(one["validity"])
            rows.append((form, name, *found))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    table = "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
    print(table)
    assert table == EXPECTED.strip()
