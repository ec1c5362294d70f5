"""What layers over time are given beside their input: masks, lengths and states, each checked.

A sequence has its time on axis -2. A mask says of every step whether it is real, lengths say how many are,
from the first on. Lengths that cannot be are an error that names them where a backend can raise (Python, C,
numba); a traced one (JAX, MLX, PyTorch) cannot: there what depends on them is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.type import integer_dtypes
from pytensor.tensor.variable import TensorVariable

from ptml.checks import SameSize, check_same_size
from ptml.decoding import numbered
from ptml.labels import CheckLabels
from ptml.validate import described

__all__ = [
    "CheckLengths",
    "CheckSteps",
    "as_many_steps",
    "check_lengths",
    "check_mask",
    "check_sequence",
    "check_state",
    "mask_of",
    "real_steps",
]

NO_TIME = "{who} takes {wants}; got {ndim} axes: {shape}.{hint}"
ONE_SEQUENCE = " Write X[None] for a single sequence, or X[:, None] for sequences of one step."
WRONG_MASK_NDIM = (
    "{who} takes a mask of shape {wants}, its input's without the features; got {ndim} axes: {shape}."
)
NO_BOOLEAN = (
    "{who} takes a mask of booleans, True where a step is real; got {given}. Write mask > 0, or "
    "mask.astype(bool)."
)
NO_INTEGER = "{who} takes lengths that are integers; got {given}. Write lengths.astype('int64')."
WRONG_LENGTHS_NDIM = "{who} takes lengths of shape {wants}, one for each sequence; got {ndim} axes: {shape}."
BOTH = "{who} takes a mask or lengths, and was given both."
WRONG_COUNT = "{who} carries a state of {wanted}; got {given}. Write initial_state={example}."
NO_TENSOR = "{who} takes tensors as its state, {wanted}; got {given!r}."
WRONG_STATE_NDIM = "{who} takes an initial state of {wants}; tensor {place} has {ndim} axes: {shape}."
WRONG_STATE_SIZE = (
    "{who} takes an initial state of {wants}; tensor {place} is {shape}: axis {axis} is {given}, not {size}."
)
WRONG_STATE_DTYPE = (
    "{who} carries a state of {dtype}; tensor {place} of the given one is {given}. Write .astype({dtype!r})."
)
LENGTH = "{who}: length {{0}} is not between 0 and {{2}}, the number of steps along the time axis (-2)."
NO_LAST_STEP = (
    "{who}: a sequence has no real step, and so no last one, among the {{1}} along the time axis (-2)."
)


def _escaped(who: str) -> str:
    return who.replace("{", "{{").replace("}", "}}")


class CheckLengths(CheckLabels):
    """Raise where a length is negative or longer than the sequences are.

    The op is applied to ``(lengths, n_steps + 1)``, as :class:`ptml.labels.CheckLabels` is.

    Parameters
    ----------
    loss
        The name of who asks, for the error.

    Raises
    ------
    TypeError
        When applied, if the lengths are no integers.
    ValueError
        When run, if there cannot be such a length. JAX, MLX and PyTorch do not raise.

    Examples
    --------
    >>> from ptml.sequences import CheckLengths
    >>> CheckLengths("lstm (LSTM)").message.format(7, 6, 5)
    'lstm (LSTM): length 7 is not between 0 and 5, the number of steps along the time axis (-2).'
    """

    def __init__(self, loss: str, ignore: int | None = None) -> None:
        super().__init__(loss, ignore)
        self.message = LENGTH.format(who=_escaped(loss))


class CheckSteps(CheckLabels):
    """Raise where a sequence has no step that could be its last.

    The op is applied to ``(last steps, n_steps)``, as :class:`ptml.labels.CheckLabels` is; the number of the
    last step is -1 where there is none.

    Parameters
    ----------
    loss
        The name of who asks, for the error.

    Raises
    ------
    TypeError
        When applied, if the numbers are no integers.
    ValueError
        When run, if there is no such step. JAX, MLX and PyTorch do not raise.

    Examples
    --------
    >>> from ptml.sequences import CheckSteps
    >>> CheckSteps("last (LastStep)").message.format(-1, 5, 4)
    'last (LastStep): a sequence has no real step, and so no last one, among the 5 along the time axis (-2).'
    """

    def __init__(self, loss: str, ignore: int | None = None) -> None:
        super().__init__(loss, ignore)
        self.message = NO_LAST_STEP.format(who=_escaped(loss))


def check_sequence(layer: Any, X: TensorVariable, wants: str) -> None:
    """Check that a layer's input has a batch axis or more, then time, then features.

    Parameters
    ----------
    layer : Layer
        What errors name.
    X : tensor
        The input.
    wants : str
        What the layer takes, such as ``"(batch, time, 64 features)"``.

    Raises
    ------
    ValueError
        If there are fewer than three axes.
    """
    if X.type.ndim < 3:
        hint = ONE_SEQUENCE if X.type.ndim == 2 else ""
        raise ValueError(
            NO_TIME.format(who=described(layer), wants=wants, ndim=X.type.ndim, shape=X.type.shape, hint=hint)
        )


def as_many_steps(layer: Any, Y: TensorVariable, X: TensorVariable) -> TensorVariable:
    """Give what a loop made of a sequence, seen to have as many steps as that.

    PyTensor keeps only those steps of a loop that are asked for, and where there are none at all, it gives
    what the loop started from for the last. It does not look through this check, and so to ask is an error.
    """
    steps = X.type.shape[-2]
    if not steps:
        Y = SameSize(described(layer), -2, "as many steps as it gives")(Y, X)
    if Y.type.shape[-2] == steps:
        return Y
    return pt.specify_shape(Y, (*Y.type.shape[:-2], steps, *Y.type.shape[-1:]))


def check_mask(layer: Any, X: TensorVariable, mask: Any) -> TensorVariable:
    """Check a mask of the steps of a layer's input.

    Parameters
    ----------
    layer : Layer
        What errors name.
    X : tensor
        The input, ``(..., time, features)``.
    mask : tensor-like
        Booleans of shape ``(..., time)``, True where a step is real.

    Returns
    -------
    tensor
        The mask, whose shape is checked in the running graph where it is not known before.

    Raises
    ------
    TypeError
        If it holds anything but booleans.
    ValueError
        If it has another shape.
    """
    who, mask = described(layer), pt.as_tensor(mask)
    wants = "(batch, time)" if X.type.ndim == 3 else "(batch, ..., time)"
    if mask.type.dtype != "bool":
        raise TypeError(NO_BOOLEAN.format(who=who, given=mask.type))
    if mask.type.ndim != X.type.ndim - 1:
        raise ValueError(
            WRONG_MASK_NDIM.format(who=who, wants=wants, ndim=mask.type.ndim, shape=mask.type.shape)
        )
    steps = X[..., 0]
    for axis in range(-mask.type.ndim, 0):
        mask = check_same_size(layer, mask, steps, axis=axis, wants=f"a mask of shape {wants}, its input's")
    return mask


def check_lengths(layer: Any, X: TensorVariable, lengths: Any) -> TensorVariable:
    """Check the lengths of the sequences in a layer's input.

    Parameters
    ----------
    layer : Layer
        What errors name.
    X : tensor
        The input, ``(..., time, features)``.
    lengths : tensor-like
        Integers of shape ``(...)``, each from 0 to the number of steps.

    Returns
    -------
    tensor
        The lengths, checked in the running graph.

    Raises
    ------
    TypeError
        If they are no integers.
    ValueError
        If they have another shape; by the running graph, if one is negative or longer than the sequences.
    """
    who, lengths = described(layer), pt.as_tensor(lengths)
    wants = "(batch,)" if X.type.ndim == 3 else "(batch, ...)"
    if lengths.type.dtype not in integer_dtypes:
        raise TypeError(NO_INTEGER.format(who=who, given=lengths.type))
    if lengths.type.ndim != X.type.ndim - 2:
        raise ValueError(
            WRONG_LENGTHS_NDIM.format(who=who, wants=wants, ndim=lengths.type.ndim, shape=lengths.type.shape)
        )
    if lengths.type.dtype.startswith("u") or np.iinfo(lengths.type.dtype).bits < 32:
        lengths = lengths.astype("int64")
    beside = X[..., 0]
    padded = lengths[..., None]
    for axis in range(-padded.type.ndim, -1):
        padded = check_same_size(
            layer,
            padded,
            beside,
            axis=axis,
            wants=f"lengths of shape {wants}, its input's",
        )
    return CheckLengths(who)(padded[..., 0], _steps(X) + 1)


def _steps(X: TensorVariable) -> Any:
    known = X.type.shape[-2]
    return X.shape[-2] if known is None else known


def mask_of(lengths: TensorVariable, X: TensorVariable) -> TensorVariable:
    """Give the mask of the steps that come before their sequence's length: ``(..., time)``."""
    return pt.lt(numbered(_steps(X)), lengths[..., None])


