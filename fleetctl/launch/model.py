"""What the job side is told: its command line and what Slurm put into its environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from fleetctl.errors import JobSideError


class Step(Struct, frozen=True):
    """One thing to start: its name and argument vector; at `place` in it srun is told its nodes, unless that is 0."""

    name: str
    place: int
    argv: tuple[str, ...]


class CheckpointOrder(Struct, frozen=True):
    """Where checkpoints are; the names of format, load, verify, tell and `auto` are the spec's. `ranks` None: how many
    ranks the training has is not known."""

    directory: str
    format: str
    load: str
    keep: int | None = None  # older checkpoints are removed; None: nothing ever is
    keep_every_s: int | None = None
    interval_s: int | Literal["auto"] | None = None
    verify: str = "structure"
    tell: str = "environment"
    ranks: int | None = None


class Order(Struct, frozen=True):
    """The command line that the batch script gives. `max_failures` is None where nothing may be started again, and
    `nodes` is 0 where Slurm alone decides which nodes a step uses (hetjobs)."""

    run_dir: str
    submission: int
    env_file: str | None
    needs: tuple[str, ...]
    steps: tuple[Step, ...]
    nodes: int = 0
    spares: int = 0
    max_failures: int | None = None
    chain: bool = False
    checkpoint: CheckpointOrder | None = None
    take_over: str | None = None  # the attempt whose head died


class JobIdentity(Struct, frozen=True):
    """Who this job is. `owner` is what a claim names: the array's id for an element, the leader's for a hetjob."""

    owner: str
    job_id: str
    task: int | None
    cluster: str | None
    host: str
    restart_count: int
    raw_id: str = ""  # the number that srun knows this job by; an array's element has one of its own


_SINGLE = frozenset(
    {
        "--run-dir",
        "--submission",
        "--env-file",
        "--nodes",
        "--spares",
        "--max-failures",
        "--checkpoint-dir",
        "--checkpoint-format",
        "--checkpoint-load",
        "--checkpoint-keep",
        "--checkpoint-keep-every-s",
        "--checkpoint-interval",
        "--checkpoint-interval-s",
        "--checkpoint-verify",
        "--checkpoint-tell",
        "--checkpoint-ranks",
        "--take-over",
    }
)


def parse_order(argv: Sequence[str]) -> Order:
    """Read the options that `render` writes, and `--step NAME PLACE COUNT WORD{COUNT}` for each step.

    A step says how many words it has, so no word of a user's command can be taken for an option.

    :raises JobSideError: the script and this fleetctl do not fit together.
    """
    words = iter(argv)
    single: dict[str, str] = {}
    needs: list[str] = []
    steps: list[Step] = []
    chain = False
    try:
        for word in words:
            if word == "--step":
                name, place, count = next(words), int(next(words)), int(next(words))
                steps.append(Step(name, place, tuple(next(words) for _ in range(count))))
            elif word == "--needs":
                needs.append(next(words))
            elif word == "--chain":
                chain = True
            elif word in _SINGLE:
                single[word] = next(words)
            else:
                raise ValueError(word)
        order = _order(single, tuple(needs), tuple(steps), chain=chain)
    except (StopIteration, RuntimeError, KeyError, ValueError) as error:
        raise JobSideError(f"the batch script does not fit this fleetctl ({error!r})") from None
    if not steps:
        raise JobSideError("the batch script names no step")
    return order


def _order(single: Mapping[str, str], needs: tuple[str, ...], steps: tuple[Step, ...], *, chain: bool) -> Order:
    checkpoint = None
    if "--checkpoint-dir" in single:
        checkpoint = CheckpointOrder(
            directory=single["--checkpoint-dir"],
            format=single["--checkpoint-format"],
            load=single["--checkpoint-load"],
            keep=_number(single, "--checkpoint-keep"),
            keep_every_s=_number(single, "--checkpoint-keep-every-s"),
            interval_s=_interval(single),
            verify=_one_of(single, "--checkpoint-verify", ("structure", "content")),
            tell=_one_of(single, "--checkpoint-tell", ("environment", "arguments", "pointer")),
            ranks=_number(single, "--checkpoint-ranks"),
        )
    failures = single.get("--max-failures")
    return Order(
        run_dir=single["--run-dir"],
        submission=int(single["--submission"]),
        env_file=single.get("--env-file"),
        needs=needs,
        steps=steps,
        nodes=int(single.get("--nodes", "0")),
        spares=int(single.get("--spares", "0")),
        max_failures=int(failures) if failures is not None else None,
        chain=chain,
        checkpoint=checkpoint,
        take_over=single.get("--take-over"),
    )


def _interval(single: Mapping[str, str]) -> int | Literal["auto"] | None:
    if single.get("--checkpoint-interval", "auto") != "auto":
        raise ValueError(single["--checkpoint-interval"])
    return "auto" if "--checkpoint-interval" in single else _number(single, "--checkpoint-interval-s")


def _one_of(single: Mapping[str, str], option: str, values: Sequence[str]) -> str:
    """The first one where the script says nothing: it may be older than this fleetctl."""
    value = single.get(option, values[0])
    if value not in values:
        raise ValueError(value)
    return value


def _number(single: Mapping[str, str], option: str) -> int | None:
    return int(single[option]) if option in single else None


def identity(environ: Mapping[str, str]) -> JobIdentity:
    """Who we are, as Slurm says (sbatch.1, OUTPUT ENVIRONMENT VARIABLES).

    :raises JobSideError: not inside a Slurm job.
    """
    if "SLURM_JOB_ID" not in environ:
        raise JobSideError("this is the inside of a batch job", remedy="use `fleetctl submit`")
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    owner = array or environ["SLURM_JOB_ID"]
    return JobIdentity(
        owner=owner,
        job_id=f"{array}_{task}" if array else owner,
        task=int(task) if array and task else None,
        cluster=environ.get("SLURM_CLUSTER_NAME"),
        host=environ.get("SLURMD_NODENAME", "unknown"),
        restart_count=int(environ.get("SLURM_RESTART_COUNT", "0")),  # unset on the first start before 26.11
        raw_id=environ["SLURM_JOB_ID"],
    )


def step_nodes(environ: Mapping[str, str], index: int) -> str:
    """Slurm's host list of the step's component: the hetjob's group `index`, or the whole job."""
    return environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{index}") or environ.get("SLURM_JOB_NODELIST", "")


def exit_status(codes: Sequence[int]) -> int:
    """The status of the first step that failed, in a shell's way: 128 + signal for a killed one."""
    failed = next((code for code in codes if code), 0)
    return 128 - failed if failed < 0 else failed
