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
from ptml.optim import (
    Gradients,
    adam,
    adaptive_clip,
    add_weight_decay,
    apply_if_finite,
    chain,
    clip_by_global_norm,
    clip_by_norm,
    clip_by_value,
    scalar_state,
    scale,
    sgd,
)
from ptml_state import Role, Slot, where


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


def test_a_clip_does_not_rescue_an_infinite_coordinate_and_a_guard_does(run):
    rule = chain(clip_by_global_norm(1.0), adam(1e-3))
    bare, guarded = run(rule, p=[0.0, 0.0], q=0.0), run(apply_if_finite(rule), p=[0.0, 0.0], q=0.0)
    for problem in (bare, guarded):
        problem([1.0, 1.0], 1.0)
        before = problem.program.state
        problem([np.inf, 1.0], 1.0)
    # The coordinate becomes NaN for good, and the moments of all others take in a zero for what was healthy.
    np.testing.assert_array_equal(np.isnan(bare["p"]), [True, False])
    np.testing.assert_allclose(bare["adam/first_moment/q"], 0.09 / np.sqrt(3))
    kept = {address: value for address, value in guarded.program.state.items() if "skip" not in address}
    for address, value in kept.items():
        np.testing.assert_array_equal(value, before[address])
    guarded([1.0, 1.0], 1.0)
    assert np.isfinite(guarded["p"]).all()


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
    for clip in (clip_by_global_norm(1.0), clip_by_norm(1.0)):
        amounts = clip([pt.zeros((0, 2)), pt.constant(5.0)], [p, q]).amounts
        assert amounts[q].eval() == 1.0
        assert list(amounts) == [p, q]
    assert list(adaptive_clip(1.0)([pt.zeros((0, 2))], [p]).amounts) == [p]
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


@pytest.mark.parametrize(
    ("clip", "argument"),
    [
        (lambda bound: clip_by_norm(bound), "ClipByNorm: max_norm"),
        (lambda bound: adaptive_clip(bound), "AdaptiveClip: clipping"),
        (lambda bound: adaptive_clip(epsilon=bound), "AdaptiveClip: epsilon"),
    ],
)
def test_every_bound_is_checked_when_it_is_given_or_in_the_graph(new_parameter, evaluate, clip, argument):
    for bad in (0, -1.0, np.nan):
        with pytest.raises(ValueError, match=rf"{argument} must be a .*; got"):
            clip(bad)
    p, bound = new_parameter([3.0, 4.0]), pt.dscalar("bound")
    amount = clip(bound)([pt.constant([3.0, 4.0])], [p]).amounts[p]
    assert np.isfinite(evaluate(amount, 0.5)).all()
    with pytest.raises(ValueError, match=rf"{argument} must be a .*, which the graph computes, is not"):
        evaluate(amount, -0.5)


@pytest.mark.parametrize("bound", [0, -1.0, np.nan])
def test_an_impossible_bound_is_refused_when_the_clip_is_made(bound):
    with pytest.raises(ValueError, match=r"ClipByGlobalNorm: max_norm must be a positive number; got"):
        clip_by_global_norm(bound)


def test_each_parameter_has_a_norm_of_its_own(run):
    problem = run(chain(clip_by_norm(1.0), sgd(1.0)), p=[0.0, 0.0], q=0.0)
    problem([3.0, 4.0], 0.5)
    np.testing.assert_allclose(problem["p"], [-0.6, -0.8])
    assert problem["q"] == -0.5


@pytest.mark.parametrize("clip", [clip_by_norm(1.0), clip_by_global_norm(1.0), adaptive_clip(1.0, 1.0)])
@pytest.mark.parametrize("options", [None, {"backend": "c"}, {"backend": "numba"}], ids=["py", "c", "numba"])
def test_every_clip_takes_large_finite_gradients_and_none_erases_a_step(run, clip, options):
    problem = run(chain(clip, sgd(1.0)), dtype="float32", options=options, p=[0.0, 0.0])
    problem([3e20, 4e20])
    np.testing.assert_allclose(problem["p"], [-0.6, -0.8], rtol=1e-6)


@pytest.mark.parametrize("clip", [clip_by_norm(1.0), clip_by_global_norm(1.0), adaptive_clip(1.0, 1.0)])
def test_half_precision_is_clipped_beyond_where_its_squares_end(run, clip):
    problem = run(chain(clip, sgd(1.0)), dtype="float16", p=[0.0, 0.0], q=[[0.0]])
    problem([3e4, 4e4], [[0.0]])
    np.testing.assert_allclose(problem["p"], [-0.6, -0.8], rtol=1e-3)
    assert problem["p"].dtype == np.float16
    assert problem["q"] == 0.0
    small = run(chain(clip, sgd(1.0)), dtype="float16", p=[0.0, 0.0])
    np.testing.assert_array_equal(small.follow([[6e-8, 0.0]]), -np.float16([[6e-8, 0.0]]))


def test_one_infinite_coordinate_spoils_its_own_parameter_alone(run):
    problem = run(chain(clip_by_norm(1.0), sgd(1.0)), p=[0.0, 0.0], q=0.0)
    problem([np.inf, 1.0], 0.5)
    np.testing.assert_array_equal(problem["p"], [np.nan, 0.0])
    assert problem["q"] == -0.5


