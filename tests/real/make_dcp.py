"""Folders of torch.distributed.checkpoint.

`make_dcp.py one FOLDER`: by one process; `uncoordinated` and `unproved`: likewise, without collectives or checksums;
`ranks FOLDER COUNT`: by so many over gloo; `again FOLDER`: into a folder that has one, and dies before the metadata;
`safetensors FOLDER`: in that format; `lacking FOLDER`: with a slice less than described, and loads it;
`load FOLDER...`: loads each in one process, and prints what came of it.
"""

from __future__ import annotations

import os
import pathlib
import pickle
import socket
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
import torch.utils.serialization.config
from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard


class Stop(Exception):
    """Where a save dies."""


class Dying(FileSystemWriter):
    """Writes its shards and no metadata."""

    def finish(self, *_: object, **__: object) -> None:
        raise Stop


def trained(seed: int = 1) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model that has a step behind it, sharded where there are several ranks."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(4)))
    if dist.is_initialized():
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 128)).sum().backward()
    optimizer.step()
    return model, optimizer


def state(seed: int = 1) -> dict[str, object]:
    """What a training saves."""
    model, optimizer = trained(seed)
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "step": 500, "none": None, "half": torch.zeros(3).half()}


def rank_main(rank: int, folder: str, count: int, port: int) -> None:
    """One rank of a save."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=count)
    dcp.save(state(), checkpoint_id=folder)
    dist.destroy_process_group()


def drop_a_slice(folder: pathlib.Path) -> None:
    """The metadata forgets the last slice of the shard, which ends before it."""
    metadata = dcp.FileSystemReader(folder).read_metadata()
    last = max(metadata.storage_data, key=lambda index: metadata.storage_data[index].offset)
    place = metadata.storage_data.pop(last)
    os.truncate(folder / place.relative_path, place.offset)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def load(folder: str) -> None:
    """Prints "loaded" and the step, or the kind of error."""
    values = state(2)
    try:
        dcp.load(values, checkpoint_id=folder)
        print("loaded", values["step"])
    except BaseException as error:  # noqa: BLE001
        print(type(error).__name__)


def main() -> None:
    """As told."""
    verb, folder, *more = sys.argv[1:]
    if verb == "one":
        dcp.save(state(), checkpoint_id=folder)
    elif verb == "ranks":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        mp.spawn(rank_main, (folder, int(more[0]), port), nprocs=int(more[0]))
    elif verb == "uncoordinated":
        dcp.save(state(), checkpoint_id=folder, use_collectives=False)
    elif verb == "unproved":
        torch.utils.serialization.config.save.compute_crc32 = False
        dcp.save(state(), checkpoint_id=folder)
    elif verb == "safetensors":
        writer = FileSystemWriter(folder, serialization_format=SerializationFormat.SAFETENSORS)
        dcp.save({"w": torch.randn(5, 5), "b": torch.randn(3), "step": 500}, storage_writer=writer)
    elif verb == "lacking":
        dcp.save(state(), checkpoint_id=folder)
        drop_a_slice(pathlib.Path(folder))
        load(folder)
    elif verb == "again":
        try:
            dcp.save(state(2), storage_writer=Dying(folder))
        except BaseException as error:  # noqa: BLE001
            print(type(error).__name__)
    else:
        for each in (folder, *more):
            load(each)


if __name__ == "__main__":
    main()
