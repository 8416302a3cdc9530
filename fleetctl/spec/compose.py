"""YAML text to nodes: raw text, tags and positions. Nothing is resolved or constructed, so nothing can be executed.

PyYAML's parser gives events; the tree is built here and not by `yaml.compose`, because a limit on depth and on what
aliases repeat has to hold while the tree grows (the recursion of `compose` ends in a RecursionError at best).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml
from msgspec import Struct, field

from fleetctl.errors import SpecError
from fleetctl.spec.problems import Place, Problems, printable

MAX_BYTES = 1024**2  # a spec is a page or two
MAX_DEPTH = 20  # the model has five levels
MAX_REPEATED = 10_000  # nodes that aliases may repeat: "billion laughs" stays linear
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# YAML 1.1, section 5.1 (c-printable), as PyYAML reads it; NUL and lone surrogates are outside.
_NOT_YAML = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BREAK = "\r\n|[\n\r\x85\u2028\u2029]"  # YAML 1.1, section 5.4 (b-break): a new line to PyYAML's marks
_STANDARD_TAG = "tag:yaml.org,2002:"


class Scalar(Struct, frozen=True):
    """One value as it was written; `plain` means without quotes."""

    place: Place
    text: str
    plain: bool = False
    tag: str | None = None

    def is_null(self) -> bool:
        """YAML's ways to say nothing (YAML 1.1, type null)."""
        return self.plain and self.text in {"", "~", "null", "Null", "NULL"}


class Items(Struct, frozen=True):
    """A list."""

    place: Place
    items: tuple[Node, ...]
    tag: str | None = None


class Mapping(Struct, frozen=True):
    """Pairs in the order of the file; keys may repeat."""

    place: Place
    pairs: tuple[tuple[Node, Node], ...]
    tag: str | None = None


Node = Scalar | Items | Mapping


def decode(raw: bytes, source: str) -> str:
    """The text of a spec file.

    :raises SpecError: it is too large, not UTF-8, or holds NUL.
    """
    if len(raw) > MAX_BYTES:
        raise _failure(Place(source), f"expected at most {MAX_BYTES // 1024} KiB, not {len(raw) // 1024} KiB")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        good = raw[: error.start].decode("utf-8")
        raise _failure(_place_at(source, good, len(good)), "expected UTF-8 text") from None
    if (nul := text.find("\0")) >= 0:
        raise _failure(_place_at(source, text, nul), "expected text, not a NUL character")
    return text


def compose(text: str, source: str) -> Node:
    """The one document of the text.

    :raises SpecError: one problem: there is no reading on after a broken structure.
    """
    if bad := _NOT_YAML.search(text):
        raise _failure(
            _place_at(source, text, bad.start()),
            f"not valid YAML: the character {printable(bad[0])} may only stand in double quotes, as an escape",
        )
    tree = _Tree(source, Place(source, 1, 1))
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            tree.take(event)
    except yaml.YAMLError as error:
        raise _failure(_error_place(source, error, text), f"not valid YAML: {_reason(error)}") from None
    except (ValueError, OverflowError) as error:  # the scanner without libyaml: "\U99999999", %YAML 1.999...
        raise _failure(tree.last, f"not valid YAML: {error}") from None
    if tree.root is None or (isinstance(tree.root, Scalar) and tree.root.tag is None and tree.root.is_null()):
        raise _failure(Place(source, 1, 1), "the file is empty: expected fields such as name and command")
    return tree.root


class _Open(Struct):
    """A list or mapping whose end has not come yet."""

    event: yaml.CollectionStartEvent
    place: Place
    children: list[Node] = field(default_factory=list)
    size: int = 1

    def close(self) -> Node:
        if isinstance(self.event, yaml.SequenceStartEvent):
            return Items(self.place, tuple(self.children), self.event.tag)
        pairs = zip(self.children[::2], self.children[1::2], strict=True)
        return Mapping(self.place, tuple(pairs), self.event.tag)


class _Tree(Struct):
    """Grows by events, without recursion."""

    source: str
    last: Place
    root: Node | None = None
    _open: list[_Open] = field(default_factory=list)
    _anchors: dict[str, tuple[Node, int] | None] = field(default_factory=dict)  # None: still open
    _documents: int = 0
    _repeated: int = 0

    def take(self, event: yaml.Event) -> None:
        if event.start_mark is not None:
            self.last = Place(self.source, event.start_mark.line + 1, event.start_mark.column + 1)
        match event:
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    raise _failure(self.last, "expected one document, not another one after ---")
            case yaml.ScalarEvent():
                self._done(Scalar(self.last, event.value, not event.style, event.tag), event.anchor)
            case yaml.AliasEvent():
                self._repeat(event.anchor or "")
            case yaml.CollectionStartEvent():
                if len(self._open) == MAX_DEPTH:
                    raise _failure(self.last, f"expected at most {MAX_DEPTH} levels, one inside the other")
                if event.anchor:
                    self._anchors[event.anchor] = None
                self._open.append(_Open(event, self.last))
            case yaml.CollectionEndEvent():
                ended = self._open.pop()
                self._done(ended.close(), ended.event.anchor, ended.size)

    def _done(self, node: Node, anchor: str | None, size: int = 1) -> None:
        if anchor:
            self._anchors[anchor] = (node, size)
        if self._open:
            self._open[-1].children.append(node)
            self._open[-1].size += size
        else:
            self.root = node

    def _repeat(self, name: str) -> None:
        if name not in self._anchors:
            raise _failure(self.last, f"no anchor &{printable(name)} before this alias")
        if (target := self._anchors[name]) is None:
            raise _failure(self.last, f"the alias *{printable(name)} is inside what it names")
        node, size = target
        self._repeated += size
        if self._repeated > MAX_REPEATED:
            raise _failure(self.last, f"expected aliases that repeat at most {MAX_REPEATED} values in all")
        self._done(node, None, size)


def tag_name(tag: str) -> str:
    """A tag as people write it."""
    return "!!" + tag.removeprefix(_STANDARD_TAG) if tag.startswith(_STANDARD_TAG) else tag


def _failure(place: Place, text: str) -> SpecError:
    problems = Problems()
    problems.add(place, "", text)
    return problems.error()


def _place_at(source: str, text: str, index: int) -> Place:
    lines = re.split(_BREAK, text[:index])
    return Place(source, len(lines), len(lines[-1]) + 1)


def _error_place(source: str, error: yaml.YAMLError, text: str) -> Place:
    """Where PyYAML saw it, but not after the end: libyaml calls the end of `a: [` line 2."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    place = Place(source, mark.line + 1, mark.column + 1) if mark else Place(source, 1, 1)
    return min(place, _place_at(source, text, len(text)), key=Place.order)


def _reason(error: yaml.YAMLError) -> str:
    said: Iterator[str | None] = (getattr(error, name, None) for name in ("context", "problem"))
    return printable(", ".join(text for text in said if text) or str(error), limit=200)
