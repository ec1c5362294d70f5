"""Batch normalization against an implementation in NumPy, with gradients by finite differences."""

from __future__ import annotations

import pickle

import attrs
import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.layers import BatchNorm, Input, Linear, Sequential
from ptml_state import Role

PYTHON = Mode(linker="py", optimizer="fast_compile")


def _reference(x, scale, b, epsilon=1e-5):
    axes = tuple(range(x.ndim - 1))
    mean, variance = x.mean(axis=axes), x.var(axis=axes)
    return (x - mean) / np.sqrt(variance + epsilon) * scale + b, mean, variance


def _state(bn, **leaves):
    return ptml.init(bn, seed=0).replace({f"bn/{name}": np.asarray(value) for name, value in leaves.items()})


@pytest.mark.parametrize("shape", [(5, 3), (4, 2, 3), (2, 3, 4, 3)])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.3, "epsilon": 1e-3}])
def test_training_normalizes_by_the_batch_and_moves_the_running_statistics(shape, options):
    bn = BatchNorm("bn", n_in=3, **options)
    X = Input("X", (None, *shape[1:]))
    rng = np.random.default_rng(0)
    x, scale, b = rng.normal(3.0, 2.0, shape), rng.normal(size=3), rng.normal(size=3)
    state = _state(bn, scale=scale, b=b, running_mean=[1.0, 2.0, 3.0], running_var=[1.0, 2.0, 3.0])
    program = ptml.function([X], bn(X), state=state, mode=PYTHON)
    wanted, mean, variance = _reference(x, scale, b, options.get("epsilon", 1e-5))
    np.testing.assert_allclose(program(x), wanted, rtol=1e-11, atol=1e-12)
    momentum = options.get("momentum", 0.1)
    for leaf, batch in (("running_mean", mean), ("running_var", variance)):
        moved = (1 - momentum) * np.array([1.0, 2.0, 3.0]) + momentum * batch
        np.testing.assert_allclose(program.state[f"bn/{leaf}"], moved, rtol=1e-13)


def test_prediction_normalizes_by_the_running_statistics_and_moves_nothing():
    bn = BatchNorm("bn", n_in=2)
    X = Input("X", (None, 2))
    state = _state(bn, scale=[2.0, 3.0], b=[0.5, -0.5], running_mean=[1.0, 2.0], running_var=[4.0, 9.0])
    predict = ptml.compile_predict(bn(X), state=state, compile_kwargs={"mode": PYTHON})
    x = np.array([[5.0, 7.0]])
    wanted = (x - [1.0, 2.0]) / np.sqrt([4.0 + 1e-5, 9.0 + 1e-5]) * [2.0, 3.0] + [0.5, -0.5]
    np.testing.assert_allclose(predict(x), wanted, rtol=1e-13)
    assert predict.state == state


def test_the_gradient_flows_through_the_batchs_statistics():
    bn = BatchNorm("bn", n_in=2)
    X, weights = Input("X", (None, 2)), Input("weights", (None, 2))
    gradients = pytensor.grad((weights * bn(X)).sum(), [X, bn.scale, bn.b])
    rng = np.random.default_rng(0)
    x, w, scale, b = rng.normal(size=(6, 2)), rng.normal(size=(6, 2)), rng.normal(size=2), rng.normal(size=2)
    state = _state(bn, scale=scale, b=b)
    got = ptml.function([X, weights], gradients, state=state, mode=PYTHON)(x, w)

    def loss(x, scale, b):
        return (w * _reference(x, scale, b)[0]).sum()

    for k, values in enumerate((x, scale, b)):
        wanted = np.zeros_like(values)
        for index in np.ndindex(values.shape):
            step = np.zeros_like(values)
            step[index] = 1e-6
            up, down = ([v + s * step if j == k else v for j, v in enumerate((x, scale, b))] for s in (1, -1))
            wanted[index] = (loss(*up) - loss(*down)) / 2e-6
        np.testing.assert_allclose(got[k], wanted, atol=1e-8)


