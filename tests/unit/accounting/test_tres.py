"""What a record held, MIG slices as parts of a GPU, and Slurm's billing."""

from __future__ import annotations

from fractions import Fraction

import pytest

from fleetctl.accounting.tres import (
    Tres,
    billing,
    check_weights,
    gpu_equivalents,
    parse_tres,
    parse_weights,
    units_of,
)


def test_all_of_it_is_read() -> None:
    text = "billing=16,cpu=16,energy=12,gres/gpu:a100=2,gres/gpu:h100=6,gres/gpu=8,mem=128G,node=2"
    assert parse_tres(text) == Tres(16, 131_072, 2, 8, "a100=2,h100=6", 16)


@pytest.mark.parametrize(
    ("text", "gpus", "models"),
    [
        ("cpu=4,mem=32G,node=1", 0, ""),
        ("gres/gpu=8", 8, "gpu=8"),
        ("gres/gpu:h100=8", 8, "h100=8"),  # a site that tracks only the type
        ("gres/gpu:h100=8,gres/gpu=8", 8, "h100=8"),
        ("gres/gpu:h100=3,gres/gpu=8", 8, "gpu=5,h100=3"),
        ("gres/gpu=8,gres/gpu:h100=9", 8, "gpu=8"),  # they contradict each other
        ("gres/gpu:h100=0,gres/gpu=0", 0, ""),  # no_consume
        ("gres/gpu=NONE", None, ""),
        ("gres/gpu=16?", None, ""),
        ("gres/gpu=NONE,gres/gpu:h100=2", 2, "h100=2"),
        ("cpu=1,gres/gpu:h100=NONE", None, ""),
        ("cpu=1,gres/gpu:h100=16?", None, ""),
        ("gres/gpu:a100=4,gres/gpu:h100=16?", None, ""),
        ("gres/gpu:h100=16?,gres/gpu=8", 8, "gpu=8"),  # the total is told
        ("cpu=1,gres/gpu:h100=0", 0, ""),
        ("", None, ""),
        ("gres/gpu=1K", 1024, "gpu=1024"),
        ("gres/gpu=1.50K", 1536, "gpu=1536"),
        ("gres/gpumem=80G,gres/gpuutil=700,gres/shard=4,gres/cpu=9,gres/gpu=1", 1, "gpu=1"),
        ("gres/gpu:=2", 2, "gpu=2"),
    ],
)
def test_gpus_are_the_total_that_slurm_tells_or_the_sum_of_their_types(
    text: str, gpus: int | None, models: str
) -> None:
    held = parse_tres(text)
    assert (held.gpus, held.gpu_models) == (gpus, models)


@pytest.mark.parametrize(
    ("memory", "mib"),
    [
        *(("4000M", 4000), ("128G", 131_072), ("1.50T", 1_572_864), ("250.50G", 256_512), ("512K", 0), ("2P", 2**31)),
        *(("1024K", 1), ("4096", 4096), ("16?", None), ("0n", None), ("4000Mc", None), ("NONE", None), ("", None)),
    ],
)
def test_memory_is_in_powers_of_1024_from_mib_on(memory: str, mib: int | None) -> None:
    assert parse_tres(f"cpu=1,mem={memory}").memory_mib == mib


@pytest.mark.parametrize(
    ("model", "part"),
    [
        *(("h100", Fraction(1)), ("", Fraction(1)), ("nvidia_geforce_rtx_2080_ti", Fraction(1)), ("3g", Fraction(1))),
        *(("a100_3g.20gb", Fraction(3, 7)), ("a100-1g.5gb", Fraction(1, 7)), ("1g.10gb", Fraction(1, 7))),
        *(
            ("h100_7g.80gb", Fraction(1)),
            ("1g.10gb+me", Fraction(1, 7)),
            ("nvidia_h100_80gb_hbm3_4g.40gb", Fraction(4, 7)),
        ),
        *(("1g.6gb", Fraction(1, 4)), ("a30_2g.12gb", Fraction(1, 2)), ("4g.24gb", Fraction(1))),
        *(("rtx_pro_6000_1g.24gb", Fraction(1, 4)), ("1g.24gb", Fraction(1, 7)), ("2g.48gb", Fraction(1, 2))),
        *(("rtx_pro_5000_2g.48gb", Fraction(1)), ("9g.1gb", Fraction(1)), ("0g.5gb", Fraction(1))),
    ],
)
def test_a_mig_slice_is_its_share_of_the_compute_slices(model: str, part: Fraction) -> None:
    assert gpu_equivalents(model) == part


