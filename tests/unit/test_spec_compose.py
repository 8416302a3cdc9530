"""Structure: what YAML itself gets wrong, and what would make a file dangerous to read."""

from __future__ import annotations

import time

import pytest
import yaml

from fleetctl.errors import SpecError
from fleetctl.spec import compose as module
from fleetctl.spec.compose import MAX_BYTES, MAX_DEPTH, decode
from fleetctl.spec.load import load_spec


@pytest.fixture(params=["CSafeLoader", "SafeLoader"], autouse=True)
def _loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here holds with and without libyaml."""
    monkeypatch.setattr(module, "_LOADER", getattr(yaml, request.param))


def refusal(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        load_spec(text, "train.yaml")
    (found,) = caught.value.problems
    return found


@pytest.mark.parametrize("text", ["", "\n\n", "# a comment\n", "---\n", "---\n...\n", "~\n", "\ufeff"])
def test_an_empty_file_is_told_what_it_lacks(text: str) -> None:
    assert refusal(text) == "train.yaml:1:1: the file is empty: expected fields such as name and command"


def test_a_second_document_is_refused_where_it_starts() -> None:
    assert refusal("name: a\n---\nname: b\n") == "train.yaml:2:1: expected one document, not another one after ---"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("name: a\n  b: c\n", "train.yaml:2:4: not valid YAML: mapping values are not allowed"),
        (
            'name: "a\n',
            "train.yaml:2:1: not valid YAML: while scanning a quoted scalar, found unexpected end of stream",
        ),
        ("a: [1, 2\n", "train.yaml:2:1: not valid YAML: while parsing a flow sequence"),
        ("a:\n\t- b\n", "train.yaml:2:1: not valid YAML: while scanning for the next token, found character"),
        ("%YAML 2.0\n---\na: b\n", "train.yaml:1:1: not valid YAML: found incompatible YAML document"),
        ("a: *nowhere\n", "train.yaml:1:4: no anchor &nowhere before this alias"),
        ("a: \x01\n", "train.yaml:1:4: not valid YAML: the character \\x01 may only stand in double quotes"),
        ("a: b\nc: \0\n", "train.yaml:2:4: not valid YAML: the character \\x00"),
        ("a: \ud800\n", "train.yaml:1:4: not valid YAML: the character \\ud800"),
        ('a: "\\UFFFFFFFF"\n', "train.yaml:1:"),
        ("%YAML 1." + "9" * 5000 + "\n---\na\n", "train.yaml:1:1"),
    ],
)
def test_broken_yaml_is_one_line_with_a_place_and_a_reason(text: str, start: str) -> None:
    found = refusal(text)
    assert found.startswith(start)
    assert "\n" not in found


def test_a_byte_order_mark_is_no_text() -> None:
    assert load_spec("\ufeffname: a\ncommand: b\n", "train.yaml").name == "a"
    assert refusal("\ufeffname: a/b\ncommand: b\n").startswith("train.yaml:1:7: name: ")


def test_aliases_are_read() -> None:
    spec = load_spec("name: &n a\ncommand: [*n, *n]\nenv: &e {A: x}\n", "train.yaml")
    assert spec.command == ("a", "a")


def test_an_anchor_may_be_set_again() -> None:
    assert load_spec("name: &n a\ncommand: [*n, &n b, *n]\n", "train.yaml").command == ("a", "b", "b")


def test_a_mistake_behind_an_alias_is_told_once_for_each_use() -> None:
    with pytest.raises(SpecError) as caught:
        load_spec("name: a\ngroups:\n- &g {name: g, command: c, script: s}\n- *g\n", "train.yaml")
    assert [problem.split(": ")[1] for problem in caught.value.problems] == [
        "groups[1].name",
        "groups[0].script",
        "groups[1].script",
    ]


@pytest.mark.parametrize("text", ["a: &x [*x]\n", "&x a: {b: &y {c: *y}}\n", "&x [*x]\n"])
def test_recursion_is_refused(text: str) -> None:
    assert refusal(text).endswith("is inside what it names")


def test_a_bomb_of_aliases_is_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 40)]
    start = time.process_time()
    assert "expected aliases that repeat at most 10000 values in all" in refusal("\n".join(lines))
    assert time.process_time() - start < 10


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 100_000, "- " * 100_000, "? " * 100_000, "- ? " * 9_000])
def test_depth_is_refused_at_once(text: str) -> None:
    start = time.process_time()
    with pytest.raises(SpecError) as caught:
        load_spec(text, "train.yaml")
    assert time.process_time() - start < 10
    by_libyaml = "exceeded maximum nesting depth"  # it reads ahead to see whether a bracket begins a key
    assert f"expected at most {MAX_DEPTH} levels, one inside the other" in str(caught.value) or by_libyaml in str(
        caught.value
    )


def test_no_tag_is_ever_constructed() -> None:
    found = refusal("name: a\ncommand: !!python/object/apply:os.system ['touch /tmp/owned']\n")
    assert found == "train.yaml:2:10: command: expected a value without a tag, not !!python/object/apply:os.system"


def test_a_long_tag_does_not_fill_the_screen() -> None:
    assert len(refusal(f"name: a\ncommand: !{'t' * 5000} x\n")) < 150


def test_decode_gives_text_or_says_where_it_is_not() -> None:
    assert decode("name: é\n".encode(), "t") == "name: é\n"
    assert decode(b"\xef\xbb\xbfname: a\n", "t") == "\ufeffname: a\n"
    for raw, expected in (
        (b"a: b\nc: \xff\n", "t:2:4: expected UTF-8 text"),
        ("name: é".encode("latin-1"), "t:1:7: expected UTF-8 text"),
        ("name: a".encode("utf-16"), "t:1:1: expected UTF-8 text"),
        (b"a: b\n\0", "t:2:1: expected text, not a NUL character"),
        (b"x" * (MAX_BYTES + 1024), "t: expected at most 1024 KiB, not 1025 KiB"),
    ):
        with pytest.raises(SpecError) as caught:
            decode(raw, "t")
        assert caught.value.problems == (expected,)
