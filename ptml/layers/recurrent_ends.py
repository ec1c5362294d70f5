"""Both directions of a sequence, and its last step."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.decoding import numbered
from ptml.layer import Layer, name_by_keyword
from ptml.layers.recurrent import Recurrent, SequenceLayer
from ptml.layers.recurrent_named import NamedLayer
from ptml.layout import check_layout
from ptml.lengths import check_length
from ptml.sequences import CheckSteps, check_sequence, real_steps
from ptml.validate import described, flag

__all__ = ["Bidirectional", "LastStep"]

NOT_RECURRENT = "{who}: {argument} must be a recurrent layer; got {given!r}.{hint}"
NAME_IN_FRONT = " The name goes by keyword: Bidirectional(forward, backward, name={given!r})."
ONE_OBJECT = (
    "{who}: forward and backward are one object, whose weights both directions would share. Write a second "
    "layer, with a name of its own."
)
TWO_KINDS = "{who}: forward and backward must be of one kind; got {forward} and {backward}."
TWO_WIDTHS = (
    "{who}: forward and backward read the same input; {forward} takes {n_forward} features and {backward} "
    "{n_backward} (axis -1)."
)
WRONG_PAIR = "{who} takes an initial state for each direction, (forward, backward); got {given}."


def _recurrent(module: Any, field: attrs.Attribute, value: Any) -> None:
    if not isinstance(value, SequenceLayer):
        hint = NAME_IN_FRONT.format(given=value) if isinstance(value, str) else ""
        raise TypeError(
            NOT_RECURRENT.format(who=described(module), argument=field.alias, given=value, hint=hint)
        )


class Bidirectional(Layer):
    """Run two recurrent layers over sequences, one from each end, and join their outputs along the last axis.

    The two have weights of their own. Their direction is decided here, whatever their `reverse` says. Output
    step t is that of input step t in both halves.

    Parameters
    ----------
    forward, backward : RNN, GRU, LSTM or Recurrent
        By position: what reads the sequence from its first step, and what reads it from its last. They are
        of one kind, and two objects.
    name : str, optional
        By keyword. It is no part of the addresses of the layers' state.

    Raises
    ------
    TypeError
        If one is no recurrent layer, or they are of two kinds.
    ValueError
        If both are one object, or take inputs of different widths.

    References
    ----------
    Schuster and Paliwal, "Bidirectional recurrent neural networks" (1997).

    Examples
    --------
    >>> from ptml.layers import GRU, Bidirectional, Input
    >>> both = Bidirectional(GRU("forward", n_in=2, n_hidden=4), GRU("backward", n_in=2, n_hidden=4))
    >>> both(Input("X", (None, 50, 2))).type.shape
    (None, 50, 8)
    """

    forward: SequenceLayer = attrs.field(validator=_recurrent, kw_only=False)
    backward: SequenceLayer = attrs.field(validator=_recurrent, kw_only=False)
    name: str = name_by_keyword()

    def __attrs_post_init__(self) -> None:
        who, forward, backward = described(self), self.forward, self.backward
        if forward is backward:
            raise ValueError(ONE_OBJECT.format(who=who))
        kinds = [one.cell if isinstance(one, Recurrent) else one for one in (forward, backward)]
        if type(forward) is not type(backward) or type(kinds[0]) is not type(kinds[1]):
            raise TypeError(
                TWO_KINDS.format(who=who, forward=described(kinds[0]), backward=described(kinds[1]))
            )
        if isinstance(forward, NamedLayer) and isinstance(backward, NamedLayer):
            widths = forward.n_in, backward.n_in
            if widths[0] != widths[1]:
                raise ValueError(
                    TWO_WIDTHS.format(
                        who=who,
                        forward=described(forward),
                        backward=described(backward),
                        n_forward=widths[0],
                        n_backward=widths[1],
                    )
                )

    def __call__(
        self,
        X: Any,
        initial_state: Any = None,
        *,
        mask: Any = None,
        lengths: Any = None,
        return_state: bool = False,
    ) -> Any:
        """Run over sequences.

        Parameters
        ----------
        X, mask, lengths
            As for `SequenceLayer`.
        initial_state : tuple, optional
            The state that each direction starts from, ``(forward, backward)``; zeros unless given.
        return_state : bool
            Whether to give the final states too; False unless given.

        Returns
        -------
        Y : tensor
            ``(batch, time, n_out of forward + n_out of backward)``.
        state : tuple
            With ``return_state=True``: the final state of each direction.

        Raises
        ------
        TypeError, ValueError
            As for `SequenceLayer`.
        """
        return super().__call__(
            X, initial_state=initial_state, mask=mask, lengths=lengths, return_state=return_state
        )

    def build(
        self,
        X: TensorVariable,
        *,
        initial_state: Any = None,
        mask: Any = None,
        lengths: Any = None,
        return_state: bool = False,
    ) -> Any:
        given = (None, None) if initial_state is None else initial_state
        if not isinstance(given, tuple | list) or len(given) != 2:
            count = len(given) if isinstance(given, tuple | list) else repr(given)
            raise ValueError(WRONG_PAIR.format(who=described(self), given=count))
        real: dict[str, Any] = {"mask": mask, "lengths": lengths}
        Y, last = self.forward(X, given[0], reverse=False, return_state=True, **real)
        Z, first = self.backward(X, given[1], reverse=True, return_state=True, **real)
        joined = pt.concatenate([Y, Z], axis=-1)
        return (joined, (last, first)) if return_state else joined


class LastStep(Layer):
    """Give the last step of each sequence: of X of shape ``(batch, time, features)``, ``(batch, features)``.

    Parameters
    ----------
    name : str, optional
    reverse : bool
        Whether to give the first step instead, which is the last that a reversed layer comes to; False unless
        given.

    Raises
    ------
    ValueError
        When called, if there are fewer than three axes. By the running graph, if there are no steps at all,
        or if a sequence has no real ones; JAX, MLX and PyTorch cannot raise for the second: there the result
        is NaN.

    Examples
    --------
    >>> from ptml.layers import LSTM, Input, LastStep, Linear, Sequential
    >>> net = Sequential(LSTM("lstm", n_in=2, n_hidden=4), LastStep(), Linear("fc", n_in=4, n_out=1))
    >>> net(Input("X", (None, 50, 2))).type.shape
    (None, 1)
    """

    reverse: bool = attrs.field(default=False, validator=flag)

    n_inputs = 1

    def __call__(self, X: Any, *, mask: Any = None, lengths: Any = None) -> Any:
        """Give the last step of each sequence.

        Parameters
        ----------
        X : tensor
            ``(batch, time, features)``; there may be more batch axes.
        mask : tensor, optional
            Booleans ``(batch, time)``, True where a step is real: the last one that is.
        lengths : tensor, optional
            Integers ``(batch,)``: the number of steps, from the first on, that are real.

        Returns
        -------
        tensor
            ``(batch, features)``.
        """
        return super().__call__(X, mask=mask, lengths=lengths)

    def build(self, X: TensorVariable, *, mask: Any = None, lengths: Any = None) -> TensorVariable:
        who = described(self)
        check_sequence(self, X, "(batch, time, features)")
        check_layout(self, X, "NTC" if X.type.ndim == 3 else "N...TC")
        X = check_length(self, X, 1, axis=-2, of="step in time")
        real, possible = real_steps(self, X, mask, lengths)
        if real is None:
            return X[..., 0 if self.reverse else -1, :]
        known = X.type.shape[-2]
        steps = X.shape[-2] if known is None else np.int64(known)
        numbers = numbered(X.shape[-2] if known is None else known)
        if self.reverse:
            found = pt.switch(real, numbers, steps).min(axis=-1)
            found = pt.switch(pt.lt(found, steps), found, np.int64(-1))
        else:
            found = pt.switch(real, numbers, np.int64(-1)).max(axis=-1)
        found = CheckSteps(who)(found, steps)
        # A sum of one step and zeros: the others may hold anything, and get no gradient.
        chosen = pt.eq(numbers, found[..., None])[..., None]
        Y = pt.switch(chosen, X, np.zeros((), X.type.dtype)).sum(axis=-2)
        there = pt.ge(found, np.int64(0))
        there = there if possible is None else there & possible
        return pt.switch(there[..., None], Y, np.asarray(np.nan, X.type.dtype))
