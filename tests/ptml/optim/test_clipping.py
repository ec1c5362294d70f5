"""Clips: bounds that hold at any size of finite numbers, and what becomes of infinite ones."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pytensor.graph.replace import clone_replace

from ptml import function
from ptml.initializers import Zeros
from ptml.optim import Gradients, chain, clip_by_global_norm, clip_by_value, scalar_state, sgd
from ptml_state import Role, Slot


@pytest.fixture(
    scope="module", params=[{"mode": "FAST_COMPILE"}, {"backend": "c"}], ids=["plain", "rewritten"]
)
def clip32(request):
    """A compiled clip to norm 1 of a float32 vector and matrix together."""
    p = Slot("p", Role.PARAMETER, "float32", (3,), Zeros()).handle
    W = Slot("W", Role.PARAMETER, "float32", (2, 2), Zeros()).handle
    g, h = pt.fvector("g"), pt.fmatrix("h")
    clipped = clip_by_global_norm(1.0)([g, h], [p, W]).amounts
    return function([g, h], [clipped[p], clipped[W]], seed=0, **request.param)


def test_one_factor_brings_the_norm_of_all_parameters_to_the_bound(run):
    problem = run(chain(clip_by_global_norm(2.5), sgd(1.0)), p=[0.0, 0.0], q=0.0)
    problem([3.0, 0.0], 4.0)
    np.testing.assert_allclose(problem["p"], [-1.5, 0.0])
    np.testing.assert_allclose(problem["q"], -2.0)


def test_what_is_within_the_bound_is_as_it_was_bit_for_bit(clip32):
    g, h = np.float32([0.1, -0.2, 0.3]), np.float32([[1e-20, 0.4], [0.0, -0.5]])
    for given_, clipped in zip((g, h), clip32(g, h), strict=True):
        np.testing.assert_array_equal(clipped, given_)


def test_all_zeros_stay_zeros(clip32):
    for clipped in clip32(np.zeros(3, "float32"), np.zeros((2, 2), "float32")):
        assert not clipped.any()


@pytest.mark.parametrize("options", [None, {"backend": "c"}])
def test_large_finite_gradients_are_clipped_and_not_erased(run, options):
    problem = run(chain(clip_by_global_norm(1.0), sgd(1.0)), dtype="float32", options=options, p=[0.0, 0.0])
    problem([3e20, 4e20])
    np.testing.assert_allclose(problem["p"], [-0.6, -0.8], rtol=1e-6)
    problem([-3e38, -3e38])
    np.testing.assert_allclose(problem["p"], np.float32([-0.6, -0.8]) + np.sqrt(0.5), rtol=1e-5)


def test_one_infinite_coordinate_zeroes_the_rest_and_becomes_nan(clip32):
    clipped, other = clip32(np.float32([1.0, np.inf, 2.0]), np.ones((2, 2), "float32"))
    np.testing.assert_array_equal(clipped, [0.0, np.nan, 0.0])
    assert not other.any()


def test_nan_spreads_to_everything(clip32):
    clipped, other = clip32(np.float32([1.0, np.nan, 2.0]), np.ones((2, 2), "float32"))
    assert np.isnan(clipped).all()
    assert np.isnan(other).all()


@given(
    arrays("float32", 3, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
    arrays("float32", (2, 2), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
)
def test_any_finite_gradient_keeps_its_direction_and_obeys_the_bound(clip32, g, h):
    wide = np.concatenate([g.ravel(), h.ravel()]).astype("float64")
    norm = np.linalg.norm(wide)
    expected = wide / max(norm, 1.0)
    clipped = np.concatenate([part.ravel() for part in clip32(g, h)])
    assert clipped.dtype == np.float32
    np.testing.assert_allclose(clipped, expected, rtol=1e-5, atol=1e-38)


def test_mixed_dtypes_have_one_norm_and_keep_their_own(new_parameter):
    p, q = new_parameter([0.0], "p", "float32"), new_parameter([0.0], "q", "float64")
    amounts = clip_by_global_norm(1.0)([pt.constant([3.0]), pt.constant([4.0])], [p, q]).amounts
    assert (amounts[p].dtype, amounts[q].dtype) == ("float32", "float64")
    np.testing.assert_allclose(amounts[p].eval(), [0.6], rtol=1e-6)
    np.testing.assert_allclose(amounts[q].eval(), [0.8], rtol=1e-15)


def test_an_empty_parameter_is_no_obstacle(new_parameter):
    p, q = new_parameter(np.zeros((0, 2)), "p"), new_parameter(0.0, "q")
    amounts = clip_by_global_norm(1.0)([pt.zeros((0, 2)), pt.constant(5.0)], [p, q]).amounts
    assert amounts[q].eval() == 1.0
    assert list(amounts) == [p, q]
    assert list(clip_by_global_norm(1.0)([pt.zeros((0, 2))], [p]).amounts) == [p]


def test_the_bound_may_be_a_state_leaf_or_infinite(run):
    problem = run(chain(clip_by_global_norm(scalar_state("bound", 1.0)), sgd(1.0)), p=0.0)
    problem(5.0)
    problem.program.store.set({"bound": 2.0})
    problem(5.0)
    np.testing.assert_allclose(problem["p"], -3.0)
    np.testing.assert_allclose(
        run(chain(clip_by_global_norm(np.inf), sgd(1.0)), p=0.0).follow([1e300]), [-1e300]
    )


def test_an_impossible_bound_is_refused_in_the_graph_when_it_is_symbolic(new_parameter):
    p = new_parameter(0.0)
    bound = pt.dscalar("bound")
    amount = clip_by_global_norm(bound)([pt.constant(5.0)], [p]).amounts[p]
    assert amount.eval({bound: 2.5}) == 2.5
    with pytest.raises(ValueError, match=r"ClipByGlobalNorm: max_norm must be a positive number"):
        amount.eval({bound: 0.0})


@pytest.mark.parametrize("bound", [0, -1.0, np.nan])
def test_an_impossible_bound_is_refused_when_the_clip_is_made(bound):
    with pytest.raises(ValueError, match=r"ClipByGlobalNorm: max_norm must be a positive number; got"):
        clip_by_global_norm(bound)


def test_values_are_clamped_one_by_one(run):
    problem = run(chain(clip_by_value(-0.5, 2.0), sgd(1.0)), p=[0.0, 0.0, 0.0])
    problem([-3.0, 1.0, np.inf])
    np.testing.assert_array_equal(problem["p"], [0.5, -1.0, -2.0])


def test_the_default_bounds_are_one(run):
    np.testing.assert_array_equal(
        run(chain(clip_by_value(), sgd(1.0)), p=0.0).follow([7.0, -7.0]), [-1.0, 0.0]
    )


def test_bounds_the_wrong_way_round_are_refused(new_parameter):
    with pytest.raises(ValueError, match=r"min_value must not be above max_value; got 1\.0 and -1\.0"):
        clip_by_value(1.0, -1.0)
    with pytest.raises(ValueError, match="max_value must be a number; got nan"):
        clip_by_value(max_value=np.nan)
    p, low = new_parameter(0.0), pt.dscalar("low")
    amount = clip_by_value(low, 1.0)([pt.constant(0.0)], [p]).amounts[p]
    assert amount.eval({low: 0.5}) == 0.5
    with pytest.raises(ValueError, match="min_value must not be above max_value, and these, which the graph"):
        amount.eval({low: 2.0})


def test_a_clip_gives_back_the_kind_it_was_given(new_parameter):
    p = new_parameter(0.0)
    for clip in (clip_by_global_norm(), clip_by_value()):
        assert type(clip([p], [p])) is Gradients
        assert clone_replace([clip([p], [p])[p]], {})[0].dtype == "float64"