def test_adaptive_clip_bounds_each_unit_by_a_share_of_its_weights(run):
    weights = np.array([[3.0, 0.0], [4.0, 0.1]])
    problem = run(chain(adaptive_clip(0.1), sgd(1.0)), W=weights)
    problem([[6.0, 0.0], [8.0, 0.005]])
    # The first column is cut to a tenth of its norm of 5; the second is within a tenth of 0.1.
    np.testing.assert_allclose(weights - problem["W"], [[0.3, 0.0], [0.4, 0.005]], atol=1e-15)


def test_adaptive_clip_lets_weights_move_that_start_at_zero(run):
    np.testing.assert_allclose(
        run(chain(adaptive_clip(0.01, 0.5), sgd(1.0)), b=[0.0, 0.0]).follow([[3.0, 4.0]], "b"),
        [[-0.003, -0.004]],
    )


@pytest.mark.parametrize(
    ("shape", "axes"), [((2, 3), 0), ((3, 2, 4), (0, 1)), ((2, 2, 3, 2), (0, 1, 2)), ((4,), None), ((), None)]
)
def test_a_unit_is_what_feeds_one_output(run, shape, axes):
    rng = np.random.default_rng(0)
    weights, gradient = rng.normal(size=shape), rng.normal(size=shape)
    problem = run(chain(adaptive_clip(0.2), sgd(1.0)), W=weights)
    problem(gradient)
    bound = 0.2 * np.sqrt((weights**2).sum(axis=axes, keepdims=True))
    norm = np.sqrt((gradient**2).sum(axis=axes, keepdims=True))
    np.testing.assert_allclose(weights - problem["W"], gradient * np.minimum(1, bound / norm), rtol=1e-12)


def test_adaptive_clip_agrees_with_optax():
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    rng = np.random.default_rng(1)
    kernel, gradient = rng.normal(size=(3, 3, 2, 4)), 5 * rng.normal(size=(3, 3, 2, 4))
    gradient[..., 1] *= 1e-4
    p = Slot("W", Role.PARAMETER, "float64", kernel.shape, Zeros()).handle
    clipped = adaptive_clip(0.03)([pt.constant(gradient)], [p]).amounts[p]
    given_ = pt.dtensor4("W")
    ours = clone_replace([clipped], {p: given_})[0].eval({given_: kernel})
    with jax.enable_x64(True):
        rule = optax.adaptive_grad_clip(0.03)
        theirs, _ = rule.update(jax.numpy.asarray(gradient), rule.init(kernel), jax.numpy.asarray(kernel))
        theirs = np.asarray(theirs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_adaptive_clip_spares_what_its_mask_leaves_out(run):
    problem = run(chain(adaptive_clip(0.1, mask=~where("head")), sgd(1.0)), W=[1.0], head=[1.0])
    problem([5.0], [5.0])
    np.testing.assert_allclose((problem["W"], problem["head"]), ([0.9], [-4.0]))


def test_a_clip_bounds_the_gradient_ahead_of_adam_and_the_step_behind_it(run):
    ahead = run(chain(clip_by_global_norm(1.0), adam(1e-3)), p=0.0)
    behind = run(chain(adam(1e-3), clip_by_global_norm(1.0)), p=0.0)
    for problem in (ahead, behind):
        problem.follow([1.0, 1e6])
    # Ahead, the spike is a gradient like the others; behind, it is in the moments, and the clip does nothing.
    np.testing.assert_allclose(ahead["adam/first_moment/p"], 0.19)
    np.testing.assert_allclose(ahead["adam/second_moment/p"], 0.001999, rtol=1e-12)
    np.testing.assert_allclose(ahead["p"], -0.002, rtol=1e-6)
    np.testing.assert_allclose(behind["adam/first_moment/p"], 100000.09)
    np.testing.assert_allclose(behind["adam/second_moment/p"], 1e9, rtol=1e-6)
    unclipped = run(adam(1e-3), p=0.0)
    np.testing.assert_array_equal(unclipped.follow([1.0, 1e6])[-1], behind["p"])


def test_decay_in_its_three_places_differs_a_thousandfold(run):
    def pulled(*transforms):
        return 1.0 - float(run(chain(*transforms), p=1.0).follow([0.0])[0])

    penalty = pulled(add_weight_decay(0.01), adam(1.0), scale(1e-3))
    by_the_rate = pulled(adam(1.0), add_weight_decay(0.01), scale(1e-3))
    in_full = pulled(adam(1.0), scale(1e-3), add_weight_decay(0.01))
    # As a penalty, the only gradient that there is, adam makes of it a step of its rate whatever its size.
    np.testing.assert_allclose([penalty, by_the_rate, in_full], [1e-3, 1e-5, 1e-2], rtol=1e-6)
    np.testing.assert_allclose(in_full / by_the_rate, 1000.0)


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
    for clip in (clip_by_global_norm(), clip_by_norm(), adaptive_clip(), clip_by_value()):
        assert type(clip([p], [p])) is Gradients
        assert clone_replace([clip([p], [p])[p]], {})[0].dtype == "float64"
