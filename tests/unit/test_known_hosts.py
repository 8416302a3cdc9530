"""Which lines of known_hosts count for a host."""

from __future__ import annotations

import base64
import hmac
from pathlib import Path

import pytest

from fleetctl import known_hosts
from fleetctl.known_hosts import KnownHosts


def hashed(name: str) -> str:
    """As `HashKnownHosts yes` writes it."""
    salt = b"twenty bytes of salt"
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


KEY = "ssh-ed25519 AAAA"


@pytest.mark.parametrize(
    ("line", "name", "is_known"),
    [
        (f"node1 {KEY}", "node1", True),
        (f"node1 {KEY} a comment", "node1", True),
        (f"node1 {KEY}", "node11", False),
        (f"NODE1 {KEY}", "node1", True),
        (f"node1,10.0.0.1 {KEY}", "10.0.0.1", True),
        (f"node1 {KEY}", "[node1]:2022", False),
        (f"[node1]:2022 {KEY}", "[node1]:2022", True),
        (f"[node*]:2022 {KEY}", "[node7]:2022", True),
        (f"node* {KEY}", "node7", True),
        (f"node? {KEY}", "node77", False),
        (f"!node7,node* {KEY}", "node7", False),
        (f"node*,!node7 {KEY}", "node7", False),
        (f"node[1-9] {KEY}", "node7", False),
        (f"node[1-9]* {KEY}", "node7", False),
        (f"node.* {KEY}", "node77", False),
        (f"!node8 {KEY}", "node7", False),
        (f"{hashed('node7')} {KEY}", "node7", True),
        (f"{hashed('node7')} {KEY}", "node8", False),
        (f"|1|AAAA {KEY}", "node7", False),
        (f"|1|{{}}|\u00e4 {KEY}", "node7", False),
        (f"|1||| {KEY}", "node7", False),
        (f"# node1 {KEY}", "node1", False),
        (f"@revoked node1 {KEY}", "node1", False),
        (f"@cert-authority * {KEY}", "node1", False),
        ("node1 ssh-ed25519", "node1", False),
        ("", "node1", False),
    ],
)
def test_a_line_of_known_hosts_counts_for_the_hosts_that_it_names(line: str, name: str, is_known: bool) -> None:
    known = KnownHosts([line], Path("known_hosts"))
    assert known.keys(name) == ([("ssh-ed25519", "AAAA")] if is_known else [])


def test_a_revoked_key_is_revoked_whatever_else_is_said_of_it() -> None:
    known = KnownHosts([f"@revoked * {KEY}", f"node1 {KEY}"], Path("known_hosts"))
    assert known.is_revoked("AAAA")
    assert not known.is_revoked("AAAB")
    assert known.keys("node1") == []


def test_all_lines_of_a_host_count_whatever_their_form() -> None:
    lines = ["node1 a AAAA", "node* b AAAB", f"{hashed('node1')} c AAAC", "x,NODE1 d AAAD"]
    kinds = {kind for kind, _ in KnownHosts(lines, Path("known_hosts")).keys("Node1")}
    assert kinds == {"a", "b", "c", "d"}


def test_thousands_of_hosts_are_found_in_thousands_of_lines_without_reading_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = 0

    def matches(patterns: str, name: str) -> bool:
        nonlocal asked
        asked += 1
        return False

    known = KnownHosts([f"node{number} {KEY}" for number in range(5000)] + [f"x* {KEY}"], Path("known_hosts"))
    monkeypatch.setattr(known_hosts, "_matches", matches)
    assert all(len(known.keys(f"node{number}")) == 1 for number in range(5000))
    assert asked == 5000  # the one pattern, once for each host
