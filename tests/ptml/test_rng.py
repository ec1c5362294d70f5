"""PyTensor's own random variables, drawn from a generator's leaf: pure, resumable, and new at each call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.replace import vectorize_graph
from scipy import stats

import ptml
from ptml.bits import draw_key, threefry
from ptml.layers import Input
from ptml.rng import AsGenerator, generator_key, next_generators, seeded
from ptml_state import State

PYTHON = Mode(linker="py", optimizer="fast_compile")
LEAF = np.array([0x13198A2E, 0x83707344, 0xFFFFFFFE, 3], dtype="uint32")
drawing = pytest.mark.backends("numba", "c", "jax", "mlx")
looping = pytest.mark.backends("numba", "c", "jax")


class Noise(ptml.Layer):
    """Adds noise in training; its draws are three of one generator, the last of another."""

    @ptml.slot
    def key(self):
        return ptml.generator()

    def draws(self, size):
        rng = ptml.random.pytensor_rng(self.key)
        rng, first = rng.normal(0, 1, size=size)
        rng, second = rng.normal(0, 1, size=size)
        _, third = pt.random.uniform(0, 1, size=size, rng=rng, return_next_rng=True)
        _, other = ptml.random.pytensor_rng(self.key).normal(0, 1, size=size)
        return first, second, third, other

    def build(self, X):
        first, second, third, other = self.draws(X.shape)
        return ptml.in_training(X + first * second + third * other, X)


@pytest.fixture
def noise():
    return Noise("noise")


def rng_of(layer):
    return ptml.random.pytensor_rng(layer.key)


def standard_normals(layer, size=(4, 5)):
    return rng_of(layer).normal(0, 1, size=size)[1]


# -- what a program draws


@drawing
def test_a_layer_draws_other_numbers_at_each_call(backend, float32):
    X = Input("X", shape=(None, 5))
    program = ptml.function([X], Noise("noise")(X), seed=0, backend=backend)
    x = np.zeros((4, 5), "float32")
    first, second = program(x), program(x)
    assert first.shape == (4, 5)
    assert len(np.unique([first, second])) == 40
    assert program.state["noise/key"].shape == (4,)


@drawing
def test_the_numbers_are_those_of_the_state(backend, float32, noise):
    program = ptml.function([], noise.draws((4, 5)), seed=0, backend=backend)
    program()
    kept = program.state
    later = [program(), program()]
    once_more, after = program.pure(kept)
    np.testing.assert_array_equal(once_more, later[0])
    np.testing.assert_array_equal(program.pure(after)[0], later[1])
    program.store.load(kept)
    np.testing.assert_array_equal(program(), later[0])
    np.testing.assert_array_equal(program(), later[1])


@drawing
def test_a_draw_does_not_depend_on_what_else_is_computed(backend, float32, noise):
    size = (4, 5)
    rng = rng_of(noise)
    moved, first = rng.normal(0, 1, size=size)
    _, second = moved.normal(0, 1, size=size)
    # These read a generator that another random variable reads too, and may move in place.
    _, uniform = pt.random.uniform(0, 1, size=size, rng=rng, return_next_rng=True)
    _, third = pt.random.normal(0, 2, size=size, rng=moved, return_next_rng=True)
    draws = [second, uniform, third, first]
    together = ptml.function([], draws, seed=0, backend=backend)()
    for draw, among_others in zip(draws, together, strict=True):
        alone = ptml.function([], draw, seed=0, backend=backend)()
        np.testing.assert_array_equal(alone, among_others)
    np.testing.assert_allclose(together[2], 2 * together[0], rtol=1e-6)
    assert not np.array_equal(together[0], together[3])


@drawing
def test_draws_of_one_program_are_independent(backend, float32, noise):
    draws = ptml.function([], noise.draws((200, 250)), seed=0, backend=backend)()
    correlation = np.corrcoef([draw.ravel() for draw in draws])
    # The standard error of each is 1 / sqrt(50,000).
    assert np.abs(correlation - np.eye(4)).max() < 5 / np.sqrt(50_000)


@drawing
def test_normal_draws_have_the_moments_of_the_normal_distribution(backend, float32, noise):
    program = ptml.function([], standard_normals(noise, (100, 100)), seed=0, backend=backend)
    drawn = np.ravel([program() for _ in range(5)]).astype("float64")
    n = drawn.size
    for power, moment, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs((drawn**power).mean() - moment) < 5 * np.sqrt(variance / n)


def test_any_distribution_of_pytensors_draws(noise):
    draws = {
        "gamma": rng_of(noise).gamma(2.0, scale=3.0, size=20_000)[1],
        "beta": pt.random.beta(2, 5, size=20_000, rng=rng_of(noise), return_next_rng=True)[1],
        "poisson": rng_of(noise).poisson(4.0, size=20_000)[1],
    }
    gamma, beta, poisson = ptml.function([], list(draws.values()), seed=0, mode=PYTHON)()
    assert stats.kstest(gamma, stats.gamma(2, scale=3).cdf).pvalue > 1e-3
    assert stats.kstest(beta, stats.beta(2, 5).cdf).pvalue > 1e-3
    assert abs(poisson.mean() - 4) < 5 * np.sqrt(4 / 20_000)


def test_draws_are_those_of_a_generator_seeded_from_the_leaf(noise):
    drawn, words = standard_normals(noise), ptml.random.bits(noise.key, (2,))
    second = standard_normals(noise)
    leaf = State({"noise/key": LEAF}, roles={"noise/key": noise.key.slot.role})
    program = ptml.function([], [drawn, words, second], state=leaf, mode=PYTHON)
    first, _, third = program()
    for got, number in [(first, 0), (third, 2)]:
        generator = seeded(*generator_key(LEAF.tolist(), number, 0))
        np.testing.assert_array_equal(got, generator.normal(size=(4, 5)))


def test_numba_and_c_draw_normals_alike(noise):
    pytest.importorskip("numba")
    draws = noise.draws((4, 5))
    np.testing.assert_allclose(
        ptml.function([], draws, seed=0, backend="numba")(), ptml.function([], draws, seed=0, mode=PYTHON)()
    )


@drawing
def test_prediction_advances_nothing(backend, float32, noise):
    X = Input("X", shape=(None, 5))
    Y = noise(X)
    train = ptml.function([X], Y, seed=0, backend=backend)
    predict = ptml.compile_predict(Y, state=train, backend=backend)
    x = np.ones((4, 5), "float32")
    np.testing.assert_array_equal(predict(x), x)
    sampling = ptml.compile_predict(standard_normals(noise), state=train, backend=backend)
    before = train.state
    np.testing.assert_array_equal(sampling(), sampling())
    assert train.state == before


def test_two_programs_of_one_store_continue_one_stream(noise):
    drawn = standard_normals(noise)
    one = ptml.function([], drawn, seed=0, mode=PYTHON)
    other = ptml.function([], drawn, state=one, mode=PYTHON)
    alone = ptml.function([], drawn, seed=0, mode=PYTHON)
    np.testing.assert_array_equal([one(), other(), one()], [alone(), alone(), alone()])


def test_the_draws_resume_in_a_new_process_from_numbas_cache(tmp_path):
    pytest.importorskip("numba")
    script = """
