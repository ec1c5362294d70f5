"""The recurrent layers that have a name: RNN, GRU and LSTM, alone and in stacks."""

from __future__ import annotations

from typing import Any

import attrs
from pytensor.tensor.variable import TensorVariable

from ptml.activations import ReLU, Sigmoid, Tanh
from ptml.checks import check_axis, check_floating
from ptml.declare import sublayer
from ptml.layers.dropout import Dropout, SpatialDropout, a_probability
from ptml.layers.recurrent import SequenceLayer, State, loop
from ptml.layers.recurrent_steps import ElmanStep, GRUStep, LSTMStep, RecurrentWeights
from ptml.ops.recurrence import gru_sequence, lstm_sequence, rnn_sequence
from ptml.sequences import real_steps
from ptml.validate import described, flag, positive_int

__all__ = ["GRU", "LSTM", "RNN"]

NOTHING_BETWEEN = (
    "{who}: dropout acts between the layers of a stack, and n_layers=1 is no stack. Write {suggestion} after "
    "it, recurrent_dropout={p} for the state, or n_layers=2."
)
WRONG_PARTS = "{who} takes an initial state for each of its {wanted} layers, as a tuple; got {given}."


class NamedLayer(SequenceLayer, RecurrentWeights):
    """What RNN, GRU and LSTM have beyond the weights of their cells: that they stack.

    Parameters
    ----------
    name : str, optional
    n_layers : int
    dropout : float
    variational : bool
    reverse : bool
    """

    n_layers: int = attrs.field(default=1, validator=positive_int)
    dropout: float = attrs.field(default=0.0, validator=a_probability)
    variational: bool = attrs.field(default=False, validator=flag)

    def __attrs_post_init__(self) -> None:
        if self.dropout > 0 and self.n_layers == 1:
            kind = "SpatialDropout" if self.variational else "Dropout"
            suggestion = f"{kind}(p={self.dropout})"
            raise ValueError(
                NOTHING_BETWEEN.format(who=described(self), suggestion=suggestion, p=self.dropout)
            )

    @property
    def holds_weights(self) -> bool:
        """Whether the weights are this layer's own: those of a stack are its layers'."""
        return self.n_layers == 1

    @sublayer
    def layers(self) -> Any:
        """The layers of a stack, the first first; none where there is no stack."""
        if self.n_layers == 1:
            return ()
        return tuple(
            attrs.evolve(
                self,
                name=f"{self.name}/layer{k}",
                n_in=self.n_in if k == 0 else self.n_out,
                n_layers=1,
                dropout=0.0,
                variational=False,
            )
            for k in range(self.n_layers)
        )

    @sublayer
    def drops(self) -> Any:
        """What drops between the layers of a stack."""
        if self.dropout == 0:
            return ()
        kind = SpatialDropout if self.variational else Dropout
        return tuple(kind(f"{self.name}/dropout{k}", p=self.dropout) for k in range(self.n_layers - 1))

    def wants(self) -> str:
        return f"(batch, time, {self.n_in} features)"

    def checked(self, X: TensorVariable) -> TensorVariable:
        X = super().checked(X)
        first = self.layers[0] if self.layers else self
        check_floating(self, X, dtype=first.W_ih.type.dtype)
        return check_axis(self, X, self.n_in, wants=self.wants())

    def start(self, X: TensorVariable) -> tuple[TensorVariable, ...]:
        return self.initial_state(X)

    def build(self, X: TensorVariable, **options: Any) -> Any:
        return self._stacked(X, **options) if self.layers else super().build(X, **options)

    def _stacked(
        self,
        X: TensorVariable,
        *,
        initial_state: Any = None,
        mask: Any = None,
        lengths: Any = None,
        reverse: bool | None = None,
        return_state: bool = False,
    ) -> Any:
        Y = self.checked(X)
        real_steps(self, Y, mask, lengths)
        given = (None,) * self.n_layers if initial_state is None else initial_state
        if not isinstance(given, tuple | list) or len(given) != self.n_layers:
            found = f"{len(given)}" if isinstance(given, tuple | list) else f"{given!r}"
            raise ValueError(WRONG_PARTS.format(who=described(self), wanted=self.n_layers, given=found))
        last = []
        for k, layer in enumerate(self.layers):
            if k > 0 and self.drops:
                Y = self.drops[k - 1](Y)
            Y, state = layer(Y, given[k], mask=mask, lengths=lengths, reverse=reverse, return_state=True)
            last.append(state)
        return (Y, tuple(last)) if return_state else Y

    def is_standard(self) -> bool:
        """Say whether the steps are those that one op takes all at once."""
        return False

    def at_once(
        self, projected: TensorVariable, state: State, mask: TensorVariable | None, reverse: bool
    ) -> tuple[TensorVariable, ...]:
        """Take all steps by one op: the outputs, then the final state."""
        raise TypeError(f"{type(self).__name__} has no op that takes all its steps.")

    def run(
        self, X: TensorVariable, state: State, mask: TensorVariable | None, reverse: bool
    ) -> tuple[TensorVariable, State]:
        if not self.is_standard():
            return loop(self, self.step, X, state, self.constants(X), mask, reverse)
        batch = [X.shape[k] for k in range(X.type.ndim - 2)]
        if len(batch) == 1:
            Y, *last = self.at_once(self.projected(X), state, mask, reverse)
            return Y, last
        rows: Any = 1
        for size in batch:
            rows = rows * size
        steps = X.shape[-2]
        flat = [part.reshape((rows, part.shape[-1])) for part in state]
        real = None if mask is None else mask.reshape((rows, steps))
        Y, *last = self.at_once(self.projected(X.reshape((rows, steps, X.shape[-1]))), flat, real, reverse)
        return Y.reshape((*batch, steps, self.n_out)), [
            part.reshape((*batch, part.shape[-1])) for part in last
        ]


