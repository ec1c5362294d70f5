"""Gated recurrent units over all steps of a sequence, as one op with a gradient made by hand."""

from __future__ import annotations

from collections.abc import Sequence
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
    parts,
    states_before,
    walk,
)

__all__ = ["GRUGradient", "GRUSequence", "gru_sequence"]


class GRUSequence(SequenceOp):
    r"""All steps of gated recurrent units.

    The op is applied to ``(projected, W_hh, h0)``, and then, if it has them, the mask and the candidate's own
    bias :math:`b`. With :math:`a_t = h_{t-1} W_{hh}` and :math:`x_t`, each in three parts for
    :math:`r, z, n`, a step is

    .. math::

        r_t &= \sigma(x^r_t + a^r_t), \quad z_t = \sigma(x^z_t + a^z_t), \quad s_t = a^n_t + b \\
        n_t &= \tanh(x^n_t + r_t s_t), \quad h_t = (1 - z_t)\, n_t + z_t h_{t-1}.

    It gives :math:`h_t` of all steps, the last :math:`h`, and what the gradient reads: :math:`r, z, n`,
    :math:`s` and :math:`h_{t-1}`. In a step that does not count, :math:`r, z, n` and :math:`s` are zero. Cho
    et al., 2014; the reset gate after the product, as in Chung et al. 2014 and cuDNN.

    Parameters
    ----------
    reverse, masked, biased : bool
        Which way, and which of the optional inputs there are. Default False.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> import ptml
    >>> from ptml.ops.recurrence.gru import GRUSequence
    >>> outputs = GRUSequence()(pt.zeros((1, 3, 3)), pt.zeros((1, 3)), pt.ones((1, 1)))
    >>> ptml.function([], outputs[0])().ravel()
    array([0.5  , 0.25 , 0.125])
    """

    __props__ = ("reverse", "masked", "biased")
    gates = 3

    def __init__(self, reverse: bool = False, masked: bool = False, biased: bool = False) -> None:
        self.reverse = reverse
        self.masked = masked
        self.biased = biased

    def input_letters(self) -> list[str]:
        return ["BTG", "HG", "BH", *["BT"] * self.masked, *["H"] * self.biased]

    def output_letters(self) -> list[str]:
        return ["BTH", "BH", "BTG", "BTH", "BTH"]

    def _optional(self, inputs: Sequence[Any]) -> tuple[list[TensorVariable], list[TensorVariable]]:
        return list(inputs[3 : 3 + self.masked]), list(inputs[3 + self.masked :])

    def build(self, *inputs: Any) -> list[Variable]:
        projected, W_hh, h0 = inputs[:3]
        mask, bias = self._optional(inputs)
        if mask:
            # Padding may hold anything, NaN included.
            projected = pt.switch(mask[0][..., None], projected, 0)

        def step(x_t: TensorVariable, *rest: TensorVariable) -> list[TensorVariable]:
            mask_t = rest[0] if mask else None
            h, W_hh, *own = rest[len(mask) :]
            x_r, x_z, x_n = parts(x_t, 3)
            a_r, a_z, a_n = parts(pt.dot(h, W_hh), 3)
            r, z = pt.sigmoid(x_r + a_r), pt.sigmoid(x_z + a_z)
            s = a_n + own[0] if own else a_n
            n = pt.tanh(x_n + r * s)
            new = kept(mask_t, (1 - z) * n + z * h, h)
            return [new, kept(mask_t, pt.concatenate([r, z, n], axis=1), 0), kept(mask_t, s, 0)]

        (outputs, gates, s), last = walk(
            step, [projected, *mask], [h0], [W_hh, *bias], fresh=2, reverse=self.reverse
        )
        return [outputs, *last, gates, s, states_before(h0, outputs, self.reverse)]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        if connected(cotangents[2:]):
            return self.defined_pullback(inputs, cotangents)
        mask, bias = self._optional(inputs)
        _, h_last, gates, s, h_before = outputs
        through = [cotangents[0]] if connected(cotangents[:1]) else []
        gradient = GRUGradient(not self.reverse, self.masked, of_outputs=bool(through))
        of_projected, of_states, of_h0 = gradient(
            inputs[1], gates, s, h_before, or_zeros(cotangents[1], h_last), *through, *mask
        )
        found = [of_projected, by_weights(h_before, of_states), of_h0, *discrete(mask)]
        return [*found, *(parts(of_states, 3)[2].sum(axis=(0, 1)) for _ in bias)]


