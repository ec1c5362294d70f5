"""Weight and spectral normalization: what the weight is, where it starts, how it moves, and taking it out."""

from __future__ import annotations

import pickle

import numpy as np
import pytensor
import pytest

import ptml
from ptml.activations import ReLU, Tanh
from ptml.layers import GRU, Input, Linear, Repeat, Sequential, SpectralNorm, WeightNorm
from ptml.optim import compile_train, sgd
from ptml.surgery import grow, merge_norms
from ptml_state import Role

PLAIN = Sequential(Linear("a", n_in=5, n_out=4), Tanh(), Linear("b", n_in=4, n_out=2))
x = np.random.default_rng(0).normal(size=(6, 5))


def normalized(kind, **options):
    return ptml.replace(PLAIN, Linear, lambda layer: kind(layer, **options))


def predicted(net, state):
    return ptml.compile_predict(net(Input("X", (None, 5))), state=state)(x)


def training(net, state):
    return compile_train(((net(Input("X", (None, 5))) - 1) ** 2).mean(), sgd(0.1), state=state)


def test_the_addresses_of_the_layer_stay_and_it_starts_as_the_layer_itself():
    net, state = normalized(WeightNorm), ptml.init(PLAIN, seed=1)
    started = ptml.init(net, seed=1)
    assert list(started) == ["a/weight_norm/g", "a/W", "a/b", "b/weight_norm/g", "b/W", "b/b"]
    assert all(np.array_equal(started[address], state[address]) for address in state)
    np.testing.assert_allclose(started["a/weight_norm/g"], np.linalg.norm(state["a/W"], axis=0), rtol=1e-14)
    np.testing.assert_allclose(predicted(net, started), predicted(PLAIN, state), rtol=1e-13)


@pytest.mark.parametrize("kind", [WeightNorm, SpectralNorm])
def test_the_state_of_the_layer_by_itself_loads(kind):
    net, state = normalized(kind), ptml.init(PLAIN, seed=1).replace({"a/W": lambda W: 3 * W})
    step = ptml.compile_predict(net(Input("X", (None, 5))), state=state)
    if kind is WeightNorm:
        np.testing.assert_allclose(
            step.state["a/weight_norm/g"], np.linalg.norm(state["a/W"], axis=0), rtol=1e-14
        )
        np.testing.assert_allclose(step(x), predicted(PLAIN, state), rtol=1e-13)
    else:
        singular = np.linalg.svd(state["a/W"])[2]
        assert abs(step.state["a/spectral_norm/u"] @ singular[0]) == pytest.approx(1, abs=1e-3)


def test_only_the_direction_of_the_weight_counts():
    net, state = normalized(WeightNorm), ptml.init(normalized(WeightNorm), seed=1)
    longer = state.replace({"a/W": lambda W: 7 * W, "b/W": lambda W: 0.1 * W})
    np.testing.assert_allclose(predicted(net, longer), predicted(net, state), rtol=1e-12)


def test_the_spectral_norm_of_the_weight_becomes_one():
    net = normalized(SpectralNorm)
    step = training(net, ptml.init(net, seed=1))
    losses = [float(step(x)) for _ in range(50)]
    assert losses[-1] < losses[0]
    _, merged = merge_norms(net, step.state)
    for name in ("a/W", "b/W"):
        assert np.linalg.norm(merged[name], 2) == pytest.approx(1, abs=1e-3)


def test_the_singular_vectors_move_in_training_by_one_iteration_and_stay_in_prediction():
    fc = SpectralNorm(Linear("fc", n_in=5, n_out=4, bias=False))
    state = ptml.init(fc, seed=1)
    rng = np.random.default_rng(0)
    state = state.replace({Role.STATISTIC: lambda value: rng.normal(size=value.shape)})
    u, v, W = state["fc/spectral_norm/u"], state["fc/spectral_norm/v"], state["fc/W"]
    X = Input("X", (None, 5))
    step = ptml.function([X], fc(X), state=state)
    y = step(x)
    new_u = W.T @ v / np.linalg.norm(W.T @ v)
    new_v = W @ new_u / np.linalg.norm(W @ new_u)
    np.testing.assert_allclose(y, x @ W / (new_u @ W.T @ new_v), rtol=1e-12)
    np.testing.assert_allclose(step.state["fc/spectral_norm/u"], new_u, rtol=1e-12)
    np.testing.assert_allclose(step.state["fc/spectral_norm/v"], new_v, rtol=1e-12)
    predict = ptml.compile_predict(fc(X), state=state)
    sigma = u @ W.T @ v
    np.testing.assert_allclose(predict(x), x @ W / (sigma if sigma > 1e-12 else 1.0), rtol=1e-12)
    np.testing.assert_array_equal(predict.state["fc/spectral_norm/u"], u)


