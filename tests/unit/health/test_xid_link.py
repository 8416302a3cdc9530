"""What the hexadecimal words of an NVLink error ask for."""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache

import pytest

from fleetctl.health.model import Care
from fleetctl.health.xid_link import LinkRule, judge_nvlink, judge_nvlink5, load_link_rules
from tests.unit.health.logged import CLEARED, REBOOT, RESET, package_data, parsed, table, xid
from tests.unit.health.test_xid import care


@lru_cache(maxsize=1)
def rules() -> tuple[LinkRule, ...]:
    return load_link_rules(package_data()[1])


def judged(number: int, body: str, severity: str | None = None) -> Care:
    return judge_nvlink5(number, body, severity, rules()).care


def body(unit: str, severity: str, info: int, status: int) -> str:
    return f"{unit} {severity} XC0 i0 Link 03 (0x{info:08x} 0x{status:08x} 0x00000000 0x00000000)"


def test_the_table_is_nvidias() -> None:
    """95 rows: 45 ask for nothing, 42 for a reset, 8 for what a 154 says. Three of RLW_RXPIPE have a second form."""
    second = [rule for rule in rules() if rule.units == ("RLW_RXPIPE",) and rule.immediate == "RESET_GPU"]
    rows = Counter(rule.immediate for rule in rules() if rule not in second)
    assert (dict(rows), len(second)) == ({"IGNORE": 45, "RESET_GPU": 42, "XID_154_EVAL": 8}, 3)


def test_in_the_old_layout_the_low_bits_are_the_xid() -> None:
    assert {rule.old[1] & 0x1F for rule in rules() if rule.xid != 150} == {1, 2, 3, 4, 5, 6}
    for rule in rules():
        assert rule.old[1] & 0x1F == (0 if rule.xid == 150 else rule.xid - 143)
        assert all(value & ~mask == 0 for mask, value in (rule.old, rule.new))


def expected_of(rule: LinkRule, severity: str) -> Care:
    if rule.immediate == "IGNORE":
        return Care.IGNORE if rule.investigatory == "IGNORE" and severity != "Fatal" else Care.WATCH
    return Care.RESET if rule.immediate == "RESET_GPU" else Care.APP


@pytest.mark.parametrize("severity", ["Fatal", "Nonfatal", "Non-fatal"])
@pytest.mark.parametrize("layout", ["old", "new"])
@pytest.mark.parametrize("noise", [0, 0x000F8000, 0xFC0F8000])
def test_each_row_is_found_by_its_words(layout: str, severity: str, noise: int) -> None:
    for rule in rules():
        mask, value = rule.old if layout == "old" else rule.new
        for unit in rule.units:
            for status in rule.status or (0, 0xDEAD):
                text = body(unit, severity, value | noise & ~mask, status)
                assert judged(rule.xid, text) is expected_of(rule, severity), (rule, text)


def test_no_first_word_fits_a_unit_in_both_layouts_of_the_driver() -> None:
    """Bits that both masks look at differ, but for MSE, whose rows all ask for a reset."""
    for one in rules():
        for other in rules():
            if one.xid == other.xid != 150 and set(one.units) & set(other.units):
                both = one.old[0] & other.new[0]
                assert one.old[1] & both != other.new[1] & both, (one, other)


@pytest.mark.parametrize(("base", "bit"), [(6 << 5 | 2, 10), (6, 7)])
@pytest.mark.parametrize("status", [1, 2, 4])
def test_one_more_bit_of_rxpipe_asks_for_a_reset(base: int, bit: int, status: int) -> None:
    assert judged(145, body("RLW_RXPIPE", "Nonfatal", base, status)) is Care.WATCH
    assert judged(145, body("RLW_RXPIPE", "Nonfatal", base | 1 << bit, status)) is Care.RESET


@pytest.mark.parametrize("number", range(144, 151))
@pytest.mark.parametrize(
    ("text", "severity", "expected"),
    [
        ("NEW_UNIT Fatal XC0 i0 Link 03 (0x00000000 0x00000000)", None, Care.RESET),
        ("NEW_UNIT Nonfatal XC0 i0 Link 03 (0x00000000 0x00000000)", None, Care.WATCH),
        ("NEW_UNIT Non-fatal XC0 i0 Link 03 (0x00000000)", None, Care.WATCH),
        ("something Fatal in another form", None, Care.RESET),
        ("something Nonfatal in another form", "Fatal", Care.WATCH),
        ("a process called Fatal, then Nonfatal", None, Care.WATCH),
        ("no word about it", "Fatal", Care.RESET),
        ("no word about it", "Nonfatal", Care.WATCH),
        ("no word about it", None, Care.WATCH),
        ("", None, Care.WATCH),
        ("Fatality, nothing more", None, Care.WATCH),
    ],
)
def test_where_no_row_fits_the_severity_decides(number: int, text: str, severity: str | None, expected: Care) -> None:
    assert judged(number, text, severity=severity) is expected


def test_without_the_table_the_severity_decides() -> None:
    text = body("RLW_SRC_TRACK", "Nonfatal", 7 << 5 | 2, 1)
    assert judge_nvlink5(145, text, None, ()).care is Care.WATCH
    assert judge_nvlink5(145, text.replace("Nonfatal", "Fatal"), None, ()).care is Care.RESET


