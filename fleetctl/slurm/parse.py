"""What sbatch and the other commands said, read without touching the world.

Two rules: stdout and stderr are never mixed, and a text that we do not recognise proves nothing.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from fleetctl.errors import CannotTell, FleetctlError, JobUnknown, SlurmRefused, SlurmUnreachable
from fleetctl.slurm.model import Accepted, JobId, NotSent, Refused, Reservation, SubmitAnswer, Unknown
from fleetctl.slurm.wording import COMMUNICATION, CONNECT_FAILURE, REFUSALS

_SUBMITTED = re.compile(r"Submitted batch job ([0-9]{1,10})(?: on cluster (\S+))?", re.ASCII)
_PARSABLE = re.compile(r"([0-9]{1,10})(?:;(\S+))?", re.ASCII)

# coreutils timeout(1): 124 it timed out, 137 it had to KILL; a shell reports a signal as 128 + its number.
_TIMED_OUT = 124
_FIRST_SIGNAL_STATUS = 129
_OPTION_ERROR = 255  # sbatch.c, opt.c: exit(-1) on a bad option or directive, before any contact

# Texts, compiled when a command has failed: compiling them at import would cost every command.
_FAILED = r"(?m)^.*?Batch job submission failed: (.*)$"
_PREFIX = r"^(?:sbatch|scancel|scontrol|squeue|sacct|sinfo): (?:error: |fatal: )?"
# What sbatch says and then exits, before it contacts a controller (sbatch.c, opt.c, slurm_opt.c; run on 22.05.8).
_LOCAL = (
    r"(?i)^sbatch: (?:fatal: "
    r"|unrecognized option|invalid option|option '|option requires an argument|ambiguous option"
    r"|error: (?:Unable to open file|Batch script |This does not look like a batch script|The Slurm controller does not"
    r"|Invalid |Unable to parse|Failed to validate job spec|Script arguments not permitted|Bad value for"
    r"|--?[a-z-]+ |cli_filter plugin terminated|.*is an invalid entry for --cluster))"
)
_NOT_STARTED = r"(?m)^timeout: failed to run command "
_UNSPECIFIED = "Unspecified error"  # SLURM_ERROR: what most job_submit plugins return, and some unknown failures

_NO_RESERVATIONS = "No reservations in the system"
_RESERVATION = (
    r"(?m)^ReservationName=(.+?) StartTime=([0-9]{1,11}) EndTime=([0-9]{1,11}) .*?\bNodes=(\S*) .*?\bFlags=(\S*)"
)
_UNKNOWN_JOB = ("Invalid job id specified", "Invalid job id:", "Job/step already completing or completed")
_NO_CONTACT = ("cannot stat file", "Could not establish a configuration source")
_TEXT_LIMIT = 1000  # characters of Slurm's words that we keep in a message


def parse_pending_tasks(text: str) -> str:
    """The array expression of `123_[0-9%2]`, else an empty text."""
    return text[text.index("[") + 1 : -1] if "[" in text and text.endswith("]") else ""


def parse_sbatch_id(stdout: str) -> JobId | None:
    """The id on sbatch's stdout, among whatever a site's wrapper prints there; None means unknown, never failed.

    The last line that is `Submitted batch job N[ on cluster C]`, else the last that is `N[;C]`.
    """
    lines = [line.strip() for line in reversed(stdout.splitlines())]
    for form in (_SUBMITTED, _PARSABLE):
        for line in lines:
            if (match := form.fullmatch(line)) is not None and int(match[1]) > 0:
                try:
                    return JobId.parse(f"{int(match[1])};{match[2]}" if match[2] else str(int(match[1])))
                except ValueError:
                    continue
    return None


def classify_submit(returncode: int, stdout: str, stderr: str) -> SubmitAnswer:
    """What an ended sbatch proves. An id wins over any status; what is not recognised is Unknown.

    `returncode` is that of `timeout ... sbatch ...`, negative for a signal.
    """
    if (job_id := parse_sbatch_id(stdout)) is not None:
        return Accepted(job_id)
    text = one_line(stderr) or f"sbatch said nothing and ended with status {returncode}"
    if returncode == 0 or _was_killed(returncode):
        return Unknown(text)
    if re.search(_NOT_STARTED, stderr):
        return Refused(returncode, text)
    failures = re.findall(_FAILED, stderr)
    if _mentions_communication(stderr):
        # A time-out before it would mean that sbatch, or a site's wrapper, had tried more than once.
        only_connects = failures and all(failure.strip() == CONNECT_FAILURE for failure in failures)
        if only_connects and not _mentions_communication(stderr.replace(CONNECT_FAILURE, "")):
            return NotSent(text)
        return Unknown(text)
    return Refused(returncode, text) if _is_refusal(returncode, stderr, failures) else Unknown(text)


def command_error(returncode: int, stdout: str, stderr: str) -> FleetctlError:
    """The error that a failed squeue, sacct, sinfo, scontrol or scancel stands for.

    Slurm answered: SlurmRefused, or JobUnknown when it does not know the job. It did not: SlurmUnreachable.
    """
    said = f"{stderr}\n{stdout}"
    text = one_line(stderr) or one_line(stdout) or f"no message, exit status {returncode}"
    if _mentions_communication(said) or any(words in said for words in _NO_CONTACT) or "is DOWN" in stdout:
        return SlurmUnreachable(f"Slurm does not answer: {text}")
    if _was_killed(returncode):
        return SlurmUnreachable(f"the command was killed (status {returncode}): {text}")
    if any(words in said for words in _UNKNOWN_JOB):
        return JobUnknown(f"Slurm does not know this job: {text}")
    return SlurmRefused(returncode, text)


def parse_config(text: str) -> dict[str, str]:
    """The `Key = value` lines of `scontrol show config`, later sections included; `(null)` is an empty text.

    :raises CannotTell: it is no such reply.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        key = key.strip()
        if equals and key and " " not in key:
            value = value.strip()
            found.setdefault(key, "" if value in {"(null)", "(null type)"} else value)
    if "SLURM_VERSION" not in found:
        raise CannotTell("scontrol show config: the reply names no SLURM_VERSION")
    return found


