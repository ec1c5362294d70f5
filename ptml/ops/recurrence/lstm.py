"""Long short-term memory over all steps of a sequence, as one op with a gradient made by hand."""

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

__all__ = ["LSTMGradient", "LSTMSequence", "lstm_sequence"]


class _OfLSTM(SequenceOp):
    """What the op and its gradient have in common: which of the optional inputs there are.

    Parameters
    ----------
    reverse : bool
        Whether to begin with the last step.
    masked : bool
        Whether there is a mask of the steps that count.
    peepholes : bool
        Whether the gates see the cells.
    projects : bool
        Whether the hidden state is projected before it is passed on.
    """

    gates = 4

    def __init__(
        self, reverse: bool = False, masked: bool = False, peepholes: bool = False, projects: bool = False
    ) -> None:
        self.reverse = reverse
        self.masked = masked
        self.peepholes = peepholes
        self.projects = projects

    def letters(self, *shapes: str) -> list[str]:
        """Give axes; without a projection, what is passed on has the hidden units."""
        return [shape if self.projects else shape.replace("P", "H") for shape in shapes]

    def optional_letters(self) -> list[str]:
        """Give the axes of the inputs that come last: mask, peepholes, projection."""
        return self.letters(*["BT"] * self.masked, *["H"] * (3 * self.peepholes), *["HP"] * self.projects)

    def optional(
        self, inputs: Sequence[Any]
    ) -> tuple[list[TensorVariable], list[TensorVariable], list[TensorVariable]]:
        """Divide the inputs that come last: mask, peepholes, projection."""
        rest = list(inputs[len(inputs) - len(self.optional_letters()) :])
        mask, rest = rest[: self.masked], rest[self.masked :]
        n = 3 * self.peepholes
        return mask, rest[:n], rest[n:]


class LSTMSequence(_OfLSTM):
    r"""All steps of a long short-term memory.

    The op is applied to ``(projected, W_hh, h0, c0)``, and then, if it has them, the mask, three vectors of
    peepholes for the input, forget and output gates, and the projection. With
    :math:`a_t = x_t + h_{t-1} W_{hh}` in four parts for :math:`i, f, g, o`, a step is

    .. math::

        i_t &= \sigma(a^i_t + w_i c_{t-1}), \quad f_t = \sigma(a^f_t + w_f c_{t-1}), \quad
        g_t = \tanh(a^g_t) \\
        c_t &= f_t c_{t-1} + i_t g_t, \quad o_t = \sigma(a^o_t + w_o c_t), \quad
        h_t = (o_t \tanh c_t)\, W_{hr}.

    It gives :math:`h_t` of all steps, the last :math:`h` and :math:`c`, and what the gradient reads: the
    gates, :math:`h_{t-1}`, :math:`c_{t-1}` and :math:`\tanh c_t`. In a step that does not count, gates and
    :math:`\tanh c_t` are zero. Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997; peepholes: Gers
    and Schmidhuber, 2000; projection: Sak, Senior and Beaufays, 2014.

    Parameters
    ----------
    reverse, masked, peepholes, projects : bool
        Which way, and which of the optional inputs there are. Default False.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> import ptml
    >>> from ptml.ops.recurrence.lstm import LSTMSequence
    >>> h0 = c0 = pt.zeros((1, 1))
    >>> outputs = LSTMSequence()(pt.zeros((1, 3, 4)), pt.zeros((1, 4)), h0, c0)
    >>> ptml.function([], outputs[0])().shape
    (1, 3, 1)
    """

    __props__ = ("reverse", "masked", "peepholes", "projects")

    def input_letters(self) -> list[str]:
        return [*self.letters("BTG", "PG", "BP", "BH"), *self.optional_letters()]

    def output_letters(self) -> list[str]:
        return self.letters("BTP", "BP", "BH", "BTG", "BTP", "BTH", "BTH")

    def build(self, *inputs: Any) -> list[Variable]:
        projected, W_hh, h0, c0 = inputs[:4]
        mask, peepholes, projection = self.optional(inputs)
        if mask:
            # Padding may hold anything, NaN included.
            projected = pt.switch(mask[0][..., None], projected, 0)

        def step(x_t: TensorVariable, *rest: TensorVariable) -> list[TensorVariable]:
            mask_t = rest[0] if mask else None
            h, c, W_hh, *others = rest[len(mask) :]
            seen = others[: len(peepholes)]
            a_i, a_f, a_g, a_o = parts(x_t + pt.dot(h, W_hh), 4)
            i = pt.sigmoid(a_i + seen[0] * c if seen else a_i)
            f = pt.sigmoid(a_f + seen[1] * c if seen else a_f)
            g = pt.tanh(a_g)
            cell = f * c + i * g
            o = pt.sigmoid(a_o + seen[2] * cell if seen else a_o)
            squashed = pt.tanh(cell)
            hidden = pt.dot(o * squashed, others[-1]) if projection else o * squashed
            gates = pt.concatenate([i, f, g, o], axis=1)
            return [
                *(kept(mask_t, new, old) for new, old in ((hidden, h), (cell, c))),
                *(kept(mask_t, value, 0) for value in (gates, squashed)),
            ]

        (outputs, cells, gates, squashed), last = walk(
            step,
            [projected, *mask],
            [h0, c0],
            [W_hh, *peepholes, *projection],
            fresh=2,
            reverse=self.reverse,
        )
        before = [states_before(h0, outputs, self.reverse), states_before(c0, cells, self.reverse)]
        return [outputs, *last, gates, *before, squashed]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        if connected(cotangents[3:]):
            return self.defined_pullback(inputs, cotangents)
        W_hh = inputs[1]
        mask, peepholes, projection = self.optional(inputs)
        _, h_last, c_last, gates, h_before, c_before, squashed = outputs
        through = [cotangents[0]] if connected(cotangents[:1]) else []
        gradient = LSTMGradient(
            not self.reverse, self.masked, self.peepholes, self.projects, of_outputs=bool(through)
        )
        lasts = [or_zeros(g, last) for g, last in zip(cotangents[1:3], (h_last, c_last), strict=True)]
        of_projected, of_h0, of_c0, *of_hidden = gradient(
            W_hh, gates, c_before, squashed, *lasts, *through, *mask, *peepholes, *projection
        )
        i, f, g, o = parts(gates, 4)
        found = [of_projected, by_weights(h_before, of_projected), of_h0, of_c0, *discrete(mask)]
        if peepholes:
            of_i, of_f, _, of_o = parts(of_projected, 4)
            cells = f * c_before + i * g
            seen = ((of_i, c_before), (of_f, c_before), (of_o, cells))
            found += [(slopes * cell).sum(axis=(0, 1)) for slopes, cell in seen]
        if projection:
            found.append(by_weights(o * squashed, of_hidden[0]))
        return found


