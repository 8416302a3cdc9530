"""What the job side is told: its command line and what Slurm put into its environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from fleetctl.errors import JobSideError


class Step(Struct, frozen=True):
    """One thing to start: its name and argument vector."""

    name: str
    argv: tuple[str, ...]


class Order(Struct, frozen=True):
    """The command line that the batch script gives."""

    run_dir: str
    submission: int
    env_file: str | None
    needs: tuple[str, ...]
    steps: tuple[Step, ...]


class JobIdentity(Struct, frozen=True):
    """Who this job is. `owner` is what a claim names: the array's id for an element, the leader's for a hetjob."""

    owner: str
    job_id: str
    task: int | None
    cluster: str | None
    host: str
    restart_count: int


def parse_order(argv: Sequence[str]) -> Order:
    """Read `--run-dir D --submission N [--env-file F] [--needs D]... --step NAME COUNT WORD{COUNT} ...`.

    A step says how many words it has, so no word of a user's command can be taken for an option.

    :raises JobSideError: the script and this fleetctl do not fit together.
    """
    words = iter(argv)
    single: dict[str, str] = {}
    needs: list[str] = []
    steps: list[Step] = []
    try:
        for word in words:
            if word == "--step":
                name, count = next(words), int(next(words))
                steps.append(Step(name, tuple(next(words) for _ in range(count))))
            elif word == "--needs":
                needs.append(next(words))
            elif word in ("--run-dir", "--submission", "--env-file"):
                single[word] = next(words)
            else:
                raise ValueError(word)
        run_dir, submission = single["--run-dir"], int(single["--submission"])
    except (StopIteration, RuntimeError, KeyError, ValueError) as error:
        raise JobSideError(f"the batch script does not fit this fleetctl ({error!r})") from None
    if not steps:
        raise JobSideError("the batch script names no step")
    return Order(run_dir, submission, single.get("--env-file"), tuple(needs), tuple(steps))


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
    )


def step_nodes(environ: Mapping[str, str], index: int) -> str:
    """Slurm's host list of the step's component: the hetjob's group `index`, or the whole job."""
    return environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{index}") or environ.get("SLURM_JOB_NODELIST", "")


def exit_status(codes: Sequence[int]) -> int:
    """The status of the first step that failed, in a shell's way: 128 + signal for a killed one."""
    failed = next((code for code in codes if code), 0)
    return 128 - failed if failed < 0 else failed
