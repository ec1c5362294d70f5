"""What a training step tells of itself: norms and learning rates, as they were."""

from __future__ import annotations

import math

import numpy as np
import pytensor.tensor as pt
import pytest

import ptml
from ptml.layers import Input, Linear
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import (
    adam,
    chain,
    clip_by_global_norm,
    compile_train,
    cosine_schedule,
    global_norm,
    partition,
    reduce_on_plateau,
    scalar_state,
    sgd,
)
from ptml_state import Role


def _step(rule, **options):
    X = Input("X", shape=(None, 2))
    fc = Linear("fc", n_in=2, n_out=1, weight_initializer=ptml.initializers.Zeros())
    loss, _ = supervised_loss(fc(X), SquaredError())
    return compile_train(loss, rule, seed=0, **options)


# The prediction is 0 and the target 1 for one row of (3, 4): the gradient is -2 (3, 4) and -2.
BATCH = (np.array([[3.0, 4.0]]), np.array([[1.0]]))
NORM = 2 * math.sqrt(9 + 16 + 1)


@pytest.mark.backends("numba", "c", "jax", "pytorch")
def test_norms_are_of_the_gradient_and_of_the_step_that_is_made(backend):
    rule = chain(clip_by_global_norm(1.0), sgd(0.5))
    step = _step(rule, observe=["gradient_norm", "update_norm", "learning_rate"], backend=backend)
    loss, told = step(*BATCH)
    assert float(loss) == 1.0
    np.testing.assert_allclose(told["gradient_norm"], NORM, rtol=1e-12)
    np.testing.assert_allclose(told["update_norm"], 0.5, rtol=1e-12)
    assert told["learning_rate"] == 0.5


def test_the_rate_is_that_of_the_clock_and_of_the_leaf():
    scale = scalar_state("scale", 1.0)
    rule = reduce_on_plateau(
        sgd(lambda count: scale * 0.1 / (1 + count)), scale, factor=0.5, patience=1, rtol=0.0
    )
    step = _step(rule, observe=["learning_rate"])
    rates = []
    for k in range(3):
        if k == 2:
            step.store.set({"scale": 10.0})
        rates.append(float(step(*BATCH)[1]["learning_rate"]))
    np.testing.assert_allclose(rates, [0.1, 0.1 / 2, 10 * 0.1 / 3], rtol=1e-12)


def test_several_rules_have_a_rate_each():
    rule = partition({"fc/W": adam(cosine_schedule(1e-2, 10)), "fc/b": sgd(0.1)})
    _, told = _step(rule, observe=["learning_rate"])(*BATCH)
    assert {name: float(value) for name, value in told.items()} == {
        "learning_rate/adam": 1e-2,
        "learning_rate/sgd": 0.1,
    }


def test_named_outputs_come_last_in_a_dict():
    X = Input("X", shape=(None, 2))
    fc = Linear("fc", n_in=2, n_out=1)
    prediction = fc(X)
    loss, _ = supervised_loss(prediction, SquaredError())
    step = compile_train(loss, sgd(0.1), extra_outputs={"mean": prediction.mean()}, seed=0)
    _, told = step(*BATCH)
    assert list(told) == ["mean"]
    both = compile_train(loss, sgd(0.1), extra_outputs=[prediction], observe=["update_norm"], seed=0)
    _, predicted, told = both(*BATCH)
    assert (predicted.shape, list(told)) == ((1, 1), ["update_norm"])


def test_a_rate_that_the_batch_decides_is_known():
    X = Input("X", shape=(None, 2))
    loss, _ = supervised_loss(Linear("fc", n_in=2, n_out=1)(X), SquaredError())
    by_batch = compile_train(loss, sgd(cosine_schedule(1e-2, 100 // X.shape[0])), seed=0)
    assert by_batch.rates_set_by_data == ("Sgd",)
    assert compile_train(loss, sgd(cosine_schedule(1e-2, 100)), seed=0).rates_set_by_data == ()


def test_what_is_not_there_says_so():
    with pytest.raises(ValueError, match="observe= takes some of 'learning_rate', 'gradient_norm', 'update_"):
        _step(sgd(0.1), observe=["lr"])

    def by_hand(loss, parameters):
        return ptml.optim.Steps(
            {p: -0.1 * g for p, g in zip(parameters, pt.grad(loss, parameters), strict=True)}
        )

    with pytest.raises(ValueError, match="this rule has none"):
        _step(by_hand, observe=["learning_rate"])


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_a_norm_neither_overflows_nor_vanishes(scale):
    norm = global_norm([pt.constant(np.array([3.0, 0.0]) * scale), pt.constant(np.array([[4.0]]) * scale)])
    np.testing.assert_allclose(norm.eval(), 5 * scale, rtol=1e-15)


def test_the_norm_of_nothing_is_zero():
    assert global_norm([]).eval() == 0
    assert global_norm([pt.zeros((0, 3))]).eval() == 0


def test_the_norm_of_the_parameters_is_one_of_handles():
    fc = Linear("fc", n_in=2, n_out=1)
    norm = ptml.compile_predict(global_norm(ptml.slots(fc, Role.PARAMETER)), state=ptml.init(fc, seed=0))
    state = ptml.init(fc, seed=0)
    expected = np.sqrt(sum((value**2).sum() for value in state.values()))
    np.testing.assert_allclose(norm(), expected, rtol=1e-12)
