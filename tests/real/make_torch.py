"""`make_torch.py FOLDER`: files of torch.save; `make_torch.py load FILE`: prints what torch.load says of it."""

from __future__ import annotations

import collections
import pathlib
import random
import sys

import numpy
import torch
import torch.utils.serialization.config


def state() -> dict[str, object]:
    """A training's: a model, an optimizer after two steps, random states, values of many kinds."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95))
    for _ in range(2):
        model(torch.randn(4, 64)).sum().backward()
        optimizer.step()
    dtypes = (torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn)
    return {
        "model": model.state_dict(),
        "whole_model": model,
        "optimizer": optimizer.state_dict(),
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 5).state_dict(),
        "global_step": 500,
        "rng": [torch.get_rng_state(), random.getstate(), numpy.random.get_state(), numpy.random.default_rng()],
        "others": [collections.Counter("aab"), collections.defaultdict(list, a=[1]), {1, 2}, frozenset({3}), b"bytes"],
        "more": [
            pathlib.PurePosixPath("/a"),
            numpy.float32(1.5),
            numpy.arange(5),
            slice(1, 2),
            1j,
            ...,
            2**200,
            -(2**70),
        ],
        "dtypes": [torch.zeros(3).to(dtype) for dtype in dtypes],
        "views": [torch.arange(10.0)[2:5], torch.zeros(0), torch.nn.Parameter(torch.zeros(2)), torch.Size([1, 2])],
        "sparse": torch.eye(3).to_sparse(),
        "keys": {(1, "a"): 1, 2: 3, None: 4, "x" * 300: 5},
        "long": "y" * 100_000,
    }


def save(folder: pathlib.Path) -> None:
    """Each kind of file that there is."""
    values = state()
    torch.save(values, folder / "ckpt_500.pt")
    torch.save({**values, "sparse": None, "dtypes": None}, folder / "old_500.pt", _use_new_zipfile_serialization=False)
    torch.save(values, folder / "protocol4_500.pt", pickle_protocol=4)
    torch.save(values["model"], folder / "weights_500.pt")
    torch.save([torch.zeros(1)] * 3 + [torch.zeros(1) for _ in range(2000)], folder / "many_500.pt")
    layer = torch.nn.Linear(3, 3)
    torch.jit.script(layer).save(folder / "script_500.pt")
    torch.export.save(torch.export.export(layer, (torch.randn(1, 3),)), folder / "export_500.pt")
    arrays = [numpy.full(500, number, "f4") for number in range(2000)]
    torch.save({"global_step": 500, "replay": arrays}, folder / "replay_500.pt")
    torch.utils.serialization.config.save.compute_crc32 = False
    torch.save(values, folder / "unproved_500.pt")


def load(path: str) -> None:
    """ "loaded", or the kind of error."""
    try:
        torch.load(path, weights_only=False)
        print("loaded")
    except Exception as error:  # noqa: BLE001
        print(type(error).__name__)


if sys.argv[1] == "load":
    for file in sys.argv[2:]:
        load(file)
else:
    save(pathlib.Path(sys.argv[1]))
