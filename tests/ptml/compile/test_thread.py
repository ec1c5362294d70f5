"""Threading: which draws get which number, which statistics move in which order, what advances at all."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import graph_inputs

import ptml
from ptml.compile.thread import thread
from ptml.initializers import Ones, Zeros
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.optim import compile_train, get_gradients, linear_schedule, sgd
from ptml_state import Role, Slot

PYTHON = Mode(linker="py", optimizer="fast_compile")


class Affine(ptml.Layer):
    """A statistic that goes from s to a * s + X.sum(), so that the order of applications shows."""

    @ptml.slot
    def s(self):
        return ptml.statistic((), Zeros())

    def build(self, X, a=1.0):
        return ptml.advance(X.sum() + 0 * self.s, {self.s: a * self.s + X.sum()})


@pytest.fixture
def X():
    return Input("X", (None, 2))


@pytest.fixture
def x():
    return pt.vector("x")


@pytest.fixture
def no_compiler():
    """Compile the inside of a loop for Python too: PyTensor compiles it to C else."""
    with pytensor.config.change_flags(cxx=""):
        yield


def compiled(outputs, inputs=None, **options):
    return ptml.function(inputs, outputs, seed=0, mode=PYTHON, **options)


def nested(function, *inputs):
    """Wrap a graph in a nested graph of the user's own."""
    inner = [variable.type() for variable in inputs]
    output = function(*inner)
    roots = [r for r in graph_inputs([output]) if r not in inner and not isinstance(r, Constant)]
    return OpFromGraph([*inner, *roots], [output])(*inputs, *roots)


def test_the_applications_of_a_batch_norm_count_in_call_order():
    # Case C12a: means 1 and 3, biased variances 1 and 4, momentum 0.1.
    X, bn = Input("X", (None, 1)), BatchNorm("bn", n_in=1)
    y1 = bn(X)
    y2 = bn(2 * X + 1)
    for outputs in ([y1, y2], [y2, y1], [(y1 + y2).sum()], [y2.sum() - y1.sum()]):
        program = compiled(outputs, [X])
        program(np.array([[0.0], [2.0]]))
        np.testing.assert_allclose(program.state["bn/running_mean"], [0.9 * 0.1 * 1 + 0.1 * 3])
        np.testing.assert_allclose(program.state["bn/running_mean"], [0.39])
        np.testing.assert_allclose(program.state["bn/running_var"], [1.3])


def test_a_second_graph_of_a_batch_norm_depends_on_its_own_input_only():
    # Case C12b.
    X, X2, bn = Input("X", (None, 1)), Input("X2", (None, 1)), BatchNorm("bn", n_in=1)
    fields = repr(bn)
    bn(X)
    second = compiled(bn(X2))
    assert second.inputs == (X2,)
    second(np.array([[0.0], [4.0]]))
    np.testing.assert_allclose(second.state["bn/running_mean"], [0.2])
    np.testing.assert_allclose(second.state["bn/running_var"], [0.9 + 0.4])
    assert repr(bn) == fields


def test_a_batch_norm_of_one_row_is_refused_and_moves_nothing():
    # Case C09.
    X, bn = Input("X", (None, 2)), BatchNorm("bn", n_in=2)
    program = compiled(bn(X), [X])
    before = program.state
    with pytest.raises(ValueError, match=r"bn \(BatchNorm\) takes at least 2 values per channel .* \(1, 2\)"):
        program(np.array([[5.0, 7.0]]))
    assert program.state == before
    X, bn = Input("X", (None, 1)), BatchNorm("bn", n_in=1)
    program = compiled(bn(X), [X])
    np.testing.assert_allclose(
        program(np.array([[0.0], [2.0]])), [[-0.9999950000374997], [0.9999950000374997]]
    )
    np.testing.assert_allclose(program.state["bn/running_var"], [1.0])


def test_each_application_reads_what_the_one_before_it_wrote(x):
    layer = Affine("affine")
    calls = [layer(x), layer(2 * x, a=10.0), layer(3 * x, a=100.0)]
    program = compiled(list(reversed(calls)), [x])
    program([1.0])
    assert program.state["affine/s"] == ((0 + 1) * 10 + 2) * 100 + 3
    program([1.0])
    assert program.state["affine/s"] == ((1203 + 1) * 10 + 2) * 100 + 3


def test_a_later_application_may_depend_on_an_earlier_one(x):
    layer = Affine("affine")
    first = layer(x)
    program = compiled(layer(pt.stack([first, first]), a=10.0), [x])
    program([1.0])
    assert program.state["affine/s"] == 1 * 10 + 2