def test_two_rows_give_the_biased_estimate():
    bn = BatchNorm("bn", n_in=1)
    X = Input("X", (None, 1))
    program = ptml.function([X], bn(X), seed=0, mode=PYTHON)
    np.testing.assert_allclose(
        program([[0.0], [2.0]]), [[-0.9999950000374997], [0.9999950000374997]], rtol=1e-15
    )
    np.testing.assert_allclose(program.state["bn/running_var"], [1.0], rtol=1e-15)
    np.testing.assert_allclose(program.state["bn/running_mean"], [0.1], rtol=1e-15)


@pytest.mark.parametrize("shape", [(None, 2), (1, 2), (None, None)])
def test_one_row_is_refused_in_training_and_leaves_the_state_as_it_was(shape):
    bn = BatchNorm("bn", n_in=2)
    X = Input("X", shape)
    program = ptml.function([X], bn(X), seed=0, mode=PYTHON)
    before = program.state
    message = (
        r"bn \(BatchNorm\) takes at least 2 values per channel in training; got shape \(1, 2\).*drop_last"
    )
    with pytest.raises(ValueError, match=message):
        program([[5.0, 7.0]])
    assert program.state == before
    predict = ptml.compile_predict(bn(X), state=program, compile_kwargs={"mode": PYTHON})
    np.testing.assert_allclose(predict([[5.0, 7.0]]), np.array([[5.0, 7.0]]) / np.sqrt(1 + 1e-5), rtol=1e-14)