def real_steps(
    layer: Any, X: TensorVariable, mask: Any, lengths: Any
) -> tuple[TensorVariable | None, TensorVariable | None]:
    """Check what is said of the steps of a layer's input, whichever way.

    Parameters
    ----------
    layer : Layer
        What errors name.
    X : tensor
        The input, ``(..., time, features)``.
    mask, lengths : tensor-like or None
        As for `check_mask` and `check_lengths`; one of them, or neither.

    Returns
    -------
    mask : tensor or None
        Booleans ``(..., time)``, True where a step is real; None where all are.
    possible : tensor or None
        Booleans ``(...)``, whether a sequence's length can be, which a traced backend must go on with; None
        where no lengths were given.

    Raises
    ------
    TypeError, ValueError
        As the two, and if both are given.
    """
    if mask is not None and lengths is not None:
        raise TypeError(BOTH.format(who=described(layer)))
    if mask is not None:
        return check_mask(layer, X, mask), None
    if lengths is None:
        return None, None
    checked = check_lengths(layer, X, lengths)
    possible = pt.ge(checked, 0) & pt.le(checked, _steps(X))
    return mask_of(checked, X), possible


def check_state(
    layer: Any, X: TensorVariable, given: Any, zeros: Sequence[TensorVariable]
) -> tuple[TensorVariable, ...]:
    """Check the state that a layer is to start from against the zeros that it starts from otherwise.

    Parameters
    ----------
    layer : Layer
        What errors name.
    X : tensor
        The input, ``(..., time, features)``.
    given : tensor, or tuple or list of tensors
        The state.
    zeros : sequence of tensors
        What it must be like: the batch axes of the input, then the state's own.

    Returns
    -------
    tuple of tensors

    Raises
    ------
    TypeError
        If it holds anything but tensors, or numbers that are wider than the state's.
    ValueError
        If there are more or fewer, or one has another shape.
    """
    who = described(layer)
    tensors = tuple(given) if isinstance(given, tuple | list) else (given,)
    batch = X.type.ndim - 2
    places = ", ".join(_in_words(zero, batch) for zero in zeros)
    if len(tensors) != len(zeros):
        words = f"{len(zeros)} tensor{'s' if len(zeros) != 1 else ''}, {places}"
        names = "hc"[: len(zeros)] if len(zeros) < 3 else [f"s{k}" for k in range(len(zeros))]
        example = f"({', '.join(names)})" if len(zeros) > 1 else "h"
        raise ValueError(WRONG_COUNT.format(who=who, wanted=words, given=len(tensors), example=example))
    pairs = enumerate(zip(tensors, zeros, strict=True))
    return tuple(_checked(who, X, place, state, zero) for place, (state, zero) in pairs)