def test_several_reads_of_a_statistic_outside_its_layer_see_the_value_before_the_call(x):
    layer = Affine("affine")
    program = compiled([layer(x), layer.s, 2 * layer.s], [x])
    program([3.0])
    _, once, twice = program([4.0])
    assert (once, twice) == (3.0, 6.0)
    assert program.state["affine/s"] == 7.0


@pytest.mark.parametrize("depth", [1, 2])
def test_nested_graphs_of_the_users_advance_like_calls(X, depth):
    net = Sequential(BatchNorm("bn", n_in=2), Dropout("drop", p=0.5))
    build = net if depth == 1 else (lambda Z: nested(net, Z))
    plain, wrapped = compiled(net(X), [X]), compiled(nested(build, X), [X])
    x = np.random.default_rng(0).normal(size=(6, 2))
    for _ in range(2):
        np.testing.assert_array_equal(wrapped(x), plain(x))
    assert wrapped.state == plain.state


def test_a_nested_graph_of_the_users_applied_twice_is_one_application_of_its_layers(X):
    # What is copied is the same use: the op holds one call of the layer.
    layer = Dropout("drop", p=0.5)
    inner = X.type()
    output = layer(inner)
    roots = [r for r in graph_inputs([output]) if r is not inner and not isinstance(r, Constant)]
    op = OpFromGraph([inner, *roots], [output])
    one, other = compiled([op(X, *roots), op(2 * X, *roots)], [X])(np.ones((4, 2)))
    np.testing.assert_array_equal(2 * one, other)


GRADIENTS = {
    "pytensor.grad": lambda loss, wrt: pytensor.grad(loss, wrt),
    "get_gradients": get_gradients,
}


@pytest.mark.parametrize("gradients", GRADIENTS)
def test_gradients_see_the_masks_of_the_forward_pass(X, gradients):
    fc, drop = Linear("fc", n_in=2, n_out=3, bias=False), Dropout("drop", p=0.5)
    hidden = drop(fc(X))
    loss = (hidden**2).sum() + drop(hidden).sum()
    program = compiled([*GRADIENTS[gradients](loss, [fc.W]), loss, hidden], [X])
    x = np.random.default_rng(0).normal(size=(4, 2))
    for _ in range(2):
        state = program.state
        gradient, value, kept = program(x)
        first = kept != 0
        again, _ = program.pure(state, x)
        np.testing.assert_array_equal(again[1], value)
        # With the masks held, by finite differences.
        numeric = np.zeros((2, 3))
        for i, j in np.ndindex(2, 3):
            ends = []
            for sign in (1, -1):
                W = state["fc/W"].copy()
                W[i, j] += sign * 1e-6
                ends.append(program.pure(state.replace({"fc/W": W}), x)[0][1])
            numeric[i, j] = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-6)
        assert 0 < first.mean() < 1


def test_both_ways_to_take_gradients_train_alike_and_move_statistics_once(X):
    states = []
    for gradients in GRADIENTS.values():
        fc, bn, drop = Linear("fc", n_in=2, n_out=3), BatchNorm("bn", n_in=3), Dropout("drop", p=0.5)
        loss = (drop(bn(fc(drop(X)))) ** 2).mean() + (bn(2 * fc(X)) ** 3).mean()
        steps = sgd(0.1)(gradients(loss, [fc.W, fc.b]), [fc.W, fc.b])
        program = compiled(loss, [X], updates=steps)
        for seed in range(3):
            program(np.random.default_rng(seed).normal(size=(5, 2)))
        states.append(program.state)
    assert states[0].allclose(states[1], rtol=1e-12)
    np.testing.assert_array_equal(states[0]["drop/key"][2:], [3, 0])


def test_a_gradient_alone_advances_what_it_depends_on(X):
    bn = BatchNorm("bn", n_in=2)
    program = compiled(pytensor.grad((bn(X) ** 3).sum(), X), [X])
    program(np.array([[0.0, 1.0], [2.0, 4.0]]))
    np.testing.assert_allclose(program.state["bn/running_mean"], [0.1, 0.25])


def test_a_jacobian_and_a_hessian_see_the_masks_of_the_forward_pass(no_compiler):
    x = pt.vector("x", shape=(4,))
    drop, fc = Dropout("drop", p=0.5), Linear("fc", n_in=4, n_out=2, bias=False)
    y = fc(drop(x) * x)
    kept = drop(x)
    outputs = [pytensor.gradient.jacobian(y, x), pytensor.gradient.hessian((kept * x**2).sum(), x), y, kept]
    program = compiled(outputs, [x])
    value = np.array([1.0, 2.0, 3.0, 4.0])
    jacobian, hessian, y_value, kept_value = program(value)
    W = program.state["fc/W"]
    mask = numbers_kept(y_value, W, value)
    np.testing.assert_allclose(jacobian, (4 * mask * value)[:, None].T * W.T, rtol=1e-12)
    np.testing.assert_allclose(hessian, np.diag(6 * kept_value), rtol=1e-12)


