"""Rows that broke public tools, each with the right value. The id of a test is the public thread."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf

import pytest

from fleetctl.accounting.model import Record
from fleetctl.accounting.rows import parse_record, record_key
from fleetctl.accounting.tres import Tres, parse_tres, parse_weights
from fleetctl.slurm.books_parse import parse_shares
from fleetctl.slurm.framing import frame
from fleetctl.slurm.sacct_fields import RECORD_FIELDS
from tests.contract.books import MARK, printed, read_back, record, record_row, step

NAMES = {
    "troycomi/reportseff#30": "some_jobname . | grep hot",
    "troycomi/reportseff#63": "c1 \n j1",
    "eth-cscs/firecrest-v2#148": "crazy|name",
    "neilmunday/slurm-mail#24": "mail_test",
    "neilmunday/slurm-mail#24, a name that ends so": "mail_test|",
    "NordicHPC/slurm2sql, its own separator": ";|;",
    "gcm, its own escape": "a\\nb",
    "a byte that is no UTF-8": "\udce9t\udce9",
    "a tab and a carriage return": "a\tb\r",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_a_name_stays_in_its_column_and_takes_no_row_away(name: str) -> None:
    """All other columns, before and after it, are what they were; as many records as jobs."""
    rows = [record_row(DBIndex=index, JobName=name, State="CANCELLED by 1977600432") for index in "123"]
    found = read_back(*rows)
    assert [one.record for one in found] == ["1", "2", "3"]
    assert {(one.state, one.state_by, one.job_id, one.gpus) for one in found} == {("CANCELLED", 1_977_600_432, 123, 8)}
    assert found[0] == record(DBIndex="1", JobName=name, State="CANCELLED by 1977600432")


def test_troycomi_reportseff_32_a_limit_may_be_the_partitions_own() -> None:
    """Also NordicHPC/slurm2sql#3."""
    assert record(TimelimitRaw="Partition_Limit").limit_s is None


def test_hpc_cost_simulator_61_a_job_cancelled_before_its_start_held_nothing() -> None:
    found = record(
        State="CANCELLED by 32874",
        Partition="x2iedn&c7&spot",
        Start="None",
        NodeList="None assigned",
        AllocTRES="",
    )
    assert (found.partition, found.state, found.state_by) == ("x2iedn&c7&spot", "CANCELLED", 32_874)
    assert (found.started_s, found.gpus, found.nodes) == (None, 0, None)


@pytest.mark.parametrize(
    ("memory", "mib"),
    [
        pytest.param("0n", None, id="aws-samples/hpc-cost-simulator#17"),
        pytest.param("0c", None, id="neilmunday/slurm-mail#38"),
        pytest.param("48G", 49_152, id="NordicHPC/sonar#387"),
        pytest.param("4000Mc", None, id="NordicHPC/slurm2sql converter"),
        pytest.param("16?", None, id="convert_num_unit2, an overflow"),
        pytest.param("1.50T", 1_572_864, id="SckyzO/slurm_exporter#180"),
        pytest.param("1560576M", 1_560_576, id="facebookresearch/gcm#71"),
        pytest.param("250.5G", 256_512, id="ceems, 250.5G as 250G"),
        pytest.param("60G", 61_440, id="gcm, powers of ten"),
    ],
)
def test_memory_is_right_or_unknown_and_never_an_error(memory: str, mib: int | None) -> None:
    assert record(AllocTRES=f"cpu=1,gres/gpu=2,mem={memory}").memory_mib == mib
    assert record(AllocTRES=f"cpu=1,gres/gpu=2,mem={memory}").gpus == 2


def test_nordichpc_slurm2sql_15_a_poisoned_row_costs_no_other_row() -> None:
    rows = (record_row(DBIndex="1"), record_row(DBIndex="2", ExitCode="poison"), record_row(DBIndex="3"))
    found = frame(printed(RECORD_FIELDS, rows), MARK)
    keys, read = [], []
    for row in found.rows:
        keys.append(record_key(found.columns, row))
        try:
            read.append(parse_record(found.columns, row).record)
        except ValueError as error:
            assert str(error) == "ExitCode: 'poison' is no status:signal"  # noqa: PT017
    assert (keys, read) == (["1", "2", "3"], ["1", "3"])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("1:00:00", 3_600, id="neilmunday/slurm-mail#47"),
        pytest.param("01:00:00.250", 3_600, id="neilmunday/slurm-mail#47, with a fraction"),
        pytest.param("2-01:24:56", 177_896, id="ALU-Schumacher/AUDITOR#427, the days"),
        pytest.param("45-01:00:00", 3_891_600, id="snakemake/snakemake-executor-plugin-slurm#362"),
        pytest.param("12:34.567", 754, id="gcm, minutes and seconds"),
        pytest.param("1-02:03:04.567", 93_784, id="all of it"),
    ],
)
def test_a_duration_is_read_in_each_of_its_forms(text: str, seconds: int) -> None:
    assert record(Suspended=text).suspended_s == seconds


