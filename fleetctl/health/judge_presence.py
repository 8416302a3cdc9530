"""Whether NVML answers, and whether each GPU that should be there does. Pure."""

from __future__ import annotations

from typing import Dict, FrozenSet, Iterable, List, Mapping, Optional, Tuple

from fleetctl.health.findings import (
    CLOSES,
    LOST,
    NEVER,
    NODE,
    UNKNOWN,
    Findings,
    Part,
    Scene,
    code_words,
    failed,
    gpu_part,
    passed,
    untold,
)
from fleetctl.health.model import CLOSING, Answer, Asked, Care, Finding, Gpu, Mark, Nvml, Outcome, Read

NO_DRIVER = 9
NO_LIBRARY = 12
# Python itself ends otherwise: SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV are the library's doing.
_OF_THE_LIBRARY = tuple(f"signal {number}" for number in (4, 6, 7, 8, 11))
# Not REBOOT: a driver that was only slow answers again, and that is evidence enough. A driver that hangs never does.
_SLOW_OR_HUNG = "it hangs, or persistence mode is off and it starts anew; if it goes on, reboot the node"
# Of one value these may be a moment's weakness: it is read again, and closes nothing that no closing check needs.
_ODD = frozenset({10, UNKNOWN})
_NEEDED = (
    *("recovery_action", "ecc_mode", "ecc_uncorrected_volatile", "sram_threshold", "remap_uncorrected"),
    *("remap_pending", "remap_failure", "retired_pages", "retired_pending", "pcie_width", "pcie_max_generation"),
    *("link_count", "fabric_state", "fabric_status", "fabric_mask", "fabric_summary"),
)
_NEEDED_OF_LINKS = ("state", "recoveries", "recovery_failed", "crc_errors")
_NO_FAULT = frozenset({"name", "serial"})  # reads that no check judges: odd answers to them say nothing


def judge_nvml(scene: Scene) -> Findings:
    """How NVML as a whole answered; nothing where it was not asked."""
    nvml = scene.readings.nvml
    if nvml is None:
        return ()
    finding = _nvml(nvml, scene)
    if scene.for_a_job and scene.asked.gpus == ():  # a job without GPUs runs without NVML
        finding = finding._replace(care=min(finding.care, Care.WATCH), mark=Mark.NONE)
    return (finding,)


def _nvml(nvml: Nvml, scene: Scene) -> Finding:
    if nvml.answer is Answer.ANSWERED:
        return passed("nvml", NODE, f"NVML answered in {nvml.took_s:.2f} s", round(nvml.took_s, 3), unit="s")
    detail = f" ({nvml.detail})" if nvml.detail else ""
    if nvml.answer is Answer.HUNG:
        within = f"within {nvml.took_s:.0f} s" if nvml.took_s >= 0.5 else "in time"
        return failed("nvml", NODE, f"NVML did not answer {within}: {_SLOW_OR_HUNG}", Care.DRAIN)
    if nvml.answer is Answer.BUSY:
        words = f"NVML still hangs since an earlier check{detail}; if it goes on, reboot the node"
        return failed("nvml", NODE, words, Care.DRAIN)
    if nvml.answer is Answer.CRASHED:
        if nvml.detail.endswith(_OF_THE_LIBRARY):
            return failed("nvml", NODE, f"NVML crashes when it is asked{detail}: reinstall the driver", Care.DRAIN)
        return untold("nvml", NODE, f"the process that asks NVML died{detail}", Care.WATCH)
    return _no_start(nvml, scene, detail)


def _no_start(nvml: Nvml, scene: Scene, detail: str) -> Finding:
    if nvml.code in (NO_LIBRARY, NO_DRIVER):
        return _no_nvml(nvml.code, scene)
    care = CLOSES.get(nvml.code, Care.IGNORE if nvml.code in NEVER else Care.WATCH)
    mark = Mark.LOST_GPU if nvml.code == LOST else Mark.NONE
    what = f": {code_words(nvml.code)}" if nvml.code else detail
    words = f"NVML cannot be used{what}" + ("; reboot the node" if care >= CLOSING else "")
    if nvml.code == 18:
        words = "NVML and the driver are of different versions (NVML 18): reload the driver or reboot the node"
    return untold("nvml", NODE, words, care, nvml.code or None)._replace(mark=mark)


def _no_nvml(code: int, scene: Scene) -> Finding:
    """Without library or driver: a fault only where there are GPUs."""
    seen = gpus_on_pcie(scene)
    wanted = max(seen or 0, scene.profile.gpus or 0)
    what = "libnvidia-ml.so.1 cannot be loaded" if code == NO_LIBRARY else "the NVIDIA driver is not loaded"
    given = scene.for_a_job and scene.asked.gpus != ()
    if seen and not scene.profile.name and scene.readings.devices is not None and not given:
        words = f"{what}, and no profile knows the kind of NVIDIA GPU that PCIe shows: a display, or for others' use?"
        return failed("nvml", NODE, words, Care.WATCH)._replace(code=code)
    if wanted or (scene.for_a_job and scene.asked.gpus):
        words = f"{what}, and the node has {wanted or 'NVIDIA'} GPUs: install or load the driver"
        return failed("nvml", NODE, words, Care.DRAIN)._replace(code=code)
    if seen == 0:
        return passed("nvml", NODE, f"{what}, and PCIe shows no NVIDIA GPU", 0, 0, "GPUs")
    return untold("nvml", NODE, f"{what}; whether there are GPUs is not known", CLOSES.get(code, Care.WATCH), code)


