"""RNN, GRU and LSTM: what they compute, their state, masks, stacks, and what they refuse."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import ptml
from ptml.activations import HardSigmoid, ReLU, SiLU
from ptml.initializers import Constant, Orthogonal
from ptml.layers import GRU, LSTM, RNN, ElmanCell, GRUCell, Input, LastStep, Linear, LSTMCell, Recurrent
from ptml.loss import SquaredError, supervised_loss
from ptml.ops.recurrence.gru import GRUSequence
from ptml.ops.recurrence.lstm import LSTMSequence
from ptml.ops.recurrence.rnn import RNNSequence
from ptml.optim import adam, compile_train
from ptml_state import Role

REFERENCES = runpy.run_path(str(Path(__file__).with_name("cases_recurrent.py")))
KINDS = {
    "rnn": (lambda name, **more: RNN(name, n_in=2, n_hidden=3, **more), REFERENCES["elman"]),
    "gru": (lambda name, **more: GRU(name, n_in=2, n_hidden=3, **more), REFERENCES["gru"]),
    "lstm": (lambda name, **more: LSTM(name, n_in=2, n_hidden=3, **more), REFERENCES["lstm"]),
    "peeping": (
        lambda name, **more: LSTM(name, n_in=2, n_hidden=3, peephole=True, projection=2, **more),
        REFERENCES["lstm"],
    ),
}
X = Input("X", (None, None, 2))
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]], bool)
LENGTHS = np.array([4, 2, 0, 3])


def _x(shape=(4, 4, 2), dtype="float64"):
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


def _drawn(layer):
    """Give a layer's leaves values that are not the ones that they start from."""
    state = ptml.init(layer, seed=0)
    rng = np.random.default_rng(1)
    return state.replace({a: rng.normal(size=v.shape).astype(v.dtype) for a, v in state.items()})


def _flat(state):
    return [part for one in state for part in _flat(one)] if isinstance(state, tuple) else [state]


def _real_steps_alone(reference, state, name, x, mask, reverse):
    """Run each sequence over its real steps alone, and give the outputs where they are."""
    leaves = {address: value.astype("float64") for address, value in state.items()}
    found = []
    for sequence, real in zip(x.astype("float64"), mask, strict=True):
        y = reference(leaves, name, sequence[real][None], reverse=reverse)
        whole = np.full((len(sequence), y.shape[-1]), np.nan)
        whole[real] = y[0]
        found.append(whole)
    return np.stack(found)


def _carried(y, reverse):
    """Fill in the steps that are not real: the output there is that of the step before, zeros before any."""
    y = np.array(y[:, ::-1] if reverse else y)
    for t in range(y.shape[1]):
        before = y[:, t - 1] if t else np.zeros_like(y[:, 0])
        y[:, t] = np.where(np.isnan(y[:, t]), before, y[:, t])
    return y[:, ::-1] if reverse else y


