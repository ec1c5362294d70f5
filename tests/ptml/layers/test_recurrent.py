"""Recurrent, cells of one's own, both directions, and the last step."""

from __future__ import annotations

import copy
import pickle
import runpy
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import ptml
from ptml.initializers import XavierNormal, Zeros
from ptml.layers import (
    GRU,
    LSTM,
    RNN,
    BatchNorm,
    Bidirectional,
    Dropout,
    ElmanCell,
    GRUCell,
    Input,
    LastStep,
    Linear,
    LSTMCell,
    Recurrent,
    RecurrentCell,
    Sequential,
)

REFERENCES = runpy.run_path(str(Path(__file__).with_name("cases_recurrent.py")))
X = Input("X", (None, None, 2))


def _x(shape=(3, 5, 2), dtype="float64"):
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


class Leaky(RecurrentCell):
    """A cell with a parameter, a layer within, and a second part of its state."""

    n_in: int
    n_hidden: int
    rate: float = 0.5

    @ptml.slot
    def U(self):
        return ptml.parameter((self.n_hidden, self.n_hidden), XavierNormal())

    @ptml.sublayer
    def fc(self):
        return Linear(f"{self.name}/fc", n_in=self.n_in, n_out=self.n_hidden)

    def step(self, x_t, h, total):
        h = (1 - self.rate) * h + self.rate * pt.tanh(self.fc(x_t) + h @ self.U)
        return h, total + h.sum(axis=-1)

    def initial_state(self, X):
        return self.zeros(X, self.n_hidden), self.zeros(X)


def test_a_cell_of_ones_own_runs_over_sequences():
    cell = Leaky("leaky", n_in=2, n_hidden=3)
    assert [h.slot.address for h in ptml.slots(cell)] == ["leaky/U", "leaky/fc/W", "leaky/fc/b"]
    Y, (h, total) = Recurrent(cell)(X, return_state=True)
    program = ptml.function([X], [Y, h, total], seed=0)
    x, p = _x(), program.state
    y, last, summed = program(x)
    state, wanted = np.zeros((3, 3)), []
    for t in range(5):
        state = 0.5 * state + 0.5 * np.tanh(
            x[:, t] @ p["leaky/fc/W"] + p["leaky/fc/b"] + state @ p["leaky/U"]
        )
        wanted.append(state)
    np.testing.assert_allclose(y, np.stack(wanted, axis=1), rtol=1e-12)
    np.testing.assert_allclose(last, wanted[-1], rtol=1e-12)
    np.testing.assert_allclose(summed, sum(wanted).sum(axis=-1), rtol=1e-12)


def test_a_cell_is_a_layer_that_takes_one_step():
    cell = LSTMCell("cell", n_in=2, n_hidden=3)
    x_t, h, c = pt.matrix("x_t"), pt.matrix("h"), pt.matrix("c")
    new = cell(x_t, h, c)
    assert str(new[0].owner.op) == "cell:LSTMCell"
    Y, last = Recurrent(cell)(X, return_state=True)
    program = ptml.function([X], [Y, *last], seed=0)
    step = ptml.function([x_t, h, c], list(new), state=program)
    state = [np.zeros((3, 3))] * 2
    for t in range(5):
        state = step(_x()[:, t], *state)
    for got, wanted in zip(state, program(_x())[1:], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12)


class Noisy(RecurrentCell):
    """Drops anew in each step, drops the same in all, and counts its steps in running statistics."""

    n: int

    @ptml.sublayer
    def drop(self):
        return Dropout(f"{self.name}/drop", p=0.5)

    @ptml.sublayer
    def same(self):
        return Dropout(f"{self.name}/same", p=0.5)

    @ptml.slot
    def seen(self):
        return ptml.statistic((), Zeros(), dtype="int64")

    def step(self, x_t, h, mask):
        h = ptml.advance(self.drop(pt.ones_like(x_t)) * mask, {self.seen: self.seen + 1})
        return h

    def initial_state(self, X):
        return self.zeros(X, self.n)

    def constants(self, X):
        return (self.same(pt.ones_like(self.initial_state(X))),)


@pytest.mark.backends("numba", "c", "jax", "mlx", "pytorch")
def test_a_cell_draws_anew_in_each_step_and_once_what_it_draws_before(backend):
    with pytensor.config.change_flags(floatX="float32"):
        x = Input("x", (None, None, 4))
        layer = Recurrent(Noisy("noisy", n=4))
        program = ptml.function([x], layer(x), seed=0, backend=backend)
        y = np.asarray(program(np.ones((8, 6, 4), "float32")))
        predict = ptml.compile_predict(layer(x), state=program.state, backend=backend)
        assert (np.asarray(predict(np.ones((1, 2, 4), "float32"))) == 1).all()
    kept = y > 0
    assert set(np.unique(y)) <= {0.0, 4.0}
    assert 0.1 < kept.mean() < 0.4
    ever = kept.any(axis=1)
    assert 0.2 < ever.mean() < 0.8  # what the one mask drops is dropped in all steps
    assert not (kept == kept[:, :1]).all()
    assert program.state["noisy/seen"] == 6
    numba = ptml.function([x], layer(x), seed=0, backend="numba")
    np.testing.assert_array_equal(y, numba(np.ones((8, 6, 4), "float32")))


