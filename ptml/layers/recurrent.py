"""Recurrences over sequences: the layer that runs any cell, and what all recurrent layers have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.checks import check_floating
from ptml.decoding import decoding
from ptml.layer import Layer, name_by_keyword
from ptml.layers.recurrent_cells import RecurrentCell
from ptml.layout import check_layout
from ptml.sequences import as_many_steps, check_sequence, check_state, real_steps
from ptml.validate import described, flag

__all__ = ["Recurrent", "SequenceLayer", "loop"]

NOT_A_CELL = "{who}: cell must be a RecurrentCell; got {given!r}.{hint}"
CELL_CLASS = " Write {name}(...), with its arguments."
NAME_IN_FRONT = " The name of the layer goes by keyword: Recurrent(cell, name={given!r})."
NO_CACHE = (
    "{who} keeps no state between the pieces that a decoder is given. Call it with return_state=True, and "
    "give the state to the next call as initial_state."
)
NOT_A_REVERSAL = "{who}: reverse must be True, False or None in a call; got {given!r}."
STATE_CHANGES = (
    "{who} carries {wanted}; its step gives {given}. A step gives a tensor for each of initial_state."
)

State = Sequence[TensorVariable]


class SequenceLayer(Layer):
    """The base of layers that carry a state along a sequence: how they are called.

    Parameters
    ----------
    name : str, optional
    reverse : bool
        Whether the sequence is read from its last step to its first; False unless given. The output of a
        step stays where its input is.
    """

    reverse: bool = attrs.field(default=False, validator=flag)

    def __call__(
        self,
        X: Any,
        initial_state: Any = None,
        *,
        mask: Any = None,
        lengths: Any = None,
        reverse: bool | None = None,
        return_state: bool = False,
    ) -> Any:
        """Run over sequences.

        Parameters
        ----------
        X : tensor
            ``(batch, time, n_in)``; there may be more batch axes.
        initial_state : tensor or tuple of tensors, optional
            The state before the first step, as `return_state` gives it; zeros unless given.
        mask : tensor, optional
            Booleans ``(batch, time)``, True where a step is real. Elsewhere the state stays what it is, the
            output is that of the step before, and what the input holds is not read.
        lengths : tensor, optional
            Integers ``(batch,)``: of each sequence the number of steps, from the first on, that are real.
        reverse : bool, optional
            The direction of this call; the layer's own unless given.
        return_state : bool
            Whether to give the final state too; False unless given. Where a sequence has no steps, it is the
            initial one.

        Returns
        -------
        Y : tensor
            The output of every step, ``(batch, time, n_out)``.
        state : tensor or tuple of tensors
            With ``return_state=True``: the state after all steps, of the parts that the layer carries, a
            tuple where there are several. It may be the `initial_state` of what follows.

        Raises
        ------
        TypeError
            If `X` holds integers, or the mask anything but booleans, or the lengths anything but integers, or
            if a mask and lengths are given.
        ValueError
            If something has another shape; by the running graph where shapes are not known before, and if a
            length is negative or longer than the sequences. JAX, MLX and PyTorch cannot raise for a length:
            there what it leads to is NaN.
        """
        if reverse is not None and not isinstance(reverse, bool):
            raise TypeError(NOT_A_REVERSAL.format(who=described(self), given=reverse))
        return super().__call__(
            X,
            initial_state=initial_state,
            mask=mask,
            lengths=lengths,
            reverse=reverse,
            return_state=return_state,
        )

    def wants(self) -> str:
        """Say what the input is."""
        return "(batch, time, features)"

    def checked(self, X: TensorVariable) -> TensorVariable:
        """Check the input's axes and dtype, and the size of its last axis."""
        check_floating(self, X)
        check_sequence(self, X, self.wants())
        check_layout(self, X, "NTC" if X.type.ndim == 3 else "N...TC")
        return X

    def start(self, X: TensorVariable) -> tuple[TensorVariable, ...]:
        """Give the state before the first step."""
        raise TypeError(f"{type(self).__name__} does not say what it starts from.")

    def run(
        self, X: TensorVariable, state: State, mask: TensorVariable | None, reverse: bool
    ) -> tuple[TensorVariable, State]:
        """Give the output of every step and the final state."""
        raise TypeError(f"{type(self).__name__} does not say what its steps are.")

    def build(
        self,
        X: TensorVariable,
        *,
        initial_state: Any = None,
        mask: Any = None,
        lengths: Any = None,
        reverse: bool | None = None,
        return_state: bool = False,
    ) -> Any:
        if decoding.get() is not None and initial_state is None:
            raise ValueError(NO_CACHE.format(who=described(self)))
        X = self.checked(X)
        real, possible = real_steps(self, X, mask, lengths)
        state = self.start(X)
        if initial_state is not None:
            state = check_state(self, X, initial_state, state)
        if real is not None:
            # A gradient is a product with the input: what is not real must be finite.
            X = pt.switch(real[..., None], X, np.zeros((), X.type.dtype))
        if possible is not None:
            state = tuple(_or_nan(possible, part) for part in state)
        Y, last = self.run(X, state, real, self.reverse if reverse is None else reverse)
        Y = as_many_steps(self, Y, X)
        if not return_state:
            return Y
        return Y, last[0] if len(last) == 1 else tuple(last)


