"""Sampling from decoders: reproducible draws, of the likeliest alone where that is asked for."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import ptml
from ptml.generation import stream
from ptml.generation.sampling import _Draw
from ptml.layers import Embedding, Input, Linear, Sequential, TransformerBlock

N, LENGTH = 7, 16

NET = Sequential(
    Embedding("tokens", n_embeddings=N, n_features=4),
    TransformerBlock("block", d_model=4, n_head=2, is_causal=True, alibi=True),
    Linear("head", n_in=4, n_out=N),
)
STATE = ptml.init(NET, seed=0)


@functools.cache
def _decoder(batch=1, backend=None):
    return ptml.compile_decode(NET, batch=batch, length=LENGTH, state=STATE, backend=backend)


@functools.cache
def _predict():
    ids = Input("ids", (None, None), dtype="int64")
    return ptml.compile_predict(NET(ids), state=STATE)


def test_at_temperature_zero_the_likeliest_follows():
    ids = [1, 2, 3]
    for _ in range(5):
        ids.append(int(_predict()(np.array([ids]))[0, -1].argmax()))
    assert ptml.generate(_decoder(), ids[:3], 5, temperature=0.0)[0].tolist() == ids[3:]


def test_a_seed_gives_the_same_draws_whatever_was_drawn_before():
    one = ptml.generate(_decoder(), [1, 2], 8, seed=3)
    assert one.dtype == np.int64
    assert not np.array_equal(one, ptml.generate(_decoder(), [1, 2], 8, seed=4))
    assert np.array_equal(one, ptml.generate(_decoder(), [1, 2], 8, seed=3))


@pytest.mark.backends("numba", "jax")
def test_every_backend_draws_the_same(backend):
    wanted = ptml.generate(_decoder(2), [[1, 2], [3, 4]], 6, seed=3)
    assert np.array_equal(ptml.generate(_decoder(2, backend), [[1, 2], [3, 4]], 6, seed=3), wanted)


def test_an_example_does_not_depend_on_those_beside_it_nor_on_the_length_of_their_prompts():
    alone = ptml.generate(_decoder(), [4], 6, seed=2)
    beside = ptml.generate(_decoder(2), [[4], [1, 2, 3, 0, 5]], 6, seed=2)
    assert np.array_equal(beside[0], alone[0])
    turned = ptml.generate(_decoder(2), [[1, 2, 3, 0, 5], [4]], 6, temperature=0.0)
    assert np.array_equal(turned[1], ptml.generate(_decoder(), [4], 6, temperature=0.0)[0])


def test_one_prompt_is_that_of_all_examples():
    both = ptml.generate(_decoder(2), [1, 2], 3, temperature=0.0)
    assert both.shape == (2, 3)
    assert np.array_equal(both[0], both[1])


def test_a_prompt_may_come_after_what_is_there():
    whole = ptml.generate(_decoder(), [1, 2, 3, 4], 3, temperature=0.0)
    _decoder().reset()
    _decoder()(np.array([[1, 2]]))
    assert np.array_equal(ptml.generate(_decoder(), [3, 4], 3, temperature=0.0, go_on=True), whole)
    assert _decoder().position.tolist() == [6]


def test_a_stream_gives_what_generate_gives_as_it_is_drawn():
    wanted = ptml.generate(_decoder(), [1, 2], 5, seed=1)
    drawn = stream(_decoder(), [1, 2], 5, seed=1)
    first = next(drawn)
    assert first.shape == (1,)
    assert _decoder().position.tolist() == [2]
    assert [int(first[0]), *(int(ids[0]) for ids in drawn)] == wanted[0].tolist()
    assert ptml.generate(_decoder(), [1], 0).shape == (1, 0)


def test_draws_are_as_often_as_the_softmax_says():
    logits = np.log(np.array([0.1, 0.2, 0.7]))
    draw = _Draw(1.0, None, None, 0, 1)
    counts = np.bincount([draw(logits[None])[0] for _ in range(4000)], minlength=3) / 4000
    np.testing.assert_allclose(counts, [0.1, 0.2, 0.7], atol=0.03)
    warm = _Draw(2.0, None, None, 0, 1)
    counts = np.bincount([warm(logits[None])[0] for _ in range(4000)], minlength=3) / 4000
    roots = np.sqrt([0.1, 0.2, 0.7])
    np.testing.assert_allclose(counts, roots / roots.sum(), atol=0.03)


@pytest.mark.parametrize(
    ("options", "kept"),
    [({"top_k": 2}, {1, 2}), ({"top_p": 0.75}, {1, 2}), ({"top_p": 0.69}, {2}), ({"top_k": 1}, {2})],
)
def test_only_the_likeliest_are_drawn(options, kept):
    logits = np.log(np.array([[0.1, 0.2, 0.7]]))
    draw = _Draw(1.0, options.get("top_k"), options.get("top_p"), 0, 1)
    assert {int(draw(logits)[0]) for _ in range(200)} == kept


def test_infinite_logits_are_all_or_nothing():
    draw = _Draw(1.0, None, None, 0, 1)
    assert {int(draw(np.array([[-np.inf, 0.0, 1.0]]))[0]) for _ in range(50)} == {1, 2}
    assert {int(draw(np.array([[0.0, np.inf, 1.0]]))[0]) for _ in range(50)} == {1}
    with pytest.raises(ValueError, match="the logits of example 0 are NaN: there is nothing to draw from"):
        draw(np.array([[0.0, np.nan]]))
    with pytest.raises(ValueError, match="example 1 are all -inf"):
        draw(np.array([[0.0, 1.0], [-np.inf, -np.inf]]))


@pytest.mark.parametrize(
    ("prompt", "n", "options", "says"),
    [
        ([1, 2], 16, {}, r"a prompt of 2 and 16 more take 17 positions, 0 are filled.*holds 16.*length=17"),
        ([], 3, {}, "takes a prompt of integer ids"),
        ([[1], [2]], 3, {}, "with batch=1, or a list of 1 sequences"),
        ([1.5], 3, {}, "float64"),
        ([[1, 2], [3]], 3, {}, "got 2 sequences"),
        ([1], -1, {}, "n must be a whole number; got -1"),
        ([1], 1, {"temperature": -1.0}, "temperature must be a number of 0 or more; got -1.0"),
        ([1], 1, {"top_k": 0}, "top_k must be a positive integer or None; got 0"),
        ([1], 1, {"top_p": 1.5}, r"top_p must be a number in \(0, 1\] or None; got 1.5"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_anything_is_computed(prompt, n, options, says):
    _decoder()(np.array([[1]])) if _decoder().position[0] == 0 else None
    with pytest.raises(ValueError, match=says):
        ptml.generate(_decoder(), prompt, n, **options)


def test_a_decoder_of_something_else_than_logits_is_refused():
    net = Sequential(*NET[:2].layers)
    pair = ptml.compile_decode(lambda ids: (net(ids), ids), length=4, state=STATE)
    with pytest.raises(ValueError, match=r"gives logits, \(batch, time, classes\); this one gives 2 outputs"):
        ptml.generate(pair, [1], 1)
