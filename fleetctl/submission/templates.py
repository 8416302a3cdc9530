"""The Jinja environment of the script templates: the user's folders first, then what fleetctl ships."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import ChoiceLoader, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fleetctl.assets import asset_dir


def template_environment(user_dirs: Sequence[Path], cache_dir: Path | None = None) -> ImmutableSandboxedEnvironment:
    """Sandboxed: a template lays out text and may not reach into Python. An undefined name is an error.

    Compiled templates are kept in `cache_dir`, under a digest of their text: compiling costs a tenth of a submit.
    """
    loaders = [FileSystemLoader(folder) for folder in (*user_dirs, asset_dir("templates"))]
    return ImmutableSandboxedEnvironment(
        loader=ChoiceLoader(loaders),
        bytecode_cache=FileSystemBytecodeCache(str(cache_dir)) if cache_dir is not None else None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # a shell script; render.py quotes every word
    )


def private_cache_dir(environ: Mapping[str, str], home: Path) -> Path | None:
    """A folder that only we can write, made when missing; None where there can be none: the cache holds code."""
    folder = Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "fleetctl" / "templates"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return None
    return folder if status.st_uid == os.geteuid() and not status.st_mode & 0o022 else None
