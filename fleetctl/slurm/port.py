"""The one way to Slurm: domain verbs, each with its contract.

Every method may raise SlurmMissing (no Slurm commands here), and SlurmUnreachable (nothing is known; ask later).
A reply that cannot be read raises CannotTell. An empty result always means that Slurm answered and there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from fleetctl.slurm.allocation import Allocation, Step
from fleetctl.slurm.model import AdminLevel, Job, JobId, JobRecord, Node, Partition, Reservation, SubmitAnswer


class Slurm(Protocol):
    """A Slurm cluster. Reads may be repeated at will; `submit` and what changes a job may not."""

    def version(self) -> str:
        """The version of the commands on this machine, such as `22.05.8`. Contacts no daemon."""
        ...

    def ping(self) -> None:
        """Returns when a controller answers.

        :raises SlurmUnreachable: none does.
        """
        ...

    def submit(
        self, script: Path, *, stdout: Path, stderr: Path, cwd: Path, extra_args: Sequence[str] = ()
    ) -> SubmitAnswer:
        """Submit `script` once, from `cwd`; **not** idempotent, never repeated by a wrapper.

        What the submitting command printed is written to `stdout` and `stderr` as it comes, which must not exist yet:
        `parse.classify_submit` can read them again after our own death. The job inherits the caller's environment
        without the variables of another Slurm job. Every outcome is a value: a time-out is Unknown, not an error.
        """
        ...

    def jobs(self, *, user: str | None = None, ids: Sequence[JobId] = ()) -> tuple[Job, ...]:
        """The controller's jobs, ended ones included until it forgets them (MinJobAge), in one query.

        With `ids`, only those: an array's or hetjob's id means all of it; an id that Slurm does not know is absent.
        With `user`, only that user's.
        :raises SlurmRefused: for one, no such user.
        """
        ...

    def starts(self, *, user: str | None = None) -> tuple[Job, ...]:
        """As `jobs`, each with its `restarts`, so that it is known which start of a job is meant: two queries.

        The restarts are asked for first: a job that begins again in between has None, never a later start's number.
        :raises SlurmRefused: for one, no such user.
        """
        ...

    def history(self, *, since: datetime, user: str | None = None, ids: Sequence[JobId] = ()) -> tuple[JobRecord, ...]:
        """Accounting records of jobs in any state since `since`: one per run, so a requeued job has several.

        Without `user`, of every user that the caller may see.
        :raises SlurmRefused: this cluster keeps no accounting, or no such user.
        """
        ...

    def nodes(self) -> tuple[Node, ...]:
        """Every node, hidden partitions' included."""
        ...

    def address(self, node: str) -> str:
        """The name or address at which `node` is reached (slurm.conf.5, NodeAddr).

        :raises SlurmRefused: no such node.
        """
        ...

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition, hidden ones included."""
        ...

    def reservations(self) -> tuple[Reservation, ...]:
        """Every reservation that has not ended."""
        ...

    def config(self) -> Mapping[str, str]:
        """The controller's configuration, names as in slurm.conf; a setting that is not set is an empty text."""
        ...

    def admin_level(self, user: str) -> AdminLevel:
        """What accounting lets `user` do; NONE also for a user that it does not have.

        :raises SlurmRefused: this cluster keeps no accounting.
        """
        ...

    def cancel(self, job_id: JobId) -> None:
        """Ask for the end of a job, an array element or a whole hetjob. Idempotent; returns before the job ended.

        :raises JobUnknown: Slurm does not know it, or it has ended already: nothing was cancelled.
        :raises SlurmRefused: not the caller's job, or one component of a pending hetjob.
        """
        ...

    def allocation(self, job_id: JobId) -> Allocation:
        """What one job, array element or hetjob component holds now, and how often it has begun again.

        A plain number is the row that has it as its own: of an array that is its last element, of a hetjob its leader.
        :raises JobUnknown: Slurm does not know it (any more).
        """
        ...

    def gpus(self, job: Job) -> int | None:
        """The GPUs that a row of `jobs` really has, 0 for none; None: no nodes, or it cannot be told. One query.

        :raises JobUnknown: Slurm does not know it (any more).
        """
        ...

    def steps(self, job_id: JobId) -> tuple[Step, ...]:
        """The steps of a job that have not ended, the batch script's among them; of an array's id, of all elements.

        A hetjob's id means its leader. No steps is also the answer for a job that Slurm does not know. A step whose
        srun died with its node goes on, and one that spans a dead node stays here until that node is DOWN or back.
        """
        ...

    def endpoints(self, nodes: Sequence[str]) -> Mapping[str, tuple[str, int]]:
        """Where the slurmd of each node is reached: (NodeAddr, port), in one query.

        :raises SlurmRefused: no such node, one at least.
        """
        ...

    def requeue(self, job_id: JobId) -> None:
        """Ask that a job that is alive runs again from its start. Ended jobs stay ended, cancelled ones too.

        **No error does not mean that it was requeued**: Slurm says yes and does nothing when the job is pending, has
        ended, or is requeued already. Compare `allocation(job_id).restarts` with what it was: it rises at once.
        Never while a node of the job is unresponsive and not yet DOWN: the job would come back without its GPUs
        (22.05.8). The job begins no sooner than its epilog's end and 1 s more than the credentials' life (121 s).
        For an array's id, every element that runs is asked.
        :raises JobUnknown: Slurm does not know it.
        :raises SlurmRefused: not the caller's job, not a batch job, or `--no-requeue`.
        """
        ...

    def requeue_ended(self, job_id: JobId) -> None:
        """Run an ended job again. **This brings CANCELLED jobs back to life**: Slurm asks nothing.

        Only for a job that the caller has read as FAILED, TIMEOUT, NODE_FAIL or OUT_OF_MEMORY immediately before, with
        no flag: during its epilog a cancelled job reads COMPLETING or COMPLETED. Never for anything else, and never
        for an array's id, where every ended element would come back. For what is alive there is `requeue`.
        :raises JobUnknown: Slurm does not know it (any more: MinJobAge).
        :raises SlurmRefused: it is pending, not the caller's, not a batch job, or `--no-requeue`.
        """
        ...

    def set_excluded(self, job_id: JobId, nodes: str) -> None:
        """Make `nodes`, a host list, the nodes that a pending job may not use. Replaces what was there; empty clears.

        Every node excluded is accepted: the job then waits for ever (BadConstraints).
        :raises JobUnknown: Slurm does not know it.
        :raises SlurmRefused: it is not pending, nor COMPLETING after a requeue, not the caller's, or no such node.
        """
        ...

    def start_now(self, job_id: JobId) -> None:
        """Let a pending job begin as soon as it has its nodes, without the rest of its BeginTime.

        While the job is COMPLETING after a requeue Slurm says yes, and forgets it. Only after every old node has ended
        its epilog or is proved dead: BeginTime is what keeps two attempts apart.
        :raises JobUnknown: Slurm does not know it.
        :raises SlurmRefused: it runs or has ended, or is not the caller's.
        """
        ...

    def drain(self, node: str, reason: str) -> None:
        """Let no more job start on a node; those that run there go on. Whatever reason stands there is replaced.

        So the caller looks at the node just before: another's drain, and another's reason, are left alone. For the
        Administrator level alone (an Operator hears "Invalid user id"). Idempotent.
        :raises SlurmRefused: not allowed, or no such node.
        """
        ...

    def down(self, node: str, reason: str) -> None:
        """Call a node dead: Slurm ends all that runs there at once, and requeues what may be requeued.

        Only of a node whose death is proved: tasks that live on there go on writing. While it answers, Slurm takes it
        back by itself, as ReturnToService says. Rights and reason as of `drain`.
        :raises SlurmRefused: not allowed, or no such node.
        """
        ...

    def resume(self, node: str) -> None:
        """End a drain, or a DOWN, and forget its reason. Only for one that the caller set, and has just read so.

        :raises SlurmRefused: not allowed, no such node, or one that is neither drained nor down.
        """
        ...

    def kill_step(self, step_id: str) -> None:
        """SIGKILL every task of a numbered step (`Step.id`), at once, and end its `srun` if that lives.

        Returns before the step is gone. Tried on 22.05.8 with tasks that ignore SIGTERM: all of them on living nodes
        were dead within 0.1 s, with the srun alive or killed, and with a dead node in the step (the first node, too).
        Such a step stays in `steps` until that node is DOWN or back, and its srun ends 7 s later.
        :raises ValueError: not the id of a numbered step; `12` would be the whole job. Nothing was done.
        :raises JobUnknown: there is no such step (any more). Of a pending job Slurm says yes.
        :raises SlurmRefused: not the caller's job.
        """
        ...
