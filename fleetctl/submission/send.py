"""One sbatch, exactly once: announced on disk before it starts, its answer in files, and settled when it is lost.

`submit` and `requeue` both come here, while they hold the lock of the spec.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fleetctl.errors import CannotTell, FleetctlError, RunDirError, SlurmRefused, SlurmUnreachable
from fleetctl.rundir import files
from fleetctl.rundir.model import EventKind, SubmissionState, comment_of
from fleetctl.rundir.store import EventLog, RunDir
from fleetctl.rundir.view import RunState
from fleetctl.slurm.model import Accepted, NotSent, Refused, SubmitAnswer, Unknown
from fleetctl.submission.known import Submitted, unknown_error

if TYPE_CHECKING:
    from fleetctl.submission.submit import Site

_LOOK_AGAIN_S = (0.0, 1.0, 2.0, 4.0, 8.0)  # after an sbatch without answer: the job is usually there within seconds


def announce(run: RunDir, number: int, script: str, log: EventLog, site: Site) -> None:
    """Submission `number` with its script and its intent, on disk: from now on there may be a job.

    A script without an intent was left by somebody who died before anything was sent, and is replaced.
    :raises RunDirError: it could not be written.
    """
    with files.explained(run.path, "write"):
        run.submission_dir(number).mkdir(exist_ok=True)
        files.replace_file(run.script(number), script)
    log.append(site.clock.now(), EventKind.INTENT, submission=number, comment=comment_of(run.run_id, number))


def send(run: RunDir, number: int, workdir: Path, log: EventLog, site: Site) -> Submitted:
    """Start sbatch for the announced submission and settle its answer.

    :raises SlurmRefused: Slurm said no.
    :raises SubmissionUnknown: sbatch gave no answer; the same call again settles it and never makes a second job.
    :raises SlurmUnreachable: the controller does not answer; nothing was submitted.
    """
    return _settle_answer(_sbatch(run, number, workdir, log, site), run, number, log, site)


def _sbatch(run: RunDir, number: int, workdir: Path, log: EventLog, site: Site) -> SubmitAnswer:
    """Start sbatch and wait for it. What keeps it from starting at all is written down as a refusal."""
    folder, script = run.submission_dir(number), run.script(number)
    try:
        return site.slurm.submit(script, stdout=folder / "sbatch.out", stderr=folder / "sbatch.err", cwd=workdir)
    except CannotTell:  # it ran, and its answer cannot be read: open
        raise
    except (FleetctlError, OSError) as error:
        text = f"sbatch could not be started: {error}"
        log.append(site.clock.now(), EventKind.REFUSED, submission=number, code=1, text=text)
        if isinstance(error, OSError):
            raise RunDirError(text) from None
        raise
    except KeyboardInterrupt:
        site.note(f"sbatch goes on by itself and its answer is kept: `fleetctl resolve {run.run_id}` reads it")
        raise


def _settle_answer(answer: SubmitAnswer, run: RunDir, number: int, log: EventLog, site: Site) -> Submitted:
    now = site.clock.now()
    match answer:
        case Accepted(job_id):
            try:
                cluster = job_id.cluster
                how = "sbatch's answer"
                log.append(now, EventKind.SUBMITTED, submission=number, job_id=str(job_id), how=how, cluster=cluster)
            except RunDirError as error:  # the job exists: say so whatever happens to the record
                site.note(f"{error.message}; the job is submitted all the same")
            return Submitted(run.run_id, str(job_id), True, RunState.PENDING)
        case Refused(code, text):
            log.append(now, EventKind.REFUSED, submission=number, code=code, text=text)
            raise SlurmRefused(code, text)
        case NotSent(text):
            log.append(now, EventKind.REFUSED, submission=number, code=1, text=text)
            raise SlurmUnreachable(f"nothing was submitted: {text}", remedy="submit again when the controller is back")
        case Unknown(text):
            log.append(now, EventKind.UNKNOWN, submission=number, text=text)
            return _look_again(run, text, site)


def _look_again(run: RunDir, text: str, site: Site) -> Submitted:
    """sbatch gave no answer; the job mostly exists. Positive evidence is safe to use at once, its absence is not."""
    site.note(f"sbatch gave no answer ({text}); looking for the job")
    why = text
    for pause_s in _LOOK_AGAIN_S:
        site.clock.sleep(pause_s)
        try:
            settled = site.settler.settle(run)
        except SlurmUnreachable as error:  # asking again would only keep the user waiting
            raise unknown_error(run, error.message) from None
        if settled.doubt is None:
            break
        why = settled.doubt.why
    else:
        raise unknown_error(run, why)
    history = settled.history
    if history.state is SubmissionState.REFUSED or history.job_id is None:
        raise SlurmRefused(1, history.detail)
    return Submitted(run.run_id, history.job_id, True, RunState.PENDING)
