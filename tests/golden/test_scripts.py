"""Whole scripts, as they would be submitted. `./dev test tests/golden --update-golden` writes them anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.render.script import Context, render
from fleetctl.render.steps import Style
from fleetctl.slurm.model import GpuStyle, MemoryStyle
from fleetctl.spec.load import load_spec
from fleetctl.submission.templates import template_environment

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "examples"
SPECS = sorted([*HERE.glob("specs/*.yaml"), *EXAMPLES.glob("*.yaml")])
OLD_CLUSTER = Style(GpuStyle.GRES, MemoryStyle.PER_CPU)


def script_of(spec_file: Path, style: Style) -> str:
    """The script of a spec, on a run root and an interpreter that no machine has."""
    spec = load_spec(spec_file.read_text(), spec_file.name)
    context = Context(
        run_id="__RUN__",
        run_dir="/runs/50% done/__RUN__",
        submission=1,
        comment="fleetctl:__RUN__/1",
        python="/opt/fleet ctl/bin/python",
        workdir=spec.workdir or "/home/me/specs",
        version="__VERSION__",
        env_file=spec.env_file and f"/home/me/specs/{spec.env_file}",
        after=("41", "42"),
        needs=("/runs/first",),
    )
    return render(spec, context, style, template_environment(()))


@pytest.mark.parametrize("spec_file", SPECS, ids=lambda path: path.stem)
@pytest.mark.parametrize("style", [Style(), OLD_CLUSTER], ids=["modern", "old"])
def test_script_is_as_reviewed(spec_file: Path, style: Style, update_golden: bool) -> None:
    kind = "modern" if style == Style() else "old"
    golden = HERE / "scripts" / f"{spec_file.stem}.{kind}.sh"
    script = script_of(spec_file, style)
    if update_golden:
        golden.write_text(script)
    assert script == golden.read_text()


def test_every_golden_file_has_a_spec() -> None:
    stems = {path.stem for path in SPECS}
    assert {path.name.split(".")[0] for path in HERE.glob("scripts/*.sh")} == stems