def test_the_gradient_takes_the_singular_vectors_as_they_are():
    fc = SpectralNorm(Linear("fc", n_in=3, n_out=2, bias=False))
    state, X = ptml.init(fc, seed=1), Input("X", (None, 3))
    loss = (fc(X) ** 3).sum()
    [slope] = pytensor.grad(loss, [fc.layer.W])
    direction = np.random.default_rng(2).normal(size=(3, 2))
    curved = pytensor.grad((slope * direction).sum(), fc.layer.W)
    run = ptml.function([X], [slope, curved], state=state)
    data = np.random.default_rng(1).normal(size=(4, 3))
    W = state["fc/W"]
    got, got_curved = run(data)
    v = state["fc/spectral_norm/v"]
    u = W.T @ v / np.linalg.norm(W.T @ v)
    v = W @ u / np.linalg.norm(W @ u)

    def value(W):
        return ((data @ (W / (u @ W.T @ v))) ** 3).sum()

    def gradient(W):
        found = np.empty_like(W)
        for index in np.ndindex(W.shape):
            step = np.zeros(W.shape, complex)
            step[index] = 1e-30j
            found[index] = value(W + step).imag / 1e-30
        return found

    np.testing.assert_allclose(got, gradient(W), rtol=1e-9)
    up, down = gradient(W + 1e-6 * direction), gradient(W - 1e-6 * direction)
    np.testing.assert_allclose(got_curved, (up - down) / 2e-6, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [WeightNorm, SpectralNorm])
def test_a_zero_weight_gives_finite_numbers(kind):
    net = normalized(kind)
    step = training(net, ptml.init(net, seed=1).replace({"a/W": 0.0, "b/W": 0.0}))
    assert np.isfinite(step(x))
    assert np.isfinite(step(x))
    assert all(np.isfinite(value).all() for value in step.state.values())
    started = ptml.init(
        kind(Linear("z", n_in=2, n_out=2, weight_initializer=ptml.initializers.Zeros())), seed=0
    )
    assert all(np.isfinite(value).all() for value in started.values())


@pytest.mark.parametrize("kind", [WeightNorm, SpectralNorm])
def test_taking_it_out_leaves_the_function(kind):
    net = normalized(kind)
    step = training(net, ptml.init(net, seed=1))
    for _ in range(3):
        step(x)
    plain, state = merge_norms(net, step.state)
    assert plain == PLAIN
    assert list(state) == ["a/W", "a/b", "b/W", "b/b"]
    np.testing.assert_allclose(predicted(plain, state), predicted(net, step.state), rtol=1e-12)


def test_two_weights_of_one_layer_come_out_together():
    gru = GRU("gru", n_in=3, n_hidden=4)
    net = WeightNorm(WeightNorm(gru, weight="W_ih"), weight="W_hh")
    plain, _ = merge_norms(net, ptml.init(net, seed=0))
    assert plain == gru


def test_what_cannot_be_taken_out_says_why():
    with pytest.raises(ValueError, match="the network has no WeightNorm or SpectralNorm layer"):
        merge_norms(PLAIN, ptml.init(PLAIN, seed=0))
    fc = Linear("fc", n_in=2, n_out=2)
    net = Sequential(WeightNorm(fc), fc)
    with pytest.raises(
        ValueError, match="'fc/W' is normalized by several layers, or used without its own too"
    ):
        merge_norms(net, ptml.init(net, seed=0))
    with pytest.raises(ValueError, match="the state lacks 'fc/W', which the weight 'fc/W' is computed of"):
        merge_norms(WeightNorm(fc), ptml.init(WeightNorm(fc), seed=0).drop("fc/W"))


