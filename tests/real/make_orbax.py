"""Writes and restores checkpoints by Orbax. Run by the interpreter that has it, on the CPU.

make_orbax.py managed FOLDER            steps 10, 20 and 30 of a CheckpointManager, arrays in four shards
make_orbax.py kinds FOLDER              each layout of arrays, by the checkpointers without a manager
make_orbax.py killed-merge FOLDER       step 10, and step 20 whose process dies before its arrays are put together
make_orbax.py killed-rename FOLDER      the same, dying before the folder gets its name
make_orbax.py killed-commit FOLDER      the same with a commit file in place of a rename, dying before it is written
make_orbax.py restore FOLDER...         prints as JSON what restoring step 30 of each says: "" for one that it restores
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint._src.path import async_path, atomicity
from orbax.checkpoint._src.serialization import ocdbt_utils

logging.disable(logging.CRITICAL)


def state(step: int) -> dict[str, Any]:
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    chance = np.random.default_rng(step)
    layers = {f"w{number}": jax.device_put(chance.random((64, 32)), sharding) for number in range(3)}
    return {"params": layers, "opt": (np.zeros(5), {}), "bias": jnp.ones(7), "step": step, "none": None}


def arguments(step: int) -> Any:
    return ocp.args.Composite(state=ocp.args.StandardSave(state(step)), data=ocp.args.JsonSave({"at": step}))


def managed(folder: Path) -> None:
    with ocp.CheckpointManager(folder) as manager:
        for step in (10, 20, 30):
            manager.save(step, args=arguments(step), metrics={"loss": 1.0})
        manager.wait_until_finished()


def kinds(folder: Path) -> None:
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(folder / "standard_1", state(1))
    checkpointer.wait_until_finished()
    for name, layout in (
        ("ocdbt_2", {}),
        ("zarr_3", {"use_ocdbt": False}),
        ("zarr3_4", {"use_zarr3": True}),
        ("zarr3_5", {"use_ocdbt": False, "use_zarr3": True}),
    ):
        ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**layout)).save(folder / name, state(1))
    options = ocp.CheckpointManagerOptions(step_prefix="ckpt", step_format_fixed_length=8)
    with ocp.CheckpointManager(folder, options=options) as manager:
        many = {f"p{number}": jnp.ones(300) for number in range(300)}
        manager.save(6, args=ocp.args.Composite(state=ocp.args.PyTreeSave(many), one=ocp.args.ArraySave(jnp.ones(5))))
        manager.wait_until_finished()


def die(*_args: Any, **_more: Any) -> None:
    os._exit(0)


def killed(folder: Path, where: str) -> None:
    by_file = {"temporary_path_class": atomicity.CommitFileTemporaryPath} if where == "killed-commit" else {}
    with ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(**by_file)) as manager:
        manager.save(10, args=arguments(10))
        manager.wait_until_finished()
        if where == "killed-merge":
            ocdbt_utils.merge_ocdbt_per_process_files = die
        elif where == "killed-rename":
            rename = async_path.rename
            async_path.rename = lambda old, new: die() if new.name == "20" else rename(old, new)
        else:
            atomicity.CommitFileTemporaryPath.finalize = die
        manager.save(20, args=arguments(20))
        manager.wait_until_finished()
    raise AssertionError("it was to die")


def restore(folders: list[Path]) -> None:
    said = {}
    for folder in folders:
        try:
            with ocp.CheckpointManager(folder) as manager:
                wanted = ocp.args.Composite(state=ocp.args.StandardRestore(state(30)), data=ocp.args.JsonRestore())
                got = manager.restore(30, args=wanted)
            same = all(np.array_equal(got.state["params"][key], value) for key, value in state(30)["params"].items())
            said[str(folder)] = "" if same else "other values"
        except Exception as error:  # noqa: BLE001 - whatever it raises is the answer
            said[str(folder)] = f"{type(error).__name__}: {error}"[:200]
    print(json.dumps(said))


if __name__ == "__main__":
    what, folders = sys.argv[1], [Path(path) for path in sys.argv[2:]]
    if what == "managed":
        managed(folders[0])
    elif what == "kinds":
        kinds(folders[0])
    elif what == "restore":
        restore(folders)
    else:
        killed(folders[0], what)
