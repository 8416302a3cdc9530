"""What the tests about a job's processes share."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from fleetctl.health import process_table
from tests.integration.health.jobs import Processes, processes


@pytest.fixture
def as_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under slurmd, whether these tests run there or in somebody's login."""
    monkeypatch.setattr(process_table, "_LOGIN", re.compile("(?!)"))


@pytest.fixture
def ours() -> Iterator[Processes]:
    with processes() as started:
        yield started