# Lines as people posted them, cut, and the one of NVSentinel#1357 that was taken for fatal.
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
            Care.RESET,
        ),
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x00000000 0x00000000)", Care.RESET),
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 0x00000000)", Care.RESET),
        ("149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001 0x00000000 0x00000000)", Care.WATCH),
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000)", Care.WATCH),
        ("145, pid=1, name=python, RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 (0x040868e2 0x00000008 0x00000000)", Care.APP),
        ("145, pid=1, name=x, y Fatal, RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 (0x040868e2 0x00000008)", Care.APP),
        ("145, pid=1, name=x, A Fatal XC0 i0, RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 (0x040868e2 0x00000008)", Care.APP),
    ],
)
def test_lines_from_the_field(line: str, expected: Care) -> None:
    assert care(parsed(f"NVRM: Xid (PCI:0018:01:00): {line}")) is expected


def test_what_a_154_must_decide_follows_it() -> None:
    follows = xid(145, body("RLW_SRC_TRACK", "Nonfatal", 7 << 5 | 2, 8), ago=60)
    assert care(follows) is Care.APP
    assert care(follows, xid(154, RESET, ago=59)) is Care.RESET
    assert care(follows, xid(154, REBOOT, ago=59)) is Care.REBOOT
    assert care(follows, xid(154, CLEARED, ago=59)) is Care.APP


def test_the_words_name_unit_and_link() -> None:
    def says(text: str) -> str:
        return judge_nvlink5(149, text, None, rules()).says

    assert says(body("NETIR_LINK_EVT", "Fatal", 0x1C6, 0)) == "reports a fatal NVLink error in NETIR_LINK_EVT on link 3"
    assert says("Nonfatal") == "reports a non-fatal NVLink error"
    assert says("") == "reports an NVLink error"
    assert judge_nvlink("NVLink: fatal error detected on link 14(", 1).says == "reports a fatal NVLink error on link 14"


# Xid 74: bits of register 1 are r=0, of 3 r=2, of 4 r=3, of 5 r=4.
def registers(*bits: tuple[int, int], word: str = "fatal") -> str:
    words = [0] * 7
    for register, bit in bits:
        words[register] |= 1 << bit
    return f"NVLink: {word} error detected on link 14({', '.join(hex(value) for value in words)})"


ASK_FOR_A_RESET = [(0, bit) for bit in (4, 5, 8, 9, 12, 16, 17, 24, 28, 21, 22)]
ASK_FOR_A_RESET += [(2, bit) for bit in (0, 1, 2, 6, 13)] + [(4, bit) for bit in (18, 19, 21, 22, 24, 25, 27, 28)]
ASK_IF_REPEATED = [(0, 27), (0, 29), (2, 16), (2, 17), (2, 18), (2, 19)]
WATCHED = [(0, 1), (0, 20), (3, 16), (3, 17), (3, 18), (4, 20), (4, 23), (4, 26), (4, 29)]
NOTHING = [(0, 0), (0, 23), (0, 30)]


@pytest.mark.parametrize("bit", ASK_FOR_A_RESET)
def test_bits_that_ask_for_a_reset(bit: tuple[int, int]) -> None:
    assert judge_nvlink(registers(bit, word="some"), 1).care is Care.RESET
    assert judge_nvlink(registers(bit, *NOTHING, *WATCHED), 1).care is Care.RESET


@pytest.mark.parametrize("bit", ASK_IF_REPEATED)
@pytest.mark.parametrize(("times", "expected"), [(1, Care.WATCH), (2, Care.WATCH), (3, Care.RESET), (800, Care.RESET)])
def test_bits_that_count_when_they_come_again(bit: tuple[int, int], times: int, expected: Care) -> None:
    assert judge_nvlink(registers(bit), times).care is expected


@pytest.mark.parametrize("bit", WATCHED)
def test_bits_that_are_the_echo_of_another_fault_or_a_threshold(bit: tuple[int, int]) -> None:
    assert judge_nvlink(registers(bit, *NOTHING), 800).care is Care.WATCH


@pytest.mark.parametrize("bit", NOTHING)
def test_bits_that_can_be_ignored(bit: tuple[int, int]) -> None:
    assert judge_nvlink(registers(bit), 800).care is Care.IGNORE


@pytest.mark.parametrize("bits", [[], [(0, 2)], [(0, 31)], [(3, 0)], [(4, 0)], [(0, 0), (2, 31)]])
def test_where_the_bits_say_nothing_the_word_fatal_decides(bits: list[tuple[int, int]]) -> None:
    assert judge_nvlink(registers(*bits), 1).care is Care.RESET
    assert judge_nvlink(registers(*bits, word="some"), 1).care is Care.WATCH


@pytest.mark.parametrize("register", [1, 5, 6])
def test_registers_that_mean_nothing_are_not_read(register: int) -> None:
    assert judge_nvlink(registers((register, 8), (0, 0)), 1).care is Care.IGNORE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Care.WATCH),
        ("NVLink: Link 3 failed to train", Care.WATCH),
        ("NVLink: fatal error detected on link 14(0x0, 0x0", Care.RESET),
        ("NVLink: non-fatal error detected on link 14", Care.WATCH),
    ],
)
def test_a_74_without_registers(text: str, expected: Care) -> None:
    assert judge_nvlink(text, 1).care is expected


def test_a_74_counts_over_all_lines_of_its_gpu() -> None:
    again = [xid(74, registers((2, 16)), ago=ago) for ago in (10, 20, 30)]
    assert care(again[0], again[1]) is Care.WATCH
    assert care(again[0], again[1], again[2]) is Care.RESET
    assert care(again[0], *(e._replace(pci="0000:99:00") for e in again[1:])) is Care.WATCH


@pytest.mark.parametrize("text", ["", "{}]", '[{"xid": 1}]', "[1]", json.dumps([{"xid": 144, "old": ["z"]}]), "null"])
def test_a_damaged_table_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"NVLink errors is damaged: .*; install fleetctl again"):
        load_link_rules(text)


def test_the_table_goes_with_the_xids() -> None:
    assert table().rules == rules()
