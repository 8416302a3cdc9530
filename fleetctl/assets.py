"""Where templates/, prolog/, epilog/ and db/ are: inside an installed wheel, else in the checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
TRAIN_DIR = _PACKAGE / "train"  # copied into each run directory, for the training's PYTHONPATH


def asset_dir(name: str) -> Path:
    """The folder `name` (templates, prolog, epilog, db)."""
    packaged = _PACKAGE / "_assets" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name
