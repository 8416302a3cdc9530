"""What a number in the kernel log asks for, and who has the last word about it."""

from __future__ import annotations

import json

import pytest

from fleetctl.health.judge_gpu import ACTIONS
from fleetctl.health.model import CLOSING, Care, Event
from fleetctl.health.xid import XidTable, load_xids, xid_care
from tests.unit.health.logged import CLEARED, OTHER, REBOOT, RESET, package_data, parsed, table, xid

LATE = [170, 171, 172, 175, 176]
ENGINES = [40, 41, 75, 76, 77, 83, 84, 85, 88, 89, *range(96, 106), *range(127, 136)]
# The class of each number that has one.
CLASSES = {
    Care.IGNORE: [14, 37, 43, 44, 66, 67, 73, 93, 106, 107, 108, 141, 152, 153, 160, 162, 174],
    Care.WATCH: [38, 45, 56, 57, 58, 61, 63, 65, 78, 81, 92, *range(121, 126), 142, 157, 161, *range(163, 167), *LATE],
    Care.APP: [8, 11, 13, 25, 31, 32, 39, 60, 68, 69, 70, 71, 72, 80, 82, 86, 94, 126, 137, 139, *ENGINES],
    Care.RESET: [46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158, 159],
    Care.REBOOT: [79, 151, 167, 169, 173],
    Care.HUMAN: [54, 168],
}
# Their text decides.
DECODED = [74, *range(144, 151), 154]


def care(event: Event, *others: Event, of: XidTable | None = None) -> Care:
    return xid_care(event, of or table(), others)[0]


def words(event: Event, *others: Event) -> str:
    return xid_care(event, table(), others)[1]


@pytest.mark.parametrize(("expected", "number"), [(c, n) for c, numbers in CLASSES.items() for n in numbers])
def test_a_number_alone_asks_for_its_class(expected: Care, number: int) -> None:
    assert care(xid(number, "some words")) is expected


def test_the_table_has_these_numbers_and_no_other() -> None:
    assert sorted(table().entries) == sorted([n for numbers in CLASSES.values() for n in numbers] + DECODED)


@pytest.mark.parametrize("number", DECODED)
def test_no_number_whose_text_decides_closes_a_node_by_itself(number: int) -> None:
    assert care(xid(number)) is Care.WATCH


@pytest.mark.parametrize("number", [0, 1, 42, 133_000, 177, 999])
def test_an_unknown_number_is_watched(number: int) -> None:
    assert care(xid(number)) is Care.WATCH


@pytest.mark.parametrize(
    ("number", "immediate", "architectures", "since"),
    [
        (13, "RESTART_APP", ["A100", "H100", "B100", "GB200"], ""),
        (48, "WORKFLOW_XID_48", ["A100", "H100", "B100", "GB200"], "R565"),
        (74, "WORKFLOW_NVLINK_ERR", ["A100", "H100"], "R565"),
        (109, "RESET_GPU", ["A100", "H100", "B100", "GB200"], "R570"),
        (121, "IGNORE", ["GB200"], ""),
        (143, "RESET_GPU", ["H100", "B100", "GB200"], "R575"),
        (149, "WORKFLOW_NVLINK5_ERR", ["B100", "GB200"], "R565"),
    ],
)
def test_the_table_tells_nvidias_own_action(number: int, immediate: str, architectures: list[str], since: str) -> None:
    row = json.loads(package_data()[0])[str(number)]
    assert (row["nvidia_immediate"], row["architectures"], row["since_154"]) == (immediate, architectures, since)


def test_every_row_says_something_a_person_understands() -> None:
    for key, row in json.loads(package_data()[0]).items():
        assert set(row) >= {"name", "mnemonic", "says", "care", "nvidia_immediate", "nvidia_investigatory", "note"}, key
        assert row["says"].isascii()
        assert 10 < len(row["says"]) < 70, key


# Who has the last word


def test_the_driver_outranks_the_number() -> None:
    fault, verdict = xid(95, ago=60), xid(154, REBOOT, ago=59)
    assert care(fault, verdict) is Care.REBOOT
    assert words(fault, verdict) == (
        "reports an uncontained memory error (Xid 95); its driver asks for a reboot (Xid 154)"
    )
    assert care(xid(79, ago=60), xid(154, RESET, ago=59)) is Care.RESET


def test_a_verdict_that_is_older_than_a_fault_leaves_it_its_class() -> None:
    assert care(xid(79, ago=50), xid(154, RESET, ago=59)) is Care.REBOOT
    assert care(xid(95, ago=50), xid(154, CLEARED, ago=59)) is Care.RESET


