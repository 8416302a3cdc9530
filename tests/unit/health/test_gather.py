"""What a look makes of readers that cannot tell: unknown is never empty."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetctl.health.gather import Gathered, gather, look_again
from fleetctl.health.infiniband import read_ports
from fleetctl.health.kernel_log import read_kernel_log
from fleetctl.health.model import Answer
from fleetctl.health.pci import read_pci
from tests.unit.health.looks import WHERE, Fake


def seen(**readers: Callable[..., Any]) -> Gathered:
    """One look by readers that are well, but for these."""
    tools = Fake(()).tools()
    return gather(tools.readers._replace(**readers), WHERE, 5.0, tools.apart)


def notes_of(gathered: Gathered) -> str:
    return "\n".join(gathered.notes)


@pytest.mark.parametrize("name", ["ports", "devices"])
def test_a_folder_that_cannot_be_listed_is_no_empty_folder(name: str) -> None:
    unknown, none = seen(**{name: lambda: None}), seen(**{name: lambda: ()})
    assert unknown.readings.failed == {name: Answer.FAILED}
    assert f"{name}: their folder cannot be listed" in unknown.notes
    assert (none.readings.failed, none.notes) == ({}, ())


@pytest.mark.parametrize(
    ("name", "folder", "read"),
    [("ports", "class/infiniband", read_ports), ("devices", "bus/pci/devices", read_pci)],
)
def test_the_readers_themselves_tell_one_from_the_other(
    tmp_path: Path, name: str, folder: str, read: Callable[[str], Any]
) -> None:
    place = tmp_path / folder
    assert seen(**{name: lambda: read(str(tmp_path))}).readings.failed == {}
    place.parent.mkdir(parents=True)
    place.write_text("no folder")
    assert seen(**{name: lambda: read(str(tmp_path))}).readings.failed == {name: Answer.FAILED}


def test_ports_that_cannot_be_listed_the_second_time_are_unknown() -> None:
    tools = Fake(()).tools()
    first = gather(tools.readers, WHERE, 5.0, tools.apart)
    again = look_again(first, tools.readers._replace(ports=lambda: None), 5.0, tools.apart)
    assert (first.readings.failed, again.readings.failed) == ({}, {"ports": Answer.FAILED})
    assert "ports: their folder cannot be listed" in again.notes
    assert look_again(again, tools.readers, 5.0, tools.apart).readings.failed == {}


@pytest.mark.parametrize(("what", "cause"), [("nothing", errno.ENOENT), ("a folder", errno.EISDIR)])
def test_a_log_that_cannot_be_read_is_named_with_its_cause(tmp_path: Path, what: str, cause: int) -> None:
    path = tmp_path / "kmsg" if what == "nothing" else tmp_path
    found = seen(log=lambda after: read_kernel_log(str(path), after, 64))
    assert found.readings.failed == {"log": Answer.FAILED}
    assert (found.readings.events, found.cursor) == (None, None)
    assert os.strerror(cause) in notes_of(found)


def test_a_log_of_which_nothing_is_known_is_named() -> None:
    found = seen(log=lambda after: (None, after))
    assert found.readings.failed == {"log": Answer.FAILED}
    assert "log: it cannot be read" in found.notes
