"""Checkpoints of Lightning without it: as Lightning 2.6.6 writes the file and the folder."""

from __future__ import annotations

from pathlib import Path

from tests.formats import deepspeed
from tests.formats.dcp import SAVED_AT_S, put_at, shards_of, write_dcp
from tests.formats.pickles import Made, Named
from tests.formats.torch import state, torch_bytes

_CALLBACK = "ModelCheckpoint{'monitor': None, 'mode': 'min', 'every_n_train_steps': 2}"


def keys(step: int, *, paths: dict[str, object] | None = None) -> dict[str, object]:
    """What `dump_checkpoint` makes, in its order."""
    weights = state()["model"]
    return {
        "epoch": 0,
        "global_step": step,
        "pytorch-lightning_version": "2.6.6",
        "state_dict": weights,
        "loops": {"fit_loop": {"state_dict": {}}},
        "callbacks": {_CALLBACK: {"monitor": None, "best_k_models": {}, **(paths or {})}},
        "optimizer_states": [{"state": {0: {"step": 1}}, "param_groups": [{"lr": 0.1}]}],
        "lr_schedulers": [{"last_epoch": step}],
        "hparams_name": "kwargs",
        "hyper_parameters": Made(Named("users.module", "Settings"), state={"width": 64}, new=True),
    }


def write_file(
    directory: Path, name: str = "epoch=0-step=120.ckpt", record: object = None, *, crcs: bool = True
) -> Path:
    """A checkpoint in one file, of step 120 if nothing else is said."""
    path = directory / name
    path.write_bytes(torch_bytes(keys(120) if record is None else record, stem=path.stem, crcs=crcs))
    return path


def write_folder(directory: Path, name: str = "epoch=0-step=120.ckpt", record: object = None) -> Path:
    """A sharded one: the shards, `.metadata`, then `meta.pt`, which has no weights and no optimizers."""
    folder = write_dcp(directory / name, shards_of())
    meta = {key: value for key, value in keys(120).items() if key not in ("state_dict", "optimizer_states")}
    raw = torch_bytes(meta if record is None else record, {}, stem="meta")
    put_at(folder / "meta.pt", raw, SAVED_AT_S + 1)
    return folder


def write_deepspeed(directory: Path, name: str = "epoch=0-step=120.ckpt") -> Path:
    """One of the DeepSpeed strategy: a step of two ranks, with its pointer and script."""
    folder = directory / name
    deepspeed.write_zero(folder, 120, name="checkpoint")
    (folder / "zero_to_fp32.py").write_text("")
    return folder