def numbers_kept(y, W, value):
    """Find the mask under which a dropped layer gave y."""
    for bits in np.ndindex(2, 2, 2, 2):
        if np.allclose((2 * np.array(bits) * value**2) @ W, y, rtol=1e-12):
            return np.array(bits)
    raise AssertionError("no mask gives this")


def test_a_jacobian_of_what_moves_statistics_advances_once(no_compiler):
    X = Input("X", (3, 2))
    bn = BatchNorm("bn", n_in=2)
    y = bn(X)[0]
    program = compiled([pytensor.gradient.jacobian(y, X), y], [X])
    program(np.array([[0.0, 1.0], [2.0, 4.0], [4.0, 1.0]]))
    np.testing.assert_allclose(program.state["bn/running_mean"], [0.2, 0.2])


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        (Dropout("drop", p=0.4), r"Dropout\('drop', p=0\.4\) would draw the same numbers in every iteration"),
        (BatchNorm("bn", n_in=2), r"BatchNorm\('bn', n_in=2\) would move no statistic"),
    ],
)
def test_a_layer_that_advances_in_a_bare_scan_is_refused_by_name(layer, what):
    X = Input("X", (None, 3, 2))
    loop = pytensor.scan(lambda row: layer(row), sequences=X, return_updates=False)
    for graph in (loop, [loop.sum(), pytensor.grad(loop.sum(), X)]):
        with pytest.raises(ValueError, match=what + r" inside a pytensor\.scan.*Write ptml\.scan"):
            compiled(graph, [X])
    outer = pytensor.scan(
        lambda: pytensor.scan(lambda row: layer(row), sequences=X, return_updates=False),
        n_steps=2,
        return_updates=False,
    )
    with pytest.raises(ValueError, match=r"inside a pytensor\.scan"):
        compiled(outer, [X])


def test_a_bare_scan_of_layers_that_advance_nothing_is_allowed(no_compiler):
    X, fc = Input("X", (None, 3, 2)), Linear("fc", n_in=2, n_out=2)
    loop = pytensor.scan(lambda row: fc(row), sequences=X, return_updates=False)
    program = compiled(loop, [X])
    x = np.random.default_rng(0).normal(size=(4, 3, 2))
    np.testing.assert_allclose(program(x), x @ program.state["fc/W"] + program.state["fc/b"], rtol=1e-12)


def test_only_what_the_loss_depends_on_advances(x):
    used, unused = Affine("used"), Affine("unused")
    unused(x)
    program = compiled([used(x)], [x])
    program([1.0])
    assert list(program.state) == ["used/s"]


def test_extra_outputs_observe(x):
    fc, layer = Linear("fc", n_in=1, n_out=1), Affine("affine")
    clock = Slot("ticks", Role.CLOCK, "int64", (), Zeros()).handle
    loss = (fc(x) ** 2).sum() + layer(x)
    observed = [layer(100 * x), clock, Affine("other")(x)]
    step = compile_train(
        loss, sgd(0.1), inputs=[x], extra_outputs=observed, seed=0, compile_kwargs={"mode": PYTHON}
    )
    _, again, ticks, other = step([2.0])
    assert (again, ticks, other) == (200.0, 0, 2.0)
    step([2.0])
    assert step.state["affine/s"] == 4.0
    assert step.state["ticks"] == 0
    assert step.state["other/s"] == 0.0


def test_extra_outputs_do_not_change_the_losss_masks(X):
    fc, drop = Linear("fc", n_in=2, n_out=2), Dropout("drop", p=0.5)
    early = drop(X)  # called before what the loss draws
    loss = (drop(fc(X)) ** 2).mean()
    alone, watched = (
        compile_train(loss, sgd(0.1), extra_outputs=extra, seed=0, compile_kwargs={"mode": PYTHON})
        for extra in ([], [early])
    )
    x = np.random.default_rng(0).normal(size=(8, 2))
    for _ in range(3):
        value, seen = watched(x)
        assert value == alone(x)
        assert 0 < (seen == 0).mean() < 1
    assert watched.state == alone.state


def test_clocks_that_are_read_count_and_those_written_do_what_is_written():
    clock = Slot("ticks", Role.CLOCK, "int64", (), Zeros()).handle
    reads, writes = compiled(2 * clock, []), compiled(clock, [], updates={clock: clock + 10})
    assert [int(reads()) for _ in range(3)] == [0, 2, 4]
    assert [int(writes()) for _ in range(3)] == [0, 10, 20]
    predict = ptml.compile_predict(clock, state=reads, compile_kwargs={"mode": PYTHON})
    assert [int(predict()) for _ in range(2)] == [3, 3]


