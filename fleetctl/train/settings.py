"""Who this process is and where its checkpoints go: fleetctl's environment, or the caller. Python 3.8 and newer."""

from __future__ import annotations

import contextlib
import math
import os
from typing import Mapping, NamedTuple

from fleetctl.train.layout import ATTEMPT, RUN_ID

_DEFAULT_INTERVAL_S = 600.0  # a training that names nothing loses at most ten minutes
_SAVES_PER_RESTART = 1_000_000  # torchrun restarts its ranks within one attempt: their saves are numbered apart


class Settings(NamedTuple):
    """`shards` ranks write. Empty texts where fleetctl says nothing; `by_hand` when it does not choose what to load.
    `ordered`: fleetctl names the directory, and made it. `restarted`: torchrun started these ranks anew within the
    attempt. Without a directory nothing is saved. `mtbf_s`, the mean time between failures of the job, is there
    when the interval follows from what saves cost (`checkpoint.interval: auto`)."""

    directory: str
    run_id: str
    attempt: str
    attempt_dir: str
    flag: str
    resume_path: str
    rank: int
    shards: int
    first_seq: int
    restarted: bool
    ordered: bool
    interval_s: float | None
    every_steps: int | None
    mtbf_s: float | None
    by_hand: bool


def read_settings(
    env: Mapping[str, str],
    *,
    directory: str | None,
    rank: int | None,
    shards: int,
    interval_s: float | None,
    every_steps: int | None,
) -> Settings:
    """Raises ValueError with the remedy. FLEETCTL_CHECKPOINT_DIR wins over `directory`: fleetctl looks only there."""
    chosen = env.get("FLEETCTL_CHECKPOINT_DIR") or directory
    rank = _number(env, "RANK", "SLURM_PROCID", 0) if rank is None else rank
    world = _number(env, "WORLD_SIZE", "SLURM_NTASKS", 1)
    _check_ranks(env, rank, world, shards)
    run_id, attempt = env.get("FLEETCTL_RUN_ID") or "local", env.get("FLEETCTL_ATTEMPT") or "0.0"
    if RUN_ID.fullmatch(run_id) is None or ATTEMPT.fullmatch(attempt) is None:
        raise ValueError(f"FLEETCTL_RUN_ID={run_id!r} with FLEETCTL_ATTEMPT={attempt!r} is not fleetctl's")
    restarts = _number(env, "TORCHELASTIC_RESTART_COUNT", "", 0)
    told = env.get("FLEETCTL_RUN_ID") and env.get("FLEETCTL_CHECKPOINT_DIR")
    return Settings(
        directory=os.path.abspath(chosen) if chosen else "",
        run_id=run_id,
        attempt=attempt,
        attempt_dir=env.get("FLEETCTL_ATTEMPT_DIR", ""),
        flag=env.get("FLEETCTL_SAVE_FLAG", ""),
        resume_path=env.get("FLEETCTL_RESUME_PATH", ""),
        rank=rank,
        shards=shards,
        first_seq=restarts * _SAVES_PER_RESTART,
        restarted=restarts > 0,
        ordered=bool(env.get("FLEETCTL_CHECKPOINT_DIR")),
        interval_s=_interval(env, interval_s, every_steps),
        every_steps=_every(every_steps),
        mtbf_s=_mtbf(env) if interval_s is None else None,
        by_hand=not told and not env.get("FLEETCTL_RESUME_PATH"),
    )


def _check_ranks(env: Mapping[str, str], rank: int, world: int, shards: int) -> None:
    if shards not in (1, world):
        raise ValueError(f"shards={shards} with {world} ranks: either rank 0 writes all (1) or each its own ({world})")
    if not 0 <= rank < max(world, 1):
        raise ValueError(f"rank {rank} is not one of {world} ranks: set WORLD_SIZE together with RANK")
    restarts = _number(env, "TORCHELASTIC_MAX_RESTARTS", "", 0)
    if shards > 1 and restarts > 0:  # shards of the ranks before and after would meet under one name
        raise ValueError(
            f"torchrun --max-restarts {restarts} with shards={shards}: set it to 0 and leave restarts to fleetctl"
        )


def _interval(env: Mapping[str, str], given: float | None, every_steps: int | None) -> float | None:
    if given is None:
        with contextlib.suppress(ValueError):
            given = float(env.get("FLEETCTL_CHECKPOINT_INTERVAL_S", ""))
    if given is None:
        return None if every_steps else _DEFAULT_INTERVAL_S
    if not given > 0:
        raise ValueError(f"interval_s={given} is no number of seconds above 0")
    return given


def _mtbf(env: Mapping[str, str]) -> float | None:
    with contextlib.suppress(ValueError):
        mtbf_s = float(env.get("FLEETCTL_CHECKPOINT_MTBF_S", ""))
        return mtbf_s if 0 < mtbf_s < math.inf else None
    return None


def _every(every_steps: int | None) -> int | None:
    if every_steps is not None and every_steps < 1:
        raise ValueError(f"every_steps={every_steps} is less than 1: leave it out to save by time")
    return every_steps


def _number(env: Mapping[str, str], first: str, second: str, default: int) -> int:
    for name in (first, second):
        with contextlib.suppress(ValueError):
            return int(env.get(name, ""))
    return default
