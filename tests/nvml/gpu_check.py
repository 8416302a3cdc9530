"""`./dev gpu-check [FOLDER] [--library PATH]`: the NVML reader and the judge on a real GPU.

Each phase's look is recorded with the time of every call into FOLDER/<phase>/ (default ./gpu-check), as a scenario of
the stand-in; replayed from there, every reading must be the same. `--replay` reads what FOLDER has, and needs no GPU.
Exit status: 0 the readings are equal, 1 they differ, 3 there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any

from fleetctl.health.gather import Gathered
from fleetctl.health.model import Asked, Care, Finding, Nvml, Outcome, Phase, Readings
from fleetctl.health.readings import EVERY_PHASE
from fleetctl.health.site import Site
from fleetctl.health.wire import from_wire, to_wire
from fleetctl.health.world import find_profile, judged_for
from tests.nvml.recording import Call, Recording, record, write

EQUAL, DIFFERENT, NO_GPU = 0, 1, 3
_PHASES = (Phase.PROLOG, Phase.HAND)
# What is another value a moment later on a healthy GPU
_MOVING = {
    "clock_reasons",
    "energy_mj",
    "memory_used_bytes",
    "pcie_generation",
    "performance_state",
    "power_mw",
    "temperature_c",
    "temperature_margin_c",
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev gpu-check", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("gpu-check"), help="where the recordings lie")
    parser.add_argument("--library", help="this NVML, whatever the loader would find")
    parser.add_argument("--replay", action="store_true", help="read earlier recordings again, without a GPU")
    asked = parser.parse_args(arguments)
    folder = asked.folder.resolve()  # the child that loads a library works in /
    told: dict[Phase, Nvml] = {}
    for phase in _PHASES:
        place, recording = folder / phase.value, None
        if asked.replay:
            nvml, library = _earlier(place), str(place / "libnvidia-ml.so.1")
        else:
            recording = record(phase, asked.library)
            nvml = recording.nvml
            if not nvml.gpus:
                print(_without(nvml))
                return NO_GPU
            library = str(write(place, recording))
            _keep(place, recording)
        told[phase] = nvml
        again = record(phase, library)
        unlike = [*differences(to_wire(nvml), to_wire(again.nvml)), *_judged_otherwise(phase, nvml, again.nvml)]
        if recording is not None:
            unlike += _called_otherwise(recording, again)
        _report(phase, nvml, place, unlike)
        if unlike:
            return DIFFERENT
    first, second = (_still(to_wire(told[phase])) for phase in _PHASES)
    for line in differences(first, second):
        print(f"between the two looks: {line}")
    return EQUAL


def _without(nvml: Nvml) -> str:
    code = f" (NVML code {nvml.code})" if nvml.code else ""
    return f"gpu-check: there is no GPU here: {nvml.detail or 'NVML counts none'}{code}"


def _keep(place: Path, recording: Recording) -> None:
    (place / "readings.json").write_text(json.dumps(to_wire(recording.nvml), indent=1) + "\n")
    (place / "times.txt").write_text("\n".join(times(recording.calls)) + "\n")


def _earlier(place: Path) -> Nvml:
    nvml = from_wire(Nvml, json.loads((place / "readings.json").read_text()))
    assert isinstance(nvml, Nvml)
    return nvml


def times(calls: Sequence[Call]) -> Iterator[str]:
    """A table of the time that each function took, the dearest first."""
    yield f"{'function':<44} {'calls':>5} {'median us':>10} {'most us':>10} {'all us':>10}"
    by_name: dict[str, list[float]] = {}
    for call in calls:
        by_name.setdefault(call.name, []).append(call.took_us)
    for name, took in sorted(by_name.items(), key=lambda item: -sum(item[1])):
        yield f"{name:<44} {len(took):>5} {median(took):>10.1f} {max(took):>10.1f} {sum(took):>10.1f}"
    all_us = [call.took_us for call in calls]
    yield f"{'all':<44} {len(all_us):>5} {median(all_us):>10.1f} {max(all_us):>10.1f} {sum(all_us):>10.1f}"


def differences(one: Any, other: Any, path: str = "nvml") -> Iterator[str]:
    """Where two values of the wire are not the same; how long a look took never counts."""
    if path == "nvml.took_s":
        return
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            yield from differences(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif one != other:
        yield f"{path}: {one!r}, then {other!r}"


def _still(raw: dict[str, Any]) -> dict[str, Any]:
    """Without what moves by itself, and what only one of the phases asks for."""
    kept = EVERY_PHASE.keys() - _MOVING
    gpus = [{**gpu, "reads": {key: read for key, read in gpu["reads"].items() if key in kept}} for gpu in raw["gpus"]]
    return {**raw, "gpus": [{**gpu, "processes": None} for gpu in gpus], "calls": 0}


def judged(phase: Phase, nvml: Nvml) -> tuple[str, tuple[Finding, ...]]:
    """The profile that fits, and what the judge finds of the GPUs: nothing but NVML was read."""
    gathered = Gathered(Readings("here", "", time.time(), time.monotonic(), nvml=nvml, events=()))
    profile, _ = find_profile(gathered)
    found = judged_for(Site(), Asked(phase))(gathered)
    return profile.name if profile else "none", found


def _called_otherwise(one: Recording, other: Recording) -> list[str]:
    """A stand-in that leads the reader along another way proves little."""
    before, after = ([call[:3] for call in recording.calls] for recording in (one, other))
    pairs = zip_longest(before, after)
    return next(([f"calls: {real}, then {stand_in}"] for real, stand_in in pairs if real != stand_in), [])


def _judged_otherwise(phase: Phase, one: Nvml, other: Nvml) -> Iterator[str]:
    before, after = (Counter(judged(phase, nvml._replace(took_s=0.0))[1]) for nvml in (one, other))
    yield from (f"only judged so as it was read: {finding.words}" for finding in before - after)
    yield from (f"only judged so as it was replayed: {finding.words}" for finding in after - before)


def _report(phase: Phase, nvml: Nvml, place: Path, unlike: list[str]) -> None:
    profile, found = judged(phase, nvml)
    untold = Counter(one.check for one in found if one.outcome is not Outcome.PASS and one.care is Care.IGNORE)
    print(f"== {phase.value}: {len(nvml.gpus)} GPUs, driver {nvml.driver}, {nvml.calls} calls, {nvml.took_s:.3f} s")
    if (place / "times.txt").exists():
        print((place / "times.txt").read_text(), end="")
    print(f"profile {profile}: {sum(one.outcome is Outcome.PASS for one in found)} findings passed")
    for one in found:
        if one.outcome is not Outcome.PASS and one.care is not Care.IGNORE:
            print(f"  {one.outcome.value} [{one.check}] {one.words} ({one.care.name.lower()})")
    for check, times_seen in untold.items():
        print(f"  not told, and normal: {check}, {times_seen} times")
    print(f"replayed from {place}: " + ("every reading is the same" if not unlike else f"{len(unlike)} differ"))
    for line in unlike:
        print(f"  {line}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
