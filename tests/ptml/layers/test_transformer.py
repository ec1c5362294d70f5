"""Transformer blocks and stacks, and the feed-forward network in them."""

from __future__ import annotations

import pickle
import runpy
from pathlib import Path

import attrs
import numpy as np
import pytensor
import pytest

import ptml
from ptml.activations import GELU, ReLU, SiLU, Tanh
from ptml.initializers import Zeros
from ptml.layers import (
    FeedForward,
    Input,
    Repeat,
    RotaryPositions,
    TransformerBlock,
    TransformerDecoder,
    TransformerDecoderBlock,
    TransformerEncoder,
)
from ptml_state import Role, where

CASES = runpy.run_path(str(Path(__file__).with_name("cases_attention.py")))
attention, block, layer_norm, rms_norm = (
    CASES[name] for name in ("attention", "block", "layer_norm", "rms_norm")
)
plain, gated = CASES["plain"], CASES["gated"]


def _x(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def _run(layer, *values, state=None, **options):
    inputs = [Input(f"x{k}", tuple(value.shape)) for k, value in enumerate(values)]
    state = ptml.init(layer, seed=0) if state is None else state
    return ptml.compile_predict(layer(*inputs, **options), inputs=inputs, state=state)(*values), state


def test_post_norm_normalizes_the_sums():
    layer = TransformerBlock("post", d_model=4, n_head=2, mlp_ratio=1, norm_first=False, activation=Tanh())
    x = _x(2, 3, 4)
    got, state = _run(layer, x)
    wanted = block(
        state, "post", x, 2, norm_first=False, feed_forward=lambda p, name, y: plain(p, name, y, np.tanh)
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)


def test_a_block_as_language_models_have_it():
    layer = TransformerBlock(
        "block",
        d_model=8,
        n_head=4,
        n_kv_head=2,
        is_causal=True,
        bias=False,
        norm="rms",
        activation=SiLU(),
        gated=True,
        hidden_dim=6,
        rotary=RotaryPositions(),
        qk_norm=True,
        fused_qkv=True,
        epsilon=1e-6,
    )
    x = _x(2, 3, 8)
    got, state = _run(layer, x)
    options = {"norm": rms_norm, "feed_forward": gated, "n_kv_head": 2, "causal": True, "rotary": True}
    np.testing.assert_allclose(got, block(state, "block", x, 4, **options), rtol=1e-9, atol=1e-12)
    assert [f"{h.slot.address} {h.type.shape}" for h in ptml.slots(layer)] == [
        "block/norm1/scale (8,)",
        "block/attn/qkv/W (8, 16)",
        "block/attn/query_norm/scale (2,)",
        "block/attn/key_norm/scale (2,)",
        "block/attn/out/W (8, 8)",
        "block/norm2/scale (8,)",
        "block/ff/fc_in/W (8, 12)",
        "block/ff/fc_out/W (6, 8)",
    ]


def test_an_encoder_is_its_blocks_and_a_norm():
    x, mask = _x(2, 3, 4), np.array([[True, False, True]] * 3)
    encoder = TransformerEncoder("encoder", n_layer=2, d_model=4, n_head=2)
    got, state = _run(encoder, x, mask=mask)
    y, added = x, np.broadcast_to(np.where(mask, 0.0, -np.inf), (2, 2, 3, 3))
    for k in range(2):
        y = block(state, f"encoder/block{k}", y, 2, mask=added)
    np.testing.assert_allclose(got, layer_norm(state, "encoder/norm", y), rtol=1e-9, atol=1e-12)
    assert list(state)[-2:] == ["encoder/norm/scale", "encoder/norm/b"]
    # Blocks that normalize last need no further norm.
    post = TransformerEncoder("encoder", n_layer=1, d_model=4, n_head=2, norm_first=False)
    assert "encoder/norm/scale" not in ptml.init(post, seed=0)
    assert "encoder/norm/scale" in ptml.init(attrs.evolve(post, final_norm=True), seed=0)


def test_a_stack_is_the_blocks_that_repeat_makes():
    blocks = Repeat(2, TransformerBlock("block", d_model=4, n_head=2, is_causal=True))
    encoder = TransformerEncoder("encoder", n_layer=2, d_model=4, n_head=2, is_causal=True, final_norm=False)
    x = _x(2, 3, 4)
    one, state = _run(blocks, x)
    renamed = state.rename({"block0": "encoder/block0", "block1": "encoder/block1"})
    other, _ = _run(encoder, x, state=renamed)
    assert np.array_equal(one, other)


def test_a_decoder_attends_to_itself_and_to_a_memory():
    layer = TransformerDecoderBlock("dec", d_model=4, n_head=2, memory_dim=6, mlp_ratio=1)
    x, memory = _x(2, 3, 4), _x(2, 5, 6, seed=1)
    may = np.arange(5) < np.array([[2], [5]])
    mask = np.array([[True, False, True]] * 3)
    got, p = _run(layer, x, memory, mask=mask, memory_mask=may[:, None, None, :])
    added = np.broadcast_to(np.where(mask, 0.0, -np.inf), (2, 2, 3, 3))
    y = x + attention(p, "dec/attn", layer_norm(p, "dec/norm1", x), 2, causal=True, mask=added)
    of_memory = np.broadcast_to(np.where(may, 0.0, -np.inf)[:, None, None, :], (2, 2, 3, 5))
    y = y + attention(p, "dec/cross", layer_norm(p, "dec/cross_norm", y), 2, kv=memory, mask=of_memory)
    wanted = y + plain(p, "dec/ff", layer_norm(p, "dec/norm2", y))
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)
    assert list(dict.fromkeys(address.split("/")[1] for address in p)) == [
        "norm1",
        "attn",
        "cross_norm",
        "cross",
        "norm2",
        "ff",
    ]


