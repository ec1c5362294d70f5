"""Masks: parameters as selectors and functions see them."""

from __future__ import annotations

import pytest

from ptml.layers import Linear
from ptml.optim.masks import masked
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


def test_unnamed_layers_are_numbered():
    one, other = Linear(n_in=2, n_out=3), Linear(n_in=3, n_out=1)
    assert masked("Linear_2/W", [one.W, other.W]) == [other.W]


def test_a_name_that_matches_nothing_is_an_error(parameters):
    with pytest.raises(KeyError, match=r"'fc3' matches nothing in the parameters. Did you mean"):
        masked("fc3", parameters)