def test_snakemake_2036_an_element_of_an_array_has_a_number_of_its_own() -> None:
    found = record(JobID="1043074_91", JobIDRaw="1043166")
    assert (found.job_id, found.array_index, found.raw_id) == (1_043_074, 91, 1_043_166)


def test_auditor_1976_an_interactive_step_has_no_user() -> None:
    found = step(JobID="778010.interactive", JobIDRaw="778010.interactive", JobName="interactive")
    assert (found.step, found.record) == ("interactive", "4711")


@pytest.mark.parametrize(
    ("text", "state"),
    [
        pytest.param("RESV_DEL_HOLD", "RESV_DEL_HOLD", id="gwforg/gwf#244"),
        pytest.param("RD", "RD", id="Matgenix/qtoolkit#37"),
        pytest.param("CANCELLED by 1000", "CANCELLED", id="Snakemake-Profiles/slurm#22"),
        pytest.param("LAUNCH_FAILED", "LAUNCH_FAILED", id="25.11's flags"),
        pytest.param("?", "?", id="job_state_string, a number that it has no word for"),
    ],
)
def test_a_state_is_kept_as_slurm_says_it(text: str, state: str) -> None:
    assert record(State=text).state == state


@pytest.mark.parametrize(
    ("tres", "gpus", "models"),
    [
        pytest.param("cpu=4,mem=32G,node=1,gres/gpu=1", 1, "gpu=1", id="SckyzO/slurm_exporter#35"),
        pytest.param("cpu=4,gres/gpu:h100=4,node=1", 4, "h100=4", id="vpenso/prometheus-slurm-exporter#64"),
        pytest.param("cpu=4,gres/tmp:844G=1,node=1", 0, "", id="vpenso/prometheus-slurm-exporter#38"),
        pytest.param(
            "gres/gpu:nvidia_geforce_rtx_2080_ti=1",
            1,
            "nvidia_geforce_rtx_2080_ti=1",
            id="PrincetonUniversity/jobstats#53",
        ),
        pytest.param(
            "gres/gpu:a100=2,gres/gpu:h100=6,gres/gpu=8",
            *(8, "a100=2,h100=6"),
            id="PrincetonUniversity/jobstats#53, a sum of all matches is 16",
        ),
        pytest.param(
            "gres/gpu:a100=2,gres/gpu:h100=6,gres/gpu=8,gres/gpumem=640G,gres/gpuutil=700",
            *(8, "a100=2,h100=6"),
            id="ceems, the last match is 700",
        ),
        pytest.param("cpu=1,gres/gpu:h100=8", 8, "h100=8", id="NordicHPC/slurm2sql, only the type"),
        pytest.param("cpu=1,gres/gpu=NONE", None, "", id="NordicHPC/slurm2sql, NONE"),
        pytest.param("gres/gpu:a100_3g.20gb=1,gres/gpu=1", 1, "a100_3g.20gb=1", id="a slice of a GPU"),
        pytest.param("cpu=2,gres/cpu=9", 0, "", id="neilmunday/slurm-mail#142"),
    ],
)
def test_gpus_are_counted_once_and_nothing_else_is_one(tres: str, gpus: int | None, models: str) -> None:
    found = record(AllocTRES=tres)
    assert (found.gpus, found.gpu_models) == (gpus, models)


def test_jobstats_14_what_an_exclusive_job_was_given_counts_not_what_it_asked_for() -> None:
    found = record(ReqTRES="billing=1,cpu=1,node=1", AllocTRES="billing=128,cpu=128,gres/gpu=8,gres/gpu:h100=8,node=1")
    assert (found.gpus, found.cpus) == (8, 128)


