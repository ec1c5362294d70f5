"""L-BFGS: where it arrives, what it keeps, and that every trial of a step sees the same loss."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from scipy.optimize import fmin_l_bfgs_b

from ptml.activations import Tanh
from ptml.initializers import Constant
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import (
    Lbfgs,
    add_weight_decay,
    chain,
    clip_by_global_norm,
    compile_train,
    lbfgs,
    lbfgs_updates,
    linear_schedule,
    scalar_state,
    scale,
    sgd,
)
from ptml_state import Role, Slot, where

NUMBA = {"backend": "numba"}
#: No rewrites: what the graph says is what is computed.
PLAIN = {"compile_kwargs": {"mode": Mode(linker="py", optimizer="fast_compile")}}


@pytest.fixture(autouse=True)
def no_compiler(request) -> Iterator[None]:
    """Compile the inside of a loop for Python too: PyTensor compiles it to C else."""
    wanted = pytensor.config.cxx if "backend" in request.fixturenames else ""
    with pytensor.config.change_flags(cxx=wanted):
        yield


def parameter(value, name="p", dtype="float64"):
    start = np.asarray(value, dtype)
    return Slot(name, Role.PARAMETER, dtype, start.shape, Constant(start)).handle


def rosenbrock(p):
    return 100 * (p[1] - p[0] ** 2) ** 2 + (1 - p[0]) ** 2


def follow(step, steps, address="p"):
    visited = []
    for _ in range(steps):
        step()
        visited.append(step.state[address])
    return np.array(visited)


def test_at_the_optimum_it_stays_and_on_rosenbrock_it_arrives():
    p = parameter([1.0, 2.0])
    step = compile_train(((p - np.array([1.0, 2.0])) ** 2).sum(), lbfgs(), seed=0, **NUMBA)
    assert follow(step, 4).tolist() == [[1.0, 2.0]] * 4
    assert all(np.isfinite(value).all() for value in step.state.values())

    q = parameter([-1.2, 1.0])
    step = compile_train(rosenbrock(q), lbfgs(), seed=0, **NUMBA)
    there = follow(step, 60)[-1]
    np.testing.assert_allclose(there, [1.0, 1.0], atol=1e-6)
    after = follow(step, 20)
    assert np.isfinite(after).all()
    np.testing.assert_allclose(after, np.tile(there, (20, 1)), rtol=0, atol=1e-8)


@pytest.mark.usefixtures("float32")
def test_in_float32_it_arrives_as_far_as_float32_can_tell():
    q = parameter([-1.2, 1.0], dtype="float32")
    step = compile_train(rosenbrock(q), lbfgs(), seed=0, **NUMBA)
    visited = follow(step, 80)
    np.testing.assert_allclose(visited[-1], [1.0, 1.0], atol=2e-4)
    assert {value.dtype for value in step.state.values()} == {np.dtype("float32")}
    assert np.isfinite(visited).all()


@pytest.mark.usefixtures("float32")
@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_every_backend_takes_the_same_steps(backend):
    q, r = parameter([-1.2, 1.0], dtype="float32"), parameter(2.0, "r", "float32")
    step = compile_train(
        rosenbrock(q) + (r - q[0]) ** 4, lbfgs(memory_size=2, max_linesearch_steps=8), seed=0, backend=backend
    )
    visited = follow(step, 6)
    # The same, worked out in float64 by the plain graph.
    q, r = parameter([-1.2, 1.0]), parameter(2.0, "r")
    plain = compile_train(
        rosenbrock(q) + (r - q[0]) ** 4, lbfgs(memory_size=2, max_linesearch_steps=8), seed=0, **NUMBA
    )
    np.testing.assert_allclose(visited, follow(plain, 6), rtol=2e-3)
    np.testing.assert_allclose(step.state["r"], plain.state["r"], rtol=2e-3)


def logistic(rows=200, features=6):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, features)) * np.array([1, 10, 0.1, 1, 3, 1])
    y = np.sign(x @ rng.normal(size=features) + rng.normal(size=rows))
    return x, y


def test_it_finds_the_minimum_that_scipy_and_optax_find():
    import jax
    import jax.numpy as jnp
    import optax

    x, y = logistic()

    def value(w, softplus=lambda z: np.logaddexp(0.0, z)):
        return softplus(-y * (x @ w)).mean() + 1e-3 * (w**2).sum()

    def value_and_gradient(w):
        pull = -y / (1 + np.exp(y * (x @ w)))
        return value(w), x.T @ pull / len(y) + 2e-3 * w

    _, lowest, _ = fmin_l_bfgs_b(value_and_gradient, np.zeros(6), factr=10.0, pgtol=1e-13)

    w = parameter(np.zeros(6), "w")
    step = compile_train(value(w, pt.softplus), lbfgs(), seed=0, **NUMBA)
    ours = [float(step()) for _ in range(60)]

    with jax.enable_x64(True):
        rule = optax.lbfgs()
        loss = lambda p: value(p, jax.nn.softplus)  # noqa: E731
        place = jnp.zeros(6)
        kept = rule.init(place)
        theirs = []
        step_of_optax = jax.jit(
            lambda p, s: rule.update(
                jax.grad(loss)(p), s, p, value=loss(p), grad=jax.grad(loss)(p), value_fn=loss
            )
        )
        for _ in range(60):
            theirs.append(float(loss(place)))
            updates, kept = step_of_optax(place, kept)
            place = optax.apply_updates(place, updates)

    assert abs(ours[-1] - lowest) < 1e-12
    assert abs(theirs[-1] - lowest) < 1e-8
    # Not slower than optax to be within 1e-8 of it.
    reach = [next(k for k, v in enumerate(values) if v - lowest < 1e-8) for values in (ours, theirs)]
    assert reach[0] <= reach[1] + 3


def test_each_step_satisfies_the_strong_wolfe_conditions():
    q = parameter([-1.2, 1.0])
    step = compile_train(rosenbrock(q), lbfgs(), seed=0, **NUMBA)

    def at(p):
        gradient = [-400 * p[0] * (p[1] - p[0] ** 2) - 2 * (1 - p[0]), 200 * (p[1] - p[0] ** 2)]
        return 100 * (p[1] - p[0] ** 2) ** 2 + (1 - p[0]) ** 2, np.array(gradient)

    before = np.array([-1.2, 1.0])
    for after in follow(step, 30):
        (f, g), (f_after, g_after), move = at(before), at(after), after - before
        assert f_after <= f + 1e-4 * (g @ move)
        assert abs(g_after @ move) <= 0.9 * abs(g @ move)
        before = after


def test_a_quadratic_of_n_unknowns_takes_about_n_steps():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(8, 8))
    matrix = root @ root.T + 0.1 * np.eye(8)
    target = rng.normal(size=8)
    p = parameter(np.zeros(8))
    step = compile_train(0.5 * p @ pt.constant(matrix) @ p - target @ p, lbfgs(), seed=0, **NUMBA)
    np.testing.assert_allclose(follow(step, 40)[-1], np.linalg.solve(matrix, target), rtol=1e-6)


def test_the_parameters_are_one_vector_whatever_their_shapes():
    one, two, three = parameter([-1.2, 1.0]), parameter([[-1.2]], "a"), parameter(1.0, "b")
    together = compile_train(rosenbrock(one), lbfgs(), seed=0, **PLAIN)
    apart = compile_train(rosenbrock([two[0, 0], three]), lbfgs(), parameters=[two, three], seed=0, **PLAIN)
    for place in follow(together, 8):
        apart()
        np.testing.assert_allclose([apart.state["a"].item(), apart.state["b"]], place, rtol=1e-9)
    assert apart.state["lbfgs/position_changes/a"].shape == (10, 1, 1)
    assert apart.state["lbfgs/gradient_changes/b"].shape == (10,)


def test_it_resumes_bit_for_bit():
    def fresh(state=None):
        q = parameter([-1.2, 1.0])
        return compile_train(rosenbrock(q), lbfgs(memory_size=4), state=state, seed=0, **NUMBA)

    whole, first = fresh(), fresh()
    expected = follow(whole, 20)[10:]
    follow(first, 10)
    np.testing.assert_array_equal(follow(fresh(first.state), 10), expected)


def network():
    net = Sequential(
        Linear("fc1", n_in=2, n_out=6),
        BatchNorm("bn", n_in=6),
        Tanh(),
        Dropout("drop", p=0.3),
        Linear("fc2", n_in=6, n_out=1),
    )
    loss, _ = supervised_loss(net(Input("X", shape=(None, 2))), SquaredError())
    return loss


def test_every_trial_of_a_step_sees_one_mask_and_statistics_move_once():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2))
    y = x[:, :1] * x[:, 1:]
    loss = network()
    step = compile_train(loss, lbfgs(), seed=0, **NUMBA)
    plain = compile_train(loss, sgd(0.0), state=step.state.select(~where("lbfgs/**")), **NUMBA)
    for _ in range(12):
        before = step.state
        value = step(x, y)
        after = step.state
        plain.store.load(before.select(~where("lbfgs/**")))
        assert plain(x, y) == pytest.approx(float(value), rel=1e-10)
        for address in ("bn/running_mean", "bn/running_var", "drop/key"):
            np.testing.assert_allclose(plain.state[address], after[address], rtol=1e-12)
        # With the masks of that very step the new parameters have a lower loss.
        if after["lbfgs/step_length"] > 0:
            moved = {a: after[a] for a in before.select(Role.PARAMETER)}
            plain.store.load(before.select(~where("lbfgs/**")).replace(moved))
            assert float(plain(x, y)) < float(value)
    assert after["drop/key"][2] == 12


def test_where_nothing_lessens_the_loss_no_step_is_made_and_curvature_is_learnt_anew():
    # The gradient is of the wrong sign, so that the loss rises along every direction that it gives.
    p = parameter(1.0)
    wrong = pytensor.gradient.disconnected_grad(2 * p**2) - p**2
    step = compile_train(wrong, lbfgs(), seed=0, **PLAIN)
    state = step.state.replace(
        {"lbfgs/position_changes/p": np.ones(10), "lbfgs/gradient_changes/p": np.ones(10)}
    )
    step.store.load(state)
    step()
    after = step.state
    assert (after["p"], after["lbfgs/step_length"]) == (1.0, 0.0)
    assert not after["lbfgs/position_changes/p"].any()
    assert not after["lbfgs/gradient_changes/p"].any()


def test_a_loss_that_is_no_number_moves_nothing_and_forgets_nothing():
    X = pt.dvector("X")
    p = parameter([2.0, 2.0])
    step = compile_train(((p - 1) ** 4 * X).sum(), lbfgs(), seed=0, **PLAIN)
    for _ in range(3):
        step([1.0, 1.0])
    before = step.state
    assert math.isnan(step([math.nan, 1.0]))
    after = step.state
    for address in ("p", "lbfgs/position_changes/p", "lbfgs/gradient_changes/p"):
        np.testing.assert_array_equal(after[address], before[address])


def test_the_rate_is_the_first_length_tried():
    p = parameter([3.0])
    # At the first step it is divided by the gradient's norm, 6: half a unit from 3.
    step = compile_train((p**2).sum(), lbfgs(0.5, curvature=0.95), seed=0, **PLAIN)
    np.testing.assert_allclose(follow(step, 1), [[2.5]])
    rate = scalar_state("rate", 0.5)
    live = compile_train((p**2).sum(), lbfgs(rate, curvature=0.95), seed=0, **PLAIN)
    np.testing.assert_allclose(follow(live, 1), [[2.5]])
    driven = compile_train((p**2).sum(), lbfgs(linear_schedule(0.5, 4), curvature=0.95), seed=0, **PLAIN)
    np.testing.assert_allclose(follow(driven, 1), [[2.5]])
    assert driven.state["lbfgs/step_count"] == 1


def test_a_transform_behind_it_acts_on_the_step():
    p = parameter([3.0])
    rule = chain(lbfgs(0.5, curvature=0.95), scale(0.5))
    np.testing.assert_allclose(follow(compile_train((p**2).sum(), rule, seed=0, **PLAIN), 1), [[2.75]])


def test_it_needs_the_loss_and_its_very_gradient():
    p = parameter([1.0, 2.0])
    loss = (p**2).sum()
    with pytest.raises(ValueError, match=r"is given gradients alone.*compile_train\(loss, lbfgs\(\)\)"):
        lbfgs()([2 * p], [p])
    for ahead in (clip_by_global_norm(1.0), add_weight_decay(0.1)):
        with pytest.raises(ValueError, match=r"a transform ahead of it has made another of it for p\."):
            chain(ahead, lbfgs())(loss, [p])
    assert len(lbfgs_updates(loss, [p], memory_size=3)) == 4


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: lbfgs(-1.0), ValueError, r"Lbfgs: learning_rate must be a finite number of 0 or more"),
        (lambda: lbfgs(memory_size=0), ValueError, r"memory_size must be a positive integer; got 0"),
        (
            lambda: lbfgs(max_linesearch_steps=0),
            ValueError,
            r"max_linesearch_steps must be a positive integer",
        ),
        (lambda: lbfgs(memory_size=pt.lscalar("m")), TypeError, r"memory_size must be a positive integer"),
        (lambda: lbfgs(decrease=0.0), ValueError, r"decrease must be a number in \(0, 1\); got 0\.0"),
        (lambda: lbfgs(curvature=1.0), ValueError, r"curvature must be a number in \(0, 1\); got 1\.0"),
        (
            lambda: lbfgs(decrease=0.5, curvature=0.1),
            ValueError,
            r"decrease must be below curvature; got 0\.5",
        ),
    ],
)
def test_an_impossible_hyperparameter_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_it_is_a_value():
    rule = lbfgs(0.5, memory_size=4)
    assert repr(rule) == "Lbfgs(0.5, 4)"
    assert eval(repr(rule), {"Lbfgs": Lbfgs}) == rule
    assert rule == Lbfgs(learning_rate=0.5, memory_size=4)
