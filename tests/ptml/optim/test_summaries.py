"""Summaries: what a rule does to each parameter, and what it remembers."""

from __future__ import annotations

import pytest

import ptml
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import (
    accumulate,
    adam,
    adamw,
    add_noise,
    add_weight_decay,
    apply_if_finite,
    chain,
    clip_by_global_norm,
    compile_train,
    ema,
    freeze,
    lookahead,
    partition,
    scalar_state,
    sgd,
    summary,
)
from ptml_state import Role, where

ENCODER = ("encoder/W", "encoder/b")
BN = ("bn/scale", "bn/b")
HEAD = ("head/W", "head/b")


@pytest.fixture
def net():
    return Sequential(
        Linear("encoder", n_in=2, n_out=3),
        BatchNorm("bn", n_in=3),
        Dropout("drop", p=0.1),
        Linear("head", n_in=3, n_out=1),
    )


@pytest.fixture
def loss(net):
    return supervised_loss(net(Input("X", shape=(None, 2))), SquaredError())[0]


def groups_of(told):
    return [(set(group.parameters), group.transforms) for group in told.groups]


def kinds_of(told):
    return {kind.name: (kind.leaves, kind.numbers, kind.nbytes) for kind in told.state}


def test_a_rule_alone_moves_everything(net):
    told = summary(adam(0.1), net)
    assert groups_of(told) == [({*ENCODER, *BN, *HEAD}, ("Adam(0.1)",))]
    assert told.numbers == told.moving == 9 + 6 + 4
    assert kinds_of(told) == {
        "adam/first_moment": (6, 19, 152),
        "adam/second_moment": (6, 19, 152),
        "adam/step_count": (1, 1, 8),
    }
    assert told.nbytes == 312
    assert told.groups[0].nbytes == 304


def test_a_chain_lists_its_transforms_in_order_and_masks_tell_parameters_apart(net):
    told = summary(chain(clip_by_global_norm(1.0), adam(), add_weight_decay(0.1, ~where("**/b"))), net)
    assert groups_of(told) == [
        (
            {"encoder/W", "bn/scale", "head/W"},
            ("ClipByGlobalNorm()", "Adam()", "AddWeightDecay(0.1, ~where('**/b'))"),
        ),
        ({"encoder/b", "bn/b", "head/b"}, ("ClipByGlobalNorm()", "Adam()")),
    ]


def test_the_mask_of_a_rule_is_told(net):
    told = summary(adamw(mask="**/W"), net)
    assert [group.transforms for group in told.groups] == [
        ("AdamW(mask='**/W')",),
        ("AdamW(mask='**/W'), which masks it",),
    ]


def test_frozen_parameters_have_no_state(net):
    told = summary(chain(freeze("encoder"), adam()), net)
    frozen, moving = told.groups
    assert (set(frozen.parameters), frozen.frozen, frozen.nbytes, frozen.numbers) == (
        set(ENCODER),
        True,
        0,
        9,
    )
    assert (moving.frozen, moving.nbytes) == (False, 160)
    assert (told.moving, told.numbers) == (10, 19)


def test_each_group_of_a_partition_has_its_own_row(net):
    told = summary(
        partition({"encoder": freeze(), "head": sgd(0.1)}, otherwise=chain(clip_by_global_norm(), adam())),
        net,
    )
    assert groups_of(told) == [
        (set(ENCODER), ()),
        (set(BN), ("ClipByGlobalNorm()", "Adam()")),
        (set(HEAD), ("Sgd(0.1)",)),
    ]
    assert kinds_of(told)["adam/first_moment"] == (2, 6, 48)


def test_wrappers_and_averages_are_told_with_what_they_hold(net):
    told = summary(chain(lookahead(adam()), ema(0.99, "head")), net)
    assert groups_of(told) == [
        ({*ENCODER, *BN}, ("Adam()", "Lookahead")),
        (set(HEAD), ("Adam()", "Lookahead", "Ema(0.99, 'head')")),
    ]
    assert kinds_of(told)["lookahead/slow"] == (6, 19, 152)
    assert kinds_of(told)["ema"] == (2, 4, 32)


def test_guards_and_windows_are_told_too(net):
    told = summary(apply_if_finite(chain(accumulate(2), adam())), net)
    assert told.groups[0].transforms == ("Accumulate(2)", "Adam()", "SkipIf")
    assert kinds_of(told)["accumulate/gradient"] == (6, 19, 152)


def test_keys_and_leaves_of_the_users_are_state_and_the_networks_are_not(loss):
    told = summary(chain(add_noise(), sgd(scalar_state("rate", 0.1))), loss)
    assert kinds_of(told) == {
        "rate": (1, 1, 8),
        "add_noise/key": (1, 4, 16),
        "add_noise/step_count": (1, 1, 8),
    }
    assert {kind.name: kind.role for kind in told.state}["add_noise/key"] is Role.GENERATOR


@pytest.mark.parametrize(
    "rule",
    [
        adam(),
        chain(freeze("encoder"), lookahead(adam()), ema()),
        partition({"encoder": freeze(), "head": sgd(0.1, momentum=0.9)}, otherwise=adam()),
        apply_if_finite(chain(add_noise(), adam())),
    ],
    ids=["adam", "lookahead", "partition", "guarded"],
)
def test_it_counts_the_bytes_that_a_program_has(net, loss, rule):
    told = summary(rule, net)
    state = compile_train(loss, rule, seed=0).state
    leaves = [
        leaf
        for leaf in state.leaves
        if leaf.address.partition("/")[0] not in ("encoder", "bn", "drop", "head")
    ]
    assert told.nbytes == sum(leaf.nbytes for leaf in leaves)
    assert sum(kind.leaves for kind in told.state) == len(leaves)


def test_a_network_its_parts_and_its_loss_are_told_alike(net, loss):
    rule = chain(freeze("encoder"), adam())
    assert summary(rule, net) == summary(rule, loss) == summary(rule, list(net.layers))


def test_unnamed_layers_have_the_addresses_of_the_state():
    net = Sequential(Linear(n_in=2, n_out=3), Linear(n_in=3, n_out=1))
    told = summary(chain(freeze("Linear_1"), sgd()), net)
    assert told.groups[0].parameters == ("Linear_1/W", "Linear_1/b")
    assert set(ptml.init(net)) == {address for group in told.groups for address in group.parameters}


def test_it_prints_as_tables_with_totals(net):
    text = str(summary(chain(freeze("encoder"), adam()), net))
    assert text == repr(summary(chain(freeze("encoder"), adam()), net))
    lines = text.splitlines()
    assert lines[0].split() == ["parameters", "numbers", "moved", "by", "state"]
    assert lines[1].split() == ["encoder/W", "9", "frozen", "0", "B"]
    assert "10 move, 9 are frozen" in text
    assert lines[-1].split() == ["total", "9", "21", "168", "B"]
    assert "no optimizer state" in str(summary(sgd(), net))
    many = Sequential(*[Linear(f"fc{k}", n_in=1, n_out=1) for k in range(5)])
    assert "and 6 more" in str(summary(sgd(), many))


def test_what_trains_nothing_is_refused(net):
    with pytest.raises(ValueError, match="The network has no parameters"):
        summary(adam(), Dropout("drop", p=0.5))
    with pytest.raises(ValueError, match="ends in gradients"):
        summary(clip_by_global_norm(), net)
