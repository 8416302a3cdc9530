"""The judge on any readings: it never raises, passes nothing that was not read, and more sickness is never milder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.health.checks import CHECKS
from fleetctl.health.decide import decide
from fleetctl.health.deltas import changes, counters_of
from fleetctl.health.findings import CLOSES, NEVER, finite
from fleetctl.health.judge_memory import COUNTED
from fleetctl.health.learn import learn
from fleetctl.health.model import (
    Answer,
    Baseline,
    Care,
    Finding,
    Gpu,
    Host,
    Mount,
    Move,
    Nvml,
    Outcome,
    PciDevice,
    PciLink,
    PeerToPeer,
    Phase,
    Port,
    Process,
    Read,
    Readings,
    Stuck,
)
from fleetctl.health.profile import dump_profile, load_profile
from fleetctl.health.readings import EVERY_PHASE, LINK, MORE
from fleetctl.health.rules import LIMITS, Rules
from fleetctl.health.wanted import PortWanted, Profile
from tests.unit.health import nodes
from tests.unit.health.nodes import KINDS, closing, healthy, judged

HEALTHY = {name: healthy(name) for name in KINDS}
KEYS = sorted({**EVERY_PHASE, **MORE})
# The value that each check of a GPU is about: without it there is no good answer.
NEEDS = {row.check: row.key for row in COUNTED} | {
    "recovery_action": "recovery_action",
    "clock_reasons": "clock_reasons",
    "ecc_mode": "ecc_mode",
    "ecc_volatile": "ecc_uncorrected_volatile",
    "retired_pages": "retired_pages",
    "memory_total": "memory_total_bytes",
    "memory_in_use": "memory_used_bytes",
    "fabric": "fabric_state",
    "power": "power_mw",
    "persistence": "persistence",
    "mig": "mig_mode",
}

_codes = st.sampled_from([0, 0, 0, *sorted(NEVER), *sorted(CLOSES), 1, 7, 17, 21, 27, -1, 12345])
_ints = st.integers(-3, 20) | st.integers(-(1 << 70), 1 << 70) | st.sampled_from([255, 65535, 1 << 40])
_values = _ints | st.floats() | st.none() | st.text(max_size=5) | st.booleans() | st.just([1])
_reads = st.builds(Read, _values, _codes)
_maybe = st.none() | _ints
_texts = (
    st.none() | st.text(max_size=8) | st.sampled_from(["ACTIVE", "DOWN", "INIT", "LinkUp", "Polling", "0000:1b:00.0"])
)
_speeds = st.none() | st.floats() | st.sampled_from([0.0, 2.5, 32.0])
_counts = st.dictionaries(
    st.sampled_from(["link_downed", "symbol_error", "fatal", "correctable", "x"]), _ints, max_size=4
)
_links = st.builds(PciLink, st.sampled_from(["0000:1b:00.0", "0000:00:01.0", "x"]), _speeds, _maybe, _speeds, _maybe)
_gpus = st.builds(
    Gpu,
    index=st.integers(0, 9),
    code=_codes,
    pci=_texts,
    minor=st.none() | st.integers(0, 9),
    uuid=_texts,
    device_id=st.none() | st.sampled_from([0x233010DE, 0x1234]),
    reads=st.dictionaries(st.sampled_from(KEYS), _reads, max_size=12),
    links=st.lists(st.dictionaries(st.sampled_from(sorted(LINK)), _reads, max_size=4), max_size=4).map(tuple),
    processes=st.none() | st.lists(st.builds(Process, st.integers(), _maybe), max_size=3).map(tuple),
)
_nvmls = st.builds(
    Nvml,
    st.just(Answer.ANSWERED) | st.sampled_from(Answer),
    _codes,
    st.text(max_size=5),
    _texts,
    gpus=st.lists(_gpus, max_size=4).map(tuple),
    peers=st.lists(st.builds(PeerToPeer, st.integers(0, 9), st.integers(0, 9), _reads), max_size=3).map(tuple),
    took_s=st.floats(0, 60),
)
_devices = st.builds(
    PciDevice, st.sampled_from(["gpu", "nic", "nvme"]), _links, _maybe, st.lists(_links, max_size=3).map(tuple), _counts
)
_ports = st.builds(
    Port,
    st.sampled_from(["mlx5_0", "mlx5_1", "roce_r0"]),
    st.integers(1, 2),
    _texts,
    _texts,
    _texts,
    _speeds,
    _maybe,
    counters=_counts,
    operstate=_texts,
)
_shares = st.none() | st.floats(0, 1)
_hosts = st.builds(
    Host,
    memory_bytes=_maybe,
    mounts=st.lists(
        st.builds(Mount, st.text(), st.sampled_from(["ok", "hung", "odd"]), st.text(), _shares, _shares)
    ).map(tuple),
    shm_bytes=_maybe,
    shm_free_bytes=_maybe,
    edac_corrected=_maybe,
    edac_uncorrected=_maybe,
    clock_synchronised=st.none() | st.booleans(),
    clock_source=_texts,
    governors=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    stuck=st.lists(st.builds(Stuck, st.integers(), st.text(max_size=9), st.sampled_from("DZR")), max_size=3).map(tuple),
    nvidia_devices=_maybe,
)
_readings = st.builds(
    Readings,
    st.just("n1"),
    st.sampled_from(["", "boot-1"]),
    st.floats(0, 2e9),
    st.floats(0, 1e7),
    nvml=st.none() | _nvmls,
    devices=st.none() | st.lists(_devices, max_size=3).map(tuple),
    ports=st.none() | st.lists(_ports, max_size=3).map(tuple),
    host=st.none() | _hosts,
    failed=st.dictionaries(st.sampled_from(["files", "ports", "state"]), st.sampled_from(Answer)),
)
_wanted = st.builds(
    PortWanted,
    st.sampled_from(["mlx5_0", "mlx5_9"]),
    st.integers(0, 2),
    st.none() | st.floats(0.1, 1e6),
    st.none() | st.integers(0, 64),
)
_small = st.none() | st.integers(0, 1 << 50)
_profiles = st.builds(
    Profile,
    st.sampled_from(["p", "learned from n1"]),
    st.lists(st.integers(0, 0xFFFFFFFF), max_size=3).map(tuple) | st.just((0x233010DE,)),
    _small,
    st.none() | st.lists(st.integers(0, 36), min_size=1, max_size=4).map(tuple),
    st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 32),
    _small,
    st.none() | st.booleans(),
    st.none() | st.booleans(),
    st.none() | st.just("570.1"),
    st.none() | st.lists(_wanted, max_size=3).map(tuple),
    st.dictionaries(
        st.sampled_from(["0000:1b:00.0", "0000:00:01.0", "y"]), st.tuples(st.floats(0.1, 1e6), st.integers(0, 64))
    ),
    _small,
)
_phases = st.sampled_from(Phase)
_asked = st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple)
_rules = st.builds(Rules, st.dictionaries(st.sampled_from(sorted(LIMITS)), st.floats(0, 1e9), max_size=3))


def _baselines(node: Readings) -> st.SearchStrategy[Baseline | None]:
    keys = sorted(counters_of(node)) or ["x"]
    counters = st.dictionaries(st.sampled_from(keys), st.integers(0, 1 << 60), max_size=8)
    return st.none() | st.builds(Baseline, st.just("boot-1"), st.floats(0, 2e9), counters)


@settings(max_examples=120, deadline=None)
@given(_readings, st.none() | _profiles, _phases, _asked, _rules, st.data())
def test_any_readings_give_findings_and_no_error(
    node: Readings,
    profile: Profile | None,
    phase: Phase,
    gpus: tuple[int, ...] | None,
    rules: Rules,
    data: st.DataObject,
) -> None:
    found = judged(node, profile, phase, gpus, data.draw(_baselines(node)), rules)
    for finding in found:
        assert finding.check in CHECKS
        assert phase in CHECKS[finding.check].phases
        assert finding.words
        assert finding.subject
        assert finding.part
        assert (finding.outcome is Outcome.PASS) <= (finding.care is Care.IGNORE)
        if finding.outcome is Outcome.FAIL:
            assert (finding.care > Care.IGNORE) or finding.check == "clock"
            assert finding.care <= CHECKS[finding.check].care
    reason = decide(found).reason
    assert reason.isprintable()
    assert reason.isascii()
    assert learn(node).name == "learned from n1"


@settings(max_examples=60, deadline=None)
@given(_readings, st.none() | _profiles, _phases)
def test_nothing_passes_that_was_not_read(node: Readings, profile: Profile | None, phase: Phase) -> None:
    by_part = {_key(gpu): gpu for gpu in (node.nvml.gpus if node.nvml else ())}
    if node.nvml and len(by_part) < len(node.nvml.gpus):
        return  # two GPUs of one place: whose answer it was is not told
    for finding in judged(node, profile, phase):
        gpu = by_part.get(finding.part)
        if finding.outcome is not Outcome.PASS or gpu is None or finding.check not in NEEDS:
            continue
        read = gpu.reads[NEEDS[finding.check]]
        assert read.code == 0
        assert finite(read.value) is not None


def _key(gpu: Gpu) -> str:
    return f"gpu/index-{gpu.index}" if gpu.pci is None else f"gpu/{gpu.pci}"


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(sorted(KINDS)), _phases, st.none() | st.just((0, 2)), st.data())
def test_what_a_gpu_does_not_tell_closes_no_node(
    name: str, phase: Phase, gpus: tuple[int, ...] | None, data: st.DataObject
) -> None:
    """Whatever is not supported, not permitted, not known to this driver, or missing, and on however many GPUs."""
    node = HEALTHY[name]
    for index in data.draw(st.sets(st.integers(0, 3), min_size=1)):
        keys = data.draw(st.sets(st.sampled_from(KEYS), min_size=1))
        numbers = data.draw(st.sampled_from(sorted(NEVER)))
        node = nodes.with_reads(node, index, **dict.fromkeys(keys, nodes.code(numbers)))
        if KINDS[name].links and data.draw(st.booleans()):
            node = nodes.with_links(node, index, range(KINDS[name].links), state=nodes.code(numbers))
    assert closing(judged(node, phase=phase, gpus=gpus)) == []
    assert closing(judged(node, learn(HEALTHY[name]), phase, gpus)) == []


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(KINDS)), st.sampled_from(sorted(CLOSES)), st.integers(0, 3), st.sampled_from(sorted(NEEDS))
)
def test_a_code_of_a_broken_gpu_closes_its_node_and_its_job_only(
    name: str, number: int, index: int, check: str
) -> None:
    node = nodes.with_reads(HEALTHY[name], index, **{NEEDS[check]: nodes.code(number)})
    mild = number in (10, 999) and CHECKS[check].care < Care.RESET
    assert closing(judged(node)) == ([] if mild else ["gpu_lost"])
    assert closing(judged(node, phase=Phase.PROLOG, gpus=(index,))) == ([] if mild else ["gpu_lost"])
    assert closing(judged(node, phase=Phase.PROLOG, gpus=((index + 1) % 4,))) == []


Sickness = Callable[[Readings, int], Readings]
SICKNESSES: dict[str, Sickness] = {
    "remap pending": lambda node, gpu: nodes.with_reads(node, gpu, remap_pending=1),
    "remap failure": lambda node, gpu: nodes.with_reads(node, gpu, remap_failure=1),
    "remapped rows": lambda node, gpu: nodes.with_reads(node, gpu, remap_uncorrected=600),
    "uncorrected": lambda node, gpu: nodes.with_reads(node, gpu, ecc_uncorrected_volatile=5),
    "SRAM": lambda node, gpu: nodes.with_reads(node, gpu, sram_threshold=1),
    "reset": lambda node, gpu: nodes.with_reads(node, gpu, recovery_action=1),
    "fabric": lambda node, gpu: nodes.with_reads(node, gpu, fabric_status=999),
    "hot": lambda node, gpu: nodes.with_reads(node, gpu, temperature_margin_c=-1, clock_reasons=0x40),
    "odd answer": lambda node, gpu: nodes.with_reads(node, gpu, persistence=nodes.code(999)),
    "odd answer to what closes": lambda node, gpu: nodes.with_reads(node, gpu, ecc_mode=nodes.code(999)),
    "link down": lambda node, gpu: nodes.with_links(node, gpu, [gpu], state=0),
    "links down": lambda node, gpu: nodes.with_links(node, gpu, range(9), state=0),
    "links unread": lambda node, gpu: nodes.with_links(node, gpu, [16, 17], state=nodes.code(17)),
    "lanes": lambda node, gpu: nodes.with_device(node, nodes.pci(gpu), width=4),
    "port down": lambda node, gpu: nodes.with_port(node, gpu, state="DOWN", phys_state="Polling"),
    "port narrow": lambda node, gpu: nodes.with_port(node, gpu, width=1, rate_gbps=100.0),
    "port counters": lambda node, gpu: nodes.with_port(node, gpu, counters={"link_downed": 9, "symbol_error": 9999}),
    "memory": lambda node, _: nodes.with_host(node, memory_bytes=nodes.GIB),
    "mount": lambda node, _: nodes.with_host(node, mounts=(Mount("/s", "hung"),)),
    "card": lambda node, gpu: nodes.with_device(node, f"0000:{0x18 + 8 * gpu:02x}:00.0", width=2),
    "files": lambda node, _: node._replace(failed={"files": Answer.HUNG}),
    "EDAC": lambda node, _: nodes.with_host(node, edac_uncorrected=1),
    "lost": lambda node, gpu: (
        nodes.with_gpu(node, gpu, code=15, reads={}, links=(), minor=None)
        if node.nvml and gpu < len(node.nvml.gpus)
        else node
    ),
    "hung": lambda node, _: node._replace(nvml=Nvml(Answer.HUNG)),
}
_CLOSING = set(SICKNESSES) - {"uncorrected", "hot", "links unread", "odd answer"}
_steps = st.lists(st.tuples(st.sampled_from(sorted(SICKNESSES)), st.integers(0, 3)), min_size=1, max_size=5)


def _sick(node: Readings, steps: list[tuple[str, int]]) -> Readings:
    for name, gpu in sorted(steps, key=lambda step: list(SICKNESSES).index(step[0])):
        node = SICKNESSES[name](node, gpu)
    return node


def _worst(found: tuple[Finding, ...]) -> Care:
    return max(finding.care for finding in found)


@settings(max_examples=60, deadline=None)
@given(_steps, _steps, _phases)
def test_more_sickness_never_makes_the_verdict_milder(
    few: list[tuple[str, int]], more: list[tuple[str, int]], phase: Phase
) -> None:
    node, profile = HEALTHY["h100-sxm"], learn(HEALTHY["h100-sxm"])
    after, before = nodes.later(node)
    less = judged(_sick(after, few), profile, phase, before=before)
    worse = judged(_sick(after, few + more), profile, phase, before=before)
    assert bool(closing(less)) <= bool(closing(worse))
    if not {name for name, _ in more} & {"lost", "hung"}:  # a GPU that is gone tells nothing else about itself
        assert _worst(less) <= _worst(worse)
    assert bool(closing(less)) == bool({name for name, _ in few} & _CLOSING or "remap" in str(closing(less)))


@pytest.mark.parametrize("name", sorted(_CLOSING))
def test_each_of_these_closes_alone(name: str) -> None:
    node, profile = HEALTHY["h100-sxm"], learn(HEALTHY["h100-sxm"])
    after, before = nodes.later(node)
    assert closing(judged(_sick(after, [(name, 2)]), profile, before=before))


@settings(max_examples=100, deadline=None)
@given(_profiles)
def test_a_profile_that_is_written_is_read_as_it_was(profile: Profile) -> None:
    assert load_profile(dump_profile(profile)) == profile


@settings(max_examples=60, deadline=None)
@given(st.text() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(str))
def test_no_text_makes_the_reader_of_profiles_fail_otherwise_than_by_saying_so(text: str) -> None:
    with pytest.raises(ValueError, match="the profile "):  # no such text has a name
        load_profile(text)


_Values = st.dictionaries(st.sampled_from(["link_downed", "symbol_error", "rnr_nak_retry_err"]), st.integers(0, 70_000))


@given(_Values, _Values, st.floats(0, 1e6))
def test_a_change_is_what_lies_between_two_looks(first: dict[str, int], second: dict[str, int], over: float) -> None:
    old = nodes.with_port(HEALTHY["h100-sxm"], 0, counters=first)
    after, before = nodes.later(old, over)
    moved: dict[str, Any] = changes(before, nodes.with_port(after, 0, counters=second))
    for name, now in second.items():
        change = moved[f"port/mlx5_0/1/{name}"]
        assert change.now == now
        assert change.by == max(0, now - first.get(name, now))
        assert (change.move is Move.BACKWARDS) <= (now < first.get(name, 0))
        assert (change.move is Move.FIRST) <= (name not in first)
