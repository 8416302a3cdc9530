"""The daemon's numbers in Prometheus' text format, and whether it lives, over HTTP on the loopback alone.

Format: prometheus.io, "Exposition formats", text 0.0.4. The dead man's gauge is
fleetctl_daemon_last_pass_timestamp_seconds: whoever scrapes sees that it stands still when the daemon does.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from msgspec import Struct

from fleetctl.errors import FleetctlError, UsageError

_CLIENT_S = 5.0  # a scraper that says nothing for so long is left
_LATE_PASSES_S = 900.0  # a pass may wait for Slurm's time-outs; longer, and something hangs
_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n"}

Labels = tuple[tuple[str, str], ...]


class Metric(Struct, frozen=True):
    """One family: its kind is `counter` or `gauge`."""

    name: str
    kind: str
    help: str


METRICS = (
    Metric("fleetctl_daemon_last_pass_timestamp_seconds", "gauge", "When the last pass ended, Unix time."),
    Metric("fleetctl_daemon_pass_seconds", "gauge", "How long the last pass took."),
    Metric("fleetctl_daemon_passes_total", "counter", "Passes by result: seen, or blind (Slurm was not heard)."),
    Metric("fleetctl_daemon_source_failed", "gauge", "1 for each source that the last pass could not read."),
    Metric("fleetctl_daemon_actions_total", "counter", "Actions by deed and outcome."),
    Metric("fleetctl_daemon_runs", "gauge", "Runs by the rule that decided about them in the last pass."),
    Metric("fleetctl_daemon_interruptions_total", "counter", "Interruptions found, by the class of their cause."),
    Metric("fleetctl_daemon_incidents", "gauge", "Incidents that pause the fleet now."),
    Metric("fleetctl_daemon_leader", "gauge", "1 where this daemon holds the lease."),
    Metric("fleetctl_daemon_acting", "gauge", "1 where it acts, 0 where it only observes or is paused."),
    Metric("fleetctl_daemon_notices_total", "counter", "Notices to people by result: sent, failed, dropped."),
)
_PREFIX = "fleetctl_daemon_"


class Numbers:
    """All values, for one thread that writes and any that read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, Labels], float] = {}

    def set(self, name: str, value: float, **labels: str) -> None:
        """A gauge; `name` without its prefix."""
        with self._lock:
            self._values[_PREFIX + name, tuple(sorted(labels.items()))] = value

    def add(self, name: str, count: float = 1, **labels: str) -> None:
        """A counter rises."""
        key = _PREFIX + name, tuple(sorted(labels.items()))
        with self._lock:
            self._values[key] = self._values.get(key, 0) + count

    def only(self, name: str, values: Mapping[str, float], label: str) -> None:
        """A gauge with one label: these values, and none of those before."""
        full = _PREFIX + name
        with self._lock:
            for key in [key for key in self._values if key[0] == full]:
                del self._values[key]
            self._values |= {(full, ((label, one),)): value for one, value in values.items()}

    def value(self, name: str, **labels: str) -> float | None:
        with self._lock:
            return self._values.get((_PREFIX + name, tuple(sorted(labels.items()))))

    def text(self) -> str:
        """Everything, by family."""
        with self._lock:
            values = dict(self._values)
        lines = list[str]()
        for metric in METRICS:
            lines += (f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}")
            for (name, labels), value in sorted(values.items()):
                if name == metric.name:
                    lines.append(f"{name}{_labels(labels)} {value:.17g}")
        return "\n".join(lines) + "\n"


def _labels(labels: Labels) -> str:
    said = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{said}}}" if said else ""


def _escaped(value: str) -> str:
    return "".join(_ESCAPES.get(char, char) for char in value).encode(errors="replace").decode()


class Site:
    """The HTTP server, in a thread of its own that ends with the process."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def serve(listen: str, numbers: Numbers, now_s: Callable[[], float]) -> Site:
    """Answer /metrics and /health at `listen`, ADDRESS:PORT of the loopback; port 0 takes a free one.

    /health says 200 while passes end, and 503 once none has for fifteen minutes. `now_s` is Unix time.
    :raises UsageError: no such address, or one that others can reach.
    :raises FleetctlError: it cannot be listened at.
    """
    host, port = _address(listen)

    class Answer(BaseHTTPRequestHandler):
        timeout = _CLIENT_S
        server_version = "fleetctl"
        sys_version = ""

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._say(200, numbers.text(), "text/plain; version=0.0.4; charset=utf-8")
            elif self.path == "/health":
                code, said = health(numbers, now_s())
                self._say(code, said + "\n", "text/plain; charset=utf-8")
            else:
                self._say(404, "/metrics or /health\n", "text/plain; charset=utf-8")

        def _say(self, code: int, text: str, kind: str) -> None:
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """The daemon's log is one line a pass."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A scraper that went away is no news."""

    try:
        return Site(Server((host, port), Answer))
    except OSError as error:
        raise FleetctlError(
            f"--listen {listen}: {error.strerror}", remedy="another port, or 0 for a free one"
        ) from None


def health(numbers: Numbers, now_s: float) -> tuple[int, str]:
    """An HTTP status and a line."""
    last = numbers.value("last_pass_timestamp_seconds")
    if last is None:
        return 503, "no pass has ended yet"
    if now_s - last > _LATE_PASSES_S:
        return 503, f"no pass has ended for {now_s - last:.0f} s"
    return 200, f"the last pass ended {max(0.0, now_s - last):.0f} s ago"


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    host = "127.0.0.1" if host in ("", "localhost") else host.strip("[]")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise UsageError(f"--listen {listen}: expected ADDRESS:PORT, such as 127.0.0.1:9477")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise UsageError(f"--listen {listen}: {host} is no address") from None
    if not address.is_loopback or address.version != 4:
        raise UsageError(f"--listen {listen}: only on the loopback", remedy="127.0.0.1:PORT, behind a proxy of yours")
    return host, int(port)
