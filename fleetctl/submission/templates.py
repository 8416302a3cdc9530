"""The Jinja environment of the script templates: the user's folders first, then what fleetctl ships."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import ChoiceLoader, FileSystemLoader, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fleetctl.assets import asset_dir


def template_environment(user_dirs: Sequence[Path]) -> ImmutableSandboxedEnvironment:
    """Sandboxed: a template lays out text and may not reach into Python. An undefined name is an error.

    Without a bytecode cache, which would execute what lies in a folder that its user can write.
    """
    loaders = [FileSystemLoader(folder) for folder in (*user_dirs, asset_dir("templates"))]
    return ImmutableSandboxedEnvironment(
        loader=ChoiceLoader(loaders),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # a shell script; render.py quotes every word
    )
