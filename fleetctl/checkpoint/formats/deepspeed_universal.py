"""DeepSpeed's universal layout: one folder for each parameter below `zero`. Any number of ranks can load it.

A tool makes it of a step, out of training: first the parameters, then `zero/optimizer_state.pt`, then copies of the
model files, at last the pointer `latest_universal` beside it (deepspeed 0.19.8, checkpoint/ds_to_universal.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from fleetctl.checkpoint.format import Facts, Unit, as_step
from fleetctl.checkpoint.formats.beside import names_in, never_finished
from fleetctl.checkpoint.formats.deepspeed_names import Shards, missing
from fleetctl.checkpoint.formats.torch import check_torch_file, pickle_of, units_of
from fleetctl.checkpoint.inert import Map, Stub
from fleetctl.checkpoint.look import Look, moment
from fleetctl.checkpoint.model import Level
from fleetctl.checkpoint.storage import Found, Kind
from fleetctl.checkpoint.zips import Zip, has_crcs

_FOLDER, _OPTIMIZER, _WEIGHTS = "zero", "optimizer_state.pt", "fp32.pt"
_POINTER = "latest_universal"
_MODEL_TAIL = "_model_states.pt"
_STEP = re.compile(r"global_step([0-9]{1,18})(?:[^0-9].*)?")
_EXPERTS = "ds_autoep_layers"  # fused experts are stored under other names than the model's


class _File(Struct, frozen=True):
    look: Look  # the folder that it lies in
    name: str
    found: Found
    zipped: Zip | None


def began(look: Look) -> bool:
    """Whether a conversion to it began here, by what it writes before any model file."""
    return is_universal(look) and (_step(look.name) is not None or _OPTIMIZER in names_in(look.below(_FOLDER)))


def is_universal(look: Look) -> bool:
    """Whether the parameters lie in a folder of their own. :raises OSError: it cannot be listed."""
    found = look.children().get(_FOLDER)
    return found is not None and found.kind is Kind.FOLDER


def check_universal(look: Look, shards: Shards, level: Level) -> Facts:
    """A step that was converted."""
    zero = look.below(_FOLDER)
    for name in missing(shards, Shards({}, frozenset()), shards.data_ranks, shards.model_ranks):
        if name.endswith(_MODEL_TAIL):
            look.missing(name)
    zero.file_size(_OPTIMIZER)
    look.passed(Level.NAMES)
    files, step = list[_File](), None
    if level >= Level.STRUCTURE:
        files = [_file(look, name) for name in shards.names if name.endswith(_MODEL_TAIL)]
        step = _check_models(look, files)
        files += _parameters(zero)
        look.passed(Level.STRUCTURE)
    return Facts(
        training_step=step,
        size_bytes=sum(file.found.size_bytes for file in files) or None,
        saved_at=moment(max((one.modified_at_s for one in zero.children().values()), default=0.0)),
        uncommitted=never_finished(look, _POINTER, _step),
        content=lambda: _units(files),
        unproved=tuple(
            "/".join(file.look.inner(file.name)) for file in files if file.zipped and not has_crcs(file.zipped)
        ),
    )


def _step(name: str) -> int | None:
    found = _STEP.fullmatch(name)
    return None if found is None else int(found[1])


def _file(look: Look, name: str) -> _File:
    return _File(look, name, look.children()[name], check_torch_file(look, name))


def _check_models(look: Look, files: Iterable[_File]) -> int | None:
    """What model files say: the training step, and which parameters there are."""
    step, wanted = None, set[str]()
    for file in files:
        state = None if file.zipped is None else pickle_of(look, file.name, file.zipped)
        if not isinstance(state, Map):
            continue
        said = as_step(state.get("global_steps"))
        step = step if said is None else said
        wanted |= _shapes(state.get("param_shapes")) if state.get(_EXPERTS) is None else set()
    for name in sorted(wanted - look.below(_FOLDER).names()):
        look.missing(f"{_FOLDER}/{name}")
    return step


def _shapes(groups: object) -> frozenset[str]:
    """The names of the parameters that the optimizer has: one OrderedDict for each of its groups."""
    found = set[str]()
    for group in groups if isinstance(groups, list) else []:
        items = group.items if isinstance(group, Stub) else group
        if isinstance(items, Map):
            found.update(name for name, _ in items.items() if isinstance(name, str))
    return frozenset(found)


def _parameters(zero: Look) -> Iterator[_File]:
    """The optimizer's common part, and what each parameter has: its weights at least."""
    for name, found in sorted(zero.children().items()):
        if found.kind is Kind.FOLDER:
            parameter = zero.below(name)
            parameter.file_size(_WEIGHTS)
            yield from (_file(parameter, one) for one in sorted(parameter.names()) if one.endswith(".pt"))
        elif name == _OPTIMIZER:
            yield _file(zero, name)


def _units(files: Iterable[_File]) -> Iterator[Unit]:
    for file in files:
        if file.zipped is not None:
            yield from units_of(file.look, file.name, file.zipped)
