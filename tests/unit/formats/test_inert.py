"""What a pickle may hold and what becomes of it. Nothing that it names is ever imported or called."""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import pickle
import random
import re
import struct
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetctl.checkpoint import inert, opcodes
from fleetctl.checkpoint.look import Unjudged
from tests.formats.pickles import Kept, Made, Named, pickled

PROTOCOLS = [2, 3, 4, 5]


def plain(value: object) -> object:
    """As Python has it."""
    if isinstance(value, inert.Map):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    return value


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, 255, 65_535, -1, 2**31, 2**63, -(2**1000), 1.5, "", "é" * 200, "x" * 70_000,
        (), (1,), (1, 2), (1, 2, 3), tuple(range(50)), [], [1], list(range(3000)), {}, {"a": 1},
        {"}": "u", "s": "\x8f"}, {n: str(n) for n in range(3000)}, {"a": {"b": {"c": [({},)]}}}, {1: 2, None: 3},
        {"step": ord("}"), "u": 0x75757575, "f": struct.unpack("<d", b"}}}}uuuu")[0]}, [{}] * 300,
    ],
    ids=lambda value: f"{type(value).__name__} {ascii(value)[:20]}",
)  # fmt: skip
def test_plain_values_come_out_as_they_went_in(value: object, protocol: int) -> None:
    assert plain(inert.load(pickle.dumps(value, protocol))) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("value", [b"", b"a\n.", b"}us" * 100, bytes(70_000)], ids=len)
def test_bytes_come_out_as_they_went_in(value: bytes, protocol: int) -> None:
    """Protocol 2 has none and calls a function for them."""
    made = inert.load(pickle.dumps(value, protocol))
    assert isinstance(made, inert.Stub) if protocol == 2 else made == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_any_nest_of_plain_values_comes_out_as_it_went_in(protocol: int) -> None:
    rng = random.Random(protocol)

    def some(depth: int) -> object:
        kind = rng.randrange(9 if depth else 5)
        made: list[object] = [rng.randrange(-(2**40), 2**40), rng.random(), None, rng.random() < 0.5]
        if kind < 5:
            return [*made, rng.choice(["}", "step", "é" * rng.randrange(300)])][kind]
        inner = [some(depth - 1) for _ in range(rng.choice([0, 1, 2, 5]))]
        if kind == 8:
            return {f"key{number}": one for number, one in enumerate(inner)}
        return inner if kind == 6 else tuple(inner)

    for _ in range(300):
        value = some(5)
        assert plain(inert.load(pickle.dumps(value, protocol))) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_set_is_a_list(protocol: int) -> None:
    value = inert.load(pickle.dumps([{1}, frozenset({2})], protocol))
    if protocol < 4:  # there it is made by calling builtins.set
        assert isinstance(value, list)
        assert all(isinstance(one, inert.Stub) for one in value)
    else:
        assert value == [[1], [2]]


def test_a_map_gives_the_values_of_its_strings() -> None:
    made = inert.load(pickle.dumps({"a": "b", "b": 2, 3: "c", "c": None, "d": 4}))
    assert isinstance(made, inert.Map)
    assert [made.get(key) for key in "abcde"] == ["b", 2, None, 4, None]
    assert made.get("b") == 2
    assert repr(made) == "<Map of 5>"


@pytest.mark.parametrize("protocol", [2, 4])
def test_what_is_named_becomes_a_stub_and_is_not_imported(protocol: int) -> None:
    made = Made(Named("no_such_module.inner", "Class"), (1, "a"), state={"x": 2}, items={"k": 3})
    stub = inert.load(pickled([made, made], protocol))
    assert isinstance(stub, list)
    assert stub[0] is stub[1]
    assert isinstance(stub[0], inert.Stub)
    assert (stub[0].named, stub[0].args, plain(stub[0].state)) == ("no_such_module.inner.Class", (1, "a"), {"x": 2})
    assert stub[0].items is not None
    assert stub[0].items.get("k") == 3
    assert "no_such_module" not in sys.modules


def test_stubs_of_one_class_are_of_one_class_and_those_of_others_are_not() -> None:
    made = inert.load(pickled([Made(Named("m", "A")), Made(Named("m", "A")), Made(Named("m", "B"))]))
    assert isinstance(made, list)
    one, two, other = made
    assert type(one) is type(two)
    assert type(one) is not type(other)
    assert {one: 1, two: 2, other: 3}[two] == 2


