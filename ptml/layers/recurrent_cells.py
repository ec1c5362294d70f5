"""Cells: one step of a recurrence, for `Recurrent` to run over a sequence."""

from __future__ import annotations

from typing import Any

from pytensor.tensor.variable import TensorVariable

from ptml.layer import Layer
from ptml.layers.recurrent_steps import ElmanStep, GRUStep, LSTMStep, state_dtype, zero_state

__all__ = ["ElmanCell", "GRUCell", "LSTMCell", "RecurrentCell"]

NO_STEP = "{cls} defines no step(self, x_t, *state): give the new state there."
NO_STATE = "{cls} defines no initial_state(self, X): give the state before the first step there."


class RecurrentCell(Layer):
    """The base of cells: one step of a recurrence, of which :class:`Recurrent` runs a whole sequence.

    A subclass says in ``step(x_t, *state)`` what the state becomes, and in ``initial_state(X)`` what it is
    before the first step. What a cell remembers between calls of a program, it declares as slots, as any
    layer does; a layer within, such as `Dropout` or `BatchNorm`, draws and moves anew in each step. What is
    to be the same in all steps, such as the one mask of a variational dropout, it gives in ``constants(X)``.

    A cell is a layer, too: called on ``(x_t, *state)`` it gives the new state.

    Parameters
    ----------
    name : str, optional

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> import pytensor.tensor as pt
    >>> from ptml.layers import Input, Linear, Recurrent, RecurrentCell
    >>> class LeakyCell(RecurrentCell):
    ...     n_in: int
    ...     n_hidden: int
    ...
    ...     @ptml.sublayer
    ...     def fc(self):
    ...         return Linear(f"{self.name}/fc", n_in=self.n_in + self.n_hidden, n_out=self.n_hidden)
    ...
    ...     def step(self, x_t, h):
    ...         return 0.9 * h + 0.1 * pt.tanh(self.fc(pt.concatenate([x_t, h], axis=-1)))
    ...
    ...     def initial_state(self, X):
    ...         return self.zeros(X, self.n_hidden)
    >>> X = Input("X", (None, None, 2))
    >>> Y = Recurrent(LeakyCell("leaky", n_in=2, n_hidden=4))(X)
    >>> ptml.function([X], Y, seed=0)(np.ones((3, 5, 2))).shape
    (3, 5, 4)
    """

    def step(self, x_t: TensorVariable, *state: TensorVariable) -> Any:
        """Give the new state.

        Parameters
        ----------
        x_t : tensor
            The sequence at this step, ``(..., n_in)``.
        *state : tensor
            What the step before gave, in its order; then what `constants` gave.

        Returns
        -------
        tensor or tuple of tensors
            Of the types and in the order of `initial_state`. The first is the output of this step.
        """
        raise TypeError(NO_STEP.format(cls=type(self).__name__))

    def initial_state(self, X: TensorVariable) -> Any:
        """Give the state before the first step.

        Parameters
        ----------
        X : tensor
            The sequence, ``(..., time, n_in)``.

        Returns
        -------
        tensor or tuple of tensors
            Each with the batch axes of `X`, then axes of its own.
        """
        raise TypeError(NO_STATE.format(cls=type(self).__name__))

    def constants(self, X: TensorVariable) -> tuple[TensorVariable, ...]:
        """Give what every step reads and none changes; nothing unless a cell says otherwise."""
        return ()

    def zeros(self, X: TensorVariable, *sizes: int) -> TensorVariable:
        """Give a state of zeros: with the batch axes of a sequence, of the dtype of the cell's parameters."""
        return zero_state(X, *sizes, dtype=state_dtype(self, X))

    def build(self, x_t: TensorVariable, *state: TensorVariable) -> tuple[TensorVariable, ...]:
        stepped = self.step(x_t, *state)
        return tuple(stepped) if isinstance(stepped, tuple | list) else (stepped,)


class ElmanCell(ElmanStep, RecurrentCell):
    r"""One step of an Elman recurrence, whose state is :math:`h_t = \phi(x_t W_{ih} + b + h_{t-1} W_{hh})`.

    Parameters
    ----------
    name : str, optional
    n_in, n_hidden : int
        The sizes of the last axis of the input and of the state.
    activation : Activation
        The :math:`\phi`, ``Tanh()`` unless given.
    bias : bool
        Whether there is a ``b``; True unless given. PyTorch's two biases are one here, their sum.
    weight_initializer, recurrent_initializer, bias_initializer : Initializer
        Of ``W_ih``, ``W_hh`` and ``b``; ``XavierNormal()``, ``Orthogonal()`` and ``Zeros()`` unless given.
    recurrent_dropout : float
        The probability that an element of the state that the steps read is dropped in training, by one mask
        for all steps; 0 unless given.

    Raises
    ------
    ValueError, TypeError
        When called, if the last axis has another size than `n_in`, or the input holds integers.

    References
    ----------
    Elman, "Finding structure in time" (1990). Gal and Ghahramani, "A theoretically grounded application of
    dropout in recurrent neural networks" (2016), for the dropout.

    Examples
    --------
    >>> from ptml.layers import ElmanCell, Input, Recurrent
    >>> cell = ElmanCell("cell", n_in=2, n_hidden=4)
    >>> Recurrent(cell)(Input("X", (None, 50, 2))).type.shape
    (None, 50, 4)
    """