class LSTMGradient(_OfLSTM):
    r"""The gradient of :class:`LSTMSequence`, walking the other way.

    The op is applied to ``(W_hh, gates, c_before, squashed, g_h, g_c)``: what the sequence kept, and what
    comes back for its last states; then, if it has them, what comes back for the outputs, the mask, the
    peepholes and the projection. It gives the gradients by ``projected``, ``h0`` and ``c0``, and, if it
    projects, that by the hidden state of each step.

    Parameters
    ----------
    reverse, masked, peepholes, projects : bool
        Which way, and which of the optional inputs there are. Default False.
    of_outputs : bool
        Whether anything comes back for the outputs. Default False.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor
    >>> import pytensor.tensor as pt
    >>> import ptml
    >>> from ptml.ops.recurrence import lstm_sequence
    >>> x = pt.tensor("x", shape=(1, None, 4))
    >>> h, h_last, c_last = lstm_sequence(x, np.zeros((1, 4)), np.zeros((1, 1)), np.zeros((1, 1)))
    >>> ptml.function([x], pytensor.grad(c_last.sum(), x))(np.zeros((1, 2, 4)))
    array([[[0.  , 0.  , 0.25, 0.  ],
            [0.  , 0.  , 0.5 , 0.  ]]])
    """

    __props__ = ("reverse", "masked", "peepholes", "projects", "of_outputs")

    def __init__(
        self,
        reverse: bool = False,
        masked: bool = False,
        peepholes: bool = False,
        projects: bool = False,
        of_outputs: bool = False,
    ) -> None:
        super().__init__(reverse, masked, peepholes, projects)
        self.of_outputs = of_outputs

    def input_letters(self) -> list[str]:
        first = self.letters("PG", "BTG", "BTH", "BTH", "BP", "BH", *["BTP"] * self.of_outputs)
        return [*first, *self.optional_letters()]

    def output_letters(self) -> list[str]:
        return self.letters("BTG", "BP", "BH", *["BTP"] * self.projects)

    def build(self, *inputs: Any) -> list[Variable]:
        W_hh, gates, c_before, squashed, g_h, g_c = inputs[:6]
        through = list(inputs[6:7]) if self.of_outputs else []
        mask, peepholes, projection = self.optional(inputs)

        def step(gates_t: TensorVariable, c: Any, squashed: Any, *rest: TensorVariable) -> list[Variable]:
            dh, *rest_ = rest[len(through) + len(mask) :]
            if through:
                dh = dh + rest[0]
            mask_t = rest[len(through)] if mask else None
            dc, W_hh, *others = rest_
            seen = others[: len(peepholes)]
            i, f, g, o = parts(gates_t, 4)
            dm = pt.dot(dh, others[-1].T) if projection else dh
            of_o = dm * squashed * o * (1 - o)
            d_cell = dc + dm * o * (1 - squashed**2)
            if seen:
                d_cell = d_cell + of_o * seen[2]
            of_i = d_cell * g * i * (1 - i)
            of_f = d_cell * c * f * (1 - f)
            of_g = d_cell * i * (1 - g**2)
            d_before = d_cell * f
            if seen:
                d_before = d_before + of_i * seen[0] + of_f * seen[1]
            slopes = kept(mask_t, pt.concatenate([of_i, of_f, of_g, of_o], axis=1), 0)
            states = [kept(mask_t, pt.dot(slopes, W_hh.T), dh), kept(mask_t, d_before, dc)]
            return [*states, slopes, *([kept(mask_t, dh, 0)] if projection else [])]

        (_, _, *slopes), last = walk(
            step,
            [gates, c_before, squashed, *through, *mask],
            [g_h, g_c],
            [W_hh, *peepholes, *projection],
            fresh=1 + self.projects,
            reverse=self.reverse,
        )
        return [slopes[0], *last, *slopes[1:]]


