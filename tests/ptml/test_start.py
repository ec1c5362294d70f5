"""First values: each leaf from a stream of its own, decided by the seed and the address."""

from __future__ import annotations

import resource
import time
import tracemalloc

import numpy as np
import pytensor.tensor as pt
import pytest

import ptml
from ptml.activations import ReLU
from ptml.initializers import XavierNormal
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml_state import Role


def net(*names, n=3):
    return Sequential(*(Linear(name, n_in=n, n_out=n) for name in names))


def same(one, other):
    return all(np.array_equal(one[address], other[address]) for address in set(one) & set(other))


def test_one_seed_gives_one_state_and_another_seed_another():
    assert ptml.init(net("a", "b"), seed=0) == ptml.init(net("a", "b"), seed=0)
    assert not np.array_equal(ptml.init(net("a"), seed=0)["a/W"], ptml.init(net("a"), seed=1)["a/W"])
    assert not np.array_equal(ptml.init(net("a"))["a/W"], ptml.init(net("a"))["a/W"])


def test_leaves_of_one_network_are_drawn_apart():
    state = ptml.init(net("a", "b"), seed=0)
    assert not np.isin(state["a/W"], state["b/W"]).any()


@pytest.mark.parametrize(
    "other",
    [net("a", "new", "b"), net("b", "a"), net("b"), Sequential(Dropout("d", p=0.5), *net("a", "b"), ReLU())],
    ids=["added", "reordered", "removed", "surrounded"],
)
def test_adding_removing_or_reordering_layers_leaves_named_leaves_as_they_were(other):
    before, after = ptml.init(net("a", "b"), seed=7), ptml.init(other, seed=7)
    assert {"b/W", "b/b"} <= set(before) & set(after)
    assert same(before, after)


def test_the_stream_of_a_leaf_is_that_of_its_seed_and_address():
    import hashlib

    digest = hashlib.sha256(b"7/a/W").digest()
    rng = np.random.Generator(np.random.Philox(key=np.frombuffer(digest[:16], np.uint64)))
    wanted = XavierNormal()(rng, (3, 3), "float64")
    np.testing.assert_array_equal(ptml.init(net("a"), seed=7)["a/W"], wanted)


def test_leaves_come_in_the_order_of_the_network_with_their_roles():
    state = ptml.init(Sequential(Linear("fc", n_in=2, n_out=3), BatchNorm("bn", n_in=3), Dropout("d", p=0.1)))
    assert [(leaf.address, leaf.role, leaf.owner) for leaf in state.leaves] == [
        ("fc/W", Role.PARAMETER, "Linear"),
        ("fc/b", Role.PARAMETER, "Linear"),
        ("bn/scale", Role.PARAMETER, "BatchNorm"),
        ("bn/b", Role.PARAMETER, "BatchNorm"),
        ("bn/running_mean", Role.STATISTIC, "BatchNorm"),
        ("bn/running_var", Role.STATISTIC, "BatchNorm"),
        ("d/key", Role.GENERATOR, "Dropout"),
    ]


def test_a_graph_has_the_slots_that_it_reads_and_a_network_all_of_its_own():
    X = Input("X", (None, 3))
    layers = net("a", "b", "c")
    assert [h.slot.address for h in ptml.slots(layers[1](layers[0](X)))] == ["a/W", "a/b", "b/W", "b/b"]
    assert len(ptml.slots(layers)) == 6
    assert ptml.slots(2 * layers[0].W) == (layers[0].W,)
    assert ptml.slots(layers[0].W) == (layers[0].W,)
    assert ptml.slots(X) == ()


def test_slots_are_selected_by_anything_that_selects():
    layers = Sequential(Linear("a", n_in=2, n_out=2), BatchNorm("bn", n_in=2), Dropout("d", p=0.5))

    def names(where):
        return [handle.slot.address for handle in ptml.slots(layers, where)]

    assert names("*/b") == ["a/b", "bn/b"]
    assert names(Role.STATISTIC) == ["bn/running_mean", "bn/running_var"]
    assert names(Linear) == ["a/W", "a/b"]
    assert names(layers[0].W) == ["a/W"]
    assert names(~Role.PARAMETER) == ["bn/running_mean", "bn/running_var", "d/key"]
    assert names(lambda place: place.slot.dtype == "uint32") == ["d/key"]
    with pytest.raises(KeyError, match="a/w"):
        names("a/w")


def test_networks_and_graphs_are_not_mixed():
    layers = net("a")
    with pytest.raises(TypeError, match="Give networks or graphs, not some of each"):
        ptml.init([layers, layers(pt.matrix())], seed=0)


def test_an_initializer_that_gives_another_type_is_named():
    fc = Linear("fc", n_in=2, n_out=2, weight_initializer=lambda rng, shape, dtype: np.zeros(3, "float32"))
    with pytest.raises(
        ValueError, match=r"The initializer of 'fc/W' gave float32\[3\], where float64\[2,2\] is"
    ):
        ptml.init(fc, seed=0)


def test_building_a_model_of_a_billion_parameters_takes_no_array_memory(record_property):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    start = time.perf_counter()
    layers = []
    for i in range(50):
        layers += [Linear(f"up{i}", n_in=2048, n_out=8192), BatchNorm(f"bn{i}", n_in=8192), ReLU()]
        layers += [Linear(f"down{i}", n_in=8192, n_out=2048), Dropout(f"drop{i}", p=0.1)]
    network = Sequential(*layers)
    handles = ptml.slots(network, Role.PARAMETER)
    seconds = time.perf_counter() - start
    traced = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    count = sum(int(np.prod(handle.slot.shape)) for handle in handles)
    record_property("seconds", seconds)
    record_property("parameters", count)
    assert count > 1e9
    assert traced < 32 * 2**20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB; the arrays take 8 GB


def test_calling_a_model_of_a_billion_parameters_takes_no_array_memory():
    tracemalloc.start()
    network = Sequential(*(Linear(f"fc{i}", n_in=8192, n_out=8192) for i in range(16)))
    loss = (network(Input("X", (None, 8192))) ** 2).mean()
    assert len(ptml.slots(loss)) == 32
    assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    tracemalloc.stop()
