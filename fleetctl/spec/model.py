"""What a `train.yaml` says, as frozen values. Defaults, limits and descriptions are here and nowhere else.

The YAML key is the field's name. A field that was not given and has no default is None: it emits no line.
The loader, the JSON Schema and docs/spec.md read the `Meta` of each field; `extra["expected"]` words its pattern.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from fleetctl.units import Duration, MemorySize


class Launcher(StrEnum):
    """How the command is started on the nodes."""

    SRUN = "srun"  # one copy per task
    TORCHRUN = "torchrun"  # one torchrun per node, rendezvous on the first
    COMMAND = "command"  # once, on the first node; it calls srun itself


class ContainerRuntime(StrEnum):
    """What starts the container."""

    PYXIS = "pyxis"  # srun --container-image, a SPANK plugin
    APPTAINER = "apptainer"


class CheckpointFormat(StrEnum):
    """What the training writes; `auto` recognises it on disk."""

    AUTO = "auto"
    OWN = "own"  # fleetctl.train.Checkpointer
    TORCH_DCP = "torch_dcp"
    TORCH = "torch"
    SAFETENSORS = "safetensors"
    HUGGINGFACE = "huggingface"
    ACCELERATE = "accelerate"
    LIGHTNING = "lightning"
    DEEPSPEED = "deepspeed"
    MEGATRON = "megatron"
    ORBAX = "orbax"
    TORCHTITAN = "torchtitan"


class CheckpointLoad(StrEnum):
    """Where a new run starts from."""

    LATEST = "latest"  # the last valid checkpoint in `dir`, else from scratch
    NONE = "none"  # from scratch


class CheckpointVerify(StrEnum):
    """How deep a start looks before it resumes from a checkpoint."""

    STRUCTURE = "structure"  # sizes, headers, names: nothing is read in full
    CONTENT = "content"  # every byte, so far as the format has checksums


class CheckpointTell(StrEnum):
    """How the training is told which checkpoint to load, beside FLEETCTL_RESUME_PATH and FLEETCTL_RESUME_STEP."""

    ENVIRONMENT = "environment"  # in no other way
    ARGUMENTS = "arguments"  # words of the framework's own are appended to the command
    POINTER = "pointer"  # the file in which the framework keeps the name of the newest one is rewritten


class Auto(StrEnum):
    """In place of a value that fleetctl computes."""

    AUTO = "auto"


class HealthCheck(StrEnum):
    """A check of a node before the run starts on it."""

    NVLINK = "nvlink"
    ECC = "ecc"
    PCIE = "pcie"
    INFINIBAND = "infiniband"
    XID = "xid"


# Slurm keeps counts in 32 bits and reserves the highest values (slurm.h: INFINITE, NO_VAL).
MAX_COUNT = 2**31 - 1
# time_str2secs in Slurm's parse_time.c counts in a C int; this many days still fit after rounding up to a minute.
MAX_DURATION = Duration(24_855 * 86_400)

# What becomes an #SBATCH line or a path keeps to one line: no C0, DEL or C1 character and no Unicode line break.
Line = Annotated[
    str,
    Meta(
        pattern="^[^\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]+$",
        extra={"expected": "text on one line, not empty and without control characters"},
    ),
]
Program = Annotated[str, Meta(pattern=r"^[\s\S]*\S[\s\S]*$", extra={"expected": "text that is not empty"})]
Arguments = Annotated[tuple[str, ...], Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
EnvName = Annotated[
    str,
    Meta(
        pattern="^[A-Za-z_][A-Za-z0-9_]*$",
        extra={"expected": "the name of an environment variable (letters, digits and _)"},
    ),
    Meta(
        pattern=r"^(?!SLURM_|SBATCH_|FLEETCTL_)[\s\S]*$",
        extra={"expected": "a name that does not start with SLURM_, SBATCH_ or FLEETCTL_: these are reserved"},
    ),
]
RunName = Annotated[
    Line,
    Meta(max_length=64, pattern="^[^/]*$", extra={"expected": "a name of at most 64 characters, without /"}),
]
GroupName = Annotated[
    Line,
    Meta(
        pattern="^[A-Za-z][A-Za-z0-9_-]*$",
        extra={"expected": "a name of letters, digits, - and _, starting with a letter"},
    ),
]
# It stands between colons in --gres=gpu:TYPE:COUNT.
GpuType = Annotated[
    Line,
    Meta(pattern="^[A-Za-z0-9_.+-]+$", extra={"expected": "a GPU type of letters, digits, _ . + and -, such as h100"}),
]
HostList = Annotated[
    Line,
    Meta(
        pattern=(
            r"^(?:[A-Za-z0-9_.-]|\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\])+"
            r"(?:,(?:[A-Za-z0-9_.-]|\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\])+)*$"
        ),
        extra={"expected": "a Slurm host list such as node7 or node[01-04,9]"},
    ),
]
# A comma would end the mount: it separates mounts in --container-mounts (pyxis) and --bind (apptainer).
Mount = Annotated[
    Line,
    Meta(
        pattern="^[^:,]+(?::[^:,]+(?::(?:ro|rw))?)?$",
        extra={"expected": "SRC, SRC:DST or SRC:DST:ro, without a comma"},
    ),
]


class Resources(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one component asks of Slurm."""

    nodes: Annotated[Count, Meta(description="Nodes that the training uses.")] = 1
    spare_nodes: Annotated[
        int, Meta(ge=0, le=MAX_COUNT, description="Nodes beside them, kept warm for when one of them dies.")
    ] = 0
    gpus_per_node: Annotated[int, Meta(ge=0, le=MAX_COUNT, description="GPUs on each node.")] = 0
    gpu_type: Annotated[GpuType | None, Meta(description="The GPUs' type, as the site's Slurm names it.")] = None
    cpus_per_task: Annotated[Count | None, Meta(description="CPU cores for each task.")] = None
    tasks_per_node: Annotated[
        Count | None, Meta(description="Tasks on each node; not given: one per GPU under `launch: srun`, else one.")
    ] = None
    memory: Annotated[MemorySize | None, Meta(description="Memory of each node; powers of 1024.")] = None
    time: Annotated[Duration | None, Meta(description="Time limit of the job.")] = None
    partition: Annotated[Line | None, Meta(description="Partition, or several with commas.")] = None
    account: Annotated[Line | None, Meta(description="Account to charge.")] = None
    qos: Annotated[Line | None, Meta(description="Quality of service.")] = None
    reservation: Annotated[Line | None, Meta(description="Reservation to run in.")] = None
    constraint: Annotated[Line | None, Meta(description="Features that the nodes must have.")] = None
    exclude: Annotated[HostList | None, Meta(description="Nodes to stay away from, a Slurm host list.")] = None
    switches: Annotated[
        Line | None, Meta(description="Most leaf switches to span, and how long to wait for them: `1` or `1@2h`.")
    ] = None


