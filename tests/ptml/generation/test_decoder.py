"""Decoders: piece by piece as much as at once, on every backend, and what becomes of the caches."""

from __future__ import annotations

import itertools

import numpy as np
import pytensor
import pytest

import ptml
from ptml.layers import (
    RNN,
    CausalSelfAttention,
    Conv1D,
    Dropout,
    Embedding,
    Input,
    Lambda,
    LearnedPositions,
    Linear,
    MultiheadAttention,
    Repeat,
    RotaryPositions,
    Sequential,
    SinusoidalPositions,
    TransformerBlock,
    TransformerDecoder,
    TransformerEncoder,
)
from ptml.optim import compile_train, sgd
from ptml_state import Role, Store, where

N, LENGTH = 7, 8


def _network(*between, width=4):
    return Sequential(
        Embedding("tokens", n_embeddings=N, n_features=width),
        *between,
        Linear("head", n_in=width, n_out=N),
    )


def _block(name="block", **options):
    return TransformerBlock(name, d_model=4, n_head=2, mlp_ratio=1, is_causal=True, **options)


NETWORKS = {
    "sinusoids": lambda: _network(SinusoidalPositions("sine", n_features=4), _block()),
    "learned": lambda: _network(LearnedPositions("learned", n_positions=LENGTH, n_features=4), _block()),
    "rotary": lambda: _network(_block(rotary=RotaryPositions(), n_kv_head=1, norm="rms")),
    "alibi": lambda: _network(_block(alibi=True, fused_qkv=True, qk_norm=True, attention_dropout=0.5)),
    "post_norm": lambda: _network(_block(norm_first=False), Dropout("drop", p=0.5)),
    "encoder": lambda: _network(
        TransformerEncoder("trunk", n_layer=2, d_model=4, n_head=2, mlp_ratio=1, is_causal=True)
    ),
}
#: Pieces of all kinds: several elements, one, all the rest.
CUTS = (0, 3, 4, 5, LENGTH)


def _ids(batch=2, length=LENGTH, seed=0):
    return np.random.default_rng(seed).integers(0, N, (batch, length))


def _whole(net, state, ids, **options):
    given = Input("ids", (None, None), dtype="int64")
    return ptml.compile_predict(net(given), state=state, **options)(ids)


def _pieces(decoder, ids):
    return np.concatenate([decoder(ids[:, a:b]) for a, b in itertools.pairwise(CUTS)], axis=1)


@pytest.mark.parametrize("name", NETWORKS)
def test_piece_by_piece_gives_what_the_whole_gives(name):
    net, ids = NETWORKS[name](), _ids()
    state = ptml.init(net, seed=0)
    decoder = ptml.compile_decode(net, batch=2, length=LENGTH, state=state)
    wanted = _whole(net, state, ids)
    np.testing.assert_allclose(_pieces(decoder, ids), wanted, rtol=1e-12, atol=1e-12)
    decoder.reset()
    np.testing.assert_allclose(_pieces(decoder, ids), wanted, rtol=1e-12, atol=1e-12)
    assert not np.allclose(wanted[:, 0], wanted[:, 1])


