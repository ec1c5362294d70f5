"""Activations: values and gradients against closed forms, far from 0, at 0, and on every backend."""

from __future__ import annotations

import pickle

import attrs
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from scipy import special

import ptml
from ptml import activations
from ptml.activations import (
    ELU,
    GELU,
    SELU,
    Activation,
    HardSigmoid,
    HardSwish,
    LeakyReLU,
    LogSoftmax,
    Mish,
    PReLU,
    QuickGELU,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Swish,
    Tanh,
)
from ptml.initializers import Constant

PYTHON = Mode(linker="py", optimizer="fast_compile")
ROOT = np.sqrt(2 / np.pi)


def _density(x):
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def _d_gelu_tanh(x):
    tanh = np.tanh(ROOT * (x + 0.044715 * x**3))
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * ROOT * (1 + 3 * 0.044715 * x**2)


def _d_mish(x):
    soft = np.logaddexp(0, x)
    return np.tanh(soft) + x * special.expit(x) / np.cosh(np.minimum(soft, 300)) ** 2


def _d_swish(x, beta=1.0):
    s = special.expit(beta * x)
    return s + beta * x * s * special.expit(-beta * x)


def _elu(x, alpha=1.0, scale=1.0):
    return scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _d_elu(x, alpha=1.0, scale=1.0):
    return scale * np.where(x > 0, 1.0, alpha * np.exp(np.minimum(x, 0)))


ALPHA, SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946