def gpus_on_pcie(scene: Scene) -> Optional[int]:
    """How many NVIDIA GPUs PCIe shows; None: not known."""
    host = scene.readings.host
    if host is not None and host.nvidia_devices is not None:
        return host.nvidia_devices
    devices = scene.readings.devices
    return None if devices is None else sum(1 for device in devices if device.kind == "gpu")


def judge_count(scene: Scene) -> Findings:
    """The number of GPUs against the profile's; against PCIe's where no profile says one.

    A GPU is lost where PCIe shows it and NVML does not. Fewer than the profile's alone may be the profile's fault, and
    that on every node: such a drain is within the fleet's budget.
    """
    nvml = scene.readings.nvml
    if nvml is None or nvml.answer is not Answer.ANSWERED:
        return ()
    have, wanted, seen = len(nvml.gpus), scene.profile.gpus, gpus_on_pcie(scene)
    if wanted is None:
        return (_against_pcie(have, seen),)
    if have == wanted:
        return (passed("gpu_count", NODE, f"the node has {have} GPUs", have, wanted, "GPUs"),)
    words = f"NVML counts {have} GPUs, {wanted} are expected"
    if have > wanted:
        return (failed("gpu_count", NODE, words, Care.WATCH, have, wanted, "GPUs"),)
    some = scene.for_a_job and scene.asked.gpus is not None  # whether they are the job's, gpu_lost tells
    care = Care.WATCH if some else Care.DRAIN
    return (failed("gpu_count", NODE, words, care, have, wanted, "GPUs", _lost(have, seen)),)


def _lost(counted: int, seen: Optional[int]) -> Mark:
    return Mark.LOST_GPU if seen is not None and seen > counted else Mark.NONE


def _against_pcie(have: int, seen: Optional[int]) -> Finding:
    """Some may be given to virtual machines, so that a smaller number is no proof of a fault."""
    if seen is None or have >= seen:
        return passed("gpu_count", NODE, f"the node has {have} GPUs", have, seen, "GPUs")
    words = f"NVML counts {have} GPUs, PCIe shows {seen}"
    return failed("gpu_count", NODE, words, Care.WATCH, have, seen, "GPUs")


def chosen(scene: Scene) -> Tuple[Gpu, ...]:
    """The GPUs to be judged one by one: those asked for that have a handle. One without a minor may be any of them."""
    nvml = scene.readings.nvml
    return () if nvml is None else tuple(gpu for gpu in nvml.gpus if gpu.code == 0 and is_asked(gpu, scene.asked))


def is_asked(gpu: Gpu, asked: Asked) -> bool:
    """Whether the look is about this GPU."""
    return asked.gpus is None or gpu.minor is None or gpu.minor in asked.gpus


def judge_lost(scene: Scene) -> Findings:
    """Which GPUs do not answer, or answer that they are lost or must be reset; and which of the job's are not there."""
    nvml = scene.readings.nvml
    if nvml is None or nvml.answer is not Answer.ANSWERED:
        return ()
    dark = _dark(nvml, scene)
    silent = [gpu for gpu in nvml.gpus if gpu.code != 0]
    if len(silent) == 1 and silent[0].pci is None:  # then the only one that NVML does not name is it
        silent = [silent[0]._replace(pci=dark)]
    missing = _missing(nvml, scene.asked)
    ours = not scene.for_a_job or scene.asked.gpus is None or bool(missing)
    found = [_silent(gpu, ours) for gpu in silent]
    found += [_answers(gpu) for gpu in chosen(scene)]
    on_pcie = gpus_on_pcie(scene)
    also = f", PCIe shows {on_pcie}" + (f", the other at {dark}" if dark and not silent else "")
    return (*found, *_not_there(missing[len(silent) :], len(nvml.gpus), on_pcie, also if on_pcie else ""))


def _dark(nvml: Nvml, scene: Scene) -> Optional[str]:
    """The place of the GPU that PCIe shows and NVML does not name, where that is exactly one."""
    named = {gpu.pci for gpu in nvml.gpus}
    shown = [device.link.address for device in scene.readings.devices or () if device.kind == "gpu"]
    dark = [address for address in shown if address not in named]
    return dark[0] if len(dark) == 1 else None


def _missing(nvml: Nvml, asked: Asked) -> List[int]:
    """Minors of the job that no GPU has. Those without a known minor may be them."""
    if asked.gpus is None:
        return []
    known = {gpu.minor for gpu in nvml.gpus if gpu.code == 0}
    nameless = sum(1 for gpu in nvml.gpus if gpu.code == 0 and gpu.minor is None)
    return sorted(set(asked.gpus) - known)[nameless:]