def test_a_stack_of_decoders_is_its_blocks_and_a_norm():
    decoder = TransformerDecoder("dec", n_layer=2, d_model=4, n_head=2, memory_dim=6, final_norm=False)
    x, memory = _x(2, 3, 4), _x(2, 5, 6, seed=1)
    got, state = _run(decoder, x, memory)
    y = x
    for k in range(2):
        one = TransformerDecoderBlock(f"dec/block{k}", d_model=4, n_head=2, memory_dim=6)
        y, _ = _run(one, y, memory, state=state.select(where(f"dec/block{k}")))
    np.testing.assert_allclose(got, y, rtol=1e-12, atol=1e-14)


def test_every_kind_of_dropout_draws_in_training_and_is_gone_in_prediction():
    quiet = TransformerDecoder("net", n_layer=1, d_model=4, n_head=2)
    kinds = {"dropout": 6, "attention_dropout": 2, "hidden_dropout": 1, "drop_path": 3}
    x, memory = _x(4, 3, 4), _x(4, 2, 4, seed=1)
    plain_result, _ = _run(quiet, x, memory)
    for kind, keys in {**kinds, "dropout": 3}.items():
        layer = attrs.evolve(quiet, **{kind: 0.5})
        drawn = ptml.init(layer, seed=0)
        assert len(drawn.select(Role.GENERATOR)) == keys, kind
        inputs = [Input("x", (None, None, 4)), Input("memory", (None, None, 4))]
        train = ptml.function(inputs, layer(*inputs), state=drawn)
        assert not np.allclose(train(x, memory), train(x, memory)), kind
        predicted, _ = _run(layer, x, memory, state=drawn)
        np.testing.assert_allclose(predicted, plain_result, rtol=1e-12, atol=1e-13, err_msg=kind)
    assert list(ptml.init(attrs.evolve(quiet, n_layer=1, dropout=0.5), seed=0).select(Role.GENERATOR)) == [
        "net/block0/attn_dropout/key",
        "net/block0/cross_dropout/key",
        "net/block0/ff_dropout/key",
    ]


def test_a_block_whose_additions_start_at_zero_gives_back_what_it_takes():
    layer = TransformerBlock("block", d_model=4, n_head=2, residual_initializer=Zeros())
    x = _x(2, 3, 4)
    assert np.array_equal(_run(layer, x)[0], x)


def test_the_gelu_of_a_feed_forward_network_and_its_gates():
    x = _x(5, 3)
    got, state = _run(FeedForward("ff", d_model=3, activation=GELU(), gated=True), x)
    np.testing.assert_allclose(got, gated(state, "ff", x, CASES["gelu"]), rtol=1e-9, atol=1e-12)
    ff = FeedForward("ff", d_model=3, hidden_dim=7, mlp_ratio=2, activation=ReLU())
    assert ff.width == 7
    got, state = _run(ff, x)
    np.testing.assert_allclose(got, plain(state, "ff", x, lambda y: np.maximum(y, 0)), rtol=1e-9, atol=1e-12)


