"""Groups of parameters: frozen ones, and a rule for each group."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import ancestors

import ptml
from ptml.layers import BatchNorm, Input, Linear, Sequential
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import (
    Freeze,
    Partition,
    Steps,
    adam,
    add_weight_decay,
    chain,
    clip_by_global_norm,
    compile_train,
    cosine_schedule,
    counter,
    freeze,
    lookahead,
    partition,
    scale,
    scale_by_schedule,
    sgd,
    trace,
)
from ptml_state import Role, where

X = np.random.default_rng(0).normal(size=(8, 2))
Y = X[:, :1] * X[:, 1:]


@pytest.fixture
def net():
    return Sequential(
        Linear("encoder/fc", n_in=2, n_out=3),
        BatchNorm("encoder/bn", n_in=3),
        Linear("head", n_in=3, n_out=1),
    )


@pytest.fixture
def loss(net):
    return supervised_loss(net(Input("X", shape=(None, 2))), SquaredError())[0]


@pytest.fixture
def train(loss):
    def compiled(rule, **options):
        return compile_train(loss, rule, **{"seed": 0, **options})

    return compiled


def moved(before, after):
    return {a for a in before if before.roles[a] is Role.PARAMETER and (before[a] != after[a]).any()}


ENCODER = {"encoder/fc/W", "encoder/fc/b", "encoder/bn/scale", "encoder/bn/b"}
HEAD = {"head/W", "head/b"}


def test_frozen_parameters_stay_and_have_no_moments_and_are_in_the_state(train):
    step = train(chain(freeze("encoder"), adam(0.1)))
    before = step.state
    for _ in range(3):
        step(X, Y)
    assert moved(before, step.state) == HEAD
    assert set(step.state.select(Role.PARAMETER)) == ENCODER | HEAD
    assert {a for a in step.state if a.startswith("adam/first_moment")} == {
        f"adam/first_moment/{a}" for a in HEAD
    }


def test_the_statistics_of_a_frozen_layer_move_on(train):
    step = train(chain(freeze("encoder"), adam(0.1)))
    before = step.state
    step(X, Y)
    assert (step.state["encoder/bn/running_mean"] != before["encoder/bn/running_mean"]).any()


def test_no_gradient_of_what_is_frozen_is_computed(net, train):
    def nodes(rule, **options):
        program = train(rule, backend="c", **options)
        return Counter(type(node.op).__name__ for node in program.function.maker.fgraph.apply_nodes)

    frozen = nodes(chain(freeze("encoder"), sgd(0.1)))
    assert frozen == nodes(sgd(0.1), parameters=[net[2].W, net[2].b])
    assert frozen.total() < nodes(sgd(0.1)).total()


def test_a_frozen_parameter_is_trained_as_if_it_were_not_among_the_parameters(net, loss, train):
    frozen = train(chain(freeze("encoder"), clip_by_global_norm(0.1), adam(0.1)))
    left_out = train(chain(clip_by_global_norm(0.1), adam(0.1)), parameters=[net[2].W, net[2].b])
    for _ in range(3):
        assert frozen(X, Y) == left_out(X, Y)
    assert frozen.state == left_out.state


@pytest.mark.parametrize(
    "selector", ["head", "head/*", Role.PARAMETER & ~where("encoder"), lambda p: p.address.startswith("head")]
)
def test_every_kind_of_selector_freezes(train, selector):
    step = train(chain(freeze(selector), sgd(0.1)))
    before = step.state
    step(X, Y)
    assert moved(before, step.state) <= ENCODER


def test_a_handle_and_a_layer_type_freeze(net, train):
    before = train(sgd(0.1)).state
    for selector, stays in [(net[2].W, {"head/W"}), (Linear, {"encoder/fc/W", "encoder/fc/b", *HEAD})]:
        step = train(chain(freeze(selector), sgd(0.1)), state=before)
        step(X, Y)
        assert moved(before, step.state) & stays == set()


def test_freezes_add_up(train):
    step = train(chain(freeze("encoder/fc"), freeze("head"), sgd(0.1)))
    before = step.state
    step(X, Y)
    assert moved(before, step.state) <= {"encoder/bn/scale", "encoder/bn/b"}


def test_functions_in_a_chain_are_given_what_moves(train):
    given = []

    def note(updates, parameters):
        given.extend(parameter.slot.address for parameter in parameters)
        return updates

    train(chain(freeze("encoder"), note, sgd(0.1)))
    assert set(given) == HEAD


def test_misplaced_freezes_are_refused(new_parameter):
    p, q = new_parameter(1.0, "p"), new_parameter(1.0, "q")
    with pytest.raises(
        ValueError, match=r"Freeze\('p'\) has to stand first .* ClipByGlobalNorm\(\) stands ahead"
    ):
        chain(clip_by_global_norm(), freeze("p"), sgd())
    with pytest.raises(ValueError, match=r"Freeze\('p'\) stands ahead of the rule"):
        freeze("p")(Steps({p: p}), [p, q])
    with pytest.raises(ValueError, match=r"Freeze\('p'\) leaves nothing to train: it freezes p\."):
        freeze("p")([p], [p])
    with pytest.raises(ValueError, match=r"Freeze\(\) leaves nothing to train"):
        chain(freeze(), sgd())([p, q], [p, q])
    with pytest.raises(ValueError, match=r"Freeze\(Linear\) matches none of the parameters: p, q"):
        freeze(Linear)([p, q], [p, q])
    with pytest.raises(KeyError, match=r"'r' matches nothing in the parameters"):
        freeze("r")([p, q], [p, q])
    with pytest.raises(TypeError, match="A selector is one of"):
        freeze(0.1)


def test_each_group_is_moved_by_its_rule(run):
    rule = partition({"p": sgd(1.0), "q": chain(scale(2.0), sgd(1.0))}, otherwise=sgd(0.5))
    problem = run(rule, p=0.0, q=0.0, r=0.0, s=0.0)
    problem(1.0, 1.0, 1.0, 1.0)
    assert [problem[name] for name in "pqrs"] == [-1.0, -2.0, -0.5, -0.5]


def test_a_clip_inside_a_group_sees_that_group_alone(run):
    problem = run(
        partition({"p": chain(clip_by_global_norm(1.0), sgd(1.0))}, otherwise=sgd(1.0)), p=0.0, q=0.0
    )
    problem(3.0, 4.0)
    assert (problem["p"], problem["q"]) == (-1.0, -4.0)


def test_what_stands_around_a_partition_acts_on_all_groups(run):
    rule = chain(trace(0.5), partition({"p": sgd(1.0)}, otherwise=sgd(0.1)), add_weight_decay(0.5))
    problem = run(rule, p=1.0, q=1.0)
    problem(1.0, 1.0)
    np.testing.assert_allclose([problem["p"], problem["q"]], [-0.5, 0.4])
    np.testing.assert_allclose([problem["trace/velocity/p"], problem["trace/velocity/q"]], [1.0, 1.0])


def test_a_frozen_group_costs_nothing(train):
    step = train(partition({"encoder": freeze()}, otherwise=adam(0.1)))
    other = train(chain(freeze("encoder"), adam(0.1)))
    for _ in range(3):
        assert step(X, Y) == other(X, Y)
    assert step.state == other.state


def test_the_loss_is_differentiated_once(loss, net):
    updates = partition({"encoder": adam(0.1)}, otherwise=sgd(0.1))(loss, ptml.slots(net, Role.PARAMETER))
    amounts = list(updates.amounts.values())
    alone = list(adam(0.1)(loss, ptml.slots(net, Role.PARAMETER)).amounts.values())
    assert len(set(ancestors(amounts))) < 1.2 * len(set(ancestors(alone)))


def test_groups_of_one_rule_share_its_clock_and_go_on_from_its_state(train):
    whole = train(adam(0.1))
    whole(X, Y)
    groups = train(partition({"encoder": adam(0.1)}, otherwise=adam(0.1)), state=whole.state)
    assert set(groups.state) == set(whole.state)
    for _ in range(2):
        assert groups(X, Y) == whole(X, Y)
    assert groups.state == whole.state


def test_a_shared_clock_drives_the_schedules_of_both(run):
    rule = partition({"p": sgd(cosine_schedule(1.0, 2))}, otherwise=sgd(cosine_schedule(2.0, 2)))
    problem = run(rule, p=0.0, q=0.0)
    for _ in range(3):
        problem(1.0, 1.0)
    np.testing.assert_allclose([problem["p"], problem["q"]], [-1.5, -3.0])
    assert problem["sgd/step_count"] == 3


def test_two_clocks_of_one_name_inside_a_group_still_collide(new_parameter):
    p, q = new_parameter(1.0, "p"), new_parameter(1.0, "q")
    twice = chain(
        sgd(1.0), scale_by_schedule(lambda k: 1.0 / (k + 1)), scale_by_schedule(lambda k: 1.0 / (k + 1))
    )
    steps = partition({"p": twice}, otherwise=sgd(0.1))([pt.ones(()), pt.ones(())], [p, q])
    with pytest.raises(ValueError, match=r"address 'scale_by_schedule/step_count'.*namespace"):
        ptml.function([], [], updates=steps, seed=0)


def test_a_clock_that_a_group_writes_itself_is_not_shared(new_parameter):
    def skips(updates, parameters):
        clock = counter("sgd/step_count")
        return updates.with_state({clock: clock + 2})

    p, q = new_parameter(1.0, "p"), new_parameter(1.0, "q")
    halving = sgd(lambda k: 0.5**k)
    for groups in ({"p": chain(skips, sgd()), "q": halving}, {"p": halving, "q": chain(skips, sgd())}):
        with pytest.raises(ValueError, match=r"'p' and 'q' both count on 'sgd/step_count', .* namespace"):
            partition(groups)([p, q], [p, q])


def test_partitions_nest(run):
    inner = partition({"q": sgd(0.5)}, otherwise=adam(0.1))
    problem = run(partition({"p": adam(0.1)}, otherwise=inner), p=0.0, q=0.0, r=0.0)
    problem(1.0, 1.0, 1.0)
    np.testing.assert_allclose([problem["p"], problem["q"], problem["r"]], [-0.1, -0.5, -0.1], rtol=1e-6)
    assert problem["adam/step_count"] == 1


def test_a_called_twice_partition_has_one_set_of_state(new_parameter):
    p, q = new_parameter(1.0, "p"), new_parameter(1.0, "q")
    rule = partition({"p": adam(0.1)}, otherwise=adam(0.2))
    one, other = rule([p, q], [p, q]), rule([2 * p, q], [p, q])
    assert list(one.state) == list(other.state)


def test_unnamed_layers_are_told_apart_by_the_networks_numbers(train):
    net = Sequential(Linear(n_in=2, n_out=3), Linear(n_in=3, n_out=1))
    loss, _ = supervised_loss(net(Input("X", shape=(None, 2))), SquaredError())
    step = compile_train(loss, partition({"Linear_1": freeze()}, otherwise=sgd(0.1)), seed=0)
    before = step.state
    step(X, Y)
    assert moved(before, step.state) == {"Linear_2/W", "Linear_2/b"}


def test_a_parameter_in_two_groups_or_none_is_named(new_parameter):
    p, q = new_parameter(1.0, "p"), new_parameter(1.0, "q")
    with pytest.raises(ValueError, match=r"'q' is in two groups, '\*' and 'q'. Leave it out of one"):
        partition({"*": sgd(), "q": adam()})([p, q], [p, q])
    with pytest.raises(ValueError, match=r"partition: q is in no group. Add one, or say .* otherwise="):
        partition({"p": sgd()})([p, q], [p, q])
    with pytest.raises(KeyError, match=r"'decoder' matches nothing in the parameters"):
        partition({"decoder": sgd()}, otherwise=sgd())([p, q], [p, q])
    with pytest.raises(ValueError, match=r"<class .*Linear'> matches none of the parameters: p, q"):
        partition({Linear: sgd()}, otherwise=sgd())([p, q], [p, q])


def test_a_group_that_decides_nothing_is_refused(new_parameter):
    p, q = new_parameter(1.0, "p"), new_parameter(1.0, "q")
    with pytest.raises(ValueError, match=r"ClipByGlobalNorm\(\) ends in gradients: nothing in it decides"):
        partition({"p": clip_by_global_norm()}, otherwise=sgd())([p, q], [p, q])
    with pytest.raises(ValueError, match=r"Freeze\('p'\) (ends in gradients|leaves nothing to train)"):
        partition({"p": freeze("p")}, otherwise=sgd())([p, q], [p, q])
    with pytest.raises(ValueError, match=r"leaves nothing to train: all its groups are frozen"):
        partition({"p": freeze()}, otherwise=freeze())([p, q], [p, q])


def test_a_rule_behind_a_rule_is_refused_around_and_inside_a_partition(new_parameter):
    p = new_parameter(1.0)
    with pytest.raises(ValueError, match=r"A chain holds one rule, .* Sgd\(\), then Partition"):
        chain(sgd(), partition({"p": adam()}))
    with pytest.raises(ValueError, match=r"A chain holds one rule, .* Sgd\(\), then Adam"):
        partition({"p": chain(sgd(), adam())})
    with pytest.raises(ValueError, match=r"stands behind another rule"):
        partition({"p": adam()})(Steps({p: p}), [p])
    velocity = trace(0.9)
    with pytest.raises(ValueError, match=r"Trace\(\) is in the chain twice, as one object"):
        chain(velocity, partition({"p": lookahead(chain(velocity, sgd()))}))


@pytest.mark.parametrize("groups", [{}, [("p", sgd())], sgd(), ("p", sgd())])
def test_groups_are_a_mapping(groups):
    with pytest.raises(TypeError, match="partition takes a mapping from selectors to rules"):
        partition(groups)


def test_what_is_no_rule_or_no_selector_is_refused():
    with pytest.raises(
        TypeError, match=r"Partition: groups must be a rule, such as adam\(1e-3\), .* got 0.1"
    ):
        partition({"p": 0.1})
    with pytest.raises(TypeError, match=r"Partition: otherwise must be a rule"):
        partition({"p": sgd()}, otherwise=0.1)
    with pytest.raises(TypeError, match=r"A selector is one of"):
        partition({0.1: sgd()})


def test_they_are_values():
    assert freeze("a") == Freeze("a")
    assert repr(freeze(~where("head"))) == "Freeze(~where('head'))"
    rule = partition({"a": freeze(), where("b") | where("c"): sgd(0.1)}, otherwise=adam())
    assert rule == Partition({"a": freeze(), where("b") | where("c"): sgd(0.1)}, otherwise=adam())
    assert hash(rule) == hash(partition({"a": freeze(), where("b") | where("c"): sgd(0.1)}, otherwise=adam()))
    written = "Partition({'a': Freeze(), where('b') | where('c'): Sgd(0.1)}, otherwise=Adam())"
    assert repr(rule) == written
    names = {"Partition": partition, "Freeze": freeze, "Sgd": sgd, "Adam": adam, "where": where}
    assert eval(written, names) == rule