def test_a_clock_that_only_an_advance_reads_counts(x):
    clock = Slot("ticks", Role.CLOCK, "int64", (), Zeros()).handle
    layer = Affine("affine")
    program = compiled(ptml.advance(x, {layer.s: layer.s + clock}), [x])
    for _ in range(4):
        program([1.0])
    assert program.state["affine/s"] == 0 + 1 + 2 + 3
    assert program.state["ticks"] == 4


def test_a_schedule_moves_with_its_programs_calls():
    fc, X = Linear("fc", n_in=1, n_out=1, bias=False, weight_initializer=Zeros()), Input("X", (None, 1))
    step = compile_train(
        fc(X).sum(), sgd(linear_schedule(0.0, 10, 1.0)), seed=0, compile_kwargs={"mode": PYTHON}
    )
    x = np.ones((1, 1))
    moved = [float(step.state["fc/W"].item()) for _ in range(3) if step(x) is not None]
    np.testing.assert_allclose(moved, [0.0, -0.1, -0.3], atol=1e-15)


def test_statistics_generators_and_clocks_may_be_written_by_the_user(X):
    bn, drop = BatchNorm("bn", n_in=2), Dropout("drop", p=0.5)
    mine = {bn.running_mean: bn.running_mean + 1.0, drop.key: drop.key}
    program = compiled(drop(bn(X)), [X], updates=mine)
    x = np.random.default_rng(0).normal(size=(4, 2))
    one, other = program(x), program(x)
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(program.state["bn/running_mean"], [2.0, 2.0])
    assert (program.state["bn/running_var"] != 1).all()


def test_updates_drive_what_advances_too(x):
    layer, best = Affine("affine"), Slot("best", Role.OPTIMIZER, "float64", (), Zeros()).handle
    program = compiled([], [x], updates={best: best + layer(x)})
    program([2.0])
    assert dict(program.state) == {"affine/s": 2.0, "best": 2.0}


def test_a_copy_of_a_call_on_another_input_is_refused():
    X, Z, bn = Input("X", (None, 1)), Input("Z", (None, 1)), BatchNorm("bn", n_in=1)
    y = bn(X)
    [copied] = clone_replace([y], {X: Z})
    compiled(copied, [Z])
    for graph in (y.sum() + copied.sum(), copied.sum() + y.sum()):
        with pytest.raises(
            ValueError, match=r"One call of BatchNorm\('bn'.*stands in this graph twice.*Call the layer on"
        ):
            compiled(graph, [X, Z])


def test_a_copy_of_a_call_on_the_same_input_is_the_same_call():
    X, bn = Input("X", (None, 1)), BatchNorm("bn", n_in=1)
    y = bn(X)
    [copied] = clone_replace([y], {X: X.copy()})
    program = compiled([y, clone_replace([y], {})[0]], [X])
    program(np.array([[0.0], [2.0]]))
    np.testing.assert_allclose(program.state["bn/running_mean"], [0.1])
    assert copied is not y


def test_calls_whose_data_flow_against_their_order_are_refused():
    X, Z, bn = Input("X", (None, 1)), Input("Z", (None, 1)), BatchNorm("bn", n_in=1)
    early, late = bn(X), bn(Z)
    with pytest.raises(
        ValueError, match=r"an earlier call reads depends on a later one.*call the layers anew"
    ):
        compiled(early, [Z], givens={X: 2 * late + 1})


def test_prediction_resolves_every_mark_and_advances_nothing(X):
    net = Sequential(Linear("fc", n_in=2, n_out=2), BatchNorm("bn", n_in=2), Dropout("drop", p=0.5))
    threaded = thread([net(X)], training=False)
    assert threaded.updates == {}
    assert [slot.role for slot in threaded.slots].count(Role.GENERATOR) == 0
    training = thread([net(X)])
    assert {slot.name for slot in training.updates} == {"running_mean", "running_var", "key"}


def test_what_is_threaded_has_slots_inputs_and_constants_as_roots(X):
    net = Sequential(Linear("fc", n_in=2, n_out=2), BatchNorm("bn", n_in=2), Dropout("drop", p=0.5))
    threaded = thread([net(X)])
    handles = set(ptml.slots(net))
    assert set(threaded.roots) == {X, *handles}
    shared = pytensor.shared(1.0)
    assert thread([X * shared], updates={shared: shared + 1}).shared_updates.keys() == {shared}
    assert Ones() == Ones()
