"""What leaves the cluster has no secrets in it."""

from __future__ import annotations

import json
import time
from urllib.parse import quote

import pytest

from fleetctl.recovery.redact import GONE, from_whole_line, redact, redact_spec, secret_values


@pytest.mark.parametrize(
    "text",
    [
        "export HF_TOKEN=abcdef123456",
        'WANDB_API_KEY: "abcdef123456"',
        '{"aws_secret_access_key": "abcdef123456"}',
        "--api-key abcdef123456",
        "login --password=abcdef123456 --user me",
        "Authorization: Bearer abcdef123456",
        "postgresql://me:abcdef123456@db/x",
        "-----BEGIN RSA PRIVATE KEY-----\nabcdef123456\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nabcdef123456",
        "hf_abcdef123456abcdef123456",
        "sk-abcdef123456abcdef123456",
        "nvapi-abcdef123456abcdef123456",
        'HF_TOKEN="abcdef123456',
        "DB_PASSWORD='abcdef123456 with spaces'",
        '["train", "--api-key", "abcdef123456"]',
        '[\n "--api-key",\n "abcdef123456"\n]',
        "['--hf-token', 'abcdef123456']",
        r'{"told": "{\"api_token\": \"abcdef123456\"}"}',
        r'{"password": "x\"abcdef123456"}',
        "abcdef123456\nMIIE\n-----END RSA PRIVATE KEY-----\nstep 1",
    ],
)
def test_a_secret_goes(text: str) -> None:
    said = redact(text)
    assert "abcdef123456" not in said
    assert GONE in said


@pytest.mark.parametrize(
    "text",
    [
        "training step 100 loss 0.25 tokens 4096",
        "NCCL WARN NET/IB : Got completion with error 12",
        "node1: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus",
        "http://node1:8080/metrics",
        "step: 3, lr: 1e-4",
    ],
)
def test_what_a_person_needs_stays(text: str) -> None:
    assert redact(text) == text


def test_known_values_go_wherever_they_stand_but_not_short_ones() -> None:
    assert redact("xx hunter2hunter2 1 yy", ["hunter2hunter2", "1"]) == f"xx {GONE} 1 yy"


@pytest.mark.parametrize("value", ['say "hunter2"', "back\\slash2", "pass-w\u00f6rd-2", "two\tparts", "a&b c/d=e"])
def test_known_values_go_however_a_program_writes_them(value: str) -> None:
    once = json.dumps(value)
    for text in (value, once, json.dumps(value, ensure_ascii=False), json.dumps(once), repr(value), quote(value, "")):
        said = redact(f"x {text} y", [value])
        assert GONE in said, text
        assert value not in said


def test_the_end_of_a_text_begins_with_a_whole_line() -> None:
    assert from_whole_line("half a secret\nstep 1\nstep 2") == "step 1\nstep 2"
    assert from_whole_line("half a secret") == ""


def test_the_word_after_an_option_of_a_secret_goes_from_a_command_that_is_a_list() -> None:
    said = redact_spec({"command": ["train", "--api-key", "abc", "--steps", "9"]})
    assert said == {"command": ["train", "--api-key", GONE, "--steps", "9"]}


def test_the_environment_of_a_spec_keeps_its_names_alone() -> None:
    spec = {
        "env": {"A": "value-a", "HF_TOKEN": "value-b"},
        "groups": [{"env": {"B": "value-c"}}],
        "command": "train --password=value-d",
        "api_key": "value-e",
        "resources": {"nodes": 2},
    }
    said = redact_spec(spec)
    assert "value" not in str(said)
    assert said["env"] == {"A": GONE, "HF_TOKEN": GONE}
    assert said["resources"] == {"nodes": 2}
    assert secret_values(spec) == {"value-b"}


def test_it_takes_time_by_the_length_of_the_text_alone() -> None:
    """A log of a hostile program holds nobody up: CPU time at two sizes."""

    def cpu_s(size: int) -> float:
        text = "a" * size + "token" * (size // 5) + "=" + "://x:" * (size // 5) + "-----BEGIN " * (size // 11)
        began = time.process_time()
        redact(text)
        return time.process_time() - began

    small, large = cpu_s(20_000), cpu_s(160_000)
    assert large < 40 * small + 0.5, (small, large)
