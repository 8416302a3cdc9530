"""Records what a real NVML answers and how long each call took, as a scenario that the stand-in replays."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

from fleetctl.health import nvml_ask
from fleetctl.health.apart import Task, run_apart
from fleetctl.health.model import Answer, Gpu, Nvml, Phase, Read
from fleetctl.health.nvml import Wanted, read_nvml
from fleetctl.health.nvml_fields import EVERY_PHASE, FUNCTION_NOT_FOUND, LINK, MORE, decode
from fleetctl.health.nvml_gpu import VERSION_MISMATCH
from fleetctl.health.wire import from_wire, to_wire
from tests.nvml.build import SOURCE

_DEADLINE_S = 120.0  # a driver without persistence mode takes seconds for each GPU
_NOT_KEYS = {"retired_single", "retired_double"}  # read as one: retired_pages
_BY_FUNCTION = {"minor": "nvmlDeviceGetMinorNumber", "uuid": "nvmlDeviceGetUUID"}
Fields = dict[tuple[int, int], Read]


class Call(NamedTuple):
    """One call of nvidia-ml-py. `gpu` is an index, None for the node; `detail` is what a scenario needs of its answer:
    field values as [field, scope, value, code], pids with memory, a struct's version."""

    name: str
    gpu: int | None
    code: int
    took_us: float
    detail: Any = None


class Recording(NamedTuple):
    nvml: Nvml
    calls: list[Call]


def record(phase: Phase, library: str | None) -> Recording:
    """Read everything as this phase would on a whole node, in a child, because any call may hang."""
    wanted = Wanted(phase, None, peers=True, processes=True, library=library)

    def work() -> object:
        calls: list[Call] = []
        pynvml = nvml_ask._import_pynvml()
        _wrap(pynvml, calls)
        return [to_wire(read_nvml(wanted)), calls]

    done = run_apart([Task("record", work, _DEADLINE_S)], stuck=None, monotonic=time.monotonic)["record"]
    if done.answer is not Answer.ANSWERED:
        return Recording(Nvml(done.answer, detail=done.detail), [])
    raw, calls = done.value
    return Recording(from_wire(Nvml, raw), [Call(*call) for call in calls])


def _wrap(pynvml: Any, calls: list[Call]) -> None:
    """Time every function of nvidia-ml-py; those that it calls itself belong to the outer one."""
    handles: dict[int, int] = {}
    depth = [0]
    for name in [name for name in vars(pynvml) if re.match(r"nvml(Device|System|Init)", name)]:
        setattr(pynvml, name, _timed(name, getattr(pynvml, name), pynvml, calls, handles, depth))


def _timed(
    name: str, call: Callable[..., Any], pynvml: Any, calls: list[Call], handles: dict[int, int], depth: list[int]
) -> Callable[..., Any]:
    @wraps(call)
    def timed(*arguments: Any) -> Any:
        if depth[0]:
            return call(*arguments)
        depth[0] += 1
        code, answer, began = 0, None, time.perf_counter()
        try:
            answer = call(*arguments)
            return answer
        except pynvml.NVMLError as error:
            code = int(error.value)
            raise
        finally:
            took_us = (time.perf_counter() - began) * 1e6
            depth[0] -= 1
            gpu = handles.get(_address(arguments[0])) if arguments else None
            if name == "nvmlDeviceGetHandleByIndex":
                gpu = arguments[0]
                handles[_address(answer)] = gpu
            calls.append(Call(name, gpu, code, took_us, _detail(name, arguments, answer)))

    return timed


def _address(handle: Any) -> int:
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value or 0 if isinstance(handle, ctypes._Pointer) else 0


def _detail(name: str, arguments: tuple[Any, ...], answer: Any) -> Any:
    if name.startswith("nvmlDeviceGetGpuFabricInfoV"):
        return arguments[1]._obj.version >> 24
    if answer is None:
        return None
    if name == "nvmlDeviceGetFieldValues":
        return [[*which, read.value, read.code] for which, read in decode(answer).items()]
    if name == "nvmlDeviceGetComputeRunningProcesses":
        return [[one.pid, one.usedGpuMemory] for one in answer]
    if name == "nvmlDeviceGetMemoryInfo":
        return getattr(answer, "reserved", 0)
    return None