def test_a_stack_is_a_value_and_its_blocks_are_its_own():
    decoder = TransformerDecoder("dec", n_layer=2, d_model=4, n_head=2, rotary=RotaryPositions())
    assert ptml.from_config(ptml.to_config(decoder)) == decoder
    assert eval(repr(decoder), {**vars(ptml.layers)}) == decoder
    again = pickle.loads(pickle.dumps(decoder))
    assert again == decoder
    inner = pickle.loads(pickle.dumps((decoder, decoder.blocks[1].attn)))
    assert inner[1] is inner[0].blocks[1].attn
    assert decoder.blocks[0].attn is decoder.blocks[0].attn
    assert ptml.select(decoder, "dec/block1/cross")[0] is decoder.blocks[1].cross
    with pytest.raises(ValueError, match=r"dec/block0, .* cannot be replaced"):
        ptml.replace(decoder, "dec/block0", TransformerBlock("new", d_model=4, n_head=2))


def test_unnamed_stacks_are_numbered():
    pair = tuple(TransformerEncoder(n_layer=1, d_model=2, n_head=1) for _ in range(2))
    tops = dict.fromkeys(address.split("/")[0] for address in ptml.init(pair, seed=0))
    assert list(tops) == ["TransformerEncoder_1", "TransformerEncoder_2"]


WRONG = [
    (TransformerBlock, {"d_model": 6, "n_head": 4}, ValueError, "d_model must be a multiple of n_head"),
    (TransformerEncoder, {"d_model": 4, "n_head": 2, "n_layer": 0}, ValueError, "n_layer must be a positive"),
    (TransformerBlock, {"d_model": 4, "n_head": 2, "norm": "batch"}, ValueError, "norm must be 'layer'"),
    (TransformerBlock, {"d_model": 4, "n_head": 2, "dropout": 1.0}, ValueError, "dropout must be a prob"),
    (TransformerBlock, {"d_model": 4, "n_head": 2, "n_kv_head": 3}, ValueError, "multiple of n_kv_head"),
    (TransformerBlock, {"d_model": 4, "n_head": 2, "activation": ReLU}, TypeError, r"such as ReLU\(\)"),
    (
        TransformerBlock,
        {"d_model": 6, "n_head": 2, "rotary": RotaryPositions()},
        ValueError,
        "each head has 3: choose d_model and n_head",
    ),
    (FeedForward, {"d_model": 4, "activation": np.tanh}, TypeError, r"must be a layer, such as GELU\(\)"),
    (FeedForward, {"d_model": 4, "hidden_dim": 0}, ValueError, "hidden_dim must be a positive integer"),
]


@pytest.mark.parametrize(("cls", "fields", "error", "says"), WRONG)
def test_an_impossible_layer_is_refused_when_it_is_made(cls, fields, error, says):
    with pytest.raises(error, match=f"net .*{says}"):
        cls("net", **fields)


def test_mistakes_in_a_call_name_the_part_and_the_axis():
    encoder = TransformerEncoder("enc", n_layer=1, d_model=4, n_head=2)
    with pytest.raises(ValueError, match=r"enc/block0/attn .*takes \(batch, time, n_embd = 4\); got 2 axes"):
        encoder(Input("x", (3, 4)))
    with pytest.raises(ValueError, match=r"enc/block0/norm1 .*axis -1 is 5, where 4 is declared"):
        encoder(Input("x", (2, 3, 5)))
    decoder = TransformerDecoder("dec", n_layer=1, d_model=4, n_head=2)
    with pytest.raises(ValueError, match=r"dec/block0/cross .*differ along axis -3"):
        decoder(Input("x", (2, 3, 4)), Input("memory", (1, 3, 4)))
    with pytest.raises(ValueError, match=r"dec/block0/cross .*the mask must broadcast.*axis -1 is 4"):
        decoder(Input("x", (2, 3, 4)), Input("memory", (2, 5, 4)), memory_mask=np.ones((2, 1, 1, 4), bool))
    with pytest.raises(TypeError, match="memory"):
        decoder(Input("x", (2, 3, 4)))


def test_float32_stays_float32(float32):
    layer = TransformerBlock("block", d_model=4, n_head=2, n_kv_head=1, alibi=True, rotary=RotaryPositions())
    x = Input("x", (None, None, 4))
    y = layer(x, mask=np.zeros((3, 3)))
    wrt = list(ptml.slots(layer, Role.PARAMETER))
    assert {v.type.dtype for v in [y, *pytensor.grad(y.sum(), wrt)]} == {"float32"}