@pytest.mark.parametrize("number", [62, 79, 95, 119, 167])
def test_none_clears_what_was_before_it(number: int) -> None:
    fault, cleared = xid(number, ago=60), xid(154, CLEARED, ago=10)
    assert care(fault, xid(154, RESET, ago=59), cleared) is Care.WATCH
    assert "cleared" in words(fault, cleared)


def test_none_on_another_gpu_clears_nothing() -> None:
    assert care(xid(95, ago=60), xid(154, CLEARED, pci=OTHER, ago=10)) is Care.RESET
    assert care(xid(95, ago=60), xid(154, REBOOT, pci=OTHER, ago=10)) is Care.RESET


def test_what_a_person_must_see_no_driver_clears() -> None:
    assert care(xid(54, ago=60), xid(154, CLEARED, ago=10)) is Care.HUMAN
    assert care(xid(54, ago=60), xid(154, RESET, ago=10)) is Care.HUMAN


def test_the_verdict_does_not_make_an_applications_fault_one_of_the_gpu() -> None:
    assert care(xid(13, ago=60), xid(154, RESET, ago=10)) is Care.APP
    assert care(xid(63, ago=60), xid(154, RESET, ago=10)) is Care.WATCH


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (RESET, Care.RESET),
        (REBOOT, Care.REBOOT),
        (CLEARED, Care.IGNORE),
        ("GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", Care.RESET),
        ("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", Care.RESET),
        ("GPU recovery action changed from 0x0 (None) to 0x5 (Recover IMEX Domain)", Care.DRAIN),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Reboot, please)", Care.REBOOT),
        ("GPU recovery action changed from 0x0 (None) to 0x6 (GPU Bus Reset Required)", Care.RESET),
        ("GPU recovery action changed from 0x0 (None) to 0x7 (System Reboot Required)", Care.REBOOT),
        ("GPU recovery action changed from 0x0 (None) to 0x9 (Something New)", Care.DRAIN),
        ("nonsense", Care.WATCH),
        ("x, changed from 0x0 (None) to 0x2 (Node Reboot Required), " + CLEARED, Care.IGNORE),
    ],
)
def test_the_text_of_a_verdict_decides(text: str, expected: Care) -> None:
    assert care(xid(154, text)) is expected


@pytest.mark.parametrize("action", ACTIONS)
def test_the_log_and_nvml_ask_for_the_same(action: int) -> None:
    assert care(xid(154, f"GPU recovery action changed from 0x0 (None) to 0x{action:x} (-)")) is ACTIONS[action][0]


def test_only_the_latest_verdict_counts() -> None:
    first, last = xid(154, REBOOT, ago=60), xid(154, RESET, ago=50)
    assert care(first, last) is Care.IGNORE
    assert care(last, first) is Care.RESET
    assert care(xid(95, ago=70), first, last) is Care.RESET
    assert words(last, xid(95, ago=70), first) == "needs a GPU reset, says its driver (Xid 154, after Xid 95)"


def test_a_verdict_that_was_acted_upon_raises_nothing() -> None:
    assert care(xid(95, ago=60), xid(154, REBOOT, ago=59)._replace(told=True)) is Care.RESET


@pytest.mark.parametrize("word", ["ignore", "watch", "app", "reset", "reboot", "drain", "human"])
def test_a_site_has_its_way_with_a_number(word: str) -> None:
    site = table({"94": word, "145": word, "74": word})
    expected = Care[word.upper()]
    fatal = "RLW_SRC_TRACK Fatal XC0 i0 Link 03 (0x000000e2 0x00000001)"
    assert care(xid(94), of=site) is expected
    assert care(xid(145, fatal), of=site) is expected
    assert care(xid(74, "NVLink: fatal error detected on link 3"), of=site) is expected


def test_a_site_keeps_its_class_under_a_verdict_which_stands_for_itself() -> None:
    site, fault, verdict = table({"95": "watch"}), xid(95, ago=60), xid(154, RESET, ago=59)
    assert care(fault, verdict, of=site) is Care.WATCH
    assert care(verdict, fault, of=site) is Care.RESET
    assert care(fault, verdict, of=table({"95": "drain"})) is Care.DRAIN


def test_a_site_that_names_154_switches_the_verdict_off() -> None:
    site, fault, verdict = table({"154": "watch"}), xid(95, ago=60), xid(154, REBOOT, ago=59)
    assert care(verdict, fault, of=site) is Care.WATCH
    assert care(fault, verdict, of=site) is Care.RESET