def _in_words(zero: TensorVariable, batch: int) -> str:
    own = [str(size) if size is not None else "?" for size in zero.type.shape[batch:]]
    return f"({', '.join(['batch', *(['...'] if batch > 1 else []), *own])})"


def _checked(who: str, X: TensorVariable, place: int, state: Any, zero: TensorVariable) -> TensorVariable:
    batch = X.type.ndim - 2
    wants = _in_words(zero, batch)
    if not isinstance(state, Variable):
        raise TypeError(NO_TENSOR.format(who=who, wanted=wants, given=state))
    shape = state.type.shape
    if state.type.ndim != zero.type.ndim:
        raise ValueError(
            WRONG_STATE_NDIM.format(who=who, wants=wants, place=place, ndim=state.type.ndim, shape=shape)
        )
    if np.result_type(state.type.dtype, zero.type.dtype) != zero.type.dtype:
        raise TypeError(
            WRONG_STATE_DTYPE.format(who=who, dtype=zero.type.dtype, place=place, given=state.type)
        )
    for axis, (given, size) in enumerate(zip(shape, zero.type.shape, strict=True)):
        if given is None or size is None:
            counted = axis - state.type.ndim
            state = SameSize(who, counted, f"an initial state of {wants}")(state, zero)
        elif given != size:
            raise ValueError(
                WRONG_STATE_SIZE.format(
                    who=who, wants=wants, place=place, shape=shape, axis=axis, given=given, size=size
                )
            )
    state = state.astype(zero.type.dtype)
    known = tuple(a if b is None else b for a, b in zip(shape, zero.type.shape, strict=True))
    return pt.specify_shape(state, known) if known != state.type.shape else state
