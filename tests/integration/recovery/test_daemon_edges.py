"""What the daemon tells the world around it, over real sockets and by real programs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from fleetctl.cli.daemon_unit import unit_text
from fleetctl.recovery import deliver, notify
from fleetctl.recovery.metrics import Numbers, Site, serve
from fleetctl.recovery.model import Action, Deed, Done, Outcome
from fleetctl.recovery.notify import Channel, Notice, Way
from fleetctl.recovery.sd_notify import manager_of
from tests.support import BIN, write_spec
from tests.unit.clocks import START

(NOTICE,) = notify.notices(
    [Done(Action(Deed.HOLD, "r-1", "c/7/0", "loss is nan \u2620", "nan"), START, Outcome.DONE)], "c"
)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """A service manager's socket."""
    address = f"/tmp/fleetctl-notify-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        sock.settimeout(5)
        yield address, sock
    os.unlink(address)


def test_the_manager_hears_that_it_is_ready_alive_and_stopping(manager: tuple[str, socket.socket]) -> None:
    address, sock = manager
    ours = manager_of({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "900000000", "WATCHDOG_PID": str(os.getpid())})
    assert ours.watchdog_s == 900
    ours.ready("the first pass")
    assert sock.recv(4096) == b"READY=1\nSTATUS=the first pass"
    ours.alive()
    assert sock.recv(4096) == b"WATCHDOG=1"
    ours.alive("3 runs")
    assert sock.recv(4096) == b"WATCHDOG=1\nSTATUS=3 runs"
    ours.stopping("ending")
    assert sock.recv(4096) == b"STOPPING=1\nSTATUS=ending"


def test_an_abstract_address_is_heard_too() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0fleetctl-{os.getpid()}")
        sock.settimeout(5)
        manager_of({"NOTIFY_SOCKET": f"@fleetctl-{os.getpid()}"}).alive()
        assert sock.recv(4096) == b"WATCHDOG=1"