@pytest.mark.parametrize(
    ("site", "complaint"),
    [
        ({"94": "rest"}, "'rest' for 94"),
        ({"94": 3}, "3 for 94"),
        ({"xid 94": "reset"}, "'xid 94' is not the number"),
        ({"-1": "reset"}, "'-1' is not the number"),
        ({"": "reset"}, "'' is not the number"),
        ({"9" * 5000: "reset"}, "is not the number"),
        ({"²": "reset"}, "is not the number"),
    ],
)
def test_a_mistake_of_a_site_is_named_and_costs_only_itself(site: dict[str, str], complaint: str) -> None:
    mended = table({**site, "13": "watch"})
    assert [complaint in words for words in mended.complaints] == [True]
    assert care(xid(13), of=mended) is Care.WATCH
    assert care(xid(94), of=mended) is Care.APP


@pytest.mark.parametrize("text", ["", "[]", "{", '{"13": {}}', '{"x": {"says": "s", "care": "app"}}', "null"])
def test_a_damaged_table_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"damaged: .*; install fleetctl again") as refused:
        load_xids(text, {})
    assert "\n" not in str(refused.value)


# Numbers that say more together


def test_45_is_an_echo() -> None:
    assert care(xid(45, "Ch 00000001")) is Care.WATCH
    assert care(xid(45, "Ch 00000001"), xid(13)) is Care.IGNORE
    assert care(xid(45, "Ch 00000001 caused by previous Xid 149")) is Care.IGNORE
    assert care(xid(45, count=5000), xid(13, pci=OTHER)) is Care.WATCH


def test_48_closes_with_or_without_its_companions() -> None:
    assert care(xid(48), xid(63), xid(64)) is Care.RESET
    assert care(xid(172), xid(48)) is Care.IGNORE


def test_61_closes_only_beside_62_or_79() -> None:
    assert care(xid(61)) is Care.WATCH
    assert care(xid(61), xid(62)) is Care.DRAIN
    assert care(xid(61), xid(62, pci=OTHER)) is Care.WATCH


def test_44_is_watched_when_it_comes_again() -> None:
    assert care(xid(44, count=2)) is Care.WATCH
    assert care(xid(44, ago=5), xid(44, ago=90)) is Care.WATCH


@pytest.mark.parametrize(
    ("number", "again"), [(119, Care.REBOOT), (120, Care.REBOOT), (143, Care.REBOOT), (140, Care.HUMAN)]
)
def test_what_comes_back_after_a_drain_for_it_asks_for_more(number: int, again: Care) -> None:
    before = xid(number, ago=900)
    assert care(xid(number, ago=5), before._replace(told=True)) is again
    assert care(xid(number, ago=5), before) is Care.RESET
    assert care(xid(number, ago=5), before._replace(told=True, pci=OTHER)) is Care.RESET


# Lines as people posted them.
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Xid (PCI:0000:0f:00): 94, pid=2503421, name=python3, Ch 00000008", Care.APP),
        ("Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.", Care.REBOOT),
        ("Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 31, pid=1, name=a, Ch 1", Care.APP),
        ("Xid (0000:03:00): 14, Channel 00000001", Care.IGNORE),
        ("Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149", Care.IGNORE),
        (
            "Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            Care.RESET,
        ),
        ("Xid (PCI:0000:17:00): 119, pid=1234, name=python, Timeout after 45s of waiting for RPC response", Care.RESET),
        ("Xid (PCI:0000:9b:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked", Care.WATCH),
        ("Xid (PCI:0000:9b:00): 13, pid=1, name=Xid (PCI: 1): 79, Graphics", Care.APP),
        ("Xid (PCI:0000:9b:00): 13, pid=1, name=x, 79, GPU has f, Graphics Exception", Care.APP),
        ("Xid (PCI:0000:9b:00): 43, pid=1154, name=154, channel 0x0b00000a", Care.IGNORE),
    ],
)
def test_lines_from_the_field(line: str, expected: Care) -> None:
    assert care(parsed(f"NVRM: {line}")) is expected


def test_whether_the_event_is_among_the_others_does_not_matter() -> None:
    for event in (xid(44), xid(45), xid(95), xid(154, RESET)):
        assert xid_care(event, table(), (event,)) == xid_care(event, table(), ())


def test_the_classes_that_close_are_those_from_reset_on() -> None:
    assert {c for c in CLASSES if c >= CLOSING} == {Care.RESET, Care.REBOOT, Care.HUMAN}