def test_a_persistent_id_is_kept() -> None:
    raw = pickled([Kept(("storage", Named("torch", "FloatStorage"), "0", "cpu", 3))])
    value, end, kept = inert.load_first(raw, 0)
    assert isinstance(value, list)
    assert value == list(kept)
    assert end == len(raw)
    assert kept[0].args[2:] == ("0", "cpu", 3)


def test_a_class_that_is_kept_with_its_source_is_that_class() -> None:
    """As torch writes modules into files of its older kind."""
    linear = Named("torch.nn", "Linear")
    raw = b"\x80\x02" + pickled(Kept(("module", linear, "linear.py", "class Linear: ...")))[2:-1] + b")\x81}b."
    value, _, kept = inert.load_first(raw, 0)
    assert isinstance(value, inert.Stub)
    assert (value.named, plain(value.state), kept) == ("torch.nn.Linear", {}, ())


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "value",
    [collections.OrderedDict(a=1, b=2), collections.Counter("aab"), collections.deque([1, 2]), range(3), 1j, slice(1)],
    ids=lambda value: type(value).__name__,
)
def test_classes_of_python_are_stubs_too(value: object, protocol: int) -> None:
    assert isinstance(inert.load(pickle.dumps(value, protocol)), inert.Stub)


class WithNames:
    def __getnewargs_ex__(self) -> tuple[tuple[int, ...], dict[str, int]]:
        return (1,), {"b": 2}


def test_an_object_made_with_named_arguments() -> None:
    stub = inert.load(pickle.dumps(WithNames(), 4))
    assert isinstance(stub, inert.Stub)
    assert (stub.args[0], plain(stub.args[1])) == (1, {"b": 2})


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_a_pickle_wants_called_is_not_called(protocol: int, tmp_path: Path) -> None:
    stub = inert.load(pickle.dumps(Evil(tmp_path / "done"), protocol))
    assert isinstance(stub, inert.Stub)
    assert stub.named == "posix.system"
    assert not (tmp_path / "done").exists()


def test_what_is_not_allowed_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Unjudged, match=r"refuses its pickle: names posix\.system"):
        inert.load(pickle.dumps(Evil(tmp_path)), lambda module, name: module != "posix")


def test_a_call_of_what_was_made_by_a_call_makes_a_stub() -> None:
    raw = b"\x80\x02cm\nf\n)R(K\x01tRK\x02\x85R."
    stub = inert.load(raw)
    assert isinstance(stub, inert.Stub)
    assert stub.args[1:] == (2,)


BROKEN = {
    "nothing": b"",
    "no stop": b"\x80\x02N",
    "a length beyond the end": b"\x80\x02X\xff\x00\x00\x00abc.",
    "an absurd length of a string": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7fabc.",
    "an absurd length of bytes": b"\x80\x04\x8e" + b"\xff" * 8 + b"abc.",
    "an unknown opcode": b"\x80\x02\xff.",
    "no mark": b"\x80\x02t.",
    "an empty stack": b"\x80\x02R.",
    "a call of a number": b"\x80\x02K\x01)R.",
    "a call of a dict": b"\x80\x02})R.",
    "a call with a list": b"\x80\x02cm\nf\n]R.",
    "a state for a number": b"\x80\x02K\x01}b.",
    "a state for a list": b"\x80\x02]}b.",
    "a state for a dict": b"\x80\x02}}b.",
    "a state for a class": b"\x80\x02cm\nf\n}b.",
    "a memo that is not there": b"\x80\x02h\x05.",
    "a huge memo index": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "a memo index that no such pickle needs": b"\x80\x02Nr\x00\x10\x00\x00.",
    "a newer protocol": b"\x80\xffN.",
    "a class that is a number": b"\x80\x02K\x01)\x81.",
    "a name that is a number": b"\x80\x04K\x01K\x02\x93.",
    "no UTF-8": b"\x80\x02X\x02\x00\x00\x00\xff\xff.",
    "items for a number": b"\x80\x02K\x01(K\x02e.",
    "something behind it": b"\x80\x02N.N",
    "named arguments of no class": b"\x80\x04K\x01)}\x92.",
}


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN)
def test_what_is_broken_is_said_to_be(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"^(has|ends)") as raised:
        inert.load(raw)
    assert not isinstance(raised.value, Unjudged)


