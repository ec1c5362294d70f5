"""Ensembles: each member computes what it computes by itself, whatever it remembers."""

from __future__ import annotations

import numpy as np
import pytensor
import pytest

import ptml
from ptml.activations import Tanh
from ptml.layers import BatchNorm, Dropout, Embedding, Input, LayerNorm, Linear, Sequential
from ptml.loss import CrossEntropy, SquaredError, supervised_loss
from ptml.optim import (
    adam,
    chain,
    clip_by_global_norm,
    compile_train,
    cosine_schedule,
    nonfinite,
    sgd,
    skip_if,
)

RNG = np.random.default_rng(0)
ROWS, LABELS = RNG.normal(size=(12, 3)), RNG.integers(0, 2, 12)


def _parts():
    net = Sequential(
        Linear("fc1", n_in=3, n_out=8, bias=False), BatchNorm("bn", n_in=8), Tanh(), Dropout("drop", p=0.4),
        LayerNorm("norm", n_in=8), Linear("fc2", n_in=8, n_out=2),
    )  # fmt: skip
    logits = net(Input("X", shape=(None, 3)))
    loss, _ = supervised_loss(logits, CrossEntropy(expect_logits=True))
    rule = skip_if(chain(clip_by_global_norm(1.0), adam(cosine_schedule(1e-2, 10))), nonfinite())
    return logits, loss, rule


def test_members_are_what_they_are_by_themselves(backend):
    rows, floatx = (ROWS.astype("float32"), "float32") if backend == "mlx" else (ROWS, "float64")
    tolerance = 1e-4 if backend == "mlx" else 1e-9
    with pytensor.config.change_flags(floatX=floatx):
        _, loss, rule = _parts()
        step = compile_train(loss, rule, seed=0, backend=backend)
        ensemble = ptml.vectorize(step, seeds=[3, 5])
        losses = [ensemble(rows, LABELS) for _ in range(3)]
        members = ptml.unstack_members(ensemble.state)
        for k, seed in enumerate([3, 5]):
            own = compile_train(loss, rule, seed=seed, backend=backend)
            for of_all in losses:
                np.testing.assert_allclose(of_all[k], own(rows, LABELS), rtol=tolerance)
            assert own.state.allclose(members[k], rtol=tolerance, atol=tolerance)
            assert (own.state["drop/key"] == members[k]["drop/key"]).all()
            assert own.state.roles == members[k].roles


def test_members_can_have_data_of_their_own():
    _, loss, rule = _parts()
    step = compile_train(loss, rule, seed=0)
    ensemble = ptml.vectorize(step, seeds=range(2), batched=["X", "target"])
    rows, labels = np.stack([ROWS[:6], ROWS[6:]]), np.stack([LABELS[:6], LABELS[6:]])
    found = ensemble(rows, labels)
    for k in range(2):
        own = compile_train(loss, rule, seed=k)
        np.testing.assert_allclose(found[k], own(rows[k], labels[k]), rtol=1e-12)


def test_states_of_members_start_one_and_predictions_stack():
    logits, loss, rule = _parts()
    steps = [compile_train(loss, rule, seed=seed) for seed in range(3)]
    for step in steps:
        step(ROWS, LABELS)
    predict = ptml.compile_predict(logits, state=steps[0])
    together = ptml.vectorize(predict, seeds=[step.store.state for step in steps])
    found = together(ROWS)
    assert found.shape == (3, 12, 2)
    for k, step in enumerate(steps):
        alone = ptml.compile_predict(logits, state=step)
        np.testing.assert_allclose(found[k], alone(ROWS), rtol=1e-12)


def test_named_results_keep_their_names():
    _, loss, _ = _parts()
    step = compile_train(loss, sgd(0.1), observe=["learning_rate", "update_norm"], seed=0)
    _, told = ptml.vectorize(step, seeds=range(4))(ROWS, LABELS)
    assert told["update_norm"].shape == (4,)
    assert told["learning_rate"] == 0.1


def test_tokens_are_looked_up_in_every_table():
    tokens = Input("tokens", shape=(None, 5), dtype="int64")
    table = Embedding("table", n_embeddings=7, n_features=4)
    predict = ptml.compile_predict(table(tokens), state=ptml.init(table, seed=0))
    ids = np.array([[0, 6, 2, 2, 1]])
    found = ptml.vectorize(predict, seeds=[1, 2])(ids)
    for k, seed in enumerate([1, 2]):
        np.testing.assert_array_equal(found[k], ptml.init(table, seed=seed)["table/W"][ids])


def test_the_program_stays_as_it_is():
    _, loss, rule = _parts()
    step = compile_train(loss, rule, seed=0)
    before = step.store.state
    ptml.vectorize(step, seeds=range(2))(ROWS, LABELS)
    assert step.store.state == before


def test_what_makes_no_ensemble_says_so():
    X = Input("X", shape=(None, 3))
    loss, _ = supervised_loss(Linear("fc", n_in=3, n_out=1)(X), SquaredError())
    step = compile_train(loss, sgd(0.1), seed=0)
    with pytest.raises(ValueError, match="give one seed for each member"):
        ptml.vectorize(step, seeds=[])
    with pytest.raises(ValueError, match="which are X, target; got 'y'"):
        ptml.vectorize(step, seeds=range(2), batched=["y"])
    total = pytensor.shared(0.0, name="total")
    counting = compile_train(loss, sgd(0.1), extra_updates={total: total + 1}, seed=0)
    with pytest.raises(TypeError, match="writes shared variables of PyTensor's own, total"):
        ptml.vectorize(counting, seeds=range(2))


def test_stacks_come_apart_again():
    fc = Linear("fc", n_in=2, n_out=3)
    states = [ptml.init(fc, seed=seed) for seed in range(3)]
    together = ptml.stack_members(states)
    assert together["fc/W"].shape == (3, 2, 3)
    assert ptml.unstack_members(together) == states
    with pytest.raises(ValueError, match=r"is float64\[2, 3\] in the first, and float64\[2, 4\] in member"):
        ptml.stack_members([states[0], ptml.init(Linear("fc", n_in=2, n_out=4), seed=0)])
    with pytest.raises(ValueError, match="no states to stack"):
        ptml.stack_members([])
    with pytest.raises(ValueError, match="'fc/b' has 3 members along its first axis, where 'fc/W' has 2"):
        ptml.unstack_members(states[0])