def lstm_sequence(
    projected: Any,
    W_hh: Any,
    h0: Any,
    c0: Any,
    mask: Any = None,
    peepholes: tuple[Any, Any, Any] | None = None,
    W_hr: Any = None,
    reverse: bool = False,
) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
    """Run a long short-term memory over all steps of a batch of sequences.

    Parameters
    ----------
    projected : float tensor, (batch, time, 4 * hidden)
        What the input adds to each gate at each step, biases included, in the order i, f, g, o.
    W_hh : float matrix, (hidden, 4 * hidden)
        The recurrent weights; with a projection, ``(projection, 4 * hidden)``.
    h0, c0 : float matrix, (batch, hidden)
        The states before the first step; with a projection, `h0` is ``(batch, projection)``.
    mask : bool matrix, (batch, time), optional
        Where a step counts. Elsewhere the states stay as they are, and the output is the state.
    peepholes : tuple of three float vectors, (hidden,), optional
        The weights by which the input, forget and output gates see the cell.
    W_hr : float matrix, (hidden, projection), optional
        Projects the hidden state.
    reverse : bool
        Whether to begin with the last step; outputs stay where their inputs are. Default False.

    Returns
    -------
    outputs : tensor, (batch, time, hidden or projection)
        The hidden state after each step.
    h_last, c_last : tensor
        The states after all steps.

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
    >>> from ptml.ops.recurrence import lstm_sequence
    >>> x = pt.tensor("x", shape=(None, None, 8))
    >>> zeros = pt.zeros((x.shape[0], 2))
    >>> outputs, h_last, c_last = lstm_sequence(x, np.ones((2, 8)), zeros, zeros)
    >>> ptml.function([x], outputs)(np.zeros((3, 5, 8))).shape
    (3, 5, 2)
    """
    passed = "H" if W_hr is None else "P"
    inputs = {
        "projected": (projected, "BTG"),
        "W_hh": (W_hh, f"{passed}G"),
        "h0": (h0, f"B{passed}"),
        "c0": (c0, "BH"),
    }
    if peepholes is not None:
        inputs |= {
            f"peephole {n}": (v, "H") for n, v in zip(("W_ci", "W_cf", "W_co"), peepholes, strict=True)
        }
    if W_hr is not None:
        inputs["W_hr"] = (W_hr, "HP")
    floats = given("lstm_sequence", 4, inputs)
    masks = given_mask("lstm_sequence", mask, floats[0])
    op = LSTMSequence(reverse, bool(masks), peepholes is not None, W_hr is not None)
    outputs, h_last, c_last, *_ = op(*floats[:4], *masks, *floats[4:])
    return outputs, h_last, c_last