REFUSED = {
    "a number as text": b"\x80\x02I1\n.",
    "a long number as text": b"L" + b"9" * 1000 + b"L\n.",
    "a float as text": b"F1.0\n.",
    "a string as text": b"S'a'\n.",
    "unicode as text": b"Va\n.",
    "an instance": b"(im\nf\n.",
    "an object": b"(cm\nf\no.",
    "a persistent id as text": b"Pa\n.",
    "a memo as text": b"Np9999999999\n.",
    "an extension": b"\x80\x02\x82\x01.",
    "a number of many bytes": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "a buffer": b"\x80\x05\x97.",
    "a byte array": b"\x80\x05\x96\x01\0\0\0\0\0\0\0a.",
    "a duplicate": b"\x80\x02N2.",
    "protocol 0": pickle.dumps([1, 2], 0),
    "protocol 1": pickle.dumps({1: 1.0, "a": 2**70}, 1),
}


@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED)
def test_what_torch_never_writes_is_refused(raw: bytes) -> None:
    with pytest.raises(Unjudged, match="never writes"):
        inert.load(raw)


def test_no_length_makes_it_take_memory() -> None:
    raws = [*BROKEN.values(), *REFUSED.values()]
    opcodes.rewrite(b"N.")  # compiles the patterns
    tracemalloc.start()
    try:
        for raw in raws:
            with pytest.raises(ValueError, match=" "):
                inert.load(raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize(
    "making",
    [b"]", b"N}0", b"(t", b"N\x850", b"NN\x86]", b"\x8f", b"(\x91", b"NQ", b"h\0)R]", b"h\0)\x81]", b"h\0)}\x92"],
    ids=ascii,
)
def test_too_many_objects_for_its_size_are_refused(making: bytes) -> None:
    """Each byte of theirs takes 30 bytes of memory or more."""
    few, many = (b"\x80\x04cm\nf\nq\0(" + making * count + b"t." for count in (20_000, 700_000))
    assert isinstance(inert.load(few), tuple)
    tracemalloc.start()
    try:
        with pytest.raises(Unjudged, match="too many lists, dicts and objects"):
            inert.load(many)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(many)


def test_long_strings_are_not_taken_for_objects() -> None:
    assert inert.load(pickle.dumps([letter * 2_000_000 for letter in "tQR]}"], 2)) is not None


def test_too_many_classes_are_refused() -> None:
    names = b"".join(b"cm\nf%d\n0" % number for number in range(11_000))
    with pytest.raises(Unjudged, match="classes"):
        inert.load(b"\x80\x02" + names + b"N.")


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opcodes, "MOST_BYTES", 1000)
    with pytest.raises(Unjudged, match="1000 bytes"):
        inert.load(pickle.dumps(list(range(5000))))


def deep(opener: bytes, closer: bytes, levels: int) -> bytes:
    return b"\x80\x02" + opener * levels + b"N" + closer * levels + b"."