class Container(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The container that the command runs in."""

    image: Annotated[Line, Meta(description="Image: a path, or a name that the runtime can fetch.")]
    runtime: Annotated[ContainerRuntime, Meta(description="What starts the container.")] = ContainerRuntime.PYXIS
    mounts: Annotated[tuple[Mount, ...], Meta(description="Folders to mount, each `SRC[:DST[:ro|rw]]`.")] = ()
    workdir: Annotated[Line | None, Meta(description="Working directory inside the container.")] = None


class Checkpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the training saves its state."""

    dir: Annotated[Line, Meta(description="Folder of the checkpoints.")]
    format: Annotated[CheckpointFormat, Meta(description="What the training writes; `auto` recognises it on disk.")] = (
        CheckpointFormat.AUTO
    )
    interval: Annotated[
        Duration | Auto | None,
        Meta(description="Time between two checkpoints; `auto`: by what a save costs and how often nodes fail."),
    ] = None
    # At least 2: the newest two valid checkpoints are never deleted.
    keep: Annotated[
        int | None, Meta(ge=2, le=MAX_COUNT, description="Newest checkpoints to keep; not given: all of them.")
    ] = None
    keep_every: Annotated[
        Duration | None, Meta(description="Of the checkpoints older than those of `keep`, keep one in each such time.")
    ] = None
    load: Annotated[
        CheckpointLoad,
        Meta(description="Where a new run starts from: the `latest` valid checkpoint in `dir`, or `none`: scratch."),
    ] = CheckpointLoad.LATEST
    verify: Annotated[
        CheckpointVerify,
        Meta(description="How deep a start looks before it resumes: `structure`, or `content`, which reads all of it."),
    ] = CheckpointVerify.STRUCTURE
    tell: Annotated[
        CheckpointTell,
        Meta(
            description="How the training is told what to load: only by its `environment`, also by `arguments` of its "
            "framework, or by its framework's `pointer` file."
        ),
    ] = CheckpointTell.ENVIRONMENT


class Recovery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may bring the run back."""

    requeue: Annotated[
        bool | None, Meta(description="Whether Slurm may requeue it; not given: only a run that checkpoints.")
    ] = None
    chain: Annotated[bool, Meta(description="Save and requeue before the time limit.")] = False
    max_failures: Annotated[
        Count, Meta(description="Give up after so many same failures without a newer valid checkpoint.")
    ] = 3
    canary: Annotated[
        bool, Meta(description="Go back to an older checkpoint where the losses after a resume are worse than before.")
    ] = False
    daemon: Annotated[bool, Meta(description="Whether a recovery daemon may do anything to the run.")] = True


class Health(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which node checks this run asks for."""

    checks: Annotated[
        tuple[HealthCheck, ...], Meta(description="Checks of each node before the run starts on it.")
    ] = ()


class Sweep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One array element per combination of the parameters' values; each is an environment variable."""

    parameters: Annotated[
        dict[EnvName, Annotated[tuple[str, ...], Meta(min_length=1)]],
        Meta(min_length=1, description="Environment variables, each with its values."),
    ]
    max_parallel: Annotated[Count | None, Meta(description="Most elements that run at one time.")] = None


class Group(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One component of a hetjob. Resources that it does not name come from the spec's own."""

    name: Annotated[GroupName, Meta(description="Name of the group, unique in the run.")]
    resources: Annotated[Resources, Meta(description="What differs from the resources of the run.")] = Resources()
    launch: Annotated[Launcher, Meta(description="How the command is started on the nodes.")] = Launcher.SRUN
    command: Annotated[
        Program | Arguments | None,
        Meta(description="Text for the task's bash, or a list that runs as it stands."),
    ] = None
    script: Annotated[Program | None, Meta(description="Lines for bash, one copy per task.")] = None
    env: Annotated[dict[EnvName, str], Meta(description="Environment of this group, over that of the run.")] = {}


class Spec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run, as its user wrote it. Exactly one of `command` and `script`, or `groups` which have their own."""

    name: Annotated[RunName, Meta(description="Name of the run, also the job's name.")]
    resources: Annotated[Resources, Meta(description="What the run asks of Slurm.")] = Resources()
    launch: Annotated[Launcher, Meta(description="How the command is started on the nodes.")] = Launcher.SRUN
    command: Annotated[
        Program | Arguments | None,
        Meta(description="Text for the task's bash, or a list that runs as it stands."),
    ] = None
    script: Annotated[Program | None, Meta(description="Lines for bash, one copy per task.")] = None
    env: Annotated[dict[EnvName, str], Meta(description="Environment variables.")] = {}
    env_file: Annotated[
        Line | None,
        Meta(description="File of KEY=VALUE lines, mode 0600, read on the node when the run starts: for secrets."),
    ] = None
    modules: Annotated[tuple[Line, ...], Meta(description="Environment modules to load.")] = ()
    container: Annotated[Container | None, Meta(description="Container that the command runs in.")] = None
    workdir: Annotated[Line | None, Meta(description="Working directory; not given: the folder of the spec file.")] = (
        None
    )
    checkpoint: Annotated[Checkpoint | None, Meta(description="Where the training saves its state.")] = None
    recovery: Annotated[Recovery, Meta(description="What may bring the run back.")] = Recovery()
    health: Annotated[Health, Meta(description="Node checks that the run asks for.")] = Health()
    groups: Annotated[
        tuple[Group, ...],
        Meta(
            description="Components of a heterogeneous job, two or more; they start together.",
            extra_json_schema={"minItems": 2},
        ),
    ] = ()
    sweep: Annotated[Sweep | None, Meta(description="A job array over combinations of values.")] = None
    depends_on: Annotated[tuple[Line, ...], Meta(description="Runs that must have finished well before.")] = ()