def test_no_manager_or_a_dead_one_disturbs_nobody(tmp_path: Path) -> None:
    for address in ("", str(tmp_path / "gone"), "vsock:2:1", "@gone"):
        manager_of({"NOTIFY_SOCKET": address}).ready("x")
    assert manager_of({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).watchdog_s is None


def test_a_manager_that_reads_nothing_holds_nobody_up(manager: tuple[str, socket.socket]) -> None:
    ours, began = manager_of({"NOTIFY_SOCKET": manager[0]}), time.monotonic()
    for _ in range(15):  # net.unix.max_dgram_qlen is 10
        ours.alive()
        if time.monotonic() - began > 2:
            break
    assert time.monotonic() - began < 10


# Metrics


@pytest.fixture
def site() -> Iterator[tuple[Site, Numbers]]:
    numbers = Numbers()
    made = serve("127.0.0.1:0", numbers, lambda: 1000.0)
    yield made, numbers
    made.close()


def get(site: Site, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{site.port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_numbers_and_health_over_http(site: tuple[Site, Numbers]) -> None:
    made, numbers = site
    assert get(made, "/health") == (503, "no pass has ended yet\n")
    numbers.set("last_pass_timestamp_seconds", 990)
    assert get(made, "/health") == (200, "the last pass ended 10 s ago\n")
    assert "fleetctl_daemon_last_pass_timestamp_seconds 990\n" in get(made, "/metrics")[1]
    assert get(made, "/etc/passwd")[0] == 404


def test_a_client_that_says_nothing_keeps_nobody_from_an_answer(site: tuple[Site, Numbers]) -> None:
    made, _ = site
    with socket.create_connection(("127.0.0.1", made.port)), socket.create_connection(("127.0.0.1", made.port)):
        assert get(made, "/metrics")[0] == 200


def test_a_port_that_is_taken_is_one_line(site: tuple[Site, Numbers]) -> None:
    from fleetctl.errors import FleetctlError

    with pytest.raises(FleetctlError, match="--listen"):
        serve(f"127.0.0.1:{site[0].port}", Numbers(), lambda: 0.0)


# Notices


class Receiver:
    """A web server that keeps what is posted to it."""

    def __init__(self, status: int = 200, pause_s: float = 0.0) -> None:
        self.got: list[Any] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                time.sleep(pause_s)  # the fault itself
                self.send_response(status)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/secret-path"


def test_a_webhook_gets_text_and_keys() -> None:
    receiver = Receiver()
    assert notify.deliver(Channel(Way.WEBHOOK, receiver.url), NOTICE) == ""
    (got,) = receiver.got
    assert got["run_id"] == "r-1"
    assert got["text"] == "fleetctl: held r-1\nloss is nan \u2620"


def test_a_webhook_that_refuses_or_is_not_there_is_told_without_its_address() -> None:
    receiver = Receiver(status=500)
    refused = notify.deliver(Channel(Way.WEBHOOK, receiver.url), NOTICE)
    assert "500" in refused
    receiver.server.shutdown()
    receiver.server.server_close()
    gone = notify.deliver(Channel(Way.WEBHOOK, receiver.url), NOTICE)
    assert "refused" in gone
    assert "secret-path" not in refused + gone


def test_a_webhook_that_never_answers_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "LIMIT_S", 1.0)
    receiver, began = Receiver(pause_s=20), time.monotonic()
    teller = notify.Teller([Channel(Way.WEBHOOK, receiver.url)], notify.deliver)
    assert teller.tell(NOTICE)
    assert time.monotonic() - began < 0.5
    (sent,) = teller.close(10)
    assert "did not end within 1 s" in sent.trouble


def stub(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_program_of_the_site_reads_the_notice(tmp_path: Path) -> None:
    program = stub(tmp_path / "tell", f"cat > {tmp_path}/got")
    assert notify.deliver(Channel(Way.COMMAND, str(program)), NOTICE) == ""
    assert json.loads((tmp_path / "got").read_text()) == NOTICE.as_json()
    failing = stub(tmp_path / "fail", "cat > /dev/null; echo no pager >&2; exit 3")
    assert notify.deliver(Channel(Way.COMMAND, str(failing)), NOTICE) == "command ended with status 3: no pager"


def test_a_mail_goes_through_the_mailer_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        deliver, "_SENDMAIL", str(stub(tmp_path / "sendmail", f'echo "$@" > {tmp_path}/argv; cat > {tmp_path}/mail'))
    )
    deliver.send("ops@example.org", NOTICE.as_json())
    assert (tmp_path / "argv").read_text() == "-t -i\n"
    assert "To: ops@example.org\n" in (tmp_path / "mail").read_text()
    monkeypatch.setattr(deliver, "_SENDMAIL", str(stub(tmp_path / "sendmail", "cat > /dev/null; exit 75")))
    with pytest.raises(OSError, match="75"):
        deliver.send("ops@example.org", NOTICE.as_json())


def test_two_channels_are_tried_each_for_itself(tmp_path: Path) -> None:
    receiver, failing = Receiver(), stub(tmp_path / "fail", "exit 1")
    teller = notify.Teller([Channel(Way.COMMAND, str(failing)), Channel(Way.WEBHOOK, receiver.url)], notify.deliver)
    assert teller.tell(NOTICE)
    (sent,) = teller.close(20)
    assert sent.trouble.startswith("command ended with status 1")
    assert len(receiver.got) == 1


def test_notices_are_no_secret_to_their_type() -> None:
    assert isinstance(NOTICE, Notice)


# The units of systemd, by its own word (./dev test installs it)


@pytest.mark.parametrize("operator", [True, False])
@pytest.mark.parametrize("folder", ["plain", "with space", "per%cent"])
def test_systemd_takes_the_unit(operator: bool, folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    program = stub(tmp_path / folder / "fleetctl", "exit 0")
    text = unit_text(operator, program).replace("User=fleetctl\n", "User=daemon\n")  # an account that is here
    unit = write_spec(tmp_path, text, "fleetctl-daemon.service")
    said = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout + said.stderr) == (0, "")


def test_systemd_would_say_what_is_wrong(tmp_path: Path) -> None:
    unit = write_spec(tmp_path, unit_text(True, tmp_path / "nothing"), "fleetctl-daemon.service")
    said = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert said.returncode != 0


def test_the_unit_names_this_installation() -> None:
    said = subprocess.run(
        [str(BIN / "fleetctl"), "daemon", "unit", "--operator"], capture_output=True, text=True, check=True
    )
    assert f"\nExecStart={BIN}/fleetctl daemon run --operator\n" in said.stdout
    assert "@" not in said.stdout