def test_a_batch_norm_within_a_cell_moves_in_every_step():
    class Normed(RecurrentCell):
        @ptml.sublayer
        def norm(self):
            return BatchNorm(f"{self.name}/norm", n_in=2, momentum=0.5)

        def step(self, x_t, h):
            return self.norm(x_t)

        def initial_state(self, X):
            return self.zeros(X, 2)

    program = ptml.function([X], Recurrent(Normed("cell"))(X), seed=0)
    x = _x((8, 3, 2))
    program(x)
    mean = np.zeros(2)
    for t in range(3):
        mean = 0.5 * mean + 0.5 * x[:, t].mean(axis=0)
    np.testing.assert_allclose(program.state["cell/norm/running_mean"], mean, rtol=1e-12)


def test_recurrent_layers_are_values():
    layer = Recurrent(GRUCell("cell", n_in=2, n_hidden=3), name="layer", reverse=True)
    assert repr(layer) == "Recurrent(GRUCell('cell', n_in=2, n_hidden=3), reverse=True, name='layer')"
    for again in (
        copy.copy(layer),
        pickle.loads(pickle.dumps(layer)),
        ptml.from_config(ptml.to_config(layer)),
    ):
        assert again == layer
        assert hash(again) == hash(layer)
    both = Bidirectional(GRU("f", n_in=2, n_hidden=3), GRU("b", n_in=2, n_hidden=3))
    assert repr(both) == "Bidirectional(GRU('f', n_in=2, n_hidden=3), GRU('b', n_in=2, n_hidden=3))"
    assert ptml.replace(both, "b", GRU("c", n_in=2, n_hidden=4)).backward.n_hidden == 4


def test_a_reversed_layer_stays_aligned_with_its_input():
    # The sum of what was read so far: in reverse, of this step and all that follow.
    class Sum(RecurrentCell):
        def step(self, x_t, total):
            return total + x_t

        def initial_state(self, X):
            return self.zeros(X, 2)

    layer = Recurrent(Sum("sum"), reverse=True)
    mask = pt.matrix("mask", dtype="bool")
    Y, total = layer(X, mask=mask, return_state=True)
    x, m = _x(), np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 1, 0]], bool)
    y, last = ptml.function([X, mask], [Y, total])(x, m)
    wanted = (x * m[..., None])[:, ::-1].cumsum(axis=1)[:, ::-1]
    np.testing.assert_allclose(y, wanted, rtol=1e-12)
    np.testing.assert_allclose(last, wanted[:, 0], rtol=1e-12)
    forward = ptml.function([X], layer(X, reverse=False))(x)
    np.testing.assert_allclose(forward, x.cumsum(axis=1), rtol=1e-12)


def test_both_directions_read_the_real_steps_alone():
    both = Bidirectional(
        GRU("f", n_in=2, n_hidden=3, reverse=True), GRU("b", n_in=2, n_hidden=2), name="both"
    )
    lengths = pt.lvector("lengths")
    Y, (forward, backward) = both(X, lengths=lengths, return_state=True)
    again = both(X, (forward, backward), lengths=lengths)
    program = ptml.function([X, lengths], [Y, forward, backward, again], seed=0)
    x, n = _x(), np.array([5, 2, 3])
    y, f, b, more = program(x, n)
    assert y.shape == (3, 5, 5)
    p = program.state
    for k in range(3):
        real = x[k : k + 1, : n[k]]
        ahead, back = (
            REFERENCES["gru"](p, name, real, reverse=reverse)[0]
            for name, reverse in (("f", False), ("b", True))
        )
        np.testing.assert_allclose(y[k, : n[k]], np.concatenate([ahead, back], axis=-1), rtol=1e-11)
        np.testing.assert_allclose(f[k], ahead[-1], rtol=1e-11)
        np.testing.assert_allclose(b[k], back[0], rtol=1e-11)
    assert (more != y).any()


