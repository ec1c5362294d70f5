"""Plain recurrences over all steps of a sequence, as one op with a gradient made by hand."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from ptml.ops.recurrence.sequence import (
    SequenceOp,
    by_weights,
    connected,
    discrete,
    given,
    given_mask,
    kept,
    or_zeros,
    states_before,
    walk,
)

__all__ = ["RNNGradient", "RNNSequence", "rnn_sequence"]

_ACTIVATION = "rnn_sequence takes activation='tanh' or activation='relu'; got {given!r}."


class RNNSequence(SequenceOp):
    r"""All steps of a plain recurrence, :math:`h_t = \phi(x_t + h_{t-1} W_{hh})`.

    The op is applied to ``(projected, W_hh, h0)``, and the mask, if it has one. It gives :math:`h_t` of all
    steps, the last :math:`h`, and :math:`h_{t-1}` of all steps. Elman, "Finding Structure in Time", 1990.

    Parameters
    ----------
    activation : {"tanh", "relu"}
        Default "tanh".
    reverse, masked : bool
        Which way, and whether there is a mask. Default False.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> import ptml
    >>> from ptml.ops.recurrence.rnn import RNNSequence
    >>> outputs = RNNSequence("relu")(pt.ones((1, 3, 1)), pt.ones((1, 1)), pt.zeros((1, 1)))
    >>> ptml.function([], outputs[0])().ravel()
    array([1., 2., 3.])
    """

    __props__ = ("activation", "reverse", "masked")

    def __init__(self, activation: str = "tanh", reverse: bool = False, masked: bool = False) -> None:
        self.activation = activation
        self.reverse = reverse
        self.masked = masked

    def input_letters(self) -> list[str]:
        return ["BTH", "HH", "BH", *["BT"] * self.masked]

    def output_letters(self) -> list[str]:
        return ["BTH", "BH", "BTH"]

    def build(self, *inputs: Any) -> list[Variable]:
        projected, W_hh, h0, *mask = inputs
        if mask:
            # Padding may hold anything, NaN included.
            projected = pt.switch(mask[0][..., None], projected, 0)

        def step(x_t: TensorVariable, *rest: TensorVariable) -> list[TensorVariable]:
            mask_t = rest[0] if mask else None
            h, W_hh = rest[len(mask) :]
            a = x_t + pt.dot(h, W_hh)
            return [kept(mask_t, pt.tanh(a) if self.activation == "tanh" else pt.maximum(a, 0), h)]

        [outputs], last = walk(step, [projected, *mask], [h0], [W_hh], fresh=0, reverse=self.reverse)
        return [outputs, *last, states_before(h0, outputs, self.reverse)]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        if connected(cotangents[2:]):
            return self.defined_pullback(inputs, cotangents)
        W_hh, mask = inputs[1], list(inputs[3:])
        hidden, h_last, h_before = outputs
        through = [cotangents[0]] if connected(cotangents[:1]) else []
        gradient = RNNGradient(self.activation, not self.reverse, self.masked, of_outputs=bool(through))
        of_projected, of_h0 = gradient(W_hh, hidden, or_zeros(cotangents[1], h_last), *through, *mask)
        return [of_projected, by_weights(h_before, of_projected), of_h0, *discrete(mask)]


class RNNGradient(SequenceOp):
    r"""The gradient of :class:`RNNSequence`, walking the other way.

    The op is applied to ``(W_hh, outputs, g_h)``: the outputs of the sequence, and what comes back for its
    last state; then, if it has them, what comes back for the outputs, and the mask. It gives the gradients by
    ``projected`` and ``h0``.

    Parameters
    ----------
    activation : {"tanh", "relu"}
        Default "tanh".
    reverse, masked : bool
        Which way, and whether there is a mask. Default False.
    of_outputs : bool
        Whether anything comes back for the outputs. Default False.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor
    >>> import pytensor.tensor as pt
    >>> import ptml
    >>> from ptml.ops.recurrence import rnn_sequence
    >>> x = pt.tensor("x", shape=(1, None, 1))
    >>> h, h_last = rnn_sequence(x, np.full((1, 1), 0.5), np.zeros((1, 1)))
    >>> ptml.function([x], pytensor.grad(h_last.sum(), x))(np.zeros((1, 3, 1))).ravel()
    array([0.25, 0.5 , 1.  ])
    """

    __props__ = ("activation", "reverse", "masked", "of_outputs")

    def __init__(
        self,
        activation: str = "tanh",
        reverse: bool = False,
        masked: bool = False,
        of_outputs: bool = False,
    ) -> None:
        self.activation = activation
        self.reverse = reverse
        self.masked = masked
        self.of_outputs = of_outputs

    def input_letters(self) -> list[str]:
        return ["HH", "BTH", "BH", *["BTH"] * self.of_outputs, *["BT"] * self.masked]

    def output_letters(self) -> list[str]:
        return ["BTH", "BH"]

    def build(self, *inputs: Any) -> list[Variable]:
        W_hh, outputs, g_h, *optional = inputs
        n_through = int(self.of_outputs)

        def step(h: TensorVariable, *rest: TensorVariable) -> list[Variable]:
            mask_t = rest[n_through] if self.masked else None
            dh, W_hh = rest[len(optional) :]
            if n_through:
                dh = dh + rest[0]
            slope = dh * (1 - h**2) if self.activation == "tanh" else pt.switch(pt.gt(h, 0), dh, 0)
            slope = kept(mask_t, slope, 0)
            return [kept(mask_t, pt.dot(slope, W_hh.T), dh), slope]

        (_, of_projected), [of_h0] = walk(
            step, [outputs, *optional], [g_h], [W_hh], fresh=1, reverse=self.reverse
        )
        return [of_projected, of_h0]


def rnn_sequence(
    projected: Any, W_hh: Any, h0: Any, activation: str = "tanh", mask: Any = None, reverse: bool = False
) -> tuple[TensorVariable, TensorVariable]:
    """Run a plain recurrence over all steps of a batch of sequences.

    Parameters
    ----------
    projected : float tensor, (batch, time, hidden)
        What the input adds at each step, bias included.
    W_hh : float matrix, (hidden, hidden)
        The recurrent weights.
    h0 : float matrix, (batch, hidden)
        The state before the first step.
    activation : {"tanh", "relu"}
        Default "tanh".
    mask : bool matrix, (batch, time), optional
        Where a step counts. Elsewhere the state stays as it is, and is the output.
    reverse : bool
        Whether to begin with the last step; outputs stay where their inputs are. Default False.

    Returns
    -------
    outputs : tensor, (batch, time, hidden)
        The state after each step.
    h_last : tensor, (batch, hidden)
        The state after all steps.

    Raises
    ------
    TypeError
        If the mask holds no booleans, or another input no floats.
    ValueError
        If the activation is another one, or an input has another number of axes, or sizes that contradict
        each other.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> import ptml
    >>> from ptml.ops.recurrence import rnn_sequence
    >>> x = pt.tensor("x", shape=(None, None, 2))
    >>> outputs, h_last = rnn_sequence(x, np.ones((2, 2)), pt.zeros((x.shape[0], 2)))
    >>> ptml.function([x], outputs)(np.zeros((3, 5, 2))).shape
    (3, 5, 2)
    """
    if activation not in ("tanh", "relu"):
        raise ValueError(_ACTIVATION.format(given=activation))
    floats = given(
        "rnn_sequence", 1, {"projected": (projected, "BTH"), "W_hh": (W_hh, "HH"), "h0": (h0, "BH")}
    )
    masks = given_mask("rnn_sequence", mask, floats[0])
    outputs, h_last, _ = RNNSequence(activation, reverse, bool(masks))(*floats, *masks)
    return outputs, h_last