class RNN(NamedLayer, ElmanStep):
    r"""Run an Elman recurrence, :math:`h_t = \phi(x_t W_{ih} + b + h_{t-1} W_{hh})`, over sequences.

    X is ``(batch, time, n_in)``, the output ``(batch, time, n_hidden)``. See `SequenceLayer` for what a call
    takes: an initial state, a mask or lengths, and whether the final state is wanted too.

    Parameters
    ----------
    name : str, optional
    n_in, n_hidden : int
        The sizes of the last axis of the input and of the output.
    activation : Activation
        The :math:`\phi`, ``Tanh()`` unless given. All steps are one op with it and with ``ReLU()``, and a
        loop, with the same result, with any other.
    bias : bool
        Whether there is a ``b``; True unless given. PyTorch's two biases are one here, their sum.
    weight_initializer, recurrent_initializer, bias_initializer : Initializer
        Of ``W_ih``, ``W_hh`` and ``b``; ``XavierNormal()``, ``Orthogonal()`` and ``Zeros()`` unless given.
    recurrent_dropout : float
        The probability that an element of the state that the steps read is dropped in training, by one mask
        for all steps; 0 unless given.
    n_layers : int
        How many are stacked, each on the output of the one before; 1 unless given. The state of a stack is
        that of its layers, ``name/layer0``, ``name/layer1``, ...
    dropout : float
        The probability that an element is dropped between the layers of a stack; 0 unless given.
    variational : bool
        Whether `dropout` has one mask for all steps, so that whole features of a sequence are dropped,
        instead of one for each; False unless given.
    reverse : bool
        Whether the sequence is read from its last step to its first; False unless given. Output step t is
        that of input step t in both directions: nothing is to be flipped.

    Raises
    ------
    ValueError
        If there is dropout between the layers of one layer.
    TypeError, ValueError
        When called, if the last axis has another size than `n_in`, and as `SequenceLayer` says.

    References
    ----------
    Elman, "Finding structure in time" (1990). Gal and Ghahramani, "A theoretically grounded application of
    dropout in recurrent neural networks" (2016), for the dropout with one mask.

    Examples
    --------
    >>> from ptml.layers import RNN, Input
    >>> rnn = RNN("rnn", n_in=2, n_hidden=4)
    >>> Y, h = rnn(Input("X", (None, 50, 2)), return_state=True)
    >>> Y.type.shape, h.type.shape
    ((None, 50, 4), (None, 4))
    """

    def is_standard(self) -> bool:
        return type(self.activation) in (Tanh, ReLU) and self.recurrent_dropout == 0

    def at_once(
        self, projected: TensorVariable, state: State, mask: TensorVariable | None, reverse: bool
    ) -> tuple[TensorVariable, ...]:
        activation = "tanh" if type(self.activation) is Tanh else "relu"
        (h,) = state
        return rnn_sequence(projected, self.W_hh, h, activation=activation, mask=mask, reverse=reverse)


