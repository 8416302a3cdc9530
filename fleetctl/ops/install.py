"""Bring the node checks to nodes by SSH, several at a time; one dead node holds up no other."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

from fleetctl.clock import Clock
from fleetctl.errors import SshError
from fleetctl.known_hosts import KnownHosts
from fleetctl.ops import far_side, far_trust
from fleetctl.ops.bundle import Bundle
from fleetctl.ops.install_plan import HostResult, Outcome, bootstrap, compare, read_answer, result_of
from fleetctl.ssh import Login, connect

_KEPT_RELEASES = 3
_ORDER_S = 120.0  # a slow disk compiles and syncs for seconds


class Nodes(NamedTuple):
    """Where and how: `python` and `prefix` are absolute paths on the nodes; `jobs` nodes are served at a time."""

    hosts: tuple[str, ...]
    login: Login
    prefix: str
    python: str
    jobs: int
    clock: Clock


Tell = Callable[[int, HostResult], None]  # how many are done, and the last one's end


def install(nodes: Nodes, bundle: Bundle, tell: Tell) -> tuple[HostResult, ...]:
    """Install the bundle everywhere; the results are in the order of the hosts.

    After Ctrl-C those that had not ended by then are NOT_KNOWN, here as in the next two.
    """
    order = {"verb": "install", "prefix": nodes.prefix, "digest": bundle.digest, "keep": _KEPT_RELEASES}
    packed = bundle.packed
    return _each(nodes, lambda host, ask: result_of(host, ask(order, packed)), tell)


def diff(nodes: Nodes, bundle: Bundle, tell: Tell) -> tuple[HostResult, ...]:
    """What an install would change; nothing is changed."""
    order = {"verb": "look", "prefix": nodes.prefix}
    return _each(nodes, lambda host, ask: compare(host, ask(order, b""), bundle.wanted), tell)


def roll_back(nodes: Nodes, tell: Tell) -> tuple[HostResult, ...]:
    """Go back to the release before the current one."""
    order = {"verb": "roll_back", "prefix": nodes.prefix}
    return _each(nodes, lambda host, ask: result_of(host, ask(order, b"")), tell)


_Ask = Callable[[dict[str, Any], bytes], dict[str, Any]]


def _each(nodes: Nodes, work: Callable[[str, _Ask], HostResult], tell: Tell) -> tuple[HostResult, ...]:
    known = KnownHosts.of(nodes.login.known_hosts)
    program = _program()
    done: dict[str, HostResult] = {}
    pool = ThreadPoolExecutor(max_workers=nodes.jobs, thread_name_prefix="install")
    try:
        todo = [pool.submit(_one, nodes, known, program, host, work) for host in nodes.hosts]
        for future in as_completed(todo):
            result = future.result()
            done[result.host] = result
            tell(len(done), result)
    except KeyboardInterrupt:
        pass  # a person wants to know now how far it came: the others are not known
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # after Ctrl-C nothing new begins
    return tuple(done.get(host) or HostResult(host, Outcome.NOT_KNOWN) for host in nodes.hosts)


def _program() -> bytes:
    """Both modules in one text, for a Python that has neither."""
    texts = [(module.__name__, inspect.getsource(module)) for module in (far_trust, far_side)]
    return (
        "import sys, types\n"
        f"for name, text in {texts!a}:\n"
        "    module = sys.modules[name] = types.ModuleType(name)\n"
        "    exec(compile(text, name, 'exec'), module.__dict__)\n"
        "main = module.main\n"
    ).encode("ascii")


def _one(
    nodes: Nodes, known: KnownHosts, program: bytes, host: str, work: Callable[[str, _Ask], HostResult]
) -> HostResult:
    try:
        with connect(host, nodes.login, known, nodes.clock) as ssh:

            def ask(order: dict[str, Any], packed: bytes) -> dict[str, Any]:
                line = json.dumps(order).encode() + b"\n"
                argv = bootstrap(nodes.python, len(program))
                ran = ssh.run(argv, stdin=program + line + packed, timeout_s=_ORDER_S)
                return read_answer(ran.status, ran.text, far_side.MARK, nodes.python)

            return work(host, ask)
    except SshError as error:
        return HostResult(host, Outcome.FAILED, words=error.message, remedy=error.remedy)
    except Exception as error:  # noqa: BLE001 - whatever one host brings about, the others go on
        return HostResult(host, Outcome.FAILED, words=f"{host}: a bug of fleetctl: {type(error).__name__}: {error}")