def _not_there(minors: Iterable[int], counted: int, seen: Optional[int], also: str) -> Iterable[Finding]:
    for minor in minors:  # a wrong gres.conf asks for such on every node: only PCIe proves a loss
        part = Part(f"/dev/nvidia{minor}", f"gpu/minor-{minor}")
        words = f"the job's GPU /dev/nvidia{minor} is not among the {counted} GPUs that NVML counts{also}"
        yield failed("gpu_lost", part, words, Care.DRAIN, mark=_lost(counted, seen))


def _silent(gpu: Gpu, ours: bool) -> Finding:
    """A GPU that is counted and has no handle. Of other jobs it keeps none of ours away."""
    part = gpu_part(gpu)
    words = f"{part.subject} is counted and cannot be reached: {code_words(gpu.code)}"
    care = Care.REBOOT if gpu.code == UNKNOWN else CLOSES.get(gpu.code, Care.WATCH)
    finding = _by_code("gpu_lost", part, words, care, gpu.code)
    return finding if ours else finding._replace(care=min(care, Care.WATCH), mark=Mark.NONE)


def _by_code(check: str, part: Part, words: str, care: Care, code: int) -> Finding:
    told = code in (LOST, 14, 16)  # NVML knows what is wrong: that is no lack of an answer
    mark = Mark.LOST_GPU if code == LOST or (code == UNKNOWN and care is Care.REBOOT) else Mark.NONE
    return Finding(
        check,
        Outcome.FAIL if told else Outcome.CANNOT_TELL,
        part.subject,
        part.key,
        words,
        care=care,
        mark=mark,
        code=code,
    )


def _answers(gpu: Gpu) -> Finding:
    part = gpu_part(gpu)
    if not gpu.reads:
        return untold("gpu_lost", part, f"{part.subject} was asked nothing", Care.WATCH)
    codes = _bad_codes(gpu)
    if not codes:
        return passed("gpu_lost", part, f"{part.subject} answers")
    worst = max(codes, key=lambda code: (CLOSES[code] is Care.REBOOT, code not in _ODD, len(codes[code])))
    where = codes[worst]
    more = f" and {len(where) - 1} more" if len(where) > 1 else ""
    words = f"NVML says of {part.subject}: {code_words(worst)}, when asked for {where[0]}{more}"
    finding = _by_code("gpu_lost", part, words, CLOSES[worst], worst)
    if worst not in _ODD:
        return finding
    return finding._replace(mark=Mark.TRANSIENT) if _is_needed(gpu) else finding._replace(care=Care.WATCH)


def _is_needed(gpu: Gpu) -> bool:
    """Whether one of these codes came where a check that may close the node asked."""
    reads = [gpu.reads.get(name) for name in _NEEDED]
    reads += [link.get(name) for link in gpu.links for name in _NEEDED_OF_LINKS]
    return any(read is not None and read.code in _ODD for read in reads)


def _bad_codes(gpu: Gpu) -> Dict[int, List[str]]:
    """The codes among its answers that say that the GPU does not work, with what was asked."""
    found: Dict[int, List[str]] = {}
    _collect(gpu.reads, "", _NO_FAULT, found)
    for index, link in enumerate(gpu.links):
        _collect(link, f" of NVLink {index}", frozenset(), found)
    return found


def _collect(reads: Mapping[str, Read], tail: str, but: FrozenSet[str], found: Dict[int, List[str]]) -> None:
    for name, read in reads.items():
        if read.code in CLOSES and name not in but:
            found.setdefault(read.code, []).append(name.replace("_", " ") + tail)


def judge_kind(scene: Scene) -> Findings:
    """Model and driver against the profile."""
    nvml = scene.readings.nvml
    if nvml is None or nvml.answer is not Answer.ANSWERED:
        return ()
    return (_driver(nvml, scene), *(_model(gpu, scene) for gpu in chosen(scene)))


def _driver(nvml: Nvml, scene: Scene) -> Finding:
    wanted = scene.profile.driver
    if nvml.driver is None:
        return untold("driver", NODE, "the driver did not tell its version", Care.WATCH)
    if wanted in (None, nvml.driver):
        return passed("driver", NODE, f"driver {nvml.driver}", nvml.driver, wanted)
    words = f"the driver is {nvml.driver}, {wanted} is expected"
    return failed("driver", NODE, words, Care.WATCH, nvml.driver, wanted)


def _model(gpu: Gpu, scene: Scene) -> Finding:
    part, profile = gpu_part(gpu), scene.profile
    if gpu.device_id is None:
        return untold("gpu_model", part, f"the model of {part.subject} was not read")
    model = f"{gpu.device_id:#010x}"
    if not profile.device_ids:
        return untold("gpu_model", part, f"no profile says what {part.subject} ({model}) should have")
    if gpu.device_id in profile.device_ids:
        return passed("gpu_model", part, f"{part.subject} is of profile {profile.name}", model, profile.name)
    words = f"{part.subject} ({model}) is not of profile {profile.name}: learn a profile from a good node"
    return failed("gpu_model", part, words, Care.WATCH, model, profile.name)
