"""The formats that we know, in the order in which they are tried: what embeds another one comes before it."""

from __future__ import annotations

from fleetctl.checkpoint.eyes import AUTO as AUTO
from fleetctl.checkpoint.format import Format
from fleetctl.checkpoint.formats import (
    accelerate,
    dcp,
    deepspeed,
    huggingface,
    lightning,
    megatron,
    orbax,
    own,
    safetensors,
    torch,
    torchtitan,
)
from fleetctl.checkpoint.look import Look

FORMATS: tuple[Format, ...] = (
    own.FORMAT,
    orbax.FORMAT,
    megatron.FORMAT,
    deepspeed.FORMAT,
    huggingface.FORMAT,
    accelerate.FORMAT,
    lightning.FORMAT,
    torchtitan.FORMAT,
    dcp.FORMAT,
    safetensors.FORMAT,
    torch.FORMAT,
)


def of(wanted: str) -> tuple[Format, ...]:
    """The formats that `checkpoint.format` of a spec allows."""
    return tuple(one for one in FORMATS if wanted in (AUTO, one.name))


def recognise(look: Look, wanted: str) -> Format | None:
    """What this is, None if nothing that we know. :raises OSError: it cannot be read."""
    return next((one for one in of(wanted) if one.recognise(look)), None)
