"""The way from a batch into a compiled function.

PyTensor looks at every input and every leaf of the state before it runs, to see whether it was given and
fits. Here the inputs alone are looked at, in the same way, and the function is told to trust them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pytensor.compile.executor import Function
from pytensor.compile.io import In
from pytensor.link.basic import Container
from pytensor.tensor.type import TensorType

__all__ = ["trusting"]


def trusting(function: Function) -> Callable[..., Any]:
    """Give a function's call, with its inputs checked here.

    It takes and gives what the function does, and raises what that would. Where inputs have default values or
    may share memory with each other, it is the function itself.

    Parameters
    ----------
    function : pytensor Function
    """
    entries = [
        (entry, container)
        for entry, container in zip(function.maker.inputs, function.input_storage, strict=True)
        if not entry.implicit
    ]
    if not all(_is_plain(entry, container) for entry, container in entries):
        return function
    n_inputs = len(entries)
    gates = [_gate(container) for _, container in entries]
    storages = [container.storage for _, container in entries]
    vm = function.vm
    # Such a machine writes the state by itself, and nothing is left to do after it.
    alone = not getattr(vm, "need_update_inputs", True) and not vm.allow_gc

    def call(*batch: Any, **named: Any) -> Any:
        if named or len(batch) != n_inputs:
            return function(*batch, **named)
        values = [gate(value) for gate, value in zip(gates, batch, strict=True)]
        if alone and not function.profile:
            for storage, value in zip(storages, values, strict=True):
                storage[0] = value
            return vm()
        before, function.trust_input = function.trust_input, True
        try:
            return function(*values)
        finally:
            function.trust_input = before

    return call


def _is_plain(entry: Any, container: Container) -> bool:
    return (
        isinstance(entry, In)
        and not entry.borrow
        and entry.update is None
        and container.required
        and type(container.type) is TensorType
    )


def _gate(container: Container) -> Callable[[Any], Any]:
    """Give what passes an array that fits an input as it is, and makes one of anything else that can be."""
    type_ = container.type
    dtype, ndim, strict, downcast = type_.numpy_dtype, type_.ndim, container.strict, container.allow_downcast
    sizes = [(axis, size) for axis, size in enumerate(type_.shape) if size is not None]

    def gate(value: Any) -> Any:
        if (
            type(value) is np.ndarray
            and value.dtype is dtype
            and value.ndim == ndim
            and value.flags.aligned
            and all(value.shape[axis] == size for axis, size in sizes)
        ):
            return value
        return type_.filter(value, strict=strict, allow_downcast=downcast)

    return gate
