"""Takes secrets out of what leaves the cluster: named ones, ones that look like it, and values that we know. Pure.

It can miss a secret that looks like nothing: whoever sends a bundle away reads it before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any

GONE = "(redacted)"
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_LEAST = 6  # characters: shorter values stand everywhere by chance
# Every pattern is bounded or begins where a word does, so that a text of a hostile program takes no longer than others
_SECRET = r"(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|API[_-]?KEY|ACCESS[_-]?KEY|PRIVATE[_-]?KEY|CREDENTIAL)"
# Within JSON within JSON a quote has backslashes before it
_QUOTE = r"(?:\\{0,7}[\"'])"
_VALUE = r"(\\{1,7}\"[^\"\n]*\"|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|[\"']?[^\s,;&}\]\"']+)"
_NAMED = re.compile(rf"(?i)({_SECRET}[A-Z0-9_-]{{0,32}}{_QUOTE}?\s{{0,3}}[=:]\s{{0,3}}){_VALUE}")
_OPTION = re.compile(rf"(?i)((?<!\S)--[a-z0-9_-]{{0,32}}{_SECRET}[a-z0-9_-]{{0,32}}[ \t]{{1,3}}){_VALUE}")
# One word of a list: "--api-key", "abc"
_LISTED = re.compile(rf"(?i)(--[a-z0-9_-]{{0,32}}{_SECRET}[a-z0-9_-]{{0,32}}{_QUOTE}\s{{0,3}},\s{{0,64}}){_VALUE}")
_BEARER = re.compile(r"(?i)(authorization:\s{0,3}[a-z]{1,16}\s{1,3}|bearer\s{1,3})[A-Za-z0-9._~+/=-]{8,}")
_IN_URL = re.compile(r"(://[^\s/:@]{0,128}:)[^\s/@]{1,256}(@)")
# What its issuers begin tokens with: Hugging Face, OpenAI and Anthropic, GitHub, GitLab, Slack, AWS, NGC; JWTs
_KNOWN = re.compile(
    r"(?<![\w-])(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|glpat-[\w-]{16,}|xox[abprs]-[A-Za-z0-9-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|nvapi-[\w-]{16,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,32}PRIVATE KEY-----|\Z)", re.S)
_KEY_BEGINS, _KEY_ENDS = (
    re.compile(r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY"),
    re.compile(r"-----END [A-Z ]{0,32}PRIVATE KEY-----"),
)
_MOST_KEY = 32_768  # characters of a private key as text, indented or not: one of 16384 bits has 12 700
_MOST_LINE = 65_536  # of a first line that is no line: progress bars and binary data
_IS_SECRET_OPTION = re.compile(rf"(?i)--?[a-z0-9_-]{{0,32}}{_SECRET}[a-z0-9_-]{{0,32}}")
_IS_SECRET_NAME = re.compile(rf"(?i){_SECRET}")
_ENVIRONMENTS = frozenset({"env"})  # keys of a spec whose values are environment variables


def redact(text: str, known: Collection[str] = ()) -> str:
    """`text` without secrets; `known` are values that must not stand in it."""
    forms = {form for value in known for form in _forms(value) if len(form) >= _LEAST}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, GONE)
    text = _KEY_BLOCK.sub(GONE, _without_a_keys_end(text))
    for pattern in (_NAMED, _OPTION, _LISTED):
        text = pattern.sub(lambda match: match[1] + GONE, text)
    text = _BEARER.sub(lambda match: match[1] + GONE, text)
    text = _IN_URL.sub(lambda match: match[1] + GONE + match[2], text)
    return _KNOWN.sub(GONE, text)


def from_whole_line(text: str) -> str:
    """The end of a text without the line that it begins within: half of a secret looks like nothing."""
    found = re.search(r"[\r\n]", text[:_MOST_LINE])
    return text[found.end() if found else _MOST_LINE :]


def _forms(value: str) -> Iterator[str]:
    """How programs write a value: as it is, in JSON, in JSON in JSON, in Python, in an address, by its lines."""
    yield value
    for is_ascii in (True, False):
        once = json.dumps(value, ensure_ascii=is_ascii)[1:-1]
        yield from (once, json.dumps(once, ensure_ascii=is_ascii)[1:-1])
    yield from (repr(value)[1:-1], _as_address(value))
    yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= 2 * _LEAST)


def _as_address(value: str) -> str:
    """As in an URL (RFC 3986 2.1 and 2.3)."""
    raw = value.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if chr(byte) in _UNRESERVED else f"%{byte:02X}" for byte in raw)


def _without_a_keys_end(text: str) -> str:
    """A text that begins within a private key, without that."""
    ends, begins = _KEY_ENDS.search(text), _KEY_BEGINS.search(text)
    if ends is None or (begins is not None and begins.start() < ends.start()):
        return text
    return text[: max(0, ends.start() - _MOST_KEY)] + GONE + text[ends.end() :]


def redact_spec(spec: Any, known: Collection[str] = ()) -> Any:
    """A spec as JSON has it, its environment variables named and without values."""
    if isinstance(spec, dict):
        return {
            name: _emptied(value) if name in _ENVIRONMENTS else _field(name, value, known)
            for name, value in spec.items()
        }
    if isinstance(spec, list):
        before = ("", *spec)
        return [
            GONE if isinstance(item, str) and _is_option(option) else redact_spec(item, known)
            for option, item in zip(before, spec, strict=False)
        ]
    return redact(spec, known) if isinstance(spec, str) else spec


def _is_option(text: Any) -> bool:
    """Whether the next word of a command is a secret."""
    return isinstance(text, str) and _IS_SECRET_OPTION.fullmatch(text) is not None


def _field(name: str, value: Any, known: Collection[str]) -> Any:
    if isinstance(value, str) and _IS_SECRET_NAME.search(name):
        return GONE
    return redact_spec(value, known)


def _emptied(value: Any) -> Any:
    return dict.fromkeys(value, GONE) if isinstance(value, dict) else GONE


def secret_values(spec: Any) -> frozenset[str]:
    """The values of a spec's environment variables whose names say that they are secrets."""
    return frozenset(
        value for name, value in _variables(spec) if isinstance(value, str) and _IS_SECRET_NAME.search(name)
    )


def _variables(spec: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(spec, dict):
        for name, value in spec.items():
            if name in _ENVIRONMENTS and isinstance(value, dict):
                yield from value.items()
            else:
                yield from _variables(value)
    elif isinstance(spec, list):
        for item in spec:
            yield from _variables(item)
