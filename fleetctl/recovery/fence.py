"""The site's fence command: with status 0 it proves that a node is dead, so that nothing on it writes any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from fleetctl import process
from fleetctl.clock import Clock
from fleetctl.errors import ProcessTimeout, ProgramMissing

FENCE_S = 20.0  # a BMC answers within some seconds, and gives up within ten
AGAIN_S = 15.0  # between two questions about one node that is not proved dead
_AT_ONCE = 8


class Fence:
    """`argv` is the command without the node, which is its last word."""

    def __init__(
        self, argv: Sequence[str], clock: Clock, say: Callable[[str], None], timeout_s: float = FENCE_S
    ) -> None:
        self._argv, self._clock, self._say, self._timeout_s = tuple(argv), clock, say, timeout_s
        self._asked_s: dict[str, float] = {}

    def prove_dead(self, nodes: Sequence[str]) -> frozenset[str]:
        """Which of these nodes are proved dead now: of the first few, the others' turn comes. No proof is no error."""
        now_s = self._clock.monotonic_s()
        due = [node for node in nodes if now_s - self._asked_s.get(node, -AGAIN_S) >= AGAIN_S]
        said: dict[str, str] = {}
        threads = [threading.Thread(target=self._ask, args=(node, said), daemon=True) for node in due[:_AT_ONCE]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._asked_s = {node: at_s for node, at_s in self._asked_s.items() if node in nodes}
        self._asked_s |= dict.fromkeys(said, self._clock.monotonic_s())
        for node, why in sorted(said.items()):
            self._say(f"the fence command {why}: {node}")
        return frozenset(node for node, why in said.items() if why == _PROVED)

    def _ask(self, node: str, said: dict[str, str]) -> None:
        try:
            status = process.run((*self._argv, node), timeout_s=self._timeout_s).returncode
            said[node] = _PROVED if status == 0 else f"proves nothing (status {status})"
        except (ProcessTimeout, ProgramMissing, OSError) as error:
            said[node] = f"proves nothing ({error})"


_PROVED = "proves the death"
