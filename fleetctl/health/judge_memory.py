"""The memory of the GPUs: error correction, remapped rows, retired pages, size and use. Pure.

The driver's own verdicts close a node (a row that waits or failed to be remapped, the SRAM threshold, the recovery
action); counters that only grow in a GPU's life do not.
"""

from __future__ import annotations

from typing import Optional

from fleetctl.health.findings import Findings, Scene, failed, gpu_part, mig_on, number, passed, plain, unread, untold
from fleetctl.health.model import Care, Gpu, Phase
from fleetctl.health.record import NamedTuple

_MIB = 1 << 20


class Counted(NamedTuple):
    """A value that must not pass a limit. `most` is a name in LIMITS, or None for 0; `words` say what is wrong."""

    check: str
    key: str
    what: str
    most: Optional[str]
    words: str
    care: Care
    unit: str = ""


COUNTED = (
    Counted(
        "row_remap_pending",
        "remap_pending",
        "pending row remapping",
        None,
        "a row of the memory of {gpu} waits to be remapped: reset the GPU",
        Care.RESET,
    ),
    Counted(
        "row_remap_failure",
        "remap_failure",
        "row remapping failure",
        None,
        "row remapping has failed on {gpu}: the GPU must be replaced",
        Care.HUMAN,
    ),
    Counted(
        "row_remap_count",
        "remap_uncorrected",
        "remapped rows",
        "rows_remapped",
        "{gpu} has {value} rows remapped for uncorrected errors, more than {most}",
        Care.HUMAN,
        "rows",
    ),
    Counted(
        "ecc_sram",
        "sram_threshold",
        "SRAM error threshold",
        None,
        "{gpu} has passed NVIDIA's limit of SRAM errors: it must be tested or replaced",
        Care.HUMAN,
    ),
    Counted(
        "sram_uncorrected",
        "sram_uncorrected",
        "uncorrected SRAM errors",
        "sram_uncorrected",
        "{gpu} has had {value} uncorrected SRAM errors in its life, more than {most}",
        Care.WATCH,
        "errors",
    ),
    Counted(
        "ecc_corrected",
        "ecc_corrected_volatile",
        "corrected memory errors",
        "ecc_corrected",
        "{gpu} corrected {value} memory errors since the driver was loaded, more than {most}",
        Care.WATCH,
        "errors",
    ),
    Counted(
        "retired_pending",
        "retired_pending",
        "pending page retirement",
        None,
        "a page of the memory of {gpu} waits to be retired: reset the GPU",
        Care.RESET,
    ),
)


def judge_memory(gpu: Gpu, scene: Scene) -> Findings:
    """All about the memory of one GPU."""
    found = [one for row in COUNTED for one in _counted(row, gpu, scene)]
    for judged in (_ecc_mode, _uncorrected, _retired, _total, _in_use):
        found += judged(gpu, scene)
    return tuple(found)


def _counted(row: Counted, gpu: Gpu, scene: Scene) -> Findings:
    read = gpu.reads.get(row.key)
    if read is None and not _asked(row.check, scene):
        return ()
    value = number(read)
    if value is None:
        return (unread(row.check, gpu, row.what, read),)
    most = 0 if row.most is None else scene.rules.limit(row.most)
    part = gpu_part(gpu)
    if value <= most:
        return (passed(row.check, part, f"{row.what} of {part.subject}: {plain(value)}", value, most, row.unit),)
    words = row.words.format(gpu=part.subject, value=plain(value), most=plain(most))
    return (failed(row.check, part, words, row.care, value, most, row.unit),)


def _asked(check: str, scene: Scene) -> bool:
    """The prolog does not ask about retired pages: that NVML did not tell is no answer there."""
    return scene.asked.phase is not Phase.PROLOG or not check.startswith("retired")


def _ecc_mode(gpu: Gpu, scene: Scene) -> Findings:
    """Off where the profile says on is a fault; off where nothing is said may be somebody's wish."""
    part, wanted = gpu_part(gpu), scene.profile.ecc
    mode, pending = number(gpu.reads.get("ecc_mode")), number(gpu.reads.get("ecc_pending"))
    if mode is None:
        return (unread("ecc_mode", gpu, "the ECC mode", gpu.reads.get("ecc_mode")),)
    expected = None if wanted is None else int(wanted)
    if mode != 1 and wanted is not False:
        words = f"error correction is off on {part.subject}"
        return (failed("ecc_mode", part, words, Care.DRAIN if wanted else Care.WATCH, mode, expected),)
    if mode == 1 and pending == 0:
        words = f"error correction of {part.subject} will be off after its next reset"
        return (failed("ecc_mode", part, words, Care.WATCH, mode, expected),)
    state = "on" if mode == 1 else "off"
    return (passed("ecc_mode", part, f"error correction is {state} on {part.subject}", mode, expected),)