@pytest.mark.backends("numba", "c", "jax", "mlx", "pytorch")
def test_every_backend_decodes_alike(backend):
    floatX = "float32" if backend == "mlx" else "float64"
    tolerance = 1e-5 if backend == "mlx" else 1e-12
    with pytensor.config.change_flags(floatX=floatX):
        net = _network(
            SinusoidalPositions("sine", n_features=4),
            LearnedPositions("learned", n_positions=LENGTH, n_features=4),
            CausalSelfAttention(
                "attn", n_embd=4, n_head=2, rotary=RotaryPositions(), n_kv_head=1, alibi=True
            ),
        )
        ids, state = _ids(), ptml.init(net, seed=0)
        decoder = ptml.compile_decode(net, batch=2, length=LENGTH, state=state, backend=backend)
        wanted = _whole(net, state, ids)
        np.testing.assert_allclose(_pieces(decoder, ids), wanted, rtol=tolerance, atol=tolerance)
        # What does not fit is refused, and changes nothing.
        before = decoder.state
        with pytest.raises(
            ValueError, match=r"The decoder holds 8 positions .* 8 are taken and 1 more do not"
        ):
            decoder(ids[:, :1])
        assert decoder.state == before
        decoder.rewind([4, 5])
        other = np.concatenate([ids[:1, 4:6], ids[1:, 5:7]])
        got = decoder(other)
        np.testing.assert_allclose(got[0], wanted[0, 4:6], rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(got[1], wanted[1, 5:7], rtol=tolerance, atol=tolerance)


def test_the_caches_are_leaves_of_a_role_of_their_own():
    net = _network(_block())
    decoder = ptml.compile_decode(net, batch=2, length=LENGTH, state=ptml.init(net, seed=0))
    caches = decoder.state.select(Role.CACHE)
    assert {address: (str(v.dtype), v.shape) for address, v in caches.items()} == {
        "cache/position": ("int64", (2,)),
        "cache/keys/block/attn": ("float64", (2, 2, LENGTH, 2)),
        "cache/values/block/attn": ("float64", (2, 2, LENGTH, 2)),
    }
    assert not any(value.any() for value in caches.values())
    decoder(_ids(length=3))
    assert decoder.position.tolist() == [3, 3]
    filled = decoder.state["cache/keys/block/attn"]
    assert filled[:, :, :3].all()
    assert not filled[:, :, 3:].any()
    decoder.reset()
    assert not any(value.any() for value in decoder.state.select(Role.CACHE).values())


def test_a_state_taken_in_the_middle_goes_on_in_another_decoder():
    net, ids = _network(_block(alibi=True)), _ids()
    first = ptml.compile_decode(net, batch=2, length=LENGTH, state=ptml.init(net, seed=0))
    first(ids[:, :5])
    kept = first.state
    second = ptml.compile_decode(net, batch=2, length=LENGTH, state=kept)
    # A decoder begins anew, whatever is in the state that it is made of.
    assert second.position.tolist() == [0, 0]
    second.store.load(kept)
    assert np.array_equal(second(ids[:, 5:]), first(ids[:, 5:]))


def test_a_decoder_over_a_programs_store_sees_its_training():
    net, ids = _network(_block(alibi=True, dropout=0.5)), _ids()
    given = Input("ids", (None, None), dtype="int64")
    step = compile_train((net(given) ** 2).mean(), sgd(0.1), seed=0)
    decoder = ptml.compile_decode(net, batch=2, length=LENGTH, state=step)
    before = decoder(ids)
    step(ids)
    decoder.reset()
    after = decoder(ids)
    assert not np.allclose(before, after)
    trained = step.state.select(Role.PARAMETER)
    np.testing.assert_allclose(after, _whole(net, trained, ids), rtol=1e-12, atol=1e-12)
    step(ids)  # the training has no part in the caches
    assert decoder.position.tolist() == [LENGTH, LENGTH]


def test_decoders_of_one_size_share_caches_and_others_need_a_namespace():
    net = _network(_block())
    store = Store(ptml.init(net, seed=0))
    one = ptml.compile_decode(net, length=LENGTH, state=store)
    again = ptml.compile_decode(net, length=LENGTH, state=store)
    one(_ids(1, 3))
    assert again.position.tolist() == [3]
    with pytest.raises(ValueError, match=r"caches of other sizes at 'cache/position'.*namespace='cache_2'"):
        ptml.compile_decode(net, batch=2, length=LENGTH, state=store)
    wide = ptml.compile_decode(net, batch=2, length=LENGTH, state=store, namespace="wide")
    wide(_ids(2, 2))
    assert one.position.tolist() == [3]
    assert len(store.state.select(where("wide"))) == 3


def test_a_layer_that_is_used_twice_has_caches_for_each_use():
    shared = _block("shared", alibi=True)
    net, ids = _network(shared, shared), _ids()
    state = ptml.init(net, seed=0)
    decoder = ptml.compile_decode(net, batch=2, length=LENGTH, state=state)
    assert list(decoder.state.select(where("cache/keys"))) == [
        "cache/keys/shared/attn",
        "cache/keys/shared/attn_2",
    ]
    np.testing.assert_allclose(_pieces(decoder, ids), _whole(net, state, ids), rtol=1e-12, atol=1e-12)


def test_unnamed_layers_are_numbered_as_their_parameters_are():
    net = _network(*[CausalSelfAttention(n_embd=4, n_head=2, alibi=True) for _ in range(2)])
    decoder = ptml.compile_decode(net, length=LENGTH, state=ptml.init(net, seed=0))
    assert list(decoder.state.select(where("cache/keys"))) == [
        "cache/keys/CausalSelfAttention_1",
        "cache/keys/CausalSelfAttention_2",
    ]


def test_a_memory_is_given_with_every_piece():
    tokens = Embedding("tokens", n_embeddings=N, n_features=4)
    decoder = TransformerDecoder("dec", n_layer=1, d_model=4, n_head=2, memory_dim=3, alibi=False)
    place = SinusoidalPositions("sine", n_features=4)

    def network(ids, memory):
        return tokens.attend(decoder(place(tokens(ids)), memory))

    ids, memory = _ids(), np.random.default_rng(1).normal(size=(2, 5, 3))
    inputs = [Input("ids", (2, None), dtype="int64"), Input("memory", (2, None, 3))]
    state = ptml.init((tokens, decoder), seed=0)
    program = ptml.compile_decode(network, batch=2, length=LENGTH, inputs=inputs, state=state)
    wanted = ptml.compile_predict(network(*inputs), inputs=inputs, state=state)(ids, memory)
    got = np.concatenate([program(ids[:, :3], memory), program(ids[:, 3:], memory)], axis=1)
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)
    drawn = ptml.generate(program, ids[:, :2], 3, others=[memory])
    assert drawn.shape == (2, 3)


