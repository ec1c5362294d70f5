"""A user's layer: fifteen lines, registered nowhere, that is trained, numbered, saved and predicted with."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytensor.tensor as pt
import pytest

import ptml
from ptml.initializers import Ones, Zeros
from ptml.layers import Checkpoint, Input, Linear, Scanned, Sequential
from ptml.optim import adam, compile_train
from ptml_state import Role, load_state, save_state


class Gated(ptml.Layer):
    n: int
    noise: float = 0.1

    gate = ptml.sublayer(lambda self: Linear(f"{self.name}/gate", n_in=self.n, n_out=self.n))
    scale = ptml.slot(lambda self: ptml.parameter((self.n,), Ones()))
    largest = ptml.slot(lambda self: ptml.statistic((), Zeros()))
    key = ptml.slot(lambda self: ptml.generator())

    def build(self, X):
        noisy = X + self.noise * ptml.random.normal(self.key, X.shape)
        Y = self.scale * pt.sigmoid(self.gate(X)) * ptml.in_training(noisy, X)
        return ptml.advance(Y, {self.largest: pt.maximum(self.largest, abs(Y).max())})


LEAVES = ("scale", "largest", "key", "gate/W", "gate/b")
x = np.random.default_rng(0).normal(size=(6, 3))


def network(*layers):
    X = Input("X", (None, 3))
    return X, Sequential(*layers)(X)


def training(*layers, **options):
    _, Y = network(*layers)
    return compile_train((Y**2).mean(), adam(0.01), **options)


def test_its_state_is_what_it_declares():
    state = ptml.init(Gated("own", n=3), seed=0)
    assert list(state) == [f"own/{leaf}" for leaf in LEAVES]
    assert [leaf.role for leaf in state.leaves][:3] == [Role.PARAMETER, Role.STATISTIC, Role.GENERATOR]
    assert state["own/key"].dtype == "uint32"


def test_layers_without_a_name_are_numbered_with_their_parts():
    state = ptml.init(Sequential(Gated(n=3), Gated(n=3)), seed=0)
    assert list(state) == [f"Gated_{k}/{leaf}" for k in (1, 2) for leaf in LEAVES]


def test_training_draws_and_moves_and_prediction_does_neither():
    layer = Gated("own", n=3)
    step = training(layer, seed=0)
    first = step.state
    losses = [float(step(x)) for _ in range(2)]
    assert losses[0] != losses[1]
    assert step.state["own/largest"] > 0
    assert step.state["own/key"].tolist() == [*first["own/key"][:2].tolist(), 2, 0]
    _, Y = network(layer)
    predict = ptml.compile_predict(Y, state=step)
    W, b = step.state["own/gate/W"], step.state["own/gate/b"]
    wanted = step.state["own/scale"] / (1 + np.exp(-(x @ W + b))) * x
    np.testing.assert_allclose(predict(x), wanted, rtol=1e-12)
    before = step.state["own/key"]
    predict(x)
    np.testing.assert_array_equal(step.store.state["own/key"], before)


def test_a_second_application_goes_on_from_the_first():
    layer = Gated("own", n=3, noise=0.0)
    X = Input("X", (None, 3))
    run = ptml.function([X], layer(layer(X)), seed=0)
    y = run(x)
    state = run.state
    once = ptml.function([X], layer(X), state=state)(x)
    assert state["own/largest"] == pytest.approx(max(abs(once).max(), abs(y).max()))


def test_a_run_goes_on_from_its_file_as_if_nothing_had_happened(tmp_path):
    step = training(Gated("own", n=3), seed=0)
    step(x)
    save_state(step.state, tmp_path / "state.safetensors")
    after = step(x)
    again = training(Gated("own", n=3), state=load_state(tmp_path / "state.safetensors"))
    assert again(x) == after
    assert all(np.array_equal(again.state[address], value) for address, value in step.state.items())


def test_it_is_a_value():
    layer = Gated("own", n=3)
    assert repr(layer) == "Gated('own', n=3)"
    assert eval(repr(layer)) == layer == Gated("own", n=3)
    assert hash(layer) == hash(Gated("own", n=3))
    assert layer != Gated("own", n=3, noise=0.2)
    assert copy.replace(layer, n=4) == Gated("own", n=4)
    restored = pickle.loads(pickle.dumps(layer))
    assert restored == layer
    assert list(ptml.init(restored, seed=0)) == list(ptml.init(layer, seed=0))


def test_a_file_of_it_needs_its_class_under_a_name():
    with pytest.raises(ptml.ConfigError, match=r"Gated is not registered.*@ptml\.register"):
        ptml.to_config(Gated("own", n=3))


def test_layers_around_layers_take_it():
    apart = training(Gated("own", n=3), seed=0)
    around = training(Checkpoint(Gated("own", n=3)), state=ptml.init(Gated("own", n=3), seed=0))
    apart.store.set(dict(around.state.items()))
    assert float(apart(x)) == pytest.approx(float(around(x)), rel=1e-12)
    looped = training(Scanned(2, Gated("own", n=3)), seed=0)
    assert np.isfinite(looped(x))
    assert (looped.state["own/largest"] > 0).all()


def test_names_that_are_not_its_fields_are_refused():
    with pytest.raises(TypeError, match=r"Gated has no argument 'nois'\. Did you mean 'noise'"):
        Gated("own", n=3, nois=0.1)
    with pytest.raises(TypeError, match=r"Gated's `name` must be a string; got 3\. Write Gated\(n=3\)"):
        Gated(3)