def test_a_weight_of_a_recurrent_layer_goes_by_its_name():
    gru = WeightNorm(GRU("gru", n_in=3, n_hidden=4), weight="W_hh")
    state = ptml.init(gru, seed=0)
    X = Input("X", (None, 6, 3))
    sequence = np.random.default_rng(0).normal(size=(2, 6, 3))
    got = ptml.compile_predict(gru(X), state=state)(sequence)
    alone = ptml.compile_predict(gru.layer(X), state=state)(sequence)
    np.testing.assert_allclose(got, alone, rtol=1e-12)
    assert state["gru/weight_norm/g"].shape == state["gru/W_hh"].shape[-1:]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: WeightNorm(3), TypeError, r"WeightNorm takes a layer; got 3"),
        (lambda: WeightNorm(ReLU()), ValueError, r"ReLU has no parameter 'W'; it has none"),
        (
            lambda: WeightNorm(Linear("fc", n_in=2, n_out=3), weight="kernel"),
            ValueError,
            r"fc \(Linear\) has no parameter 'kernel'; it has fc/W, fc/b\. Write weight='W'",
        ),
        (lambda: WeightNorm(PLAIN), ValueError, r"'W' stands for a/W, b/W of .*weight='a/W'"),
        (
            lambda: WeightNorm(Linear("fc", n_in=2, n_out=3), weight="b"),
            ValueError,
            r"'b' is of shape \(3,\); a weight has two axes or more",
        ),
        (
            lambda: SpectralNorm(WeightNorm(Linear("fc", n_in=2, n_out=3))),
            ValueError,
            r"'W' is normalized by fc/weight_norm \(WeightNorm\) already",
        ),
        (
            lambda: WeightNorm(Linear("fc", n_in=2, n_out=3), axis=2),
            ValueError,
            r"'W' is of shape \(2, 3\) and has no axis 2",
        ),
        (
            lambda: WeightNorm(Linear("fc", n_in=2, n_out=3), axis=0.5),
            TypeError,
            r"axis must be an integer or None; got 0.5",
        ),
        (
            lambda: SpectralNorm(Linear("fc", n_in=2, n_out=3), axis=None),
            TypeError,
            r"axis must be an integer; got None",
        ),
        (
            lambda: SpectralNorm(Linear("fc", n_in=2, n_out=3), n_power_iterations=0),
            ValueError,
            r"n_power_iterations must be a positive integer; got 0",
        ),
    ],
)
def test_what_cannot_be_normalized_is_refused_by_name(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("kind", [WeightNorm, SpectralNorm])
def test_it_is_a_value(kind):
    net = normalized(kind)
    copy = pickle.loads(pickle.dumps(net))
    assert copy == net
    assert ptml.from_config(ptml.to_config(net)) == net
    first, second = ptml.init(copy, seed=2), ptml.init(net, seed=2)
    assert all(np.array_equal(first[address], second[address]) for address in second)


def test_copies_start_as_copies_of_the_layer_by_itself():
    copies = ptml.init(Repeat(2, WeightNorm(Linear("fc", n_in=3, n_out=3)), name="block"), seed=4)
    alone = ptml.init(Repeat(2, Sequential(Linear("fc", n_in=3, n_out=3)), name="block"), seed=4)
    assert all(np.array_equal(copies[address], alone[address]) for address in alone)


def test_a_wider_layer_keeps_what_was_trained():
    def net(n_out):
        return WeightNorm(Linear("fc", n_in=3, n_out=n_out))

    state = ptml.init(net(2), seed=0).replace({"fc/weight_norm/g": [5.0, 6.0]})
    grown = grow(state, net(3), seed=1)
    np.testing.assert_array_equal(grown["fc/weight_norm/g"][:2], [5.0, 6.0])
    assert grown["fc/weight_norm/g"][2] == pytest.approx(np.linalg.norm(grown["fc/W"][:, 2]))


@pytest.mark.backends("c", "jax", "mlx", "pytorch")
def test_every_backend_trains_them(backend, float32):
    net = Sequential(WeightNorm(Linear("a", n_in=5, n_out=4)), SpectralNorm(Linear("b", n_in=4, n_out=2)))
    X = Input("X", (None, 5))
    loss, state = ((net(X) - 1) ** 2).mean(), ptml.init(net, seed=1)
    steps = [compile_train(loss, sgd(0.1), state=state, backend=name) for name in ("numba", backend)]
    for _ in range(2):
        first, other = (float(step(x.astype("float32"))) for step in steps)
        assert other == pytest.approx(first, rel=1e-5)
    mine, theirs = (step.state for step in steps)
    for address in mine:
        np.testing.assert_allclose(theirs[address], mine[address], rtol=1e-4, atol=1e-5)