def test_the_last_step_is_that_of_each_sequence():
    mask, lengths = pt.matrix("mask", dtype="bool"), pt.lvector("lengths")
    outputs = [
        LastStep()(X),
        LastStep(reverse=True)(X),
        LastStep()(X, mask=mask),
        LastStep(reverse=True)(X, mask=mask),
        LastStep()(X, lengths=lengths),
    ]
    gradient = pytensor.grad(outputs[2].sum(), X)
    program = ptml.function([X, mask, lengths], [*outputs, gradient])
    x, m = _x(), np.array([[1, 1, 1, 1, 1], [0, 1, 1, 0, 0], [0, 1, 0, 1, 0]], bool)
    x[~m] = np.nan
    x[2, 0] = 7.0
    last, first, real_last, real_first, by_length, g = program(x, m, np.array([5, 2, 1]))
    rows = np.arange(3)
    np.testing.assert_array_equal(last, x[:, -1])
    np.testing.assert_array_equal(first, x[:, 0])
    np.testing.assert_array_equal(real_last, x[rows, [4, 2, 3]])
    np.testing.assert_array_equal(real_first, x[rows, [0, 1, 1]])
    np.testing.assert_array_equal(by_length, x[rows, [4, 1, 0]])
    assert (g.sum(axis=-1) == 2 * (np.arange(5) == np.array([[4], [2], [3]]))).all()
    with pytest.raises(ValueError, match=r"LastStep: a sequence has no real step, and so no last one, among"):
        program(x, m & False, np.array([5, 2, 1]))
    with pytest.raises(ValueError, match="LastStep: a sequence has no real step"):
        program(x, m, np.array([5, 0, 1]))


@pytest.mark.backends("numba", "c", "jax", "mlx", "pytorch")
def test_the_last_of_no_steps_is_an_error_on_every_backend(backend):
    with pytensor.config.change_flags(floatX="float32"):
        x = Input("x", (None, None, 2))
        lstm = LSTM("lstm", n_in=2, n_hidden=3)
        loop = Recurrent(ElmanCell("cell", n_in=2, n_hidden=3))
        whole = ptml.function([x], [lstm(x), loop(x)], seed=0, backend=backend)
        sliced = ptml.function([x], [lstm(x)[:, -1], loop(x)[:, -1]], state=whole, backend=backend)
        last = ptml.function([x], LastStep("last")(lstm(x)), state=whole, backend=backend)
    none = np.zeros((4, 0, 2), "float32")
    assert [np.asarray(y).shape for y in whole(none)] == [(4, 0, 3), (4, 0, 3)]
    with pytest.raises((IndexError, ValueError)):
        sliced(none)
    with pytest.raises(
        ValueError,
        match=r"last \(LastStep\) needs at least 1 step in time along axis -2; got 0, in shape \(4, 0, 3\)",
    ):
        last(none)
    some = np.ones((4, 3, 2), "float32")
    np.testing.assert_array_equal(np.asarray(last(some)), np.asarray(whole(some)[0])[:, -1])


def test_the_last_of_no_steps_is_an_error_without_rewrites():
    loop = Recurrent(ElmanCell("cell", n_in=2, n_hidden=3))
    for optimizer in ("fast_compile", "fast_run"):
        mode = pytensor.compile.mode.Mode(linker="py", optimizer=optimizer)
        program = ptml.function([X], loop(X)[:, -1], seed=0, mode=mode)
        with pytest.raises((IndexError, ValueError)):
            program(np.zeros((4, 0, 2)))


