"""One step of each kind of recurrence, with its weights: what cells share with the layers that run them."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.activations import Sigmoid, Tanh
from ptml.checks import check_axis, check_floating
from ptml.declare import own_slots, parameter, slot, sublayer
from ptml.initializers import Initializer, Orthogonal, XavierNormal, Zeros
from ptml.layer import Layer
from ptml.layers.dropout import Dropout, a_probability
from ptml.network import walk
from ptml.validate import an_activation, an_initializer, flag, positive_int

__all__ = [
    "ElmanStep",
    "GRUStep",
    "LSTMStep",
    "RecurrentWeights",
    "product",
    "state_dtype",
    "zero_state",
]


def product(X: TensorVariable, W: TensorVariable) -> TensorVariable:
    """Multiply the last axis by a matrix: one product, however many axes there are before."""
    if X.type.ndim == 2:
        return pt.dot(X, W)
    rows = 1
    for axis in range(X.type.ndim - 1):
        rows = rows * X.shape[axis]
    flat = pt.dot(X.reshape((rows, X.shape[-1])), W)
    return flat.reshape((*(X.shape[k] for k in range(X.type.ndim - 1)), W.shape[-1]))


def zero_state(X: TensorVariable, *sizes: int, dtype: str | None = None) -> TensorVariable:
    """Give zeros with the batch axes of a sequence, for the state before the first step.

    Parameters
    ----------
    X : tensor
        The sequence, ``(..., time, features)``.
    *sizes : int
        The state's own axes.
    dtype : str, optional
        Its dtype; that of `X` unless given.

    Examples
    --------
    >>> from ptml.layers import Input
    >>> zero_state(Input("X", (None, 10, 3)), 8).type.shape
    (None, 8)
    """
    batch = [X.shape[k] if size is None else size for k, size in enumerate(X.type.shape[:-2])]
    return pt.zeros((*batch, *sizes), dtype=dtype or X.type.dtype)


def state_dtype(module: Layer, X: TensorVariable) -> str:
    """Give the dtype of a state: that of a module's parameters, and of the sequence."""
    held = [handle.type.dtype for part in walk(module) for handle in own_slots(part)]
    return str(np.result_type(X.type.dtype, *(dtype for dtype in held if dtype.startswith("float"))))


class RecurrentWeights(Layer):
    """What the cells of the three kinds have, and the layers that run them: weights, and how they start.

    Parameters
    ----------
    name : str, optional
    n_in : int
        The size of the input's last axis.
    n_hidden : int
        The number of hidden units.
    activation : Activation
    bias : bool
    weight_initializer, recurrent_initializer, bias_initializer : Initializer
    recurrent_dropout : float
    """

    n_in: int = attrs.field(validator=positive_int)
    n_hidden: int = attrs.field(validator=positive_int)
    activation: Layer = attrs.field(default=Tanh(), validator=an_activation)
    bias: bool = attrs.field(default=True, validator=flag)
    weight_initializer: Initializer = attrs.field(default=XavierNormal(), validator=an_initializer)
    recurrent_initializer: Initializer = attrs.field(default=Orthogonal(), validator=an_initializer)
    bias_initializer: Initializer = attrs.field(default=Zeros(), validator=an_initializer)
    recurrent_dropout: float = attrs.field(default=0.0, validator=a_probability)

    #: How many numbers each hidden unit has in what a step computes of its input.
    gates: ClassVar[int] = 1

    @property
    def n_out(self) -> int:
        """The size of the output's last axis."""
        return self.n_hidden

    @property
    def holds_weights(self) -> bool:
        """Whether the weights are this layer's own."""
        return True

    @slot
    def W_ih(self) -> Any:
        """The input's weights, ``(n_in, gates * n_hidden)``."""
        shape = (self.n_in, self.gates * self.n_hidden)
        return parameter(shape, self.weight_initializer) if self.holds_weights else None

    @slot
    def W_hh(self) -> Any:
        """The state's weights, ``(n_out, gates * n_hidden)``, of all gates drawn at once."""
        shape = (self.n_out, self.gates * self.n_hidden)
        return parameter(shape, self.recurrent_initializer) if self.holds_weights else None

    @slot
    def b(self) -> Any:
        """The bias, ``(gates * n_hidden,)``, or None without one."""
        held = self.bias and self.holds_weights
        return parameter((self.gates * self.n_hidden,), self.bias_initializer) if held else None

    @sublayer
    def drop(self) -> Any:
        """What draws the mask of the state that steps read, or None where nothing is dropped."""
        held = self.recurrent_dropout > 0 and self.holds_weights
        return Dropout(f"{self.name}/recurrent_dropout", p=self.recurrent_dropout) if held else None

    def initial_state(self, X: TensorVariable) -> tuple[TensorVariable, ...]:
        """Give the state before the first step: zeros."""
        return (zero_state(X, self.n_out, dtype=state_dtype(self, X)),)

    def constants(self, X: TensorVariable) -> tuple[TensorVariable, ...]:
        """Give the mask of the state that every step reads, where any of it is dropped."""
        if self.drop is None:
            return ()
        return (self.drop(pt.ones_like(zero_state(X, self.n_out, dtype=state_dtype(self, X)))),)

    def step(self, x_t: TensorVariable, *state: TensorVariable) -> tuple[TensorVariable, ...]:
        """Give the new state; see `RecurrentCell`."""
        raise TypeError(f"{type(self).__name__} does not say what a step is.")

    def projected(self, X: TensorVariable) -> TensorVariable:
        """Give what the input adds to every gate, of one step or of all: ``X @ W_ih + b``."""
        made = product(X, self.W_ih)
        return made if self.b is None else made + self.b

    def check_step(self, x_t: TensorVariable) -> TensorVariable:
        """Check what a step is given."""
        check_floating(self, x_t, dtype=self.W_ih.type.dtype)
        return check_axis(self, x_t, self.n_in, wants=f"(..., {self.n_in} features)")