@pytest.mark.backends("numba", "c", "jax", "mlx", "pytorch")
def test_padding_changes_nothing_on_any_backend(backend):
    mask, lengths = pt.matrix("mask", dtype="bool"), pt.lvector("lengths")
    with pytensor.config.change_flags(floatX="float32"):
        x, ragged = Input("x", (None, None, 2)), np.arange(4) < LENGTHS[:, None]
        made = {
            "gru": (KINDS["gru"][0]("gru", reverse=True), {"mask": mask}, MASK, True),
            "peeping": (KINDS["peeping"][0]("peeping"), {"lengths": lengths}, ragged, False),
        }
        called = {name: layer(x, return_state=True, **real) for name, (layer, real, *_) in made.items()}
        losses = [(Y**2).sum() + sum((s**2).sum() for s in _flat(state)) for Y, state in called.values()]
        state = _drawn([layer for layer, *_ in made.values()])
        outputs = [part for Y, last in called.values() for part in (Y, *_flat(last))]
        program = ptml.function(
            [x, mask, lengths], [*outputs, pytensor.grad(sum(losses), x)], state=state, backend=backend
        )
    values = _x(dtype="float32")
    values[~(MASK | ragged)] = np.nan
    results = [np.asarray(result) for result in program(values, MASK, LENGTHS)]
    assert {str(result.dtype) for result in results} == {"float32"}
    *results, gradient = results
    clean = np.nan_to_num(values)
    for name, (_, _, real, reverse) in made.items():
        y = _real_steps_alone(KINDS[name][1], state, name, clean, real, reverse)
        Y, h, *rest = results[: 2 + (name == "peeping")]
        results = results[2 + len(rest) :]
        np.testing.assert_allclose(Y, _carried(y, reverse), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(h, Y[:, 0 if reverse else -1])
    assert np.isfinite(gradient).all()
    assert (gradient[~(MASK | ragged)] == 0).all()
    empty = program(values[:, :0], MASK[:, :0], LENGTHS * 0)
    assert np.asarray(empty[0]).shape == (4, 0, 3)
    assert (np.asarray(empty[1]) == 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_sequence_in_pieces_is_that_in_one(kind, reverse):
    layer = KINDS[kind][0]("layer", reverse=reverse)
    Y, last = layer(X, return_state=True)
    given = [state.type() for state in _flat(last)]
    again, then = layer(X, tuple(given), return_state=True)
    state, x = _drawn(layer), _x()
    whole, *end = ptml.function([X], [Y, *_flat(last)], state=state)(x)
    carry_on = ptml.function([X, *given], [again, *_flat(then)], state=state)
    parts, carried = [], [np.zeros_like(part) for part in end]
    for part in np.split(x, [1, 3], axis=1)[:: -1 if reverse else 1]:
        y, *carried = carry_on(part, *carried)
        parts.append(y)
    joined = np.concatenate(parts[:: -1 if reverse else 1], axis=1)
    np.testing.assert_allclose(joined, whole, rtol=1e-12, atol=1e-14)
    for got, wanted in zip(carried, end, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("layer", "op"),
    [
        (RNN("a", n_in=2, n_hidden=3), RNNSequence),
        (RNN("a", n_in=2, n_hidden=3, activation=ReLU(), bias=False), RNNSequence),
        (GRU("a", n_in=2, n_hidden=3), GRUSequence),
        (GRU("a", n_in=2, n_hidden=3, bias=False), GRUSequence),
        (LSTM("a", n_in=2, n_hidden=3, bias=False, reverse=True), LSTMSequence),
        (LSTM("a", n_in=2, n_hidden=3, peephole=True, projection=4), LSTMSequence),
        (LSTM("a", n_in=2, n_hidden=3, peephole=True), LSTMSequence),
    ],
    ids=repr,
)
def test_one_op_and_a_loop_over_the_cell_give_the_same(layer, op):
    cell = {RNN: ElmanCell, GRU: GRUCell, LSTM: LSTMCell}[type(layer)]
    fields = ("n_in", "n_hidden", "activation", "bias", "peephole", "projection")
    shared = {field: getattr(layer, field) for field in fields if hasattr(layer, field)}
    looped = Recurrent(cell("a", **shared), reverse=layer.reverse)
    mask = pt.matrix("mask", dtype="bool")
    state, found = _drawn(layer), []
    for one in (layer, looped):
        Y, last = one(X, mask=mask, return_state=True)
        loss = (Y**3).sum() + sum((part**2).sum() for part in _flat(last))
        gradients = pytensor.grad(loss, [X, *ptml.slots(one, Role.PARAMETER)])
        program = ptml.function([X, mask], [Y, *_flat(last), *gradients], state=state)
        found.append(program(_x(), MASK))
    for got, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)
    inner = layer(X).owner.op.fgraph
    assert any(isinstance(node.op, op) for node in inner.apply_nodes)


def test_other_activations_are_computed_by_a_loop():
    layer = LSTM("a", n_in=2, n_hidden=3, activation=SiLU(), gate_activation=HardSigmoid())
    p, x = _drawn(layer), _x()
    h, c = np.zeros((4, 3)), np.zeros((4, 3))

    def silu(a):
        return a / (1 + np.exp(-a))

    for t in range(x.shape[1]):
        i, f, g, o = np.split(x[:, t] @ p["a/W_ih"] + h @ p["a/W_hh"] + p["a/b"], 4, axis=-1)
        i, f, o = (np.clip(a / 6 + 0.5, 0, 1) for a in (i, f, o))
        c = f * c + i * silu(g)
        h = o * silu(c)
    np.testing.assert_allclose(ptml.function([X], layer(X)[:, -1], state=p)(x), h, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_more_batch_axes_are_batch_axes(kind):
    layer = KINDS[kind][0]("layer")
    wide, mask = Input("wide", (None, None, None, 2)), pt.tensor3("mask", dtype="bool")
    Y, last = layer(wide, mask=mask, return_state=True)
    x, state = _x((2, 3, 4, 2)), _drawn(layer)
    m = np.random.default_rng(2).random((2, 3, 4)) < 0.7
    y, *end = ptml.function([wide, mask], [Y, *_flat(last)], state=state)(x, m)
    flat_mask = pt.matrix("mask", dtype="bool")
    Z, then = layer(X, mask=flat_mask, return_state=True)
    z, *then = ptml.function([X, flat_mask], [Z, *_flat(then)], state=state)(
        x.reshape(6, 4, 2), m.reshape(6, 4)
    )
    np.testing.assert_allclose(y, z.reshape(2, 3, *z.shape[1:]), rtol=1e-12)
    for got, wanted in zip(end, then, strict=True):
        np.testing.assert_allclose(got, wanted.reshape(2, 3, -1), rtol=1e-12)


def test_the_types_know_the_sizes_that_are_known():
    fixed = Input("fixed", (8, 5, 2))
    for layer in (LSTM("a", n_in=2, n_hidden=3), LSTM("b", n_in=2, n_hidden=3, activation=ReLU())):
        Y, (h, c) = layer(fixed, return_state=True)
        assert (Y.type.shape, h.type.shape, c.type.shape) == ((8, 5, 3), (8, 3), (8, 3))
        assert layer(X).type.shape == (None, None, 3)


def test_weights_start_as_the_initializers_say():
    state = ptml.init(GRU("gru", n_in=2, n_hidden=3), seed=0)
    W_hh = state["gru/W_hh"]
    # One draw over all gates: as many orthonormal rows as there are hidden units.
    np.testing.assert_allclose(W_hh @ W_hh.T, np.eye(3), atol=1e-12)
    assert (state["gru/b"] == 0).all()
    assert (state["gru/c"] == 0).all()
    layer = LSTM(
        "lstm",
        n_in=2,
        n_hidden=3,
        peephole=True,
        projection=2,
        weight_initializer=Constant(0.5),
        recurrent_initializer=Orthogonal(2.0),
        bias_initializer=Constant((0.0,) * 3 + (1.0,) * 3 + (0.0,) * 6),
    )
    state = ptml.init(layer, seed=0)
    assert (state["lstm/W_ih"] == 0.5).all()
    assert (state["lstm/W_hr"] == 0.5).all()
    assert (state["lstm/W_ci"] == 0).all()
    np.testing.assert_allclose(state["lstm/W_hh"] @ state["lstm/W_hh"].T, 4 * np.eye(2), atol=1e-12)
    assert state["lstm/b"].tolist() == [0.0] * 3 + [1.0] * 3 + [0.0] * 6


def test_a_stack_is_its_layers_one_after_the_other():
    stack = GRU("stack", n_in=2, n_hidden=3, n_layers=2, reverse=True)
    assert [layer.name for layer in stack.layers] == ["stack/layer0", "stack/layer1"]
    Y, last = stack(X, return_state=True)
    middle, first = stack.layers[0](X, return_state=True)
    Z, second = stack.layers[1](middle, return_state=True)
    program = ptml.function([X], [Y, *last, Z, first, second], state=_drawn(stack))
    y, h0, h1, z, first, second = program(_x())
    np.testing.assert_array_equal(y, z)
    np.testing.assert_array_equal(h0, first)
    np.testing.assert_array_equal(h1, second)
    given = [pt.matrix(), pt.matrix()]
    again = stack(X, tuple(given))
    by_hand = stack.layers[1](stack.layers[0](X, given[0]), given[1])
    at_once, one_by_one = ptml.function([X, *given], [again, by_hand], state=program.state)(_x(), h0, h1)
    np.testing.assert_array_equal(at_once, one_by_one)
    assert (at_once != y).any()


def test_two_unnamed_stacks_are_numbered():
    pair = [LSTM(n_in=2, n_hidden=2, n_layers=2, bias=False) for _ in range(2)]
    wanted = [f"LSTM_{k}/layer{j}/{leaf}" for k in (1, 2) for j in (0, 1) for leaf in ("W_ih", "W_hh")]
    assert list(ptml.init(pair, seed=0)) == wanted


@pytest.mark.parametrize("variational", [False, True])
def test_dropout_acts_between_the_layers_of_a_stack(variational):
    # A relu of the input itself, through unit weights and no recurrence, shows the mask.
    unit = {
        "weight_initializer": Constant(1.0),
        "recurrent_initializer": Constant(0.0),
        "bias": False,
    }
    stack = RNN(
        "stack",
        n_in=1,
        n_hidden=1,
        activation=ReLU(),
        n_layers=2,
        dropout=0.5,
        variational=variational,
        **unit,
    )
    ones = Input("ones", (None, None, 1))
    run = ptml.function([ones], stack(ones), seed=0)
    y = run(np.ones((200, 6, 1)))[..., 0]
    assert set(np.unique(y)) == {0.0, 2.0}
    assert 0.35 < (y == 0).mean() < 0.65
    same = (y == y[:, :1]).all(axis=1)
    assert same.all() if variational else same.mean() < 0.2
    assert (run(np.ones((200, 6, 1)))[..., 0] != y).any()
    predict = ptml.compile_predict(stack(ones), state=run)
    assert (predict(np.ones((3, 6, 1))) == 1).all()


def test_the_mask_of_a_dropped_state_is_one_for_all_steps():
    # h_t = h_{t-1} * mask + 1: a unit that is dropped stays at 1, one that is kept doubles and adds one.
    layer = RNN(
        "rnn",
        n_in=1,
        n_hidden=64,
        activation=ReLU(),
        bias=False,
        weight_initializer=Constant(1.0),
        recurrent_initializer=Orthogonal(),
        recurrent_dropout=0.5,
    )
    ones = Input("ones", (None, None, 1))
    state = ptml.init(layer, seed=0).replace({"rnn/W_hh": np.eye(64)})
    run = ptml.function([ones], layer(ones), state=state)
    y = run(np.ones((2, 5, 1)))
    assert {tuple(sequence) for sequence in y.transpose(0, 2, 1).reshape(-1, 5).tolist()} == {
        (1.0, 1.0, 1.0, 1.0, 1.0),
        (1.0, 3.0, 7.0, 15.0, 31.0),
    }
    predicted = ptml.compile_predict(layer(ones), state=run)(np.ones((1, 5, 1)))
    assert predicted[0, :, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_an_lstm_learns_what_it_must_remember():
    rng = np.random.default_rng(0)
    x = rng.choice([-1.0, 1.0], size=(64, 8, 1))
    lstm, fc = LSTM("lstm", n_in=1, n_hidden=8), Linear("fc", n_in=8, n_out=1)
    sequences = Input("x", (None, None, 1))
    loss, target = supervised_loss(fc(LastStep()(lstm(sequences))), SquaredError())
    step = compile_train(loss, adam(0.02), inputs=[sequences, target], seed=0)
    losses = [float(step(x, x[:, 0])) for _ in range(150)]
    assert losses[-1] < 0.05 * losses[0]