class GRUGradient(SequenceOp):
    r"""The gradient of :class:`GRUSequence`, walking the other way.

    The op is applied to ``(W_hh, gates, s, h_before, g_h)``: what the sequence kept, and what comes back for
    its last state; then, if it has them, what comes back for the outputs, and the mask. It gives the
    gradients by ``projected``, by the product of the states with `W_hh`, and by ``h0``.

    Parameters
    ----------
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
    >>> from ptml.ops.recurrence import gru_sequence
    >>> x = pt.tensor("x", shape=(1, None, 3))
    >>> h, h_last = gru_sequence(x, np.zeros((1, 3)), None, np.zeros((1, 1)))
    >>> ptml.function([x], pytensor.grad(h_last.sum(), x))(np.zeros((1, 2, 3)))
    array([[[0.  , 0.  , 0.25],
            [0.  , 0.  , 0.5 ]]])
    """

    __props__ = ("reverse", "masked", "of_outputs")
    gates = 3

    def __init__(self, reverse: bool = False, masked: bool = False, of_outputs: bool = False) -> None:
        self.reverse = reverse
        self.masked = masked
        self.of_outputs = of_outputs

    def input_letters(self) -> list[str]:
        return ["HG", "BTG", "BTH", "BTH", "BH", *["BTH"] * self.of_outputs, *["BT"] * self.masked]

    def output_letters(self) -> list[str]:
        return ["BTG", "BTG", "BH"]

    def build(self, *inputs: Any) -> list[Variable]:
        W_hh, gates, s, h_before, g_h = inputs[:5]
        optional = list(inputs[5:])
        n_through = int(self.of_outputs)

        def step(gates_t: TensorVariable, s: Any, h: Any, *rest: TensorVariable) -> list[Variable]:
            mask_t = rest[n_through] if self.masked else None
            dh, W_hh = rest[len(optional) :]
            if n_through:
                dh = dh + rest[0]
            r, z, n = parts(gates_t, 3)
            of_z = dh * (h - n) * z * (1 - z)
            of_n = dh * (1 - z) * (1 - n**2)
            of_r = of_n * s * r * (1 - r)
            of_projected = kept(mask_t, pt.concatenate([of_r, of_z, of_n], axis=1), 0)
            of_states = kept(mask_t, pt.concatenate([of_r, of_z, of_n * r], axis=1), 0)
            before = kept(mask_t, dh * z + pt.dot(of_states, W_hh.T), dh)
            return [before, of_projected, of_states]

        (_, of_projected, of_states), [of_h0] = walk(
            step, [gates, s, h_before, *optional], [g_h], [W_hh], fresh=2, reverse=self.reverse
        )
        return [of_projected, of_states, of_h0]


def gru_sequence(
    projected: Any, W_hh: Any, b_hn: Any, h0: Any, mask: Any = None, reverse: bool = False
) -> tuple[TensorVariable, TensorVariable]:
    """Run gated recurrent units over all steps of a batch of sequences.

    Parameters
    ----------
    projected : float tensor, (batch, time, 3 * hidden)
        What the input adds to each gate at each step, biases included, in the order r, z, n.
    W_hh : float matrix, (hidden, 3 * hidden)
        The recurrent weights.
    b_hn : float vector, (hidden,), or None
        What is added to the candidate's product with the state, before the reset gate multiplies it.
    h0 : float matrix, (batch, hidden)
        The state before the first step.
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
        If an input has another number of axes, or sizes that contradict each other.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> import ptml
    >>> from ptml.ops.recurrence import gru_sequence
    >>> x = pt.tensor("x", shape=(None, None, 6))
    >>> outputs, h_last = gru_sequence(x, np.ones((2, 6)), None, pt.zeros((x.shape[0], 2)))
    >>> ptml.function([x], outputs)(np.zeros((3, 5, 6))).shape
    (3, 5, 2)
    """
    inputs = {"projected": (projected, "BTG"), "W_hh": (W_hh, "HG"), "h0": (h0, "BH")}
    if b_hn is not None:
        inputs["b_hn"] = (b_hn, "H")
    floats = given("gru_sequence", 3, inputs)
    masks = given_mask("gru_sequence", mask, floats[0])
    op = GRUSequence(reverse, bool(masks), b_hn is not None)
    outputs, h_last, *_ = op(*floats[:3], *masks, *floats[3:])
    return outputs, h_last
