"""Masks: parameters as selectors and functions see them."""

from __future__ import annotations

import pytensor.tensor as pt
import pytest

import ptml
from ptml.activations import ReLU
from ptml.layers import Linear, Sequential
from ptml.optim import adamw, add_weight_decay, chain, compile_train, freeze, sgd
from ptml.optim.masks import addressed, masked
from ptml_state import Role, where


@pytest.fixture
def layers():
    return Linear("fc1", n_in=2, n_out=3), Linear("fc2", n_in=3, n_out=1)


@pytest.fixture
def parameters(layers):
    return [handle for layer in layers for handle in (layer.W, layer.b)]


def test_no_mask_selects_all(parameters):
    assert masked(None, parameters) == parameters


@pytest.mark.parametrize(
    ("mask", "wanted"),
    [
        ("*/W", ["fc1/W", "fc2/W"]),
        (~where("**/b"), ["fc1/W", "fc2/W"]),
        ("fc2", ["fc2/W", "fc2/b"]),
        (Role.PARAMETER, ["fc1/W", "fc1/b", "fc2/W", "fc2/b"]),
        (Linear, ["fc1/W", "fc1/b", "fc2/W", "fc2/b"]),
        (lambda p: p.ndim > 1, ["fc1/W", "fc2/W"]),
        (lambda p: p.size == 3 and p.shape == (3,), ["fc1/b"]),
        (lambda p: p.name == "b" and p.owner == "Linear" and p.dtype == "float64", ["fc1/b", "fc2/b"]),
    ],
)
def test_every_kind_of_selector_is_a_mask(parameters, mask, wanted):
    assert [handle.slot.address for handle in masked(mask, parameters)] == wanted


def test_a_handle_is_a_mask(layers, parameters):
    assert masked(where(layers[0].W), parameters) == [layers[0].W]


@pytest.fixture
def unnamed():
    """A network of unnamed layers, its loss, and its weights in another order than they stand in it."""
    net = Sequential(Linear(n_in=2, n_out=3), ReLU(), Linear(n_in=3, n_out=3), Linear(n_in=3, n_out=1))
    parameters = [net[3].W, net[0].W, net[2].W]
    return net, net(pt.matrix("X")).mean(), parameters


@pytest.fixture
def look():
    """A stage of a chain that notes the addresses which masks see there."""

    def note(updates, parameters):
        note.seen = [one.address for one in addressed(parameters)]
        return updates

    return note


def test_unnamed_layers_have_the_numbers_that_the_network_gives_them(unnamed, look):
    net, loss, parameters = unnamed
    chain(look, sgd(0.1))(loss, parameters)
    assert look.seen == ["Linear_3/W", "Linear_1/W", "Linear_2/W"]
    assert set(look.seen) < set(ptml.init(net, seed=0))


def test_a_subset_of_parameters_keeps_the_numbers_of_the_whole(unnamed, look):
    net, loss, _ = unnamed
    chain(look, sgd(0.1))(loss, [net[3].W])
    assert look.seen == ["Linear_3/W"]


def test_what_a_program_computes_besides_the_loss_counts_in_numbering(unnamed, look):
    _, loss, parameters = unnamed
    watched = Linear(n_in=2, n_out=2)
    step = compile_train(
        loss,
        chain(look, sgd(0.1)),
        parameters=parameters,
        extra_outputs=[watched(pt.matrix("Z"))],
        seed=0,
        compile_kwargs={"on_unused_input": "ignore"},
    )
    assert set(look.seen) <= set(step.state)
    assert look.seen == ["Linear_3/W", "Linear_1/W", "Linear_2/W"]


def test_gradients_do_not_tell_the_numbers_and_the_error_says_what_does(unnamed):
    *_, parameters = unnamed
    assert masked("**/W", parameters) == parameters
    assert masked("Linear_*/W", parameters) == parameters
    assert masked(parameters[1], parameters) == [parameters[1]]
    message = (
        r"'Linear_2/W' matches nothing .* 'Linear_\?/W'.* call the rule with the loss, or name the layers"
    )
    with pytest.raises(KeyError, match=message):
        masked("Linear_2/W", parameters)
    with pytest.raises(KeyError, match=message):
        chain(add_weight_decay(0.1, "Linear_2/W"), sgd(0.1))(list(parameters), parameters)


def test_a_mask_may_name_parameters_that_do_not_move(layers, parameters):
    loss = sum((p**2).sum() for p in parameters)
    rule = chain(freeze("fc1"), adamw(0.1, mask=~where("fc1")), add_weight_decay(0.1, mask=~where("fc1/b")))
    assert list(rule(loss, parameters).amounts) == [layers[1].W, layers[1].b]


def test_a_name_that_matches_nothing_is_an_error(parameters):
    with pytest.raises(KeyError, match=r"'fc3' matches nothing in the parameters. Did you mean"):
        masked("fc3", parameters)