def _or_nan(possible: TensorVariable, state: TensorVariable) -> TensorVariable:
    ok = pt.shape_padright(possible, state.type.ndim - possible.type.ndim)
    return pt.switch(ok, state, np.asarray(np.nan, state.type.dtype))


def loop(
    layer: Layer,
    step: Callable[..., Sequence[TensorVariable]],
    X: TensorVariable,
    state: State,
    constants: Sequence[TensorVariable],
    mask: TensorVariable | None,
    reverse: bool,
) -> tuple[TensorVariable, State]:
    """Run steps over a sequence, whatever they are.

    Parameters
    ----------
    layer : Layer
        What errors name.
    step : callable
        Takes the sequence at a step, the state and the constants, and gives the new state.
    X : tensor, (..., time, features)
    state : sequence of tensors
        What it starts from.
    constants : sequence of tensors
        What every step reads.
    mask : tensor or None
        Where steps are real, ``(..., time)``.
    reverse : bool
        Whether to begin with the last.

    Returns
    -------
    Y : tensor
        The first part of the state after each step, along axis -2 of `X`.
    last : tuple of tensors
        The state after all steps.
    """
    from ptml import scan

    n = len(state)

    def masked(x_t: TensorVariable, *rest: TensorVariable) -> list[TensorVariable]:
        real, rest = (None, rest) if mask is None else (rest[0], rest[1:])
        before = rest[:n]
        after = list(step(x_t, *rest))
        if len(after) != n:
            wanted, given = (f"{k} tensor{'s' if k != 1 else ''}" for k in (n, len(after)))
            raise ValueError(STATE_CHANGES.format(who=described(layer), wanted=wanted, given=given))
        if real is None:
            return after
        return [
            pt.switch(pt.shape_padright(real, old.type.ndim - real.type.ndim), new, old)
            for new, old in zip(after, before, strict=True)
        ]

    sequences = [pt.moveaxis(X, -2, 0)]
    if mask is not None:
        sequences.append(pt.moveaxis(mask, -1, 0))
    traces = scan(
        masked,
        sequences=sequences,
        outputs_info=list(state),
        non_sequences=list(constants),
        go_backwards=reverse,
        return_list=True,
        name=f"{layer.name}_steps",
    )
    # Where there are no steps, the last state is the first.
    last = tuple(pt.concatenate([s[None], trace])[-1] for s, trace in zip(state, traces, strict=True))
    output = traces[0][::-1] if reverse else traces[0]
    return pt.moveaxis(output, 0, X.type.ndim - 2), last


def _a_cell(module: Any, field: attrs.Attribute, value: Any) -> None:
    if isinstance(value, RecurrentCell):
        return
    hint = ""
    if isinstance(value, type) and issubclass(value, RecurrentCell):
        hint = CELL_CLASS.format(name=value.__name__)
    elif isinstance(value, str):
        hint = NAME_IN_FRONT.format(given=value)
    raise TypeError(NOT_A_CELL.format(who=described(module), given=value, hint=hint))


class Recurrent(SequenceLayer):
    """Run a cell over the time axis of sequences: X of shape ``(batch, time, n_in)``.

    See `SequenceLayer` for what a call takes: an initial state, a mask or lengths, and whether the final
    state is wanted too. What the cell draws is another draw in every step, and a statistic goes from each
    step to the next.

    Parameters
    ----------
    cell : RecurrentCell
        By position. It has the state, under its own name.
    name : str, optional
        By keyword. It is no part of the addresses of the cell's state.
    reverse : bool
        Whether the sequence is read from its last step to its first; False unless given. Output step t is
        that of input step t in both directions: nothing is to be flipped.

    Raises
    ------
    TypeError
        If `cell` is no cell.
    TypeError, ValueError
        When called: see `SequenceLayer`.

    Examples
    --------
    >>> from ptml.layers import GRUCell, Input, Recurrent
    >>> layer = Recurrent(GRUCell("cell", n_in=2, n_hidden=4), name="backward", reverse=True)
    >>> layer
    Recurrent(GRUCell('cell', n_in=2, n_hidden=4), reverse=True, name='backward')
    >>> layer(Input("X", (None, 50, 2))).type.shape
    (None, 50, 4)
    """

    cell: RecurrentCell = attrs.field(validator=_a_cell, kw_only=False)
    name: str = name_by_keyword()

    def start(self, X: TensorVariable) -> tuple[TensorVariable, ...]:
        state = self.cell.initial_state(X)
        return tuple(state) if isinstance(state, tuple | list) else (state,)

    def run(
        self, X: TensorVariable, state: State, mask: TensorVariable | None, reverse: bool
    ) -> tuple[TensorVariable, State]:
        return loop(self, self.cell, X, state, self.cell.constants(X), mask, reverse)
