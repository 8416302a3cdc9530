"""What a node gets: one folder with the node checks, NVIDIA's Python module, the scripts and the site's own files."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import zlib
from pathlib import Path
from typing import NamedTuple

import fleetctl
from fleetctl.assets import asset_dir
from fleetctl.errors import InstallError
from fleetctl.ops.cut import cut, names_in
from fleetctl.ops.far_side import NAME_DIGITS, SHOWN_TEXTS, File, digest_of
from fleetctl.ops.install_plan import Wanted

_PACKAGE = Path(fleetctl.__file__).parent
_NVML = "pynvml.py"
_SUFFIXES = (".py", ".json")  # of what the checks need: code, and tables that are data


class Bundle(NamedTuple):
    """The files, and the digest that names the release."""

    files: tuple[File, ...]
    digest: str

    @property
    def packed(self) -> bytes:
        """As it travels, for far_side.unpack."""
        rows = [[path, mode, base64.b64encode(content).decode()] for path, mode, content in self.files]
        return zlib.compress(json.dumps(rows).encode())

    @property
    def wanted(self) -> Wanted:
        """As `--diff` compares it."""
        return Wanted(
            self.digest,
            self.digest[:NAME_DIGITS],
            {path: hashlib.sha256(content).hexdigest() for path, _, content in self.files},
            {path: content.decode("utf-8", "replace") for path, _, content in self.files if path in SHOWN_TEXTS},
        )


def make_bundle(python: str, site: bytes | None = None, profile: bytes | None = None) -> Bundle:
    """The same sources give the same digest. `python` is the interpreter's absolute path on the nodes.

    :raises InstallError: a part of this installation is missing.
    """
    files = {"python": (0o644, f"{python}\n".encode())}
    if site is not None:
        files["site.json"] = (0o644, site)
    if profile is not None:
        files["profile.json"] = (0o644, profile)
    for path, source in _sources().items():
        files[path] = (0o755 if path.endswith(".sh") else 0o644, source.read_bytes())
    files[_NVML] = (0o644, _what_checks_ask_for(files))
    rows = tuple((path, *rest) for path, rest in sorted(files.items()))
    return Bundle(rows, digest_of(rows))


def _sources() -> dict[str, Path]:
    """Path inside the bundle -> the file here."""
    health = _PACKAGE / "health"
    found = {f"fleetctl/{name}": _PACKAGE / name for name in ("__init__.py", "version.py")}
    found |= {
        f"fleetctl/{path.relative_to(_PACKAGE).as_posix()}": path
        for path in sorted(health.rglob("*"))
        if path.suffix in _SUFFIXES
    }
    for name in ("prolog", "epilog"):
        found |= {f"{name}/{path.name}": path for path in sorted(asset_dir(name).glob("*.sh"))}
    found["__main__.py"] = asset_dir("prolog") / "main.py"
    found[_NVML] = _pynvml()
    return found


def _what_checks_ask_for(files: dict[str, tuple[int, bytes]]) -> bytes:
    """NVIDIA's module as it is, without what no check asks for: a prolog imports it before each job."""
    checks = [content.decode() for path, (_, content) in files.items() if path.startswith("fleetctl/health/nvml")]
    wanted = set().union(*(names_in(source) for source in checks))
    return cut(files[_NVML][1].decode(), wanted).encode()


def _pynvml() -> Path:
    found = importlib.util.find_spec("pynvml")
    if found is None or found.origin is None:
        raise InstallError(
            "nvidia-ml-py is not installed here, and the nodes need it", remedy="pip install nvidia-ml-py"
        )
    return Path(found.origin)