# Each of these crashes or hangs CPython's own unpickler, or whoever hashes, compares or shows what comes out
HOSTILE = {
    "tuples deep in a key": b"\x80\x02}N" + b"\x85" * 90_000 + b"Ns.",
    "tuples deep in a set": b"\x80\x04\x8f(N" + b"\x85" * 90_000 + b"\x90.",
    "tuples deep in a frozen set": b"\x80\x04(N" + b"\x85" * 90_000 + b"\x91.",
    "tuples that double in a key": b"\x80\x02}Nq\x00" + b"h\x00\x86q\x00" * 100 + b"Ns.",
    "numbers that collide as keys": pickle.dumps([(2**61 - 1) * number for number in range(50_000)])[:-2].replace(
        b"]", b"}", 1
    )
    + b"u.",
    "lists deep": deep(b"]", b"a", 90_000),
    "dicts deep": b"\x80\x02" + b"}K\x01" * 90_000 + b"N" + b"s" * 90_000 + b".",
    "calls deep": b"\x80\x02cm\nf\nq\x000N" + b"\x85q\x01h\x00h\x01R" * 90_000 + b".",
    "stubs deep": b"\x80\x02cm\nf\nq\x000" + b"h\x00)R" * 90_000 + b"N" + b"b" * 90_000 + b".",
    "many frames that lie": b"\x80\x04" + (b"\x95" + b"\xff" * 8) * 100_000 + b"]" + b"N0" * 100_000 + b".",
    "many frames of nothing": b"\x80\x04" + (b"\x95" + b"\0" * 8) * 100_000 + b"].",
    "a list of itself": b"\x80\x02]q\x00h\x00a.",
    "a dict of itself": b"\x80\x02}q\x00h\x00h\x00s.",
    "a stub of itself": b"\x80\x02cm\nf\n)Rq\x00h\x00b.",
    "a key that cannot be hashed": b"\x80\x02}]Ns.",
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
def test_what_would_hang_or_crash_does_neither(raw: bytes) -> None:
    began = time.monotonic()
    assert type(inert.load(raw)) in (inert.Map, list) or isinstance(inert.load(raw), inert.Stub)
    assert time.monotonic() - began < 10


class Counting:
    """A pattern, and how many bytes it was given or matched."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self.pattern, self.scanned, self.calls = pattern, 0, 0

    def findall(self, raw: bytes, at: int, end: int) -> list[bytes]:
        self.scanned, self.calls = self.scanned + end - at, self.calls + 1
        return self.pattern.findall(raw, at, end)

    def match(self, raw: bytes, at: int) -> re.Match[bytes] | None:
        found = self.pattern.match(raw, at)
        self.scanned, self.calls = self.scanned + (found.end() - at if found else 0), self.calls + 1
        return found


def latin(count: int) -> list[str]:
    """As the bytes of arrays are pickled."""
    return [bytes([number % 256] * 2000).decode("latin-1") for number in range(count)]


LIE = b"\x95" + (1 << 40).to_bytes(8, "little")
GROWING: dict[str, Callable[[int], bytes]] = {
    "arrays of a replay buffer": lambda n: pickle.dumps(latin(n), 2),
    "the same in frames": lambda n: pickle.dumps(latin(n), 4),
    "frames that lie": lambda n: b"\x80\x04]" + (LIE + b"N0") * n + b".",
    "frames that lie between strings": lambda n: b"\x80\x04]" + (b"X\x80\0\0\0" + b"a" * 119 + LIE) * n + b".",
    "frames that lie within strings": lambda n: b"\x80\x04]" + (b"X\x89\0\0\0" + b"a" * 128 + LIE + b"0") * n + b".",
}  # fmt: skip


@pytest.mark.parametrize("make", GROWING.values(), ids=GROWING)
def test_each_byte_is_looked_at_a_few_times(make: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever there is of it: no time that grows with the square."""
    run, tokens = opcodes._run, opcodes._tokens
    for count in (200, 400, 800):
        counted: list[Counting] = []

        def counting(pattern: re.Pattern[bytes], all_of: list[Counting] = counted) -> Counting:
            all_of.append(Counting(pattern))
            return all_of[-1]

        monkeypatch.setattr(opcodes, "_run", lambda bits, counting=counting: counting(run(bits)))
        monkeypatch.setattr(opcodes, "_tokens", lambda bits, counting=counting: counting(tokens(bits)))
        raw = make(count)
        with contextlib.suppress(ValueError):
            opcodes.rewrite(raw)
        assert len(counted) == 2
        assert sum(one.scanned for one in counted) < 4 * len(raw)
        assert sum(one.calls for one in counted) < 6 * count + 20


def test_a_stub_and_a_map_never_show_what_is_in_them() -> None:
    for name in ("a dict of itself", "a stub of itself", "dicts deep", "stubs deep"):
        assert len(repr(inert.load(HOSTILE[name]))) < 100


@pytest.mark.parametrize("size", [0, 1, 5, 2**63, 2**64 - 1])
def test_what_a_frame_says_of_its_size_means_nothing(size: int) -> None:
    assert inert.load(b"\x80\x04\x95" + size.to_bytes(8, "little") + b"K\x05.") == 5


def test_a_key_without_a_value_is_no_item() -> None:
    made = inert.load(b"\x80\x02}(K\x01u.")
    assert isinstance(made, inert.Map)
    assert list(made.items()) == []
    made = inert.load(b"\x80\x02}(X\x01\0\0\0au.")
    assert isinstance(made, inert.Map)
    assert made.get("a") is None


def test_a_garbage_collector_that_was_on_is_on_again() -> None:
    assert gc.isenabled()
    for raw in (b"N.", b"R."):
        with contextlib.suppress(ValueError):
            inert.load(raw)
        assert gc.isenabled()
    gc.disable()
    try:
        inert.load(b"N.")
        assert not gc.isenabled()
    finally:
        gc.enable()