def scenario_of(recording: Recording) -> str:
    """The text that stand_in.c reads."""
    nvml = recording.nvml
    lines = [f"count {len(nvml.gpus)}", *_told("driver", nvml.driver), *_told("nvml", nvml.library)]
    for gpu in nvml.gpus:
        calls = [call for call in recording.calls if call.gpu == gpu.index]
        lines += [f"gpu.{gpu.index}.{line}" for line in _gpu_lines(gpu, calls)]
        lines += [f"call.{symbol}@{gpu.index} code {code}" for symbol, code in _refused(calls)]
    newest = [call.detail - 1 for call in recording.calls if call.code == VERSION_MISMATCH and call.detail]
    lines += [f"gpu.{gpu.index}.fabric_version {min(newest)}" for gpu in nvml.gpus if newest]
    lines += [f"pair.{peer.first}.{peer.second}.p2p {_word(peer.status)}" for peer in nvml.peers]
    return "\n".join(sorted(lines)) + "\n"


def lacking(recording: Recording) -> tuple[str, ...]:
    """The symbols that this driver does not have, of those that the stand-in has."""
    names = {call.name for call in recording.calls if call.code == FUNCTION_NOT_FOUND}
    known = re.findall(r"\b(nvml[A-Z]\w*)[(,]", SOURCE.read_text())
    return tuple(sorted({symbol for symbol in known if re.sub(r"_v\d$", "", symbol) in names}))


def _told(key: str, value: str | None) -> Iterator[str]:
    if value is not None:
        yield f"{key} {value}"


def _word(read: Read) -> str:
    return f"!{read.code}" if read.code else str(int(read.value) if isinstance(read.value, bool) else read.value)


def _gpu_lines(gpu: Gpu, calls: list[Call]) -> Iterator[str]:
    codes = {call.name: call.code for call in calls}
    details = {call.name: call.detail for call in calls if call.code == 0}
    if codes.get("nvmlDeviceGetHandleByIndex"):
        yield f"handle !{codes['nvmlDeviceGetHandleByIndex']}"
        return
    yield from _told("pci", gpu.pci)
    yield f"device_id {gpu.device_id or 0}"
    for key, function in _BY_FUNCTION.items():
        yield f"{key} {_word(Read(getattr(gpu, key), codes.get(function, 0)))}"
    yield from (f"{key} {_word(read)}" for key, read in gpu.reads.items())
    yield f"memory_reserved_bytes {details.get('nvmlDeviceGetMemoryInfo') or 0}"
    yield from _process_lines(codes, details)
    fields: Fields = {
        (field, scope): Read(value, code) for call in calls for field, scope, value, code in _values(call)
    }
    yield from _link_lines(gpu, fields, calls)
    yield from _field_lines(gpu, fields)


def _values(call: Call) -> list[list[Any]]:
    return call.detail or [] if call.name == "nvmlDeviceGetFieldValues" else []


def _process_lines(codes: dict[str, int], details: dict[str, Any]) -> Iterator[str]:
    function = "nvmlDeviceGetComputeRunningProcesses"
    if codes.get(function):
        yield f"processes !{codes[function]}"
    elif details.get(function):
        yield "processes " + " ".join(f"{pid}:{'?' if used is None else used}" for pid, used in details[function])


def _link_lines(gpu: Gpu, fields: Fields, calls: list[Call]) -> Iterator[str]:
    yield f"link_slots {len(gpu.links)}"
    beyond = fields.get((LINK["state"], len(gpu.links)))
    by_function = [call.code for call in calls if call.name == "nvmlDeviceGetNvLinkState"]
    if by_function or beyond is not None:
        yield f"link_end {by_function[-1] if by_function else beyond.code if beyond else 0}"
    for key in LINK if gpu.links else ():
        yield f"link.{key} " + " ".join(_word(link[key]) for link in gpu.links)


def _field_lines(gpu: Gpu, fields: Fields) -> Iterator[str]:
    """What was asked as a field and answered otherwise than the function of the same meaning."""
    for key, number in {**EVERY_PHASE, **MORE}.items():
        read = fields.get((number, 0))
        if key not in _NOT_KEYS and read is not None and read != gpu.reads.get(key):
            yield f"field.{number} {_word(read)}"
    for key, number in LINK.items():
        for link, reads in enumerate(gpu.links):
            read = fields.get((number, link))
            if read is not None and read != reads[key]:
                yield f"field.{number}@{link} {_word(read)}"


def _refused(calls: list[Call]) -> Iterator[tuple[str, int]]:
    """Calls as a whole that no value stands for."""
    for call in calls:
        if call.code and call.name == "nvmlDeviceGetFieldValues":
            yield call.name, call.code
        if call.code and call.name == "nvmlDeviceGetPciInfo":
            yield "nvmlDeviceGetPciInfo_v3", call.code


def write(folder: Path, recording: Recording) -> Path:
    """`<folder>/{nvml,libnvidia-ml.so.1}`; the path of the library, which answers as was recorded."""
    from tests.nvml.build import build_library

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nvml").write_text(scenario_of(recording), encoding="utf-8")
    return build_library(folder, lacking(recording))