import sys
from pathlib import Path
import ptml
from ptml_state import load_state, save_state

class Noise(ptml.Layer):
    @ptml.slot
    def key(self):
        return ptml.generator()

rng = ptml.random.pytensor_rng(Noise("noise").key)
next_rng, first = rng.normal(size=(2, 3))
_, second = next_rng.gamma(2.0, scale=1.0, size=(2, 3))
archive = Path(sys.argv[1])
state = load_state(archive) if archive.exists() else None
program = ptml.function([], [first, second], state=state, seed=0, mode="NUMBA")
if state is None:
    program()
    save_state(program.state, archive)
print([[draw.tolist() for draw in program()] for _ in range(2)])
"""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTENSOR_FLAGS": f"base_compiledir={tmp_path}", "PYTHONPATH": path}

    def run():
        command = [sys.executable, "-W", "error", "-c", script, str(tmp_path / "noise.state")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout, {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.nb?")}

    first, cached = run()
    assert any("as_generator" in file.name for file in cached)
    assert run() == (first, cached)


# -- gradients and loops


@drawing
def test_the_gradient_of_a_scaled_draw_is_that_of_the_same_draw(backend, float32, noise):
    scale, shift = pt.scalar("scale"), pt.scalar("shift")
    drawn = standard_normals(noise, (3, 2))
    loss = pt.sqr(shift + scale * drawn).sum()
    outputs = [drawn, *pytensor.grad(loss, [scale, shift])]
    program = ptml.function([scale, shift], outputs, seed=0, backend=backend)
    for _ in range(2):
        z, by_scale, by_shift = program(np.float32(1.5), np.float32(-0.5))
        np.testing.assert_allclose(by_scale, (2 * (-0.5 + 1.5 * z) * z).sum(), rtol=1e-4)
        np.testing.assert_allclose(by_shift, (2 * (-0.5 + 1.5 * z)).sum(), rtol=1e-4)


def test_the_gradient_agrees_with_finite_differences_of_the_held_state(noise):
    scale = pt.dscalar("scale")
    X = pt.matrix("X")
    loss = pt.tanh(scale * noise(X) + X).sum()
    program = ptml.function([scale, X], [loss, pytensor.grad(loss, scale)], seed=0, mode=PYTHON)
    x = np.linspace(-1, 1, 6).reshape(2, 3)
    state, step = program.state, 1e-6
    (_, gradient), moved = program.pure(state, 0.7, x)
    above, below = (program.pure(state, 0.7 + side * step, x)[0][0] for side in (1, -1))
    np.testing.assert_allclose(gradient, (above - below) / (2 * step), rtol=1e-6)
    assert not np.array_equal(moved["noise/key"], state["noise/key"])


@looping
def test_a_loop_draws_others_in_every_iteration(backend, noise):
    drawn = ptml.scan(lambda: standard_normals(noise, (3,)), n_steps=4)
    program = ptml.function([], drawn, seed=0, backend=backend)
    assert len(np.unique([program(), program()])) == 24


@looping
def test_the_gradient_of_a_loop_is_that_of_the_same_draws(backend, noise):
    weight = pt.dscalar("weight")

    def step(h):
        # The gradient's loop needs the second draw, and not the first, which PyTensor then leaves out.
        rng, first = rng_of(noise).normal()
        _, second = rng.normal()
        return h / 2 + first + weight * second

    loss = pt.sqr(ptml.scan(step, outputs_info=[pt.zeros((), dtype="float64")], n_steps=4)).sum()
    program = ptml.function([weight], [loss, pytensor.grad(loss, weight)], seed=0, backend=backend)
    state, size = program.state, 1e-5
    gradient = program.pure(state, 1.3)[0][1]
    above, below = (program.pure(state, 1.3 + side * size)[0][0] for side in (1, -1))
    np.testing.assert_allclose(gradient, (above - below) / (2 * size), rtol=1e-6)


def test_a_generator_made_outside_a_loops_step_is_another_in_every_iteration(noise):
    rng = rng_of(noise)
    drawn = ptml.scan(lambda: rng.normal(size=(3,))[1], n_steps=4)
    assert len(np.unique(ptml.function([], drawn, seed=0, mode=PYTHON)())) == 12


def test_a_bare_scan_that_draws_is_refused(noise):
    drawn = pytensor.scan(lambda: standard_normals(noise, (3,)), n_steps=4, return_updates=False)
    with pytest.raises(ValueError, match=r"Noise\('noise'\) would draw the same .* Write ptml\.scan"):
        ptml.function([], drawn, seed=0, mode=PYTHON)


def test_a_bare_scan_may_hand_the_generator_on(noise):
    def step(rng):
        return rng.normal()

    _, drawn = pytensor.scan(step, outputs_info=[rng_of(noise), None], n_steps=4, return_updates=False)
    program = ptml.function([], drawn, seed=0, mode=PYTHON)
    assert len(np.unique([program(), program()])) == 8


def test_a_folded_key_gives_another_generator(noise):
    keys = [noise.key, *(ptml.random.fold_in(noise.key, i) for i in range(3))]
    drawn = [ptml.random.pytensor_rng(key).normal(size=(5,))[1] for key in keys]
    assert len(np.unique(ptml.function([], drawn, seed=0, mode=PYTHON)())) == 20


def test_no_gradient_goes_to_the_key(noise):
    x = pt.vector("x", shape=(5,))
    loss = (x * standard_normals(noise)).sum()
    with pytest.warns(UserWarning, match="only by a non-differentiable operator"):
        pytensor.grad(loss, noise.key, disconnected_inputs="warn")


# -- generators of the user's own


def test_a_shared_generator_of_the_users_own_moves_by_its_update():
    rng = pt.random.shared_rng(seed=7, name="rng")
    next_rng, drawn = rng.normal(size=(3,))
    program = ptml.function([], drawn, updates={rng: next_rng}, backend="c")
    generator = np.random.default_rng(7)
    for _ in range(2):
        np.testing.assert_array_equal(program(), generator.normal(size=3))


def test_a_shared_generator_of_the_users_own_goes_beside_ours(noise):
    rng = pt.random.shared_rng(seed=7, name="rng")
    next_rng, drawn = rng.normal(size=(3,))
    last_rng, second = next_rng.normal(size=(3,))
    program = ptml.function(
        [], [drawn, second, standard_normals(noise)], updates={rng: last_rng}, seed=0, mode=PYTHON
    )
    generator = np.random.default_rng(7)
    ours = []
    for _ in range(2):
        first, second, mine = program()
        np.testing.assert_array_equal([first, second], generator.normal(size=(2, 3)))
        ours.append(mine)
    assert not np.array_equal(*ours)


def test_what_is_no_generator_of_ours_has_no_next_one(noise):
    drawn = pt.random.rng("rng").normal()[1]
    assert next_generators(drawn.owner) == []
    assert next_generators((drawn + 1).owner) == []


# -- the op


def test_the_seed_is_what_the_module_says():
    key0, key1, low, high = LEAF.tolist()
    root0, root1 = threefry(key0, key1, 0, 1)
    word0, word1 = threefry(root0 ^ low, root1 ^ 5, 0, 2)
    assert generator_key(LEAF.tolist(), 5, 9) == (word0 ^ high, word1 ^ 9)


def test_seeds_are_distinct_from_one_another_and_from_the_keys_of_draws():
    leaves = [(key0, 2, calls, high) for key0 in range(4) for calls in range(3) for high in (0, 1)]
    numbered = [(leaf, number) for leaf in leaves for number in range(10)]
    words = {generator_key(leaf, number, position) for leaf, number in numbered for position in range(3)}
    words |= {draw_key(leaf, number) for leaf, number in numbered}
    assert len(words) == 4 * len(numbered)


def test_numpy_is_seeded_with_the_words():
    rng = AsGenerator()(LEAF, np.uint32(5), np.uint32(9))
    made = pytensor.function([], rng, mode=PYTHON)()
    wanted = np.random.PCG64([int(word) for word in generator_key(LEAF.tolist(), 5, 9)])
    assert made.bit_generator.state == wanted.state


def test_jax_derives_the_same_seed():
    pytest.importorskip("jax")
    from ptml.backends.jax import load
    from ptml.backends.jax.rng import jax_as_generator

    load()
    made = jax_as_generator(AsGenerator())(LEAF, np.uint32(5), np.uint32(9))
    assert tuple(made["jax_state"].tolist()) == generator_key(LEAF.tolist(), 5, 9)


def test_mlx_derives_the_same_seed():
    mx = pytest.importorskip("mlx.core")
    from ptml.backends.mlx import load
    from ptml.backends.mlx.rng import mlx_as_generator

    load()
    words = mlx_as_generator(AsGenerator())(*map(mx.array, (LEAF, np.uint32(5), np.uint32(9))))
    assert tuple(words.tolist()) == generator_key(LEAF.tolist(), 5, 9)


def test_a_generator_stays_in_the_program():
    rng = AsGenerator()(LEAF, np.uint32(0), np.uint32(0))
    program = pytensor.function([], rng.normal(size=(2,))[1], mode=Mode(linker="py", optimizer="fast_run"))
    assert any(isinstance(node.op, AsGenerator) for node in program.maker.fgraph.apply_nodes)
    np.testing.assert_array_equal(program(), program())


def test_vectorize_graph_keeps_the_generator_and_widens_the_draw(noise):
    x = pt.vector("x", shape=(3,))
    y = x + standard_normals(noise, (3,))
    X = pt.matrix("X", shape=(2, 3))
    Y = vectorize_graph(y, {x: X})
    assert ptml.function([X], Y, seed=0, mode=PYTHON)(np.zeros((2, 3))).shape == (2, 3)


def test_only_the_key_of_a_generator_gives_one(noise):
    with pytest.raises(TypeError, match="pytensor_rng draws from a generator's handle"):
        ptml.random.pytensor_rng(pt.vector("x"))
    with pytest.raises(TypeError, match=r"takes the key as uint32\[4\]"):
        AsGenerator()(LEAF[:2], np.uint32(0), np.uint32(0))
    with pytest.raises(TypeError, match="takes its number as a uint32 scalar"):
        AsGenerator()(LEAF, 0, np.uint32(0))
    with pytest.raises(TypeError, match="takes its position as a uint32 scalar"):
        AsGenerator()(LEAF, np.uint32(0), 0)


@pytest.mark.backends("pytorch")
def test_pytorch_says_that_it_has_no_random_variables(backend, noise):
    with pytest.raises(TypeError, match="PyTensor converts no random variables to PyTorch"):
        ptml.function([], standard_normals(noise), seed=0, backend=backend)