def parse_reservations(text: str) -> tuple[Reservation, ...]:
    """Lines of `scontrol --oneliner show reservation`, times in epoch seconds. What follows the flags is not read: an
    operator may write anything there, a newline too.

    :raises CannotTell: it is no such reply.
    """
    if text.strip() == _NO_RESERVATIONS:
        return ()
    found = re.findall(_RESERVATION, text)
    if not found or len(found) != len(re.findall(r"(?m)^ReservationName=", text)):
        raise CannotTell(f"scontrol show reservation: the reply cannot be read: {text[:80]!r}")
    return tuple(
        Reservation(
            name=name,
            node_list="" if nodes == "(null)" else nodes,
            starts_at=datetime.fromtimestamp(int(start), UTC),
            ends_at=datetime.fromtimestamp(int(end), UTC),
            flags=frozenset(flags.split(",")),
        )
        for name, start, end, nodes, flags in found
    )


def one_line(text: str) -> str:
    """Slurm's own words on one line: prefixes and repeats gone, control characters blanked, bounded."""
    kept: list[str] = []
    for line in text.splitlines():
        line = re.sub(_PREFIX, "", line.strip())
        line = "".join(char if char.isprintable() else " " for char in line).strip()
        if line and line not in kept:
            kept.append(line)
    joined = "; ".join(kept)
    return joined if len(joined) <= _TEXT_LIMIT else joined[: _TEXT_LIMIT - 4] + " ..."


def _was_killed(returncode: int) -> bool:
    return returncode < 0 or returncode == _TIMED_OUT or _FIRST_SIGNAL_STATUS <= returncode < _OPTION_ERROR


def _mentions_communication(text: str) -> bool:
    lowered = text.lower()
    return any(words.lower() in lowered for words in COMMUNICATION)


def _is_refusal(returncode: int, stderr: str, failures: list[str]) -> bool:
    lines = [line.strip() for line in stderr.splitlines()]
    if failures:
        words = failures[-1].strip()
        site_spoke = any(line.startswith("sbatch: error: ") and not re.match(_FAILED, line) for line in lines)
        return words in REFUSALS or (words == _UNSPECIFIED and site_spoke)
    return returncode in {1, _OPTION_ERROR} and any(re.match(_LOCAL, line) for line in lines)