def test_vectors_are_decoded_as_ids_are():
    net = Repeat(2, _block(alibi=True))
    state, x = ptml.init(net, seed=0), np.random.default_rng(0).normal(size=(1, LENGTH, 4))
    inputs = [Input("x", (1, None, 4))]
    decoder = ptml.compile_decode(net, length=LENGTH, inputs=inputs, state=state)
    wanted = ptml.compile_predict(net(*inputs), inputs=inputs, state=state)(x)
    np.testing.assert_allclose(_pieces(decoder, x), wanted, rtol=1e-12, atol=1e-12)


def test_the_pure_program_takes_the_caches_as_arguments():
    net, ids = _network(_block(alibi=True)), _ids()
    decoder = ptml.compile_decode(net, batch=2, length=LENGTH, state=ptml.init(net, seed=0))
    before = decoder.state
    one, state = decoder.program.pure(before, ids[:, :5])
    two, _ = decoder.program.pure(state, ids[:, 5:])
    wanted = decoder(ids)
    np.testing.assert_allclose(np.concatenate([one, two], axis=1), wanted, rtol=1e-12, atol=1e-12)
    assert not before["cache/position"].any()


def test_a_plain_jax_function_which_cannot_raise_gives_nan_for_what_does_not_fit():
    pytest.importorskip("jax", reason="jax is not installed: pip install 'ptml[jax]'")
    import jax

    net = _network(CausalSelfAttention("attn", n_embd=4, n_head=2))
    decoder = ptml.compile_decode(net, length=4, state=ptml.init(net, seed=0), backend="jax")
    with jax.enable_x64(True):
        step = decoder.program.to_jax()
        logits, state = step(decoder.state, _ids(1, 3))
        assert np.isfinite(logits).all()
        logits, _ = step(state, _ids(1, 2))
    assert np.isnan(logits).all()


def test_an_empty_piece_changes_nothing():
    net = _network(_block(alibi=True))
    decoder = ptml.compile_decode(net, length=LENGTH, state=ptml.init(net, seed=0))
    decoder(_ids(1, 3))
    assert decoder(_ids(1, 0)).shape == (1, 0, N)
    assert decoder.position.tolist() == [3]


