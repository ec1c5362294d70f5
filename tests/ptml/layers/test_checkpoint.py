"""Recomputation: the same numbers, less memory, and nothing that happens twice."""

from __future__ import annotations

import pickle

import numpy as np
import pytensor
import pytest

import ptml
from ptml.activations import Tanh
from ptml.flatten import flatten
from ptml.layers import BatchNorm, Checkpoint, Dropout, Input, Linear, Parallel, Repeat, Sequential
from ptml.ops.recompute import After, Recomputed
from ptml.optim import compile_train, sgd

N = 6


def chain(container, depth=3, width=4 * N):
    def part(k):
        return container(
            Linear(f"in{k}", n_in=N, n_out=width),
            Tanh(),
            Dropout(f"drop{k}", p=0.2),
            BatchNorm(f"norm{k}", n_in=width),
            Linear(f"out{k}", n_in=width, n_out=N),
        )

    return Sequential(*map(part, range(depth)))


def training(net, dtype="float64", **options):
    X = Input("X", (None, N))
    return compile_train(((net(X) - 1) ** 2).mean(), sgd(0.1), state=ptml.init(net, seed=0), **options)


def data(rows=16, dtype="float64"):
    return np.random.default_rng(0).normal(size=(rows, N)).astype(dtype)


def test_the_numbers_masks_and_statistics_are_those_without_it():
    steps = [training(chain(container)) for container in (Sequential, Checkpoint)]
    for _ in range(3):
        assert len({float(step(data())) for step in steps}) == 1
    plain, checkpointed = (step.state for step in steps)
    assert list(plain) == list(checkpointed)
    for address in plain:
        np.testing.assert_allclose(checkpointed[address], plain[address], rtol=1e-12, atol=1e-14)


def test_where_no_formulas_meet_not_a_bit_differs():
    def net(container):
        return Sequential(
            *(container(Linear(f"fc{k}", n_in=N, n_out=N), Tanh(), Dropout(f"d{k}", p=0.3)) for k in range(3))
        )

    states = []
    for container in (Sequential, Checkpoint):
        step = training(net(container))
        for _ in range(3):
            step(data())
        states.append(step.state)
    assert all(np.array_equal(states[0][address], states[1][address]) for address in states[0])


def test_a_deep_chain_takes_far_less_memory():
    planned = {}
    for container in (Sequential, Checkpoint):
        step = training(chain(container, depth=12, width=32 * N))
        step(data(512))
        planned[container] = step.memory().planned
    assert planned[Checkpoint] < 0.5 * planned[Sequential]


@pytest.mark.backends("c", "jax", "mlx", "pytorch")
def test_every_backend_computes_the_same(backend, float32):
    steps = [training(chain(Checkpoint, 2)), training(chain(Checkpoint, 2), backend=backend)]
    for _ in range(2):
        first, other = (float(step(data(dtype="float32"))) for step in steps)
        assert other == pytest.approx(first, rel=1e-5)
    for address in steps[0].state:
        np.testing.assert_allclose(steps[1].state[address], steps[0].state[address], rtol=1e-4, atol=1e-5)


def test_the_gradient_computes_the_forward_pass_once_more():
    X = Input("X", (None, N))
    net = Checkpoint(Linear("fc", n_in=N, n_out=N), Tanh())
    [slope] = pytensor.grad(flatten([net(X).sum()])[0], [net.layers[0].W])
    program = ptml.function([X], slope, state=ptml.init(net, seed=0), backend="c")
    ops = [type(node.op) for node in program.function.maker.fgraph.apply_nodes]
    assert After in ops
    assert Recomputed not in ops


def test_prediction_recomputes_nothing():
    X, net = Input("X", (None, N)), chain(Checkpoint)
    program = ptml.compile_predict(net(X), state=ptml.init(net, seed=0), backend="c")
    assert not any(
        isinstance(node.op, After | Recomputed) for node in program.function.maker.fgraph.apply_nodes
    )
    plain = ptml.compile_predict(chain(Sequential)(X), state=ptml.init(net, seed=0))
    np.testing.assert_allclose(program(data()), plain(data()), rtol=1e-12)


def test_checkpoints_nest_and_loop():
    inner = Checkpoint(Linear("fc", n_in=N, n_out=N), Tanh(), name="block")
    nets = [
        Checkpoint(Repeat(3, inner)),
        Repeat(3, Sequential(Linear("fc", n_in=N, n_out=N), Tanh(), name="block")),
    ]
    states = []
    for net in nets:
        step = training(net)
        step(data())
        states.append(step.state)
    for address in states[0]:
        np.testing.assert_allclose(states[0][address], states[1][address], rtol=1e-12, atol=1e-15)
    looped, state = training(Repeat(3, inner, scan=True)), states[1]
    looped(data())
    for k in range(3):
        np.testing.assert_allclose(looped.state["block/fc/W"][k], state[f"block{k}/fc/W"], rtol=1e-10)


def test_what_gives_several_tensors_gives_them_recomputed():
    X = Input("X", (None, N))
    both = Parallel(Linear("a", n_in=N, n_out=2), Linear("b", n_in=N, n_out=3), combine="tuple")
    state = ptml.init(both, seed=0)
    found = []
    for net in (both, Checkpoint(both)):
        one, other = net(X)
        slope = pytensor.grad((one**2).sum() + (other**3).sum(), X)
        found.append(ptml.function([X], [one, other, slope], state=state)(data()))
    for plain, recomputed in zip(*found, strict=True):
        np.testing.assert_allclose(recomputed, plain, rtol=1e-12)


def test_it_is_a_value():
    net = chain(Checkpoint)
    assert pickle.loads(pickle.dumps(net)) == net
    assert ptml.from_config(ptml.to_config(net)) == net
    with pytest.raises(TypeError, match="Checkpoint takes layers; its argument 0 is"):
        Checkpoint(3)
    with pytest.raises(ValueError, match="Checkpoint takes one layer or more; got none"):
        Checkpoint()


def test_a_graph_with_it_survives_pickling():
    X, net = Input("X", (None, N)), chain(Checkpoint, 1)
    state, Y = ptml.init(net, seed=0), net(X)
    X2, Y2 = pickle.loads(pickle.dumps((X, Y)))
    same = [
        ptml.function([x], [y, pytensor.grad(y.sum(), x)], state=state)(data()) for x, y in ((X, Y), (X2, Y2))
    ]
    for one, other in zip(*same, strict=True):
        np.testing.assert_array_equal(one, other)
