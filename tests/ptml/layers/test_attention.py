"""Attention layers: masks, heads, other sequences, dropout, and every mistake that can be made in a call."""

from __future__ import annotations

import math
import pickle
import runpy
from pathlib import Path

import attrs
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import ptml
from ptml.initializers import Zeros
from ptml.layers import CausalSelfAttention, Input, MultiheadAttention, RotaryPositions
from ptml_state import Role

CASES = runpy.run_path(str(Path(__file__).with_name("cases_attention.py")))
reference = CASES["attention"]


def _x(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def _run(layer, *values, mask=None, state=None, **options):
    inputs = [Input(f"x{k}", tuple(value.shape)) for k, value in enumerate(values)]
    given = {} if mask is None else {"mask": mask}
    state = ptml.init(layer, seed=0) if state is None else state
    program = ptml.compile_predict(layer(*inputs, **given), inputs=inputs, state=state, **options)
    return program(*values), state


def test_cross_attention_takes_keys_and_values_from_a_second_sequence_of_another_width():
    layer = MultiheadAttention("cross", n_embd=4, n_head=2, kv_dim=6)
    x, memory = _x(2, 3, 4), _x(2, 5, 6, seed=1)
    got, state = _run(layer, x, memory)
    np.testing.assert_allclose(got, reference(state, "cross", x, 2, kv=memory), rtol=1e-9, atol=1e-12)


def test_a_mask_of_booleans_says_where_one_may_attend_and_one_of_floats_is_added():
    layer = MultiheadAttention("attn", n_embd=4, n_head=2)
    x, rng = _x(2, 3, 4), np.random.default_rng(2)
    may = rng.random((2, 1, 3, 3)) < 0.6
    got, state = _run(layer, x, mask=may)
    as_added = np.broadcast_to(np.where(may, 0.0, -np.inf), (2, 2, 3, 3))
    wanted = reference(state, "attn", x, 2, mask=as_added)
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)
    added = rng.normal(size=(2, 2, 3, 3))
    wanted = reference(state, "attn", x, 2, mask=added)
    np.testing.assert_allclose(_run(layer, x, mask=added)[0], wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_position_that_may_attend_to_nothing_finds_zeros_and_sends_nothing_back(kind):
    layer = MultiheadAttention("attn", n_embd=4, n_head=2, bias=False, alibi=True)
    may = np.array([[True, True], [False, False]])
    mask = may if kind == "bool" else np.where(may, 0.0, -np.inf)
    x = Input("x", (1, 2, 4))
    y = layer(x, mask=mask)
    wrt = [x, *ptml.slots(layer, Role.PARAMETER)]
    program = ptml.function([x], [y, *pytensor.grad(y.sum(), wrt)], seed=0)
    found, *gradients = program(_x(1, 2, 4))
    assert np.array_equal(found[0, 1], np.zeros(4))
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert np.any(found[0, 0] != 0)


def test_padding_that_is_masked_has_no_say():
    layer = MultiheadAttention("attn", n_embd=4, n_head=2, n_kv_head=1, alibi=True)
    x = _x(2, 5, 4)
    valid = np.arange(5) < np.array([[3], [5]])
    got, state = _run(layer, x, mask=valid[:, None, None, :])
    short, _ = _run(layer, x[:1, :3], state=state)
    np.testing.assert_allclose(got[0, :3], short[0], rtol=1e-9, atol=1e-12)


def test_one_group_for_each_head_is_plain_attention():
    x = _x(2, 3, 8)
    plain, state = _run(MultiheadAttention("attn", n_embd=8, n_head=4), x)
    grouped, _ = _run(MultiheadAttention("attn", n_embd=8, n_head=4, n_kv_head=4), x, state=state)
    assert np.array_equal(plain, grouped)


def test_fused_projections_are_the_three_side_by_side():
    x = _x(2, 3, 8)
    three, state = _run(MultiheadAttention("attn", n_embd=8, n_head=4, n_kv_head=2), x)
    names = ("query", "key", "value")
    fused = ptml.init(MultiheadAttention("attn", n_embd=8, n_head=4, n_kv_head=2, fused_qkv=True), seed=0)
    for leaf in ("W", "b"):
        together = np.concatenate([state[f"attn/{name}/{leaf}"] for name in names], axis=-1)
        fused = fused.replace({f"attn/qkv/{leaf}": together, f"attn/out/{leaf}": state[f"attn/out/{leaf}"]})
    layer = MultiheadAttention("attn", n_embd=8, n_head=4, n_kv_head=2, fused_qkv=True)
    np.testing.assert_allclose(_run(layer, x, state=fused)[0], three, rtol=1e-12, atol=1e-14)


def test_causal_attention_does_not_look_ahead():
    x = _x(1, 6, 4)
    for layer in (
        CausalSelfAttention("attn", n_embd=4, n_head=2),
        MultiheadAttention("attn", n_embd=4, n_head=2, is_causal=True, rotary=RotaryPositions()),
    ):
        whole, state = _run(layer, x)
        part, _ = _run(layer, x[:, :4], state=state)
        np.testing.assert_allclose(whole[:, :4], part, rtol=1e-12, atol=1e-14)


def test_rotary_and_alibi_depend_on_distances_alone():
    layer = MultiheadAttention("attn", n_embd=8, n_head=2, rotary=RotaryPositions(), alibi=True)
    x = _x(1, 3, 8)
    shifted = np.concatenate([np.zeros((1, 4, 8)), x], axis=1)
    alone, state = _run(layer, x)
    after, _ = _run(layer, shifted, state=state, mask=(np.arange(7) >= 4)[None, None, None, :])
    np.testing.assert_allclose(after[:, 4:], alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n_kv_head", [2, 1])
def test_dropout_drops_weights_of_attention_in_training_alone(n_kv_head):
    layer = MultiheadAttention("attn", n_embd=4, n_head=2, n_kv_head=n_kv_head, dropout=0.5)
    x, state = _x(8, 3, 4), ptml.init(layer, seed=0)
    X = Input("x", (None, None, 4))
    train = ptml.function([X], layer(X), state=state)
    one, other = train(x), train(x)
    assert not np.allclose(one, other)
    plain, _ = _run(attrs.evolve(layer, dropout=0.0), x, state=state.drop("attn/dropout"))
    np.testing.assert_allclose(_run(layer, x, state=state)[0], plain, rtol=1e-12, atol=1e-14)
    # On average nothing changes: sums of values are linear in their weights.
    mean = np.mean([train(x) for _ in range(400)], axis=0)
    spread = np.std([train(x) for _ in range(50)], axis=0)
    assert (abs(mean - plain) < 6 * spread / math.sqrt(400)).all()


def test_it_learns_through_dropout_of_weights():
    layer = MultiheadAttention("attn", n_embd=4, n_head=4, n_kv_head=2, dropout=0.1)
    x = Input("x", (2, 3, 4))
    gradients = pytensor.grad((layer(x) ** 2).sum(), list(ptml.slots(layer, Role.PARAMETER)))
    values = ptml.function([x], gradients, seed=0)(_x(2, 3, 4))
    assert all(np.isfinite(value).all() and (value != 0).any() for value in values[:2])


def test_the_initializer_of_the_last_projection_is_given():
    layer = MultiheadAttention("attn", n_embd=4, n_head=2, out_proj_initializer=Zeros())
    state = ptml.init(layer, seed=0)
    assert not state["attn/out/W"].any()
    assert state["attn/query/W"].any()


def test_a_layer_is_the_same_when_it_comes_back_from_a_pickle():
    layer = CausalSelfAttention("attn", n_embd=4, n_head=2, rotary=RotaryPositions())
    again = pickle.loads(pickle.dumps(layer))
    assert again == layer
    assert again.is_causal
    assert attrs.evolve(layer, n_head=1).n_head == 1
    assert ptml.from_config(ptml.to_config(layer)) == layer
    assert repr(layer) == "CausalSelfAttention('attn', n_embd=4, n_head=2, rotary=RotaryPositions())"


BUILT_WRONG = [
    ({"n_embd": 6, "n_head": 4}, "attn .*: n_embd must be a multiple of n_head; got n_embd=6 and n_head=4"),
    (
        {"n_embd": 8, "n_head": 4, "n_kv_head": 3},
        "n_head must be a multiple of n_kv_head; got n_head=4 and n_kv_head=3",
    ),
    (
        {"n_embd": 8, "n_head": 2, "fused_qkv": True, "kv_dim": 4},
        "one input of n_embd=8; got kv_dim=4. Leave one of the two out",
    ),
    (
        {"n_embd": 6, "n_head": 2, "rotary": RotaryPositions()},
        "each head has 3: choose n_embd and n_head so that n_embd / n_head is even",
    ),
    (
        {"n_embd": 8, "n_head": 2, "rotary": RotaryPositions(axis=-3)},
        "rotary must have axis=-2, as heads come before the positions here; got axis=-3",
    ),
    ({"n_embd": 8, "n_head": 2, "dropout": 1.0}, "dropout must be a probability"),
    ({"n_embd": 0, "n_head": 2}, "n_embd must be a positive integer; got 0"),
]


@pytest.mark.parametrize(("fields", "says"), BUILT_WRONG)
def test_an_impossible_layer_is_refused_when_it_is_made(fields, says):
    with pytest.raises(ValueError, match=says):
        MultiheadAttention("attn", **fields)


def test_what_is_no_rotary_layer_is_refused():
    with pytest.raises(TypeError, match="rotary must be a RotaryPositions layer or None; got True"):
        MultiheadAttention("attn", n_embd=4, n_head=2, rotary=True)


def _called(layer, *shapes, mask=None, dtype="float64"):
    inputs = [pt.tensor(f"x{k}", shape=shape, dtype=dtype) for k, shape in enumerate(shapes)]
    return layer(*inputs) if mask is None else layer(*inputs, mask=mask)


PLAIN = MultiheadAttention("attn", n_embd=4, n_head=2)
CALLED_WRONG = [
    (PLAIN, [(2, 4)], r"attn \(MultiheadAttention\) takes \(batch, time, n_embd = 4\); got 2 axes: \(2, 4\)"),
    (PLAIN, [(2, 3, 5, 4)], "got 4 axes"),
    (PLAIN, [(2, 3, 5)], r"axis -1 is 5, where 4 is declared"),
    (PLAIN, [(2, 4, 3)], "Axis 1 has 4: move it to the end"),
    (PLAIN, [(2, 3, 4), (2, 7, 5)], r"kv_dim = 4\); got \(2, 7, 5\): axis -1 is 5"),
    (PLAIN, [(2, 3, 4), (3, 7, 4)], "keys and values of the batch that x is of; .* differ along axis -3"),
    (PLAIN, [(2, 3, 4), (7, 4)], "got 2 axes"),
    (
        MultiheadAttention("wide", n_embd=4, n_head=2, kv_dim=6),
        [(2, 3, 4)],
        r"wide .* has kv_dim=6, and takes keys and values from a second input .* call it on \(x, kv\)",
    ),
    (
        MultiheadAttention("fused", n_embd=4, n_head=2, fused_qkv=True),
        [(2, 3, 4), (2, 3, 4)],
        "fused .* takes one input: keys and values cannot come from a second one",
    ),
    (
        CausalSelfAttention("causal", n_embd=4, n_head=2),
        [(2, 3, 4), (2, 3, 4)],
        "causal .* has is_causal=True, which orders the positions of one sequence",
    ),
    (
        MultiheadAttention("turned", n_embd=4, n_head=2, rotary=RotaryPositions()),
        [(2, 3, 4), (2, 3, 4)],
        "turned .* has rotary positions, which compares positions of one sequence",
    ),
    (
        MultiheadAttention("far", n_embd=4, n_head=2, alibi=True),
        [(2, 3, 4), (2, 3, 4)],
        "far .* has alibi=True",
    ),
]


@pytest.mark.parametrize(("layer", "shapes", "says"), CALLED_WRONG)
def test_an_input_of_the_wrong_shape_is_named_with_its_axis(layer, shapes, says):
    with pytest.raises(ValueError, match=says):
        _called(layer, *shapes)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((3, 4), r"attn \(MultiheadAttention\): the mask must broadcast .* axis -1 is 4, where 3 or 1"),
        ((2, 3), "axis -2 is 2, where 3 or 1"),
        ((5, 3, 3), "axis -3 is 5, where 2 or 1"),
        ((5, 1, 3, 3), "axis -4 is 5, where 2 or 1"),
        ((1, 2, 2, 3, 3), "the mask has more axes than the scores"),
    ],
)
@pytest.mark.parametrize("dtype", [bool, float])
def test_a_mask_of_the_wrong_shape_is_named_with_its_axis(shape, says, dtype):
    with pytest.raises(ValueError, match=says):
        _called(PLAIN, (2, 3, 4), mask=np.ones(shape, dtype))