#: Each elementwise activation with its closed form and derivative. At a kink the derivative is the left one,
#: except where the test of kinks says otherwise.
ELEMENTWISE = [
    (ReLU(), lambda x: np.maximum(x, 0), lambda x: np.where(x > 0, 1.0, 0.0)),
    (LeakyReLU(), lambda x: np.where(x > 0, x, 0.01 * x), lambda x: np.where(x > 0, 1.0, 0.01)),
    (
        LeakyReLU(negative_slope=0.3),
        lambda x: np.where(x > 0, x, 0.3 * x),
        lambda x: np.where(x > 0, 1.0, 0.3),
    ),
    (ELU(), _elu, _d_elu),
    (ELU(alpha=0.5), lambda x: _elu(x, 0.5), lambda x: _d_elu(x, 0.5)),
    (SELU(), lambda x: _elu(x, ALPHA, SCALE), lambda x: _d_elu(x, ALPHA, SCALE)),
    (GELU(), lambda x: x * special.ndtr(x), lambda x: special.ndtr(x) + x * _density(x)),
    (
        GELU(approximate="tanh"),
        lambda x: 0.5 * x * (1 + np.tanh(ROOT * (x + 0.044715 * x**3))),
        _d_gelu_tanh,
    ),
    (QuickGELU(), lambda x: x * special.expit(1.702 * x), lambda x: _d_swish(x, 1.702)),
    (SiLU(), lambda x: x * special.expit(x), _d_swish),
    (Mish(), lambda x: x * np.tanh(np.logaddexp(0, x)), _d_mish),
    (Tanh(), np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    (Sigmoid(), special.expit, lambda x: special.expit(x) * special.expit(-x)),
    (
        HardSigmoid(),
        lambda x: np.clip(x / 6 + 0.5, 0, 1),
        lambda x: np.where(np.abs(x) < 3, 1 / 6, 0.0),
    ),
    (
        HardSwish(),
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
        lambda x: np.where(np.abs(x) < 3, x / 3 + 0.5, np.where(x > 0, 1.0, 0.0)),
    ),
    (Softplus(), lambda x: np.logaddexp(0, x), special.expit),
    (Softplus(beta=2.0), lambda x: np.logaddexp(0, 2 * x) / 2, lambda x: special.expit(2 * x)),
]
ROWWISE = [
    (Softmax(), lambda x: special.softmax(x, axis=-1)),
    (Softmax(axis=0), lambda x: special.softmax(x, axis=0)),
    (LogSoftmax(), lambda x: special.log_softmax(x, axis=-1)),
    (LogSoftmax(axis=0), lambda x: special.log_softmax(x, axis=0)),
]
EVERY = [case[0] for case in ELEMENTWISE + ROWWISE]
NEAR = np.concatenate([np.linspace(-7.9, 8.1, 41), [-3.5, -1e-4, 0.0, 1e-4, 2.9]])
FAR = np.array([-1e4, -1000.0, -89.0, -40.0, -20.0, 20.0, 40.0, 89.0, 1000.0, 1e4])


def _ids(cases):
    return [repr(case[0]) for case in cases]


@pytest.fixture(scope="module", params=["float64", "float32"])
def compiled(request):
    """Values and gradients of every activation, by one function: compiling is most of the time."""
    X = pt.matrix("X", dtype=request.param)
    values = [activation(X) for activation in EVERY]
    # A weighted sum, so that the gradient of a softmax is not zero.
    weights = pt.matrix("weights", dtype=request.param)
    gradients = [pytensor.grad((weights * Y).sum(), X) for Y in values]
    program = ptml.function([X, weights], [*values, *gradients], mode=PYTHON)

    def run(activation, x, weights=None):
        x = np.atleast_2d(np.asarray(x, request.param))
        weights = np.ones_like(x) if weights is None else np.asarray(weights, request.param)
        results = program(x, weights)
        where = [id(other) for other in EVERY].index(id(activation))
        return results[where], results[where + len(EVERY)]

    return run


@pytest.mark.parametrize(("activation", "value", "derivative"), ELEMENTWISE, ids=_ids(ELEMENTWISE))
def test_values_and_gradients_are_the_closed_forms(compiled, activation, value, derivative):
    got, gradient = compiled(activation, NEAR)
    x = NEAR.astype(got.dtype).astype("float64")[None]
    tolerance = {"rtol": 1e-12, "atol": 1e-13} if got.dtype == "float64" else {"rtol": 2e-5, "atol": 1e-6}
    np.testing.assert_allclose(got, value(x), **tolerance)
    np.testing.assert_allclose(gradient, derivative(x), **tolerance)


@pytest.mark.parametrize(("activation", "value", "derivative"), ELEMENTWISE, ids=_ids(ELEMENTWISE))
def test_far_from_zero_nothing_overflows(compiled, activation, value, derivative):
    got, gradient = compiled(activation, FAR)
    assert np.isfinite(got).all()
    assert np.isfinite(gradient).all()
    x = FAR[None]
    np.testing.assert_allclose(got, value(x), rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, derivative(x), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(("activation", "value"), ROWWISE, ids=_ids(ROWWISE))
@pytest.mark.parametrize("factor", [1.0, 1000.0])
def test_softmaxes_are_the_closed_forms(compiled, activation, value, factor):
    rng = np.random.default_rng(0)
    x, weights = factor * rng.normal(size=(3, 5)), rng.normal(size=(3, 5))
    got, gradient = compiled(activation, x, weights)
    x, w = x.astype(got.dtype).astype("float64"), weights.astype(got.dtype).astype("float64")
    rtol = 1e-11 if got.dtype == "float64" else 1e-4
    np.testing.assert_allclose(got, value(x), rtol=rtol, atol=rtol)
    p = special.softmax(x, axis=activation.axis)
    if isinstance(activation, Softmax):
        wanted = p * (w - (w * p).sum(axis=activation.axis, keepdims=True))
    else:
        wanted = w - p * w.sum(axis=activation.axis, keepdims=True)
    np.testing.assert_allclose(gradient, wanted, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("activation", EVERY, ids=repr)
def test_the_dtype_is_the_inputs_whatever_floatx_is(activation):
    for floatX in ("float32", "float64"):
        with pytensor.config.change_flags(floatX=floatX):
            for dtype in ("float16", "float32", "float64"):
                X = pt.matrix("X", dtype=dtype)
                Y = activation(X)
                assert Y.type.dtype == dtype
                if dtype != "float16":  # PyTensor's own gradient of a switch widens it
                    assert pytensor.grad(Y.sum(), X).type.dtype == dtype


@pytest.mark.parametrize("activation", EVERY, ids=repr)
def test_a_nan_stays_one(compiled, activation):
    got, _ = compiled(activation, [[np.nan, np.nan]])
    assert np.isnan(got).all()


def test_gelu_keeps_its_precision_in_the_left_tail(compiled):
    exact = next(a for a in EVERY if a == GELU())
    got, _ = compiled(exact, [-9.0, -8.0, -6.0])
    x = np.array([[-9.0, -8.0, -6.0]])
    np.testing.assert_allclose(got, x * special.ndtr(x), rtol=1e-12 if got.dtype == "float64" else 1e-5)


def test_at_a_kink_the_gradient_is_the_left_one(compiled):
    for activation, wanted in ((ReLU(), 0.0), (LeakyReLU(), 0.01), (ELU(), 1.0), (SELU(), ALPHA * SCALE)):
        same = next(a for a in EVERY if a == activation)
        _, gradient = compiled(same, [0.0, -0.0])
        np.testing.assert_allclose(gradient, wanted, rtol=1e-6)


def test_hyperparameters_reach_the_function():
    assert GELU(approximate=True) == GELU(approximate="tanh") != GELU()
    assert Swish is SiLU


def test_prelu_starts_at_a_quarter_and_trains_its_slopes(float64):
    X = pt.matrix("X", shape=(None, 3))
    each, one = PReLU("each", n_in=3), PReLU("one", weight_initializer=Constant(0.5))
    loss = (X * (each(X) + one(X))).sum()
    outputs = [each(X), one(X), *pytensor.grad(loss, [X, each.W, one.W])]
    program = ptml.function([X], outputs, seed=0, mode=PYTHON)
    x = np.array([[1.0, -2.0, -3.0], [-4.0, 5.0, 0.0]])
    got_each, got_one, d_x, d_each, d_one = program(x)
    np.testing.assert_allclose(got_each, np.where(x > 0, x, 0.25 * x))
    np.testing.assert_allclose(got_one, np.where(x > 0, x, 0.5 * x))
    np.testing.assert_allclose(d_x, np.where(x > 0, 4 * x, 1.5 * x))
    np.testing.assert_allclose(d_each, [16.0, 4.0, 9.0])
    np.testing.assert_allclose(d_one, [29.0])
    assert [slot.slot.address for slot in ptml.slots((each, one))] == ["each/W", "one/W"]
    assert program.state["each/W"].shape == (3,)


def test_prelu_refuses_another_number_of_features():
    with pytest.raises(ValueError, match=r"act \(PReLU\) takes \(\.\.\., 3 features\); got \(None, 4\)"):
        PReLU("act", n_in=3)(pt.matrix("X", shape=(None, 4)))
    program = ptml.function(None, PReLU("act", n_in=3)(pt.matrix("X")), seed=0, mode=PYTHON)
    with pytest.raises(ValueError, match=r"act \(PReLU\) takes \(\.\.\., 3 features\); got \(2, 1\)"):
        program(np.ones((2, 1)))


@pytest.mark.parametrize("activation", [*EVERY, PReLU(n_in=4)], ids=repr)
def test_integers_are_refused_with_the_cast_to_write(activation):
    with pytest.raises(TypeError, match=rf"{type(activation).__name__} computes .*int64.*X\.astype\('float"):
        activation(pt.matrix("X", dtype="int64"))


@pytest.mark.parametrize("activation", [*EVERY, PReLU("act", n_in=4)], ids=repr)
def test_activations_are_values(activation):
    twin = pickle.loads(pickle.dumps(activation))
    rebuilt = eval(repr(activation), dict(vars(activations)))
    assert activation == twin == rebuilt == attrs.evolve(activation)
    assert hash(activation) == hash(twin)
    assert repr(twin) == repr(activation)


def test_a_printed_graph_shows_the_activation():
    text = pytensor.dprint(ReLU("act")(Tanh()(pt.vector("x"))), file="str")
    assert "act:ReLU" in text
    assert "Tanh" in text


@pytest.mark.parametrize("axis", [2, -3])
def test_a_softmax_over_an_axis_that_is_not_there_names_the_layer(axis):
    for cls in (Softmax, LogSoftmax):
        with pytest.raises(ValueError, match=rf"out \({cls.__name__}\) normalizes axis {axis}; .* 2 axes"):
            cls("out", axis=axis)(pt.matrix("X"))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: GELU(approximate="sigmoid"), ValueError, "GELU: approximate must be False or 'tanh'"),
        (lambda: Softplus(beta=0.0), ValueError, "Softplus: beta must be a positive number; got 0.0"),
        (
            lambda: ELU("act", alpha=float("nan")),
            ValueError,
            r"act \(ELU\): alpha must be a finite number; got nan",
        ),
        (lambda: PReLU(n_in=0), ValueError, "PReLU: n_in must be a positive integer; got 0"),
        (lambda: PReLU(n_in=2.0), TypeError, "PReLU: n_in must be a positive integer; got 2.0"),
        (lambda: PReLU(weight_initializer=Constant), TypeError, r"Write weight_initializer=Constant\(\)"),
        (lambda: Softmax(axis=None), TypeError, "Softmax: axis must be an integer; got None"),
        (lambda: LeakyReLU(0.2), TypeError, r"LeakyReLU's `name` must be a string.*negative_slope=0\.2"),
    ],
)
def test_impossible_hyperparameters_are_refused_by_name(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_subclass_without_activate_says_what_it_lacks():
    class Half(Activation):
        pass

    with pytest.raises(TypeError, match=r"Half defines no activate\(self, X\)"):
        Half()(pt.vector("x"))


@pytest.mark.backends("numba", "c", "jax", "mlx", "pytorch")
def test_every_backend_computes_the_same_activations(backend, float32):
    X = pt.matrix("X", shape=(None, 5))
    program = ptml.function([X], [activation(X) for activation in EVERY], backend=backend)
    x = np.random.default_rng(0).normal(scale=3.0, size=(3, 5)).astype("float32")
    x[0] = [-1000.0, 1000.0, 0.0, -30.0, 1.0]
    values = [value for _, value, *_ in ELEMENTWISE + ROWWISE]
    for activation, got, value in zip(EVERY, program(x), values, strict=True):
        assert np.asarray(got).dtype == "float32"
        wanted = value(x.astype("float64"))
        np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-4, atol=1e-5, err_msg=repr(activation))
    x[:] = np.nan
    for activation, got in zip(EVERY, program(x), strict=True):
        assert np.isnan(np.asarray(got)).all(), activation
