"""PyTorch kernels of slices that go backwards: those that go forwards, turned round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from pytensor.link.pytorch.dispatch import pytorch_funcify
from pytensor.tensor.subtensor import indices_from_subtensor

from ptml.backends.turned import TurnedIncSubtensor, TurnedSubtensor


def _forward(indices: Sequence[Any], shape: Sequence[int]) -> tuple[tuple[Any, ...], list[int]]:
    """Give indices whose slices go forwards, and which axes of the result have then to be turned."""
    found: list[Any] = []
    turned, axis = [], 0
    for index, size in zip(indices, shape, strict=False):
        if not isinstance(index, slice):
            found.append(int(index))
            continue
        start, stop, step = (None if n is None else int(n) for n in (index.start, index.stop, index.step))
        places = range(*slice(start, stop, step).indices(size))
        if places.step < 0:
            places = places[::-1]
            turned.append(axis)
        found.append(slice(places.start, places.stop, places.step) if places else slice(0, 0))
        axis += 1
    return tuple(found), turned


@pytorch_funcify.register(TurnedSubtensor)
def pytorch_turned_subtensor(op: TurnedSubtensor, **kwargs: Any) -> Callable:
    def read(x: torch.Tensor, *numbers: Any) -> torch.Tensor:
        indices, turned = _forward(indices_from_subtensor(numbers, op.idx_list), x.shape)
        return x[indices].flip(turned)

    return read


@pytorch_funcify.register(TurnedIncSubtensor)
def pytorch_turned_inc_subtensor(op: TurnedIncSubtensor, **kwargs: Any) -> Callable:
    def write(x: torch.Tensor, y: torch.Tensor, *numbers: Any) -> torch.Tensor:
        indices, turned = _forward(indices_from_subtensor(numbers, op.idx_list), x.shape)
        x = x.clone()
        part = x[indices]
        new = torch.broadcast_to(torch.as_tensor(y, dtype=x.dtype), part.shape).flip(turned)
        x[indices] = new if op.set_instead_of_inc else part + new
        return x

    return write
