"""What an install means for one node, from what the node said. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

OLDEST_PYTHON = (3, 9)
PYTHON_MARK = "fleetctl-python "
_NOT_FOUND = (126, 127)  # what a shell says of a program that is not there, or is none


class Outcome(StrEnum):
    """How one node ended."""

    INSTALLED = "installed"
    SAME = "same"  # it has this release already
    ROLLED_BACK = "rolled_back"
    DIFFERS = "differs"  # of --diff: an install would change it
    FAILED = "failed"
    NOT_KNOWN = "not_known"  # nobody waited for its end


_ENDS = [Outcome.INSTALLED, Outcome.SAME, Outcome.ROLLED_BACK]  # that a node may tell


class HostResult(NamedTuple):
    """One node's end. `before` and `after` name releases; `diff` are lines for a person; `words` an error."""

    host: str
    outcome: Outcome
    before: str | None = None
    after: str | None = None
    diff: tuple[str, ...] = ()
    words: str = ""
    remedy: str | None = None


def bootstrap(python: str, program_bytes: int) -> tuple[str, ...]:
    """The command that runs a program of so many bytes from stdin, with nothing in it that any shell would read.

    An old Python says its version and stops before it reads what it would not understand.
    """
    oldest = ",".join(map(str, OLDEST_PYTHON))
    code = (
        f'import sys;sys.stdout.write("\\n{PYTHON_MARK}%d.%d\\n"%sys.version_info[:2]);'
        f"sys.version_info<({oldest})and sys.exit(93);"
        f'n={{"__name__":"far_side"}};exec(compile(sys.stdin.buffer.read({program_bytes}),"far_side.py","exec"),n);'
        'n["main"](sys.stdin.buffer)'
    )
    return (python, "-I", "-S", "-c", code)


def read_answer(status: int, text: str, mark: str, python: str) -> dict[str, Any]:
    """The answer in what a node printed: {"error", "remedy"} where it refused, or where nothing sensible came."""
    lines = text.splitlines()
    answers = [line[len(mark) :] for line in lines if line.startswith(mark)]
    if answers:
        return _sound(answers[-1]) or _refusal(f"it answered nonsense: {answers[-1][:200]}", "")
    versions = [line[len(PYTHON_MARK) :] for line in lines if line.startswith(PYTHON_MARK)]
    oldest = ".".join(map(str, OLDEST_PYTHON))
    if versions and () < _numbers(versions[-1]) < OLDEST_PYTHON:
        return _refusal(f"{python} is Python {versions[-1][:20]}; the node checks need {oldest}", _another(oldest))
    if status in _NOT_FOUND:
        return _refusal(f"there is no {python} (status {status})", _another(oldest))
    said = next((line for line in reversed(lines) if line.strip()), "nothing")
    return _refusal(f"{python} ended with status {status} and said: {said.strip()[:200]}", "")


def _sound(text: str) -> dict[str, Any] | None:
    """The answer, where it has one of the three forms that far_side gives."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict):
        return None
    names = [answer.get(key) for key in ("before", "after", "current", "previous", "digest", "error", "remedy")]
    texts = [answer.get(key, {}) for key in ("files", "texts")]
    if not all(name is None or isinstance(name, str) for name in names) or not all(map(_is_of_texts, texts)):
        return None
    is_refusal = {"error", "remedy"} <= answer.keys() and answer["error"] is not None
    is_end = {"before", "after"} <= answer.keys() and answer.get("outcome") in _ENDS
    is_look = {"current", "digest", "files", "texts"} <= answer.keys()
    return answer if is_refusal or is_end or is_look else None


def _is_of_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _numbers(version: str) -> tuple[int, ...]:
    """(3, 9) of `3.9`; () of what is no version."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts) else ()


def result_of(host: str, answer: Mapping[str, Any]) -> HostResult:
    """What the answer to `install` or `roll_back` says."""
    if "error" in answer:
        return HostResult(host, Outcome.FAILED, words=f"{host}: {answer['error']}", remedy=answer["remedy"] or None)
    return HostResult(host, Outcome(answer["outcome"]), answer["before"], answer["after"])


def compare(host: str, answer: Mapping[str, Any], wanted: Wanted) -> HostResult:
    """What an install would change: the names of files, and the text of what people write."""
    if "error" in answer:
        return result_of(host, answer)
    if answer["digest"] == wanted.digest:
        return HostResult(host, Outcome.SAME, answer["current"], answer["current"])
    lines = [f"{mark} {path}" for mark, path in changes(answer["files"], wanted.files)]
    for path in sorted({*answer["texts"], *wanted.texts}):
        old, new = answer["texts"].get(path, ""), wanted.texts.get(path, "")
        lines += [line.rstrip("\n") for line in _unified(old, new, f"{host}:{path}", f"new:{path}")]
    return HostResult(host, Outcome.DIFFERS, answer["current"], wanted.name, tuple(lines))


class Wanted(NamedTuple):
    """A bundle as the comparison needs it: `files` are path -> SHA-256, `texts` those that people write."""

    digest: str
    name: str
    files: Mapping[str, str]
    texts: Mapping[str, str]


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[tuple[str, str]]:
    """`+` new, `-` gone, `~` changed; by path."""
    marks = {path: "+" for path in new if path not in old}
    marks |= {path: "-" for path in old if path not in new}
    marks |= {path: "~" for path in new if path in old and old[path] != new[path]}
    return sorted(((mark, path) for path, mark in marks.items()), key=lambda row: row[1])


def _unified(old: str, new: str, old_name: str, new_name: str) -> list[str]:
    return list(difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, lineterm=""))


def _refusal(words: str, remedy: str) -> dict[str, Any]:
    return {"error": words, "remedy": remedy}


def _another(oldest: str) -> str:
    return f"name one with --python /usr/bin/python3.11, or install Python {oldest} or newer there"