def _read(h: TensorVariable, constants: tuple[TensorVariable, ...]) -> TensorVariable:
    return h * constants[0] if constants else h


def _gates(joined: TensorVariable, n_hidden: int, count: int) -> list[TensorVariable]:
    return [joined[..., k * n_hidden : (k + 1) * n_hidden] for k in range(count)]


class ElmanStep(RecurrentWeights):
    """The step that `ElmanCell` and `RNN` take; see there."""

    def step(self, x_t: TensorVariable, *state: TensorVariable) -> tuple[TensorVariable, ...]:
        h, *constants = state
        joined = self.projected(self.check_step(x_t)) + product(_read(h, tuple(constants)), self.W_hh)
        return (self.activation(joined),)


class GRUStep(RecurrentWeights):
    """The step that `GRUCell` and `GRU` take; see there."""

    gate_activation: Layer = attrs.field(default=Sigmoid(), validator=an_activation)

    gates = 3

    @slot
    def c(self) -> Any:
        """The bias within the reset gate, ``(n_hidden,)``, or None without one."""
        held = self.bias and self.holds_weights
        return parameter((self.n_hidden,), self.bias_initializer) if held else None

    def step(self, x_t: TensorVariable, *state: TensorVariable) -> tuple[TensorVariable, ...]:
        h, *constants = state
        of_input = _gates(self.projected(self.check_step(x_t)), self.n_hidden, 3)
        of_state = _gates(product(_read(h, tuple(constants)), self.W_hh), self.n_hidden, 3)
        reset = self.gate_activation(of_input[0] + of_state[0])
        update = self.gate_activation(of_input[1] + of_state[1])
        inner = of_state[2] if self.c is None else of_state[2] + self.c
        candidate = self.activation(of_input[2] + reset * inner)
        return ((1 - update) * candidate + update * h,)


class LSTMStep(RecurrentWeights):
    """The step that `LSTMCell` and `LSTM` take; see there."""

    gate_activation: Layer = attrs.field(default=Sigmoid(), validator=an_activation)
    peephole: bool = attrs.field(default=False, validator=flag)
    projection: int | None = attrs.field(default=None, validator=attrs.validators.optional(positive_int))

    gates = 4

    @property
    def n_out(self) -> int:
        """The size of the output's last axis."""
        return self.n_hidden if self.projection is None else self.projection

    def _peephole(self) -> Any:
        held = self.peephole and self.holds_weights
        return parameter((self.n_hidden,), Zeros()) if held else None

    @slot
    def W_ci(self) -> Any:
        """How the input gate sees the memory, ``(n_hidden,)``, zero at first; None without peepholes."""
        return self._peephole()

    @slot
    def W_cf(self) -> Any:
        """How the forget gate sees the memory."""
        return self._peephole()

    @slot
    def W_co(self) -> Any:
        """How the output gate sees the new memory."""
        return self._peephole()

    @slot
    def W_hr(self) -> Any:
        """The projection of the hidden state, ``(n_hidden, projection)``, or None without one."""
        held = self.projection is not None and self.holds_weights
        return parameter((self.n_hidden, self.n_out), self.weight_initializer) if held else None

    def initial_state(self, X: TensorVariable) -> tuple[TensorVariable, ...]:
        """Give the state before the first step: zeros."""
        dtype = state_dtype(self, X)
        return zero_state(X, self.n_out, dtype=dtype), zero_state(X, self.n_hidden, dtype=dtype)

    def step(self, x_t: TensorVariable, *state: TensorVariable) -> tuple[TensorVariable, ...]:
        h, memory, *constants = state
        joined = self.projected(self.check_step(x_t)) + product(_read(h, tuple(constants)), self.W_hh)
        i, f, g, o = _gates(joined, self.n_hidden, 4)
        if self.peephole:
            i, f = i + self.W_ci * memory, f + self.W_cf * memory
        memory = self.gate_activation(f) * memory + self.gate_activation(i) * self.activation(g)
        if self.peephole:
            o = o + self.W_co * memory
        hidden = self.gate_activation(o) * self.activation(memory)
        return hidden if self.W_hr is None else product(hidden, self.W_hr), memory