class GRUCell(GRUStep, RecurrentCell):
    r"""One step of a gated recurrent unit.

    .. math::

        r_t &= \sigma(x_t W_{ir} + b_r + h_{t-1} W_{hr}), \quad
        z_t = \sigma(x_t W_{iz} + b_z + h_{t-1} W_{hz}) \\
        n_t &= \phi(x_t W_{in} + b_n + r_t (h_{t-1} W_{hn} + c)), \quad h_t = (1 - z_t) n_t + z_t h_{t-1}

    ``W_ih``, ``W_hh`` and ``b`` hold the parts for :math:`r, z, n` side by side. The reset gate acts on the
    product, as in PyTorch and cuDNN.

    Parameters
    ----------
    name : str, optional
    n_in, n_hidden : int
        The sizes of the last axis of the input and of the state.
    activation, gate_activation : Activation
        The :math:`\phi` and :math:`\sigma`; ``Tanh()`` and ``Sigmoid()`` unless given.
    bias, weight_initializer, recurrent_initializer, bias_initializer, recurrent_dropout
        As for `ElmanCell`; the biases are ``b`` and ``c``.

    Raises
    ------
    ValueError, TypeError
        As for `ElmanCell`.

    References
    ----------
    Cho and others, "Learning phrase representations using RNN encoder-decoder for statistical machine
    translation" (2014).

    Examples
    --------
    >>> from ptml.layers import GRUCell, Input, Recurrent
    >>> Recurrent(GRUCell("cell", n_in=2, n_hidden=4), reverse=True)(Input("X", (None, 50, 2))).type.shape
    (None, 50, 4)
    """


class LSTMCell(LSTMStep, RecurrentCell):
    r"""One step of a long short-term memory, whose state is the output :math:`h` and a memory :math:`c`.

    .. math::

        i_t &= \sigma(x_t W_{ii} + b_i + h_{t-1} W_{hi}), \quad
        f_t = \sigma(x_t W_{if} + b_f + h_{t-1} W_{hf}) \\
        g_t &= \phi(x_t W_{ig} + b_g + h_{t-1} W_{hg}), \quad
        o_t = \sigma(x_t W_{io} + b_o + h_{t-1} W_{ho}) \\
        c_t &= f_t c_{t-1} + i_t g_t, \quad h_t = o_t\, \phi(c_t)

    ``W_ih``, ``W_hh`` and ``b`` hold the parts for :math:`i, f, g, o` side by side.

    Parameters
    ----------
    name : str, optional
    n_in, n_hidden : int
        The sizes of the last axis of the input and of the memory.
    activation, gate_activation : Activation
        The :math:`\phi` and :math:`\sigma`; ``Tanh()`` and ``Sigmoid()`` unless given.
    peephole : bool
        Whether the gates see the memory: ``W_ci * c`` and ``W_cf * c`` of before the step are added to what
        goes into :math:`i` and :math:`f`, and ``W_co * c`` of after it to what goes into :math:`o`; False
        unless given. The three weights start at zero, as without.
    projection : int, optional
        The size of the output, if that is another: :math:`h_t` is multiplied by ``W_hr``, of shape
        ``(n_hidden, projection)``. PyTorch calls it `proj_size`.
    bias, weight_initializer, recurrent_initializer, bias_initializer, recurrent_dropout
        As for `ElmanCell`; ``W_hr`` starts as ``W_ih`` does.

    Raises
    ------
    ValueError, TypeError
        As for `ElmanCell`.

    References
    ----------
    Hochreiter and Schmidhuber, "Long short-term memory" (1997). Gers and Schmidhuber, "Recurrent nets that
    time and count" (2000), for the peepholes. Sak, Senior and Beaufays, "Long short-term memory based
    recurrent neural network architectures for large vocabulary speech recognition" (2014), for the
    projection.

    Examples
    --------
    >>> from ptml.layers import Input, LSTMCell, Recurrent
    >>> Recurrent(LSTMCell("cell", n_in=2, n_hidden=4, projection=3))(Input("X", (None, 50, 2))).type.shape
    (None, 50, 3)
    """