class GRU(NamedLayer, GRUStep):
    """Run a gated recurrent unit over sequences; `GRUCell` has its equations.

    X is ``(batch, time, n_in)``, the output ``(batch, time, n_hidden)``. See `SequenceLayer` for what a call
    takes: an initial state, a mask or lengths, and whether the final state is wanted too.

    Parameters
    ----------
    name : str, optional
    n_in, n_hidden : int
        The sizes of the last axis of the input and of the output.
    activation, gate_activation : Activation
        Of the candidate and of the gates; ``Tanh()`` and ``Sigmoid()`` unless given. All steps are one op
        with these, and a loop, with the same result, with others.
    bias, weight_initializer, recurrent_initializer, bias_initializer, recurrent_dropout
        As for `GRUCell`.
    n_layers, dropout, variational, reverse
        As for `RNN`.

    Raises
    ------
    TypeError, ValueError
        As for `RNN`.

    References
    ----------
    Cho and others, "Learning phrase representations using RNN encoder-decoder for statistical machine
    translation" (2014).

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import GRU
    >>> list(ptml.init(GRU("gru", n_in=2, n_hidden=4), seed=0))
    ['gru/W_ih', 'gru/W_hh', 'gru/b', 'gru/c']
    """

    def is_standard(self) -> bool:
        return _are_usual(self.activation, self.gate_activation) and self.recurrent_dropout == 0

    def at_once(
        self, projected: TensorVariable, state: State, mask: TensorVariable | None, reverse: bool
    ) -> tuple[TensorVariable, ...]:
        (h,) = state
        return gru_sequence(projected, self.W_hh, self.c, h, mask=mask, reverse=reverse)


class LSTM(NamedLayer, LSTMStep):
    """Run a long short-term memory over sequences; `LSTMCell` has its equations.

    X is ``(batch, time, n_in)``, the output ``(batch, time, n_hidden)``, or ``projection`` features. The
    state is ``(h, c)``: the output and the memory of the last step. See `SequenceLayer` for what a call
    takes: an initial state, a mask or lengths, and whether the final state is wanted too.

    Parameters
    ----------
    name : str, optional
    n_in, n_hidden : int
        The sizes of the last axis of the input and of the memory.
    activation, gate_activation : Activation
        Of candidate and memory, and of the gates; ``Tanh()`` and ``Sigmoid()`` unless given. All steps are
        one op with these, and a loop, with the same result, with others.
    peephole, projection
        As for `LSTMCell`.
    bias, weight_initializer, recurrent_initializer, bias_initializer, recurrent_dropout
        As for `LSTMCell`.
    n_layers, dropout, variational, reverse
        As for `RNN`.

    Raises
    ------
    TypeError, ValueError
        As for `RNN`.

    References
    ----------
    Hochreiter and Schmidhuber, "Long short-term memory" (1997).

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import LSTM, Input
    >>> lstm = LSTM("lstm", n_in=2, n_hidden=4, n_layers=2, dropout=0.1)
    >>> Y, state = lstm(Input("X", (None, 50, 2)), return_state=True)
    >>> Y.type.shape, [[part.type.shape for part in layer] for layer in state]
    ((None, 50, 4), [[(None, 4), (None, 4)], [(None, 4), (None, 4)]])
    >>> list(ptml.init(lstm, seed=0))[:3]
    ['lstm/layer0/W_ih', 'lstm/layer0/W_hh', 'lstm/layer0/b']
    """

    def is_standard(self) -> bool:
        return _are_usual(self.activation, self.gate_activation) and self.recurrent_dropout == 0

    def at_once(
        self, projected: TensorVariable, state: State, mask: TensorVariable | None, reverse: bool
    ) -> tuple[TensorVariable, ...]:
        h, c = state
        peepholes = (self.W_ci, self.W_cf, self.W_co) if self.peephole else None
        return lstm_sequence(
            projected,
            self.W_hh,
            h,
            c,
            mask=mask,
            peepholes=peepholes,
            W_hr=self.W_hr,
            reverse=reverse,
        )


def _are_usual(activation: Any, gate_activation: Any) -> bool:
    return type(activation) is Tanh and type(gate_activation) is Sigmoid
