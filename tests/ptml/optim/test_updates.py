"""Updates: amounts are kept, new values derived; and how a loss becomes gradients."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytensor.tensor as pt
import pytest

from ptml.holds import Hold
from ptml.layers import Linear
from ptml.optim import Gradients, Steps, Updates, adam, get_gradients, sgd, steps_of, to_updates
from ptml.optim.transform import as_steps
from ptml_state import Role, Slot, SlotVariable


@pytest.fixture
def p(new_parameter) -> SlotVariable:
    return new_parameter([1.0, 2.0])


@pytest.fixture
def clock() -> SlotVariable:
    return Slot("clock", Role.CLOCK, "int64", (), np.zeros).handle


def test_the_new_value_of_a_parameter_is_the_parameter_plus_its_amount(p, evaluate):
    steps = Steps({p: [0.5, -1.0]})
    np.testing.assert_array_equal(evaluate(steps[p]), [1.5, 1.0])
    assert steps[p] is steps[p]


@pytest.mark.parametrize("rewritten", [False, True])
def test_an_amount_is_kept_and_never_recovered_from_the_sum(new_parameter, run, rewritten):
    weight = new_parameter(1.0, dtype="float32")
    gradients = Gradients({weight: pt.constant(np.float32(1e-9))})
    assert steps_of(gradients, [weight])[0].eval() == np.float32(1e-9)
    options = {"backend": "c"} if rewritten else None
    problem = run(adam(0.1, epsilon=0.0), dtype="float32", options=options, p=[1.0])
    problem([1e-9])
    np.testing.assert_allclose(problem["adam/first_moment/p"], [1e-10], rtol=1e-6)
    np.testing.assert_allclose(problem["p"], [0.9], rtol=1e-6)


def test_updates_are_a_mapping_of_parameters_then_state(p, clock):
    steps = Steps({p: [1.0, 1.0]}, {clock: clock + 1})
    assert list(steps) == [p, clock]
    assert len(steps) == 2
    assert clock in steps
    assert list(steps.amounts) == [p]
    assert list(steps.state) == [clock]


def test_updates_do_not_change(p, clock):
    steps = Steps({p: [1.0, 1.0]})
    steps.amounts.clear()
    steps.state[clock] = clock + 2
    assert list(steps) == [p]
    more = steps.with_state({clock: clock + 1})
    assert (list(steps), list(more)) == ([p], [p, clock])
    other = more.with_amounts({p: [0.0, 0.0]})
    assert list(other) == [p, clock]
    assert other.amounts[p] is not more.amounts[p]
    with pytest.raises(AttributeError):
        steps._amounts = {}


def test_a_kind_is_kept_until_a_rule_decides(p, clock):
    gradients = Gradients({p: [1.0, 1.0]}, {clock: clock + 1})
    assert type(gradients.with_amounts({p: [2.0, 2.0]})) is Gradients
    steps = gradients.to_steps({p: [-0.1, -0.1]})
    assert type(steps) is Steps
    assert list(steps.state) == [clock]


def test_updates_of_no_kind_are_refused(p):
    with pytest.raises(TypeError, match=r"Updates are either Gradients, .*, or Steps"):
        Updates({p: [1.0, 1.0]})


def test_updates_print_as_addresses_and_types(p, clock):
    printed = repr(Steps({p: [1.0, 1.0]}, {clock: clock + 1}))
    assert printed == "Steps({p: float64[2]}, state={clock: int64[]})"
    assert repr(Gradients({p: [1.0, 1.0]})) == "Gradients({p: float64[2]})"


def test_updates_compare_by_identity_and_survive_copies_and_pickles(p):
    steps = Steps({p: [1.0, 1.0]})
    assert steps == steps
    assert steps != Steps({p: [1.0, 1.0]})
    assert len({steps, steps}) == 1
    for other in (copy.deepcopy(steps), pickle.loads(pickle.dumps(steps))):
        assert list(other) == [p]


def test_a_handle_that_is_not_updated_is_named(p, clock):
    with pytest.raises(KeyError, match="clock has no new value among these: p"):
        Steps({p: [1.0, 1.0]})[clock]
    with pytest.raises(KeyError, match="other has no new value among these: p"):
        steps_of(Steps({p: [1.0, 1.0]}), [Slot("other", Role.PARAMETER, "float64", (), np.zeros).handle])


def test_an_amount_of_another_shape_is_refused(p):
    with pytest.raises(ValueError, match=r"'p' is float64\[2\], and the amount given for it is float64\[3\]"):
        Steps({p: np.zeros(3)})
    with pytest.raises(ValueError, match=r"the amount given for it is float64\[\?,\?\]"):
        Gradients({p: pt.matrix("g")})
    with pytest.raises(TypeError, match=r"the amount given for it is complex128\[2\]. An amount is real"):
        Steps({p: np.zeros(2, complex)})


def test_an_amount_of_unknown_length_cannot_stretch_a_parameter_of_length_one(new_parameter):
    narrow = new_parameter([[1.0], [2.0]])
    assert Steps({narrow: pt.matrix("g")})[narrow].type.shape == (2, 1)


@pytest.mark.parametrize(
    ("dtype", "kept"), [("float16", "float32"), ("float32", "float32"), ("float64", "float64")]
)
def test_amounts_are_kept_at_the_dtype_that_rules_compute_in(new_parameter, dtype, kept):
    weight = new_parameter([1.0], dtype=dtype)
    steps = Steps({weight: pt.dvector("step")})
    assert steps.amounts[weight].dtype == kept
    assert steps[weight].dtype == dtype


def test_a_key_that_is_no_handle_is_refused():
    with pytest.raises(TypeError, match=r"Updates is given .* where the handle of a parameter belongs"):
        Steps({pt.vector("p"): [1.0]})


def test_a_loss_is_differentiated(p):
    [gradient] = get_gradients((p**2).sum() / 2, [p])
    assert gradient.ndim == 1


def test_the_gradient_goes_through_layers(evaluate):
    fc = Linear("fc", n_in=2, n_out=1)
    X = pt.constant(np.array([[1.0, 2.0]]))
    gradients = to_updates(fc(X).sum(), [fc.W, fc.b])
    assert repr(gradients) == "Gradients({fc/W: float64[2,1], fc/b: float64[1]})"
    np.testing.assert_array_equal(evaluate(gradients.amounts[fc.W]), [[1.0], [2.0]])
    np.testing.assert_array_equal(evaluate(gradients.amounts[fc.b]), [1.0])


def test_gradients_that_are_known_pass_through(p, new_parameter):
    q = new_parameter(0.0, "q")
    g, h = pt.dvector("g"), pt.dscalar("h")
    assert get_gradients([g, h], [p, q]) == [g, h]
    assert get_gradients((g, h), [p, q]) == [g, h]
    assert get_gradients({q: h, p: g}, [p, q]) == [g, h]
    assert get_gradients(Gradients({p: g, q: h}), [q, p]) == [h, g]


def test_updates_pass_through_as_they_are(p):
    steps = Steps({p: [1.0, 1.0]})
    assert to_updates(steps, [p]) is steps


def test_a_loss_that_is_no_scalar_is_refused(p):
    with pytest.raises(
        ValueError, match=r"A loss is a floating-point scalar; got float64\[2\]. Take its mean\(\)"
    ):
        get_gradients(p**2, [p])
    with pytest.raises(ValueError, match=r"got int64\[\]"):
        get_gradients(pt.lscalar("n"), [p])


def test_parameters_that_the_loss_does_not_reach_are_named(p, new_parameter):
    q, r = new_parameter(0.0, "q"), new_parameter(0.0, "r")
    with pytest.raises(ValueError, match=r"The loss does not depend on q. Leave it out of `parameters`"):
        get_gradients(p.sum(), [p, q])
    with pytest.raises(ValueError, match=r"The loss does not depend on q, r. Leave them out"):
        sgd(0.1)(p.sum(), [q, p, r])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([1.0], ValueError, "1 gradients are given for 2 parameters: p, q. Give one for each, in order"),
        ({}, ValueError, "No gradient is given for p, q"),
        (3.0, TypeError, r"A loss, gradients .* or Updates are wanted; got 3.0 \(float\)"),
        ("loss", TypeError, "A loss, gradients .* are wanted; got 'loss'"),
    ],
)
def test_gradients_that_do_not_match_the_parameters_are_refused(p, new_parameter, given, error, message):
    with pytest.raises(error, match=message):
        get_gradients(given, [p, new_parameter(0.0, "q")])


def test_steps_are_no_gradients(p):
    with pytest.raises(TypeError, match="get_gradients wants gradients, and these are Steps"):
        get_gradients(Steps({p: [1.0, 1.0]}), [p])


def test_lists_of_parameters_are_checked(p, clock):
    loss = p.sum()
    with pytest.raises(TypeError, match="`parameters` is a list of handles"):
        get_gradients(loss, p)
    with pytest.raises(TypeError, match=r"`parameters` is given .* where the handle of a parameter belongs"):
        get_gradients(loss, [pt.vector("W")])
    with pytest.raises(ValueError, match="`parameters` is empty"):
        get_gradients(loss, [])
    with pytest.raises(ValueError, match="`parameters` lists p twice"):
        get_gradients(loss, [p, p])
    with pytest.raises(TypeError, match="'clock' is int64, and only floats have a gradient"):
        get_gradients(loss, [p, clock])


def test_gradients_are_no_training_step(p):
    steps = Steps({p: [1.0, 1.0]})
    assert as_steps(steps) is steps
    with pytest.raises(ValueError, match="What is given as updates ends in gradients"):
        as_steps(Gradients({p: [1.0, 1.0]}))


def test_a_loss_is_kept_as_long_as_the_updates_are_of_it(new_parameter):
    p = new_parameter(1.0)
    loss = p**2
    gradients = to_updates(loss, [p])
    assert gradients.loss is loss
    assert gradients.with_amounts(gradients.amounts).with_state({}).loss is loss
    assert gradients.to_steps(gradients.amounts).loss is loss
    assert to_updates([p], [p]).loss is None


def test_what_a_transform_leaves_out_of_its_updates_is_carried_on(new_parameter):
    p, one, two = new_parameter(1.0), new_parameter(2.0, "one"), new_parameter(3.0, "two")
    hold = Hold(pt.constant(np.bool_(True)))
    ahead = Gradients({p: p}).with_state({one: one + 1}).held_back(hold)
    made = ahead.carried_on(Steps({p: -p}, {two: two + 1}))
    assert isinstance(made, Steps)
    assert list(made.state) == [one, two]
    assert made.holds == (hold,)
    assert made.state[one] is ahead.state[one]
    assert made.state[two].owner.op.hold is hold
    assert ahead.carried_on(ahead) is ahead


def test_settled_updates_show_what_is_written(new_parameter, evaluate):
    p, q = new_parameter([-0.0, 2.0]), new_parameter(1.0, "q")
    for held, expected in ((True, [0.0, 0.0]), (False, [1.0, 1.0])):
        steps = Steps({p: pt.ones(2)}).held_back(Hold(pt.constant(np.bool_(held))))
        settled = steps.with_state({q: q + 1}).settled()
        assert settled.holds == ()
        np.testing.assert_array_equal(np.abs(evaluate(settled.amounts[p])), expected)
        assert evaluate(settled.state[q]) == (1.0 if held else 2.0)