WRONG = [
    (
        lambda: Recurrent("name"),
        TypeError,
        r"cell must be a RecurrentCell; got 'name'\. The name .* by keyword",
    ),
    (lambda: Recurrent(GRUCell), TypeError, r"must be a RecurrentCell; .* Write GRUCell\(\.\.\.\)"),
    (lambda: Recurrent(Linear(n_in=1, n_out=1)), TypeError, "cell must be a RecurrentCell; got Linear"),
    (
        lambda: Recurrent(ElmanCell("c", n_in=1, n_hidden=1), "layer"),
        TypeError,
        r"takes cell by position, and its name and everything else by keyword; got 2 positional",
    ),
    (
        lambda: Bidirectional("both", GRU("f", n_in=2, n_hidden=3)),
        TypeError,
        r"forward must be a recurrent layer; got 'both'\. The name goes by keyword",
    ),
    (
        lambda: Bidirectional(GRU("f", n_in=2, n_hidden=3), Linear("fc", n_in=2, n_out=3)),
        TypeError,
        "backward must be a recurrent layer; got Linear",
    ),
    (
        lambda: Bidirectional(GRU("f", n_in=2, n_hidden=3), RNN("b", n_in=2, n_hidden=3), name="both"),
        TypeError,
        r"both \(Bidirectional\): forward and backward must be of one kind; got f \(GRU\) and b \(RNN\)",
    ),
    (
        lambda: Bidirectional(
            Recurrent(GRUCell("f", n_in=2, n_hidden=3)), Recurrent(ElmanCell("b", n_in=2, n_hidden=3))
        ),
        TypeError,
        r"must be of one kind; got f \(GRUCell\) and b \(ElmanCell\)",
    ),
    (
        lambda: Bidirectional(GRU("f", n_in=2, n_hidden=3), GRU("b", n_in=3, n_hidden=3)),
        ValueError,
        r"read the same input; f \(GRU\) takes 2 features and b \(GRU\) 3 \(axis -1\)",
    ),
    (lambda: Bidirectional(*[GRU("f", n_in=2, n_hidden=3)] * 2), ValueError, "are one object"),
    (lambda: RNN("rnn", n_in=2), TypeError, "n_hidden"),
    (
        lambda: RNN("rnn", n_in=2, n_hidden=0),
        ValueError,
        r"rnn \(RNN\): n_hidden must be a positive integer; got 0",
    ),
    (
        lambda: RNN("rnn", n_in=2, n_hidden=3, activation=ptml.activations.ReLU),
        TypeError,
        r"Write activation=ReLU\(\)",
    ),
    (
        lambda: GRU("gru", n_in=2, n_hidden=3, gate_activation="tanh"),
        TypeError,
        r"an activation, such as Tanh\(\); got",
    ),
    (
        lambda: LSTM("lstm", n_in=2, n_hidden=3, projection=0),
        ValueError,
        "projection must be a positive integer",
    ),
    (lambda: LSTM("lstm", n_in=2, n_hidden=3, peephole=1), TypeError, "peephole must be True or False"),
    (
        lambda: LSTM("lstm", n_in=2, n_hidden=3, dropout=0.2),
        ValueError,
        r"n_layers=1 is no stack\. Write Dropout\(p=0.2\) after it, recurrent_dropout=0.2 for the state, or",
    ),
    (lambda: LSTM("lstm", n_in=2, n_hidden=3, n_layers=2, dropout=1.0), ValueError, "a probability in"),
]


@pytest.mark.parametrize(("make", "error", "match"), WRONG)
def test_what_cannot_be_made_says_why(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_a_cell_that_lacks_something_says_what():
    class Stateless(RecurrentCell):
        def step(self, x_t, h):
            return h

    class Stepless(RecurrentCell):
        def initial_state(self, X):
            return self.zeros(X, 2)

    class Growing(Stepless):
        def step(self, x_t, h):
            return h, h

    with pytest.raises(TypeError, match=r"Stateless defines no initial_state\(self, X\)"):
        Recurrent(Stateless("a"))(X)
    with pytest.raises(TypeError, match=r"Stepless defines no step\(self, x_t, \*state\)"):
        Recurrent(Stepless("a"))(X)
    with pytest.raises(ValueError, match=r"loop .* carries 1 tensor; its step gives 2 tensors"):
        Recurrent(Growing("a"), name="loop")(X)


@pytest.mark.backends("numba", "c", "jax", "mlx", "pytorch")
def test_second_derivatives_of_a_loop_agree_with_those_of_the_op(backend):
    with pytensor.config.change_flags(floatX="float32"):
        x = Input("x", (None, None, 2))
        layers = RNN("op", n_in=2, n_hidden=2), Recurrent(ElmanCell("loop", n_in=2, n_hidden=2))
        found = []
        state = ptml.init(layers, seed=0)
        state = state.replace({f"loop/{leaf}": state[f"op/{leaf}"] for leaf in ("W_ih", "W_hh", "b")})
        for one in layers:
            slope = pytensor.grad(one(x).sum(), x)
            found.append(pytensor.grad((slope**2).sum(), x))
        program = ptml.function([x], found, state=state, backend=backend)
        by_op, by_loop = map(np.asarray, program(_x((2, 3, 2), "float32")))
    np.testing.assert_allclose(by_op, by_loop, rtol=1e-4, atol=1e-5)
    assert abs(by_op).max() > 0.01


def test_a_decoder_is_refused_as_it_would_begin_anew_with_each_piece():
    net = Sequential(Linear("in", n_in=2, n_out=4), LSTM("lstm", n_in=4, n_hidden=4))
    with pytest.raises(ValueError, match=r"lstm \(LSTM\) keeps no state between the pieces that a decoder"):
        ptml.compile_decode(net, length=8, inputs=[Input("x", (1, None, 2))], seed=0)


def test_layers_over_sequences_stand_in_a_sequential():
    net = Sequential(
        LSTM("lstm", n_in=2, n_hidden=4), Dropout("drop", p=0.1), GRU("gru", n_in=4, n_hidden=3), LastStep()
    )
    assert net(X).type.shape == (None, 3)