def test_a_piece_costs_what_it_is_and_what_the_caches_hold():
    # Steps of one element multiply one row by each weight, whatever is in the caches.
    net = _network(_block(alibi=True))
    decoder = ptml.compile_decode(net, length=512, state=ptml.init(net, seed=0))
    decoder(_ids(1, 400))
    held = decoder.program.memory()
    assert held.state < 4 * 512 * 4 * 8


def test_rewinding_further_than_there_is_is_refused():
    net = _network(_block())
    decoder = ptml.compile_decode(net, batch=2, length=LENGTH, state=ptml.init(net, seed=0))
    decoder(_ids(2, 3))
    for position in (4, [1, 2, 3], -1, 1.5):
        with pytest.raises(ValueError, match=r"one position for each of the 2 examples.*\[3 3\]"):
            decoder.rewind(position)
    decoder.rewind(1)
    assert decoder.position.tolist() == [1, 1]
    assert repr(decoder) == "<Decoder(ids: int64[2,?]) on numba, 1 of 8 positions>"


REFUSED = [
    (lambda: _network(TransformerBlock("look", d_model=4, n_head=2)), {}, "look/attn .*write is_causal=True"),
    (lambda: _network(), {}, "has no causal self-attention"),
    (
        lambda: _network(RNN("rnn", n_in=4, n_hidden=4), _block()),
        {},
        r"rnn \(RNN\) keeps no state between the pieces that a decoder is given",
    ),
    (
        lambda: _network(
            _block(), Conv1D("conv", in_channels=4, out_channels=4, kernel_size=2, padding="causal")
        ),
        {},
        r"conv \(Conv1D\) looks along the sequence in another way .* an input of its own",
    ),
    (
        lambda: _network(LearnedPositions("short", n_positions=4, n_features=4), _block()),
        {},
        r"short \(LearnedPositions\) has 4 positions, and cannot decode 8: write length=4 or less",
    ),
    (lambda: _network(_block()), {"length": 0}, "length must be a positive integer; got 0"),
    (lambda: _network(_block()), {"batch": 1.5}, "batch must be a positive integer; got 1.5"),
    (
        lambda: _network(_block()),
        {"inputs": [Input("words", (None, None), dtype="int64")]},
        r"batch=1; got words of shape \(None, None\). Write Input\('words', shape=\(1, None\)",
    ),
]


@pytest.mark.parametrize(("network", "options", "says"), REFUSED)
def test_what_cannot_be_decoded_is_refused_when_it_is_compiled(network, options, says):
    net = network()
    with pytest.raises(ValueError, match=says):
        ptml.compile_decode(net, **{"length": LENGTH, "state": ptml.init(net, seed=0), **options})


def test_a_graph_and_a_masked_attention_are_refused():
    net, ids = _network(_block()), Input("ids", (1, None), dtype="int64")
    with pytest.raises(TypeError, match=r"Write compile_decode\(net, ...\), not compile_decode\(net\(ids\)"):
        ptml.compile_decode(net(ids), length=LENGTH)
    attention = MultiheadAttention("attn", n_embd=4, n_head=2, is_causal=True)
    masked = _network(Lambda(lambda x: attention(x, mask=np.ones((1, 1), bool))), attention)
    with pytest.raises(ValueError, match=r"attn .*takes no mask while decoding"):
        ptml.compile_decode(masked, length=LENGTH, state=ptml.init(masked, seed=0))
    with pytest.raises(ValueError, match="random weights are nobody's wish"):
        ptml.compile_decode(net, length=LENGTH)


def test_layers_that_are_called_afterwards_know_nothing_of_it():
    net, ids = _network(SinusoidalPositions("sine", n_features=4), _block()), _ids()
    state = ptml.init(net, seed=0)
    before = _whole(net, state, ids)
    ptml.compile_decode(net, length=LENGTH, state=state)
    with pytest.raises(ValueError, match="is_causal=True"):
        ptml.compile_decode(_network(TransformerBlock(d_model=4, n_head=2)), length=LENGTH)
    assert np.array_equal(_whole(net, state, ids), before)