WEIGHTS = parse_weights("CPU=1.0,Mem=0.25G,GRES/gpu=2.0")
HELD = {"cpu": Fraction(1), "mem": Fraction(8 * 1024), "gres/gpu": Fraction(1)}


@pytest.mark.parametrize(
    ("flags", "bill"),
    [
        ((), 5),
        (("MAX_TRES",), 2),
        (("MAX_TRES_GRES",), 4),  # slurm.schedmd.com/tres.html prints 3.0 for 2.0 + MAX(1.0, 2.0)
        (("SMALL_RELATIVE_TO_TIME",), 5),
    ],
)
def test_billing_is_slurms_own_example(flags: tuple[str, ...], bill: int) -> None:
    assert billing(WEIGHTS, HELD, flags) == bill


def test_what_no_node_has_is_added_to_the_dearest() -> None:
    weights = {**WEIGHTS, "license/ansys": Fraction(3)}
    held = {**HELD, "license/ansys": Fraction(2), "billing": Fraction(99)}
    assert billing(weights, held, ("MAX_TRES",)) == 8
    assert billing({**weights, "billing": Fraction(1)}, held) == 11


def test_without_weights_the_cpus_are_billed() -> None:
    assert billing({}, {"cpu": Fraction(16), "gres/gpu": Fraction(8)}) == 16
    assert billing({}, {}) == 0


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("", {}),
        ("CPU=0.5,GRES/gpu:a100=2", {"cpu": Fraction(1, 2), "gres/gpu:a100": Fraction(2)}),
        ("Mem=1M", {"mem": Fraction(1)}),
        ("Mem=1", {"mem": Fraction(1)}),
        ("mem=0.25g", {"mem": Fraction(1, 4096)}),
        ("Mem=1T", {"mem": Fraction(1, 1024**2)}),
    ],
)
def test_weights_are_by_mib_and_exact(text: str, weights: dict[str, Fraction]) -> None:
    assert parse_weights(text) == weights


@pytest.mark.parametrize("text", ["cpu", "cpu=", "cpu=x", "Mem=1X", "cpu=1;mem=2", "cpu=-1"])
def test_a_part_that_is_no_weight_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="TRESBillingWeights"):
        parse_weights(text)


EXAMPLE = Tres(cpus=1, memory_mib=8 * 1024, nodes=1, gpus=1, gpu_models="h100=1", billing=None)


@pytest.mark.parametrize(("flags", "bill"), [((), 5), (("MAX_TRES",), 2), (("MAX_TRES_GRES",), 4)])
def test_what_weights_bill_for_a_record_is_slurms_own_example(flags: tuple[str, ...], bill: int) -> None:
    assert units_of(EXAMPLE, WEIGHTS, flags) == bill


@pytest.mark.parametrize(
    ("text", "models", "bill"),
    [
        ("GRES/gpu:A100_3g.20gb=2,Node=1", "A100_3g.20gb=3,h100=5", 7),
        ("GRES/gpu=1,GRES/gpu:h100=0.5", "a100=3,h100=5", Fraction(21, 2)),
        ("GRES/gpu:h100=1", "gpu=8", 0),  # Slurm counts no type that was not told
        ("GRES/gpu:gpu=1", "gpu=8", 0),
    ],
)
def test_a_type_of_gpu_has_a_weight_of_its_own(text: str, models: str, bill: int | Fraction) -> None:
    held = Tres(cpus=None, memory_mib=None, nodes=1, gpus=8, gpu_models=models, billing=None)
    assert units_of(held, parse_weights(text)) == bill


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("CPU=1", False),
        ("CPU=0,Node=1", True),
        ("Mem=1", False),
        ("GRES/gpu=1", False),
        ("GRES/gpu:h100=1", False),
        ("Node=1", True),
    ],
)
def test_what_has_no_weight_need_not_be_known(text: str, known: bool) -> None:
    untold = Tres(cpus=None, memory_mib=None, nodes=2, gpus=None, gpu_models="", billing=None)
    assert (units_of(untold, parse_weights(text)) is not None) is known


@pytest.mark.parametrize("text", ["", "license/ansys=1", "GRES/shard=1", "gpu=1", "GRES/gpu:=1", "billing=1"])
def test_weights_of_what_records_do_not_tell_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="TRESBillingWeights"):
        check_weights(parse_weights(text))


def test_weights_of_what_records_tell_are_taken() -> None:
    check_weights(parse_weights("CPU=1,Mem=1G,Node=1,GRES/gpu=1,GRES/gpu:h100=2"))
