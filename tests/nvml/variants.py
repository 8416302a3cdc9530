"""What healthy_variants and sick_variants are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.nvml.scenario import Node, Paths, healthy

Change = Callable[[Node], None]


class Variant(NamedTuple):
    """A healthy node of `platform`, changed.

    `words`: what a drain's reason holds, in any case, each a choice of `this|or that`; none for a healthy node.
    `learned`: the site has a profile, learned from the platform's healthy node. `gpus` is the job's SLURM_JOB_GPUS
    (None: all of the node). `site`: keys for site.json. `later`: what changes a moment after the check has begun.
    """

    name: str
    why: str
    platform: str
    change: Change
    words: tuple[str, ...] = ()
    learned: bool = False
    gpus: str | None = None
    site: Mapping[str, Any] = {}
    later: Callable[[Paths], None] | None = None

    def node(self, name: str = "n1") -> Node:
        """A new node of this kind."""
        node = healthy(self.platform, name)
        self.change(node)
        return node

    def lacks(self, reason: str) -> list[str]:
        """The words that a drain's reason should hold and does not."""
        told = reason.lower()
        return [words for words in self.words if not any(word in told for word in words.lower().split("|"))]


class Table:
    """Variants by the names of their functions, in the order of their writing."""

    def __init__(self) -> None:
        self.variants: dict[str, Variant] = {}

    def add(self, platform: str = "h100-sxm", **more: Any) -> Callable[[Change], Change]:
        """Puts the decorated function into the table; its docstring says why."""

        def keep(change: Change) -> Change:
            name = change.__name__
            if name in self.variants or not change.__doc__:
                raise ValueError(f"{name}: twice, or without a docstring")
            self.variants[name] = Variant(name, change.__doc__, platform, change, **more)
            return change

        return keep
