"""Questions by job id, so many ids a call. What Slurm does not answer about some ids keeps none of the others back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from fleetctl.accounting.plan import is_too_much
from fleetctl.errors import CannotTell, SlurmError, SlurmRefused
from fleetctl.slurm.books import Rows

IDS_A_CALL = 500  # of one argument of sacct: execve takes 128 KiB, and slurmdbd's answer stays short
_MOST_FAILURES = 12  # in a row: ten are needed to get from 500 ids down to one, and then it is not the ids
Item = TypeVar("Item")


def in_batches(
    items: Sequence[Item], ask: Callable[[Sequence[Item]], Rows], unknown: Callable[[str], None]
) -> Iterator[tuple[Sequence[Item], Rows]]:
    """Each batch with its answer, in order. One that fails is halved, down to a single item, which is left out.

    :param unknown: told once, at the end, what was not answered and why.
    """
    waiting = [items[start : start + IDS_A_CALL] for start in range(0, len(items), IDS_A_CALL)][::-1]
    failures, left_out, why = 0, 0, ""
    while waiting:
        batch = waiting.pop()
        try:
            rows = ask(batch)
        except (CannotTell, SlurmError) as error:
            why = error.message
            failures += not (isinstance(error, SlurmRefused) and is_too_much(error.text))
            if len(batch) == 1 or failures >= _MOST_FAILURES:
                left_out += len(batch)
            else:
                half = len(batch) // 2
                waiting += [batch[half:], batch[:half]]
            if failures >= _MOST_FAILURES:
                left_out += sum(map(len, waiting))
                break
            continue
        failures = 0
        yield batch, rows
    if left_out:
        unknown(f"{left_out} of {len(items)} records: {why}")