@pytest.mark.backends("numba", "c", "jax", "mlx", "pytorch")
def test_every_backend_normalizes_alike_and_refuses_one_row(backend, float32):
    bn = BatchNorm("bn", n_in=3)
    X = Input("X", (None, 3))
    program = ptml.function([X], bn(X), seed=0, backend=backend)
    x = np.random.default_rng(0).normal(2.0, 3.0, size=(8, 3)).astype("float32")
    wanted, mean, variance = _reference(x.astype("float64"), 1.0, 0.0)
    np.testing.assert_allclose(np.asarray(program(x)), wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(program.state["bn/running_mean"], 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(program.state["bn/running_var"], 0.9 + 0.1 * variance, rtol=1e-5)
    before = program.state
    with pytest.raises(ValueError, match=r"bn \(BatchNorm\) takes at least 2 .* got shape \(1, 3\)"):
        program(x[:1])
    assert program.state == before


def test_the_applications_of_one_object_count_in_the_order_of_their_calls():
    bn = BatchNorm("bn", n_in=1)
    X = Input("X", (None, 1))
    program = ptml.function([X], [bn(X), bn(2 * X + 1)], seed=0, mode=PYTHON)
    program([[0.0], [2.0]])
    np.testing.assert_allclose(program.state["bn/running_mean"], [0.39], rtol=1e-14)
    np.testing.assert_allclose(program.state["bn/running_var"], [1.3], rtol=1e-14)


def test_a_second_graph_of_one_object_reads_the_stored_statistics():
    bn = BatchNorm("bn", n_in=1)
    before = repr(bn), hash(bn)
    X, X2 = Input("X", (None, 1)), Input("X2", (None, 1))
    first = ptml.function([X], bn(X), seed=0, mode=PYTHON)
    first([[0.0], [2.0]])
    second = ptml.function([X2], bn(X2), state=first, mode=PYTHON)
    second([[0.0], [2.0]])
    np.testing.assert_allclose(second.state["bn/running_mean"], [0.19], rtol=1e-14)
    assert (repr(bn), hash(bn)) == before


def test_large_offsets_do_not_cancel(float32):
    bn = BatchNorm("bn", n_in=1)
    X = Input("X", (None, 1))
    program = ptml.function([X], bn(X), seed=0, mode=PYTHON)
    x = np.array([[9999.0], [10001.0], [9999.0], [10001.0]], "float32")
    np.testing.assert_allclose(program(x), (x - 10000) / np.sqrt(np.float32(1 + 1e-5)), rtol=1e-6)


def test_it_declares_two_parameters_and_two_statistics():
    bn = BatchNorm("bn", n_in=3)
    assert {h.slot.address: h.slot.role for h in ptml.slots(bn)} == {
        "bn/scale": Role.PARAMETER,
        "bn/b": Role.PARAMETER,
        "bn/running_mean": Role.STATISTIC,
        "bn/running_var": Role.STATISTIC,
    }
    state = ptml.init(bn, seed=0)
    for name, value in (("scale", 1.0), ("b", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
        np.testing.assert_array_equal(state[f"bn/{name}"], np.full(3, value))


def test_without_affine_there_are_no_parameters():
    bn = BatchNorm("bn", n_in=2, affine=False)
    assert [h.slot.name for h in ptml.slots(bn)] == ["running_mean", "running_var"]
    X = Input("X", (None, 2))
    x = np.random.default_rng(0).normal(size=(5, 2))
    program = ptml.function([X], bn(X), seed=0, mode=PYTHON)
    np.testing.assert_allclose(program(x), _reference(x, 1.0, 0.0)[0], rtol=1e-12)


def test_float32_stays_float32_whatever_floatx_is_later():
    with pytensor.config.change_flags(floatX="float32"):
        bn = BatchNorm("bn", n_in=2)
        X = Input("X", (None, 2))
        bn.running_mean, bn.running_var, bn.scale, bn.b  # noqa: B018 -- a slot's dtype is set when it is read
    Y = bn(X)
    assert Y.type.dtype == "float32"
    assert [g.type.dtype for g in pytensor.grad(Y.sum(), [X, bn.scale, bn.b])] == ["float32"] * 3


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((None, 3), r"bn \(BatchNorm\) takes \(batch, \.\.\., 1 channels\); got \(None, 3\): axis -1 is 3"),
        ((None, 1, 8, 7), r"got \(None, 1, 8, 7\).*Axis 1 has 1: move it to the end"),
        ((1,), r"got 1 axes: \(1,\)"),
    ],
)
def test_a_wrong_width_is_refused_when_the_layer_is_called(shape, message):
    with pytest.raises(ValueError, match=message):
        BatchNorm("bn", n_in=1)(Input("X", shape))


def test_a_wrong_width_that_only_the_run_shows_is_refused_there():
    X = Input("X", (None, None))
    program = ptml.function([X], BatchNorm("bn", n_in=1)(X), seed=0, mode=PYTHON)
    with pytest.raises(
        ValueError, match=r"bn \(BatchNorm\) takes \(batch, \.\.\., 1 channels\); got \(4, 3\)"
    ):
        program(np.ones((4, 3)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_in": 0}, "n_in must be a positive integer; got 0"),
        ({"n_in": 2, "momentum": 1.5}, r"momentum must be a number in \[0, 1\]; got 1.5"),
        ({"n_in": 2, "momentum": float("nan")}, r"momentum must be a number in \[0, 1\]; got nan"),
        ({"n_in": 2, "epsilon": 0.0}, "epsilon must be a positive number; got 0.0"),
    ],
)
def test_impossible_hyperparameters_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=rf"bn \(BatchNorm\): {message}"):
        BatchNorm("bn", **options)


def test_a_batch_norm_is_a_value_and_its_slots_are_its_own():
    bn = BatchNorm("bn", n_in=3, momentum=0.2)
    for twin in (pickle.loads(pickle.dumps(bn)), attrs.evolve(bn), eval(repr(bn))):
        assert twin == bn
        assert repr(twin) == repr(bn) == "BatchNorm('bn', n_in=3, momentum=0.2)"
        assert twin.running_mean is not bn.running_mean


def test_it_trains_inside_a_network():
    net = Sequential(Linear("fc", n_in=2, n_out=3), BatchNorm("bn", n_in=3), Linear("out", n_in=3, n_out=1))
    X = Input("X", (None, 2))
    gradients = pytensor.grad((net(X) ** 2).mean(), ptml.slots(net, Role.PARAMETER))
    program = ptml.function([X], gradients, seed=0, mode=PYTHON)
    results = program(np.random.default_rng(0).normal(size=(6, 2)))
    assert all(np.isfinite(result).all() for result in results)
    # What is added to every row of a batch is taken off again.
    np.testing.assert_allclose(results[1], np.zeros(3), atol=1e-14)