def _uncorrected(gpu: Gpu, scene: Scene) -> Findings:
    """Uncorrected errors alone are contained by the driver; with its own verdict beside them the GPU must be reset."""
    read, part = gpu.reads.get("ecc_uncorrected_volatile"), gpu_part(gpu)
    value = number(read)
    if value is None:
        return (unread("ecc_volatile", gpu, "the count of uncorrected memory errors", read),)
    if value <= 0:
        return (passed("ecc_volatile", part, f"{part.subject} has no uncorrected memory error", value, 0, "errors"),)
    verdict = _driver_verdict(gpu)
    words = f"{part.subject} had {plain(value)} uncorrected memory errors since the driver was loaded"
    words += f", and {verdict}" if verdict else ""
    return (failed("ecc_volatile", part, words, Care.RESET if verdict else Care.WATCH, value, 0, "errors"),)


_VERDICTS = (
    ("remap_failure", "row remapping has failed"),
    ("remap_pending", "a row waits to be remapped"),
    ("sram_threshold", "the SRAM limit is passed"),
    ("recovery_action", "the driver asks for recovery"),
)


def _driver_verdict(gpu: Gpu) -> str:
    bad = (words for key, words in _VERDICTS if (number(gpu.reads.get(key)) or 0) > 0)
    return next(bad, "")


def _retired(gpu: Gpu, scene: Scene) -> Findings:
    read, part = gpu.reads.get("retired_pages"), gpu_part(gpu)
    if read is None and not _asked("retired_pages", scene):
        return ()
    value = number(read)
    if value is None:
        return (unread("retired_pages", gpu, "the count of retired pages", read),)
    most, soft = scene.rules.limit("pages_retired"), scene.rules.limit("pages_retired_soft")
    if value <= min(soft, most):
        return (
            passed("retired_pages", part, f"{part.subject} has {plain(value)} retired pages", value, most, "pages"),
        )
    words = f"{part.subject} has {plain(value)} retired pages, {plain(most)} are the most"
    care = Care.HUMAN if value > most else Care.WATCH
    return (failed("retired_pages", part, words, care, value, most, "pages"),)


def _total(gpu: Gpu, scene: Scene) -> Findings:
    read, part, wanted = gpu.reads.get("memory_total_bytes"), gpu_part(gpu), scene.profile.memory_mib
    value = number(read)
    if value is None:
        return (unread("memory_total", gpu, "the size of the memory", read),)
    mib = int(value) // _MIB
    if wanted is None or mib >= wanted * scene.rules.limit("gpu_memory_share"):
        return (passed("memory_total", part, f"{part.subject} has {mib} MiB", mib, wanted, "MiB"),)
    words = f"{part.subject} has {mib} MiB of memory, {wanted} are expected"
    return (failed("memory_total", part, words, Care.WATCH, mib, wanted, "MiB"),)


def _in_use(gpu: Gpu, scene: Scene) -> Findings:
    """Only while no job should be there, and not on a GPU that is cut up: other jobs have its other instances."""
    if not no_job_here(gpu, scene):
        return ()
    read, part = gpu.reads.get("memory_used_bytes"), gpu_part(gpu)
    value, most = number(read), scene.rules.limit("memory_in_use_mib")
    if value is None:
        return (unread("memory_in_use", gpu, "the memory in use", read),)
    mib = int(value) // _MIB
    if mib <= most:
        return (passed("memory_in_use", part, f"{mib} MiB of {part.subject} are in use", mib, most, "MiB"),)
    if whose_is_unknown(scene):
        return (untold("memory_in_use", part, f"{mib} MiB of {part.subject} are in use, perhaps by another job"),)
    words = f"{mib} MiB of {part.subject} are in use while no job should be there, more than {plain(most)}"
    return (failed("memory_in_use", part, words, Care.WATCH, mib, most, "MiB"),)


def whose_is_unknown(scene: Scene) -> bool:
    """A job's own GPUs are empty before and after it; where Slurm did not tell which they are, others may compute."""
    return scene.for_a_job and scene.asked.gpus is None


def no_job_here(gpu: Gpu, scene: Scene) -> bool:
    """Whether the GPU should be empty at this moment."""
    return scene.asked.phase in (Phase.PROLOG, Phase.EPILOG, Phase.BOOT) and not mig_on(gpu)
