"""Pruning by magnitude: which weights go, how many, and what is refused."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from ptml_state import Role, State, prune


def weights() -> State:
    rng = np.random.default_rng(0)
    return State(
        {
            "fc1": {"W": rng.normal(size=(10, 7)), "b": rng.normal(size=7)},
            "fc2": {"W": 10 * rng.normal(size=(7, 4)), "b": rng.normal(size=4)},
            "adam/first_moment/fc1/W": rng.normal(size=(10, 7)),
            "adam/step_count": 3,
        },
        roles={"adam": Role.OPTIMIZER},
    )


@pytest.mark.parametrize("share", [0, 0.1, 1 / 3, 0.5, 0.99, 1])
def test_the_least_of_all_weights_together_go(share):
    state = weights()
    pruned = prune(state, share)
    before = np.concatenate([state["fc1/W"].ravel(), state["fc2/W"].ravel()])
    after = np.concatenate([pruned["fc1/W"].ravel(), pruned["fc2/W"].ravel()])
    gone = np.argsort(np.abs(before))[: round(share * before.size)]
    expected = before.copy()
    expected[gone] = 0
    np.testing.assert_array_equal(after, expected)


def test_each_leaf_loses_its_own_share_where_asked():
    pruned = prune(weights(), 0.5, per_leaf=True)
    assert (np.count_nonzero(pruned["fc1/W"]), np.count_nonzero(pruned["fc2/W"])) == (35, 14)
    assert np.count_nonzero(prune(weights(), 0.5)["fc1/W"]) < 35


def test_biases_moments_and_clocks_are_left_alone():
    state = weights()
    assert state.diff(prune(state, 0.5)).changed.keys() <= {"fc1/W", "fc2/W"}


def test_a_selector_says_what_else_is_pruned():
    pruned = prune(weights(), 1, where="**/b")
    assert weights().diff(pruned).changed.keys() == {"fc1/b", "fc2/b"}
    assert not pruned["fc1/b"].any()


def test_pruning_goes_on_from_what_is_zero():
    state = weights()
    assert prune(prune(state, 0.3), 0.6) == prune(state, 0.6)
    assert prune(prune(state, 0.6), 0.3) == prune(state, 0.6)


def test_of_equal_weights_the_first_go_and_the_number_is_exact():
    pruned = prune(State({"W": np.ones((2, 3)), "V": np.ones((2, 2))}), 0.4)
    np.testing.assert_array_equal(pruned["W"], [[0, 0, 0], [0, 1, 1]])
    np.testing.assert_array_equal(pruned["V"], np.ones((2, 2)))


@pytest.mark.parametrize("dtype", ["float16", "float32", ml_dtypes.bfloat16])
def test_dtype_and_role_are_kept(dtype):
    state = State({"W": np.array([[1.0, -0.5]], dtype)})
    pruned = prune(state, 0.5)
    assert pruned["W"].dtype == dtype
    np.testing.assert_array_equal(pruned["W"].astype("float32"), [[1, 0]])
    assert pruned.roles == state.roles
    assert not pruned["W"].flags.writeable


@pytest.mark.parametrize(("share", "error"), [(1.1, ValueError), (-0.1, ValueError), (math.nan, ValueError)])
def test_a_share_outside_of_0_to_1_is_refused(share, error):
    with pytest.raises(error, match="from 0 to 1; got"):
        prune(weights(), share)


def test_a_share_that_is_no_number_is_refused():
    with pytest.raises(TypeError, match="share is the part of the weights"):
        prune(weights(), "half")


def test_what_has_no_weights_is_refused():
    with pytest.raises(ValueError, match=r"no parameter has two axes or more.*the state has fc/b"):
        prune(State({"fc/b": [1.0]}), 0.5)
    with pytest.raises(ValueError, match="'adam/step_count' matches no floating-point leaf"):
        prune(weights(), 0.5, where="adam/step_count")
    with pytest.raises(KeyError, match="'fc3' matches nothing"):
        prune(weights(), 0.5, where="fc3")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused(value):
    with pytest.raises(ValueError, match="'fc2/W' holds 28 numbers that are not finite"):
        prune(weights().replace({"fc2/W": value}), 0.5)


def test_what_is_no_state_is_refused():
    with pytest.raises(TypeError, match="prune takes a state; got dict"):
        prune({"W": np.ones((2, 2))}, 0.5)
