"""Draws of a generator: numbered by the order in which they were made, and pure functions of the leaf."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.bits import folded_key, numbers
from ptml.layers import Dropout, Input
from ptml_state import State

PYTHON = Mode(linker="py", optimizer="fast_compile")


class Noise(ptml.Layer):
    @ptml.slot
    def key(self):
        return ptml.generator()

    @ptml.slot
    def W(self):
        return ptml.parameter((), ptml.initializers.Ones())


@pytest.fixture
def noise():
    return Noise("noise")


def compiled(outputs, state=None, **options):
    return ptml.function(
        None, outputs, state=state, seed=0 if state is None else None, mode=PYTHON, **options
    )


def leaf(program):
    return program.state["noise/key"]


def test_draws_are_those_of_the_leaf_and_their_number(noise):
    outputs = [ptml.random.bits(noise.key, (2, 3)), ptml.random.uniform(noise.key, 4)]
    program = compiled(outputs)
    before = leaf(program)
    words, unit = program()
    np.testing.assert_array_equal(words.ravel(), numbers(before.tolist(), 0, 6, "uint32"))
    np.testing.assert_array_equal(unit, numbers(before.tolist(), 1, 4, "float64"))


def test_every_call_counts_one_and_keeps_the_key(noise):
    program = compiled([ptml.random.bits(noise.key), ptml.random.bits(noise.key)])
    before = leaf(program)
    first = program()
    second = program()
    np.testing.assert_array_equal(leaf(program), before + np.array([0, 0, 2, 0], "uint32"))
    assert len({int(word) for word in (*first, *second)}) == 4


@pytest.mark.parametrize(
    ("calls", "after"), [((5, 0), (6, 0)), ((0xFFFFFFFF, 0), (0, 1)), ((0xFFFFFFFF, 0xFFFFFFFF), (0, 0))]
)
def test_the_count_carries_over_into_its_high_word(noise, calls, after):
    state = ptml.init(noise, seed=0).replace({"noise/key": np.array([1, 2, *calls], "uint32")})
    program = compiled(ptml.random.bits(noise.key, (8,)), state)
    np.testing.assert_array_equal(program(), numbers((1, 2, *calls), 0, 8, "uint32"))
    np.testing.assert_array_equal(leaf(program), [1, 2, *after])


def test_draws_are_numbered_in_the_order_in_which_they_were_made(noise):
    first, second = ptml.random.bits(noise.key), ptml.random.bits(noise.key)
    wanted = compiled([first, second])()
    np.testing.assert_array_equal(compiled([second, first])()[::-1], wanted)
    np.testing.assert_array_equal(compiled([pt.stack([second, first])])()[0][::-1], wanted)


def test_draws_of_two_generators_are_numbered_apart():
    one, two = Noise("one"), Noise("two")
    outputs = [ptml.random.bits(one.key), ptml.random.bits(two.key), ptml.random.bits(one.key)]
    program = compiled(outputs)
    state = program.state
    words = program()
    wanted = [
        numbers(state[a].tolist(), n, 1, "uint32")[0]
        for a, n in (("one/key", 0), ("two/key", 0), ("one/key", 1))
    ]
    np.testing.assert_array_equal(words, wanted)


def test_a_draw_that_is_read_twice_is_drawn_once(noise):
    unit = ptml.random.uniform(noise.key, 5)
    one, other = compiled([unit, 1 - unit])()
    np.testing.assert_allclose(one + other, np.ones(5), rtol=1e-15)


def test_a_gradient_sees_the_draws_of_its_loss(noise):
    x = pt.vector("x")
    mask = ptml.random.bernoulli(noise.key, 0.5, x.shape)
    loss = (x**2 * mask).sum()
    gradient, drawn = compiled([pytensor.grad(loss, x), mask])(np.arange(1.0, 9.0))
    np.testing.assert_array_equal(gradient, 2 * np.arange(1.0, 9.0) * drawn)


def test_shapes_are_numbers_tuples_or_symbolic(noise):
    X, shape = Input("X", (None, 3)), pt.vector("shape", dtype="int64", shape=(2,))
    draws = [ptml.random.uniform(noise.key, s) for s in ((), 2, (2, 3), X.shape, (X.shape[0], 2), [4], shape)]
    results = ptml.function([X, shape], draws, seed=0, mode=PYTHON)(np.ones((5, 3)), [1, 2])
    assert [r.shape for r in results] == [(), (2,), (2, 3), (5, 3), (5, 2), (4,), (1, 2)]


def test_a_negative_size_is_refused(noise):
    with pytest.raises(ValueError, match="every dimension must be 0 or more"):
        ptml.random.uniform(noise.key, (-1,))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_draws_lie_between_their_bounds_in_their_dtype(noise, dtype):
    drawn = compiled(ptml.random.uniform(noise.key, (5000,), -2.0, 3.0, dtype=dtype))()
    assert drawn.dtype == dtype
    assert drawn.min() >= -2.0
    assert drawn.max() < 3.0
    assert abs(drawn.mean() - 0.5) < 4 * 5 / np.sqrt(12 * 5000)


def test_the_default_dtype_is_floatx(noise, float32):
    assert ptml.random.uniform(noise.key).type.dtype == "float32"
    assert ptml.random.normal(noise.key).type.dtype == "float32"
    assert ptml.random.uniform(noise.key, (), pt.dscalar()).type.dtype == "float32"


def test_normal_draws_have_their_moments_and_are_finite(noise):
    drawn = compiled(ptml.random.normal(noise.key, (20000,), 3.0, 2.0))()
    n = drawn.size
    assert np.isfinite(drawn).all()
    assert abs(drawn.mean() - 3.0) < 4 * 2 / np.sqrt(n)
    assert abs(drawn.var() / 4 - 1) < 4 * np.sqrt(2 / n)
    assert abs((((drawn - 3) / 2) ** 4).mean() - 3) < 4 * np.sqrt(96 / n)


def test_normal_is_box_and_mullers_of_two_draws(noise):
    program = compiled(ptml.random.normal(noise.key, (6,)))
    key = leaf(program).tolist()
    one, other = numbers(key, 0, 6, "float64"), numbers(key, 1, 6, "float64")
    np.testing.assert_allclose(
        program(), np.sqrt(-2 * np.log(1 - one)) * np.cos(2 * np.pi * other), rtol=1e-12
    )


@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 1.0])
def test_bernoulli_is_true_with_its_probability(noise, p):
    n = 20000
    drawn = compiled(ptml.random.bernoulli(noise.key, p, (n,)))()
    assert drawn.dtype == bool
    assert abs(drawn.mean() - p) <= 4 * np.sqrt(p * (1 - p) / n)


def test_certain_events_still_move_the_count(noise):
    program = compiled([ptml.random.bernoulli(noise.key, 1.0), ptml.random.bernoulli(noise.key, 0.0)])
    assert [bool(value) for value in program()] == [True, False]
    assert leaf(program)[2] == 1


def test_a_probability_may_be_symbolic_or_a_leaf(noise):
    p = pt.scalar("p")
    drawn = ptml.function([p], ptml.random.bernoulli(noise.key, p, (4000,)), seed=0, mode=PYTHON)
    assert drawn(0.0).sum() == 0
    assert drawn(1.0).all()
    assert abs(drawn(0.3).mean() - 0.3) < 4 * np.sqrt(0.21 / 4000)
    assert compiled(ptml.random.bernoulli(noise.key, noise.W, (3,)))().all()


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused(noise, p):
    with pytest.raises(ValueError, match="bernoulli's p is a probability, a number from 0 to 1"):
        ptml.random.bernoulli(noise.key, p)


def test_folded_keys_draw_apart_and_as_documented(noise):
    outputs = [ptml.random.bits(ptml.random.fold_in(noise.key, i), (4,)) for i in (0, 1)]
    outputs.append(ptml.random.bits(noise.key, (4,)))
    program = compiled(outputs)
    key = leaf(program).tolist()
    for got, i, number in zip(program(), (0, 1, None), (0, 1, 2), strict=True):
        words = key if i is None else [*folded_key(key, i), *key[2:]]
        np.testing.assert_array_equal(got, numbers(words, number, 4, "uint32"))


def test_a_key_folded_twice_still_moves_its_generator(noise):
    key = ptml.random.fold_in(ptml.random.fold_in(noise.key, 1), pt.lscalar("member"))
    program = ptml.function(None, ptml.random.bits(key, (2,)), seed=0, mode=PYTHON)
    one, other, again = program(0), program(1), program(0)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, again)
    assert leaf(program)[2] == 3


@pytest.mark.parametrize("draw", ["bits", "uniform", "normal"])
def test_only_generators_draw(noise, draw):
    function = getattr(ptml.random, draw)
    for wrong in (noise.W, pt.vector(dtype="uint32"), np.zeros(4, "uint32"), 0, noise):
        with pytest.raises(TypeError, match=rf"{draw} draws from a generator's handle.* generator\(\)"):
            function(wrong, (2,))


def test_only_generators_are_folded_or_decide_events(noise):
    with pytest.raises(TypeError, match="fold_in draws from a generator's handle"):
        ptml.random.fold_in(noise.W, 1)
    with pytest.raises(TypeError, match="draws from a generator's handle"):
        ptml.random.bernoulli(noise.W, 0.5)


def test_a_seed_decides_the_stream_and_a_state_resumes_it(noise):
    draw = ptml.random.bits(noise.key, (4,))
    one, other = compiled(draw), ptml.function([], draw, seed=1, mode=PYTHON)
    assert not np.array_equal(one(), other())
    resumed = compiled(draw, one.state)
    np.testing.assert_array_equal(resumed(), one())


def test_setting_a_leaf_replays_a_stream(noise):
    program = compiled(ptml.random.bits(noise.key, (4,)))
    taken = program.state
    first = program()
    program.store.load(taken)
    np.testing.assert_array_equal(program(), first)
    assert isinstance(taken, State)


def test_five_applications_of_one_dropout_draw_five_masks_and_others_at_the_next_call():
    X, drop = Input("X", (None, 64)), Dropout("drop", p=0.5)
    program = ptml.function([X], [drop(X) for _ in range(5)], seed=0, mode=PYTHON)
    x = np.ones((1, 64))
    masks = [tuple(mask.ravel()) for _ in range(3) for mask in program(x)]
    assert len(set(masks)) == 15