def test_airavata_custos_542_what_a_job_was_given_is_a_total_of_its_nodes() -> None:
    assert parse_tres("billing=16,cpu=16,gres/gpu=16,mem=128G,node=2") == Tres(16, 131_072, 2, 16, "gpu=16", 16)


def test_airavata_custos_564_a_weight_is_no_whole_number() -> None:
    assert {key: float(weight) for key, weight in parse_weights("CPU=0.5,GRES/gpu=1.75").items()} == {
        "cpu": 0.5,
        "gres/gpu": 1.75,
    }


def test_lcrownover_exporter_8_a_share_may_be_infinite_or_the_parents() -> None:
    (found,) = parse_shares(" physics|alice|parent|0.5|0|0.000000|1.000000|inf\n")
    assert (found.account, found.raw_shares, found.fair_share, found.level_fs) == ("physics", None, 1.0, inf)


def test_reportseff_25_each_attempt_of_a_requeued_job_is_a_record() -> None:
    """The GPU-seconds are the sum of all four; also ubccr/xdmod#370."""
    elapsed = (3889, 4473, 6122, 2153)  # 01:04:49, 01:14:33, 01:42:02, 00:35:53
    rows, start = [], 1_796_000_000
    for number, seconds in enumerate(elapsed):
        state = "REQUEUED" if number < 3 else "COMPLETED"
        times = {
            "Submit": str(start - 60),
            "Eligible": str(start - 60),
            "Start": str(start),
            "End": str(start + seconds),
        }
        rows.append(record_row(DBIndex=str(900 + number), JobID="235929", JobIDRaw="235929", State=state, **times))
        start += seconds + 300
    found = read_back(*rows)
    assert len({one.record for one in found}) == 4
    assert sum(held_s(one) * (one.gpus or 0) for one in found) == sum(elapsed) * 8


def held_s(one: Record) -> int:
    assert one.started_s is not None
    assert one.ended_s is not None
    return one.ended_s - one.started_s


def test_ceems_432_a_time_in_another_form_is_an_error_and_never_zero() -> None:
    for text in ("2025-03-01T10:00:00", "2025-03-01T10:00:00+0100", "2021-03-09T23:50:27"):  # OSC/ondemand#938
        with pytest.raises(ValueError, match="is no time in epoch seconds"):
            record(Start=text)


def test_slurm_mail_50_a_job_cancelled_before_its_start_has_no_start_in_any_version() -> None:
    assert {record(Start=text).started_s for text in ("Unknown", "None", "0")} == {None}


def test_cluster_utils_87_a_failed_step_shows_behind_a_job_that_completed() -> None:
    failed = step(State="CANCELLED", ExitCode="0:10")
    assert (failed.state, failed.exit_status, failed.exit_signal) == ("CANCELLED", 0, 10)
    assert record(DerivedExitCode="0:10").cause == "masked_failure"


def test_the_hour_that_comes_twice_in_new_york_is_two_hours() -> None:
    """2025-11-02 01:30 there, before the clocks went back and after."""
    twice = [int(datetime(2025, 11, 2, hour, 30, tzinfo=UTC).timestamp()) for hour in (5, 6)]
    found = record(Submit=str(twice[0]), Eligible=str(twice[0]), Start=str(twice[1]), End=str(twice[1] + 3600))
    assert found.submitted_s is not None
    assert found.started_s is not None
    assert (found.started_s - found.submitted_s, held_s(found)) == (3600, 3600)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"State": "FAILED", "ExitCode": "137:0"}, "killed"),  # 25.11 and newer
        ({"State": "FAILED", "ExitCode": "9:0"}, "program_or_signal"),  # older: 137 or 9
        ({"State": "OUT_OF_MEMORY", "ExitCode": "0:125"}, "out_of_memory"),
        ({"State": "FAILED", "ExitCode": "0:125"}, "out_of_memory"),
        ({"State": "NODE_FAIL", "ExitCode": "1:0", "FailedNode": "gpu02"}, "node"),
        ({"State": "FAILED", "ExitCode": "1:0", "FailedNode": "gpu02"}, "node"),
    ],
    ids=str,
)
def test_an_exit_code_is_attributed_by_what_each_version_prints(changes: dict[str, str], cause: str) -> None:
    assert record(**changes).cause == cause