def test_a_mask_of_integers_is_neither_kind():
    for layer in (PLAIN, attrs.evolve(PLAIN, alibi=True)):
        with pytest.raises(TypeError, match=r"attn .* takes a mask of booleans.*got int64"):
            _called(layer, (2, 3, 4), mask=np.ones((3, 3), "int64"))


def test_integers_and_wider_numbers_are_refused():
    with pytest.raises(TypeError, match=r"attn \(MultiheadAttention\) computes with floating-point numbers"):
        _called(PLAIN, (2, 3, 4), dtype="int64")
    with pytensor.config.change_flags(floatX="float32"):
        layer = MultiheadAttention("narrow", n_embd=4, n_head=2)
        with pytest.raises(TypeError, match=r"narrow .* has float32 parameters"):
            _called(layer, (2, 3, 4))


def test_what_only_the_run_shows_is_refused_there():
    x, memory = Input("x", (None, None, None)), Input("memory", (None, None, None))
    mask = pt.tensor("mask", shape=(None, None), dtype="bool")
    program = ptml.function([x, memory, mask], PLAIN(x, memory, mask=mask), seed=0)
    good = [_x(2, 3, 4), _x(2, 5, 4), np.ones((3, 5), bool)]
    assert program(*good).shape == (2, 3, 4)
    with pytest.raises(ValueError, match=r"attn \(MultiheadAttention\).*axis -1 is 5, where 4 is declared"):
        program(_x(2, 3, 5), *good[1:])
    with pytest.raises(ValueError, match=r"attn .*the batch that x is of.*differ along axis -3"):
        program(good[0], _x(3, 5, 4), good[2])
    with pytest.raises(ValueError, match=r"attn .*mask.*axis -1"):
        program(*good[:2], np.ones((3, 4), bool))
