"""The low-rank adapter: what it computes, where its state sits, and what it refuses."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.initializers import Ones
from ptml.layers import Dropout, Input, Linear, LowRank
from ptml_state import Role

PYTHON = Mode(linker="py", optimizer="fast_compile")


def adapted(**options):
    base = Linear("fc", n_in=4, n_out=3)
    return LowRank("fc/low_rank", base=base, **{"rank": 2, **options})


def random_state(layer):
    rng = np.random.default_rng(0)
    return ptml.init(layer, seed=0).map(lambda array: rng.normal(size=array.shape))


@pytest.mark.parametrize(("alpha", "scale"), [(None, 1.0), (2, 1.0), (8.0, 4.0)])
def test_it_adds_the_scaled_product_of_its_factors(alpha, scale):
    layer, X = adapted(alpha=alpha), Input("X", (None, 4))
    state = random_state(layer)
    x = np.random.default_rng(1).normal(size=(5, 4))
    A, B = state["fc/low_rank/A"], state["fc/low_rank/B"]
    expected = x @ (state["fc/W"] + scale * A @ B) + state["fc/b"]
    got = ptml.function([X], layer(X), state=state, mode=PYTHON)(x)
    np.testing.assert_allclose(got, expected, rtol=1e-13)


def test_axes_ahead_of_the_features_are_a_batch():
    layer, X = adapted(), Input("X", (2, None, 4))
    state = random_state(layer)
    x = np.random.default_rng(1).normal(size=(2, 5, 4))
    W = state["fc/W"] + state["fc/low_rank/A"] @ state["fc/low_rank/B"]
    got = ptml.function([X], layer(X), state=state, mode=PYTHON)(x)
    np.testing.assert_allclose(got, x @ W + state["fc/b"], rtol=1e-13)


def test_a_fresh_one_gives_what_its_base_gives():
    layer, X = adapted(), Input("X", (None, 4))
    predict = ptml.function([X], [layer(X), layer.base(X)], state=ptml.init(layer, seed=0), mode=PYTHON)
    mine, of_base = predict(np.random.default_rng(1).normal(size=(5, 4)))
    np.testing.assert_array_equal(mine, of_base)


def test_the_first_factor_starts_within_one_over_the_root_of_its_inputs():
    A = ptml.init(LowRank(base=Linear("fc", n_in=400, n_out=300), rank=100), seed=0)["LowRank/A"]
    assert 0.049 < np.abs(A).max() <= 0.05
    assert abs(A.mean()) < 1e-3
    assert A.std() == pytest.approx(0.05 / np.sqrt(3), rel=0.02)


def test_the_first_factors_initializer_may_be_another():
    assert (ptml.init(adapted(weight_initializer=Ones()), seed=0)["fc/low_rank/A"] == 1).all()


def test_its_factors_and_its_base_are_parameters_at_their_own_addresses():
    state = ptml.init(adapted(), seed=0)
    assert list(state) == ["fc/low_rank/A", "fc/low_rank/B", "fc/W", "fc/b"]
    assert set(state.roles.values()) == {Role.PARAMETER}
    assert list(state.select(LowRank)) == ["fc/low_rank/A", "fc/low_rank/B"]
    assert state["fc/W"].tobytes() == ptml.init(Linear("fc", n_in=4, n_out=3), seed=0)["fc/W"].tobytes()


def test_its_factors_have_the_dtype_of_the_base():
    base = Linear("fc", n_in=4, n_out=3)
    with pytensor.config.change_flags(floatX="float32"):
        assert base.W.type.dtype == "float32"
    assert LowRank(base=base, rank=1).A.type.dtype == "float32"
    X = Input("X", (None, 4), dtype="float32")
    assert LowRank(base=base, rank=1, alpha=0.3)(X).type.dtype == "float32"


def test_it_is_a_value():
    layer = adapted(alpha=4.0)
    assert repr(layer) == "LowRank('fc/low_rank', base=Linear('fc', n_in=4, n_out=3), rank=2, alpha=4.0)"
    assert layer == adapted(alpha=4.0) == pickle.loads(pickle.dumps(layer))
    assert copy.replace(layer, rank=1).base is layer.base
    assert ptml.from_config(ptml.to_config(layer)) == layer


def test_a_base_that_is_no_linear_layer_is_refused():
    with pytest.raises(TypeError, match=r"low \(LowRank\): base must be a Linear layer; got Dropout\('drop'"):
        LowRank("low", base=Dropout("drop", p=0.5), rank=1)
    with pytest.raises(TypeError, match="base has a low-rank adapter already"):
        LowRank("low", base=adapted(), rank=1)


@pytest.mark.parametrize("rank", [0, -1])
def test_a_rank_is_a_positive_integer(rank):
    with pytest.raises(ValueError, match=f"rank must be a positive integer; got {rank}"):
        adapted(rank=rank)


def test_a_rank_above_that_of_the_weight_is_refused():
    with pytest.raises(ValueError, match=r"at most 3, as the weight of fc \(Linear\) is 4 by 3; got 4"):
        adapted(rank=4)


def test_alpha_is_a_positive_number():
    with pytest.raises(ValueError, match="alpha must be a positive number; got 0"):
        adapted(alpha=0)


def test_input_that_does_not_fit_is_refused_by_name():
    with pytest.raises(ValueError, match=r"fc/low_rank.*4 features"):
        adapted()(pt.matrix("X", shape=(None, 5)))
    with pytest.raises(TypeError, match="fc/low_rank"):
        adapted()(pt.matrix("X", dtype="int64"))
