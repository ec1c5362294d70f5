"""The random words: one function of key, calls, number and element on every backend."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.gradient import DisconnectedInputError
from pytensor.graph.replace import vectorize_graph

from ptml.bits import DRAW_DTYPES, Draw, FoldIn, draw_key, folded_key, threefry

PY = Mode(linker="py", optimizer="fast_compile")
MODES = {"py": PY, "c": "CVM", "numba": "NUMBA", "jax": "JAX", "mlx": "MLX", "pytorch": "PYTORCH"}
MODULES = {"numba": "numba", "jax": "jax", "mlx": "mlx.core", "pytorch": "torch"}
SHAPES = [(), (0,), (1,), (7,), (3, 5)]
LEAF = np.array([0x13198A2E, 0x83707344, 0xFFFFFFFE, 3], dtype="uint32")
NUMBER = np.uint32(0xFFFFFFFD)
BIG = 200_000

# From the known-answer file of Random123 1.14 (kat_vectors, threefry 2x32 20).
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


def mode_of(backend):
    if backend in MODULES:
        pytest.importorskip(MODULES[backend])
        importlib.import_module(f"ptml.backends.{backend}").load()
    return MODES[backend]


def words(leaf, number, n):
    """Give the first ``n`` words of a draw by the definition, one block at a time in Python integers."""
    key = draw_key([int(word) for word in leaf], int(number))
    half = (n + 1) // 2
    pairs = [threefry(*key, i, half + i) for i in range(half)]
    return np.array([*(pair[0] for pair in pairs), *(pair[1] for pair in pairs)][:n], dtype="uint32")


def draw(dtype, shape, leaf=LEAF, number=NUMBER):
    return pytensor.function([], Draw(dtype)(leaf, np.uint32(number), *shape), mode=PY)()


def leaf_of(key0=1, key1=2, calls=0):
    return np.array([key0, key1, calls & 0xFFFFFFFF, calls >> 32], dtype="uint32")


# -- the cipher and the derivation


@pytest.mark.parametrize(("key", "counter", "block"), KNOWN)
def test_the_cipher_gives_the_known_answers(key, counter, block):
    assert threefry(*key, *counter) == block
    arrays = [np.full(3, word, dtype="uint32") for word in (*key, *counter)]
    np.testing.assert_array_equal(threefry(*arrays), [[block[0]] * 3, [block[1]] * 3])


def test_the_cipher_agrees_with_that_of_jax():
    jax_random = pytest.importorskip("jax.extend.random")
    rng = np.random.default_rng(0)
    for key0, key1, counter0, counter1 in rng.integers(2**32, size=(5, 4)).tolist():
        counter = np.array([counter0, counter1], dtype="uint32")
        theirs = jax_random.threefry_2x32(np.array([key0, key1], dtype="uint32"), counter)
        assert threefry(key0, key1, counter0, counter1) == tuple(np.asarray(theirs).tolist())


def test_the_layout_is_that_of_mlx_split():
    mx = pytest.importorskip("mlx.core")
    for n in (1, 2, 7, 1000):
        half = (n + 1) // 2
        key = mx.array(draw_key(LEAF.tolist(), int(NUMBER)), dtype=mx.uint32)
        theirs = np.array(mx.random.split(key, half)).ravel()[:n]
        np.testing.assert_array_equal(draw("uint32", (n,)), theirs)


def test_calls_numbers_and_folds_lead_to_distinct_keys():
    leaves = [leaf_of(key0, 0, calls) for key0 in range(8) for calls in (0, 1, 2, 2**32 - 1, 2**32, 2**33)]
    drawn = {draw_key(leaf.tolist(), number) for leaf in leaves for number in range(50)}
    folded = {folded_key((key0, 0, 0, 0), data) for key0 in range(8) for data in range(50)}
    assert len(drawn) == len(leaves) * 50
    assert len(folded) == 8 * 50
    assert not drawn & folded
    of_folded = {draw_key((*key, 0, 0), number) for key in folded for number in range(5)}
    assert len(of_folded) == len(folded) * 5
    assert not of_folded & (drawn | folded)


# -- every backend


@pytest.mark.parametrize("backend", MODES)
def test_every_backend_gives_the_same_words(backend):
    mode = mode_of(backend)
    leaf = pt.tensor("leaf", dtype="uint32", shape=(4,))
    number = pt.scalar("number", dtype="uint32")
    arrays = [pt.tensor(dtype="float32", shape=(None,) * len(shape)) for shape in SHAPES]
    drawn = [Draw("uint32")(leaf, number, *array.shape) for array in arrays]
    f = pytensor.function([leaf, number, *arrays], drawn, mode=mode, on_unused_input="ignore")
    # A second set of shapes shows that none was compiled in.
    for shapes in (SHAPES, [(), (2,), (64,), (0,), (5, 3)]):
        values = [np.zeros(shape, dtype="float32") for shape in shapes]
        for shape, out in zip(shapes, f(LEAF, NUMBER, *values), strict=True):
            out = np.asarray(out)
            assert out.dtype == np.uint32
            assert out.shape == shape
            np.testing.assert_array_equal(out.ravel(), words(LEAF, NUMBER, out.size))


@pytest.mark.parametrize("backend", MODES)
def test_every_backend_gives_the_same_floats(backend):
    mode = mode_of(backend)
    dtypes = ["float32"] if backend == "mlx" else ["float32", "float64"]
    drawn = [Draw(dtype)(LEAF, NUMBER, *shape) for dtype in dtypes for shape in [(7,), (3, 5)]]
    raw = [int(word) for word in words(LEAF, NUMBER, 7)]
    pairs = [int(word) for word in words(LEAF, NUMBER, 14)]
    single = np.array([(word >> 8) / 2**24 for word in raw], dtype="float32")
    double = np.array(
        [((high >> 5) * 2**26 + (low >> 6)) / 2**53 for high, low in zip(pairs[:7], pairs[7:], strict=True)]
    )
    # PyTensor switches JAX's 64-bit types on only where floatX was float64 when it first used JAX.
    wide = importlib.import_module("jax").enable_x64(True) if backend == "jax" else nullcontext()
    with wide:
        out = [np.asarray(value) for value in pytensor.function([], drawn, mode=mode)()]
    assert [value.dtype for value in out] == [dtype for dtype in dtypes for _ in range(2)]
    assert [value.shape for value in out] == [(7,), (3, 5)] * len(dtypes)
    np.testing.assert_array_equal(out[0], single)
    np.testing.assert_array_equal(out[1], draw("float32", (3, 5)))
    if "float64" in dtypes:
        np.testing.assert_array_equal(out[2], double)
        np.testing.assert_array_equal(out[3], draw("float64", (3, 5)))


@pytest.mark.parametrize("backend", MODES)
def test_every_backend_folds_alike(backend):
    mode = mode_of(backend)
    leaf = pt.tensor("leaf", dtype="uint32", shape=(4,))
    data = pt.scalar("data", dtype="uint32")
    f = pytensor.function([leaf, data], [FoldIn()(leaf, data), FoldIn()(leaf, np.uint32(5))], mode=mode)
    for out, value in zip(f(LEAF, np.uint32(2**32 - 1)), (2**32 - 1, 5), strict=True):
        assert np.asarray(out).dtype == np.uint32
        expected = [*folded_key(LEAF.tolist(), value), *LEAF.tolist()[2:]]
        np.testing.assert_array_equal(np.asarray(out), expected)


@pytest.mark.parametrize("backend", ["c", "numba", "jax"])
def test_a_loop_draws_with_the_key_of_its_iteration(backend):
    mode = mode_of(backend)
    leaf = pt.tensor("leaf", dtype="uint32", shape=(4,))

    def step(i, leaf):
        return Draw("uint32")(FoldIn()(leaf, i), np.uint32(2), 3)

    steps = pt.arange(4, dtype="uint32")
    rows = pytensor.scan(step, sequences=[steps], non_sequences=[leaf], return_updates=False)
    out = np.asarray(pytensor.function([leaf], rows, mode=mode)(LEAF))
    for i, row in enumerate(out):
        folded = [*folded_key(LEAF.tolist(), i), *LEAF.tolist()[2:]]
        np.testing.assert_array_equal(row, words(folded, 2, 3))


def test_numba_loads_its_kernels_from_the_cache_in_a_second_process(tmp_path):
    pytest.importorskip("numba")
    script = """
import numpy as np, pytensor, pytensor.tensor as pt
from ptml.backends.numba import load
from ptml.bits import Draw, FoldIn
load()
leaf = pt.tensor("leaf", dtype="uint32", shape=(4,))
out = [Draw(d)(leaf, np.uint32(i), 3, 5) for i, d in enumerate(("uint32", "float32", "float64"))]
out.append(FoldIn()(leaf, np.uint32(3)))
f = pytensor.function([leaf], out, mode="NUMBA")
print([value.tolist() for value in f(np.array([1, 2, 3, 0], dtype="uint32"))])
"""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTENSOR_FLAGS": f"base_compiledir={tmp_path}", "PYTHONPATH": path}

    def run():
        command = [sys.executable, "-W", "error", "-c", script]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout, {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.nb?")}

    first, cached = run()
    assert any("draw" in file.name for file in cached)
    assert any("fold_in" in file.name for file in cached)
    assert run() == (first, cached)


def test_draws_of_one_rank_share_a_numba_kernel_whatever_their_numbers_and_sizes():
    pytest.importorskip("numba")
    from ptml.backends.numba.bits import numba_draw, numba_fold_in

    def key(dtype, number, *shape):
        node = Draw(dtype)(LEAF, np.uint32(number), *shape).owner
        return numba_draw(node.op, node=node)[1]

    assert key("uint32", 0, 5) == key("uint32", 1, 70_000)
    fold = FoldIn()(LEAF, np.uint32(0)).owner
    keys = {key(dtype, 0, *shape) for dtype in DRAW_DTYPES for shape in [(), (5,), (5, 5)]}
    keys.add(numba_fold_in(fold.op, node=fold)[1])
    assert len(keys) == 10


def test_mlx_refuses_float64():
    mode = mode_of("mlx")
    with pytest.raises(TypeError, match=r"MLX has no Draw\('float64'\)"):
        pytensor.function([], Draw("float64")(LEAF, NUMBER, 3), mode=mode)()


def test_jax_refuses_float64_where_it_would_become_float32():
    mode = mode_of("jax")
    import jax

    f = pytensor.function([], Draw("float64")(LEAF, NUMBER, 3), mode=mode)
    with jax.enable_x64(False), pytest.raises(TypeError, match="64-bit types are switched off"):
        f()


@pytest.mark.parametrize("backend", ["jax", "mlx"])
def test_a_dimension_that_depends_on_values_is_refused_by_compilers_for_known_shapes(backend):
    mode = mode_of(backend)
    dim = pt.scalar("dim", dtype="int64")
    f = pytensor.function([dim], Draw("uint32")(LEAF, NUMBER, 3, dim), mode=mode)
    with pytest.raises(TypeError, match=r"dimension 1 of a Draw.* is computed from values at run time"):
        f(4)


@pytest.mark.parametrize("backend", MODES)
def test_a_negative_dimension_is_refused_at_run_time(backend):
    mode = mode_of(backend)
    x = pt.vector("x", dtype="float32")
    f = pytensor.function([x], Draw("uint32")(LEAF, NUMBER, x.shape[0] - 5, 0), mode=mode)
    with pytest.raises(ValueError, match=r"dimension.* must be 0 or more"):
        f(np.zeros(3, dtype="float32"))


def test_importing_the_ops_imports_no_backend():
    script = (
        "import sys, ptml.bits\n"
        "import ptml.backends.numba, ptml.backends.jax, ptml.backends.mlx, ptml.backends.pytorch\n"
        "loaded = {'numba', 'jax', 'mlx', 'torch'} & set(sys.modules)\n"
        "sys.exit(f'imported {loaded}' if loaded else 0)"
    )
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- what the numbers look like


def deviation(statistic, mean, variance):
    """Give the distance from the mean in standard deviations."""
    return abs(statistic - mean) / np.sqrt(variance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floats_are_uniform_over_zero_to_one(dtype):
    u = draw(dtype, (BIG,), leaf_of()).astype("float64")
    assert u.min() >= 0
    assert u.max() < 1
    assert deviation(u.mean(), 1 / 2, 1 / 12 / BIG) < 4
    assert deviation(((u - 0.5) ** 2).mean(), 1 / 12, 1 / 180 / BIG) < 4
    # Kolmogorov-Smirnov: the probability beyond d is near 2 exp(-2 n d^2), 1e-4 at d = 2.23 / sqrt(n).
    ranks = np.arange(1, BIG + 1) / BIG
    assert np.abs(np.sort(u) - ranks).max() < 2.23 / np.sqrt(BIG)


def test_float32_takes_24_bits_and_float64_takes_53():
    u32 = draw("float32", (BIG,), leaf_of()).astype("float64") * 2**24
    u64 = draw("float64", (BIG,), leaf_of()) * 2.0**53
    assert np.array_equal(u32, np.floor(u32))
    assert np.array_equal(u64, np.floor(u64))
    for integers in (u32, u64):
        odd = (integers.astype("int64") & 1).mean()
        assert deviation(odd, 1 / 2, 1 / 4 / BIG) < 4


def test_the_bytes_of_the_words_are_equally_likely():
    octets = draw("uint32", (BIG,), leaf_of()).view("uint8").reshape(BIG, 4)
    for place in range(4):
        counts = np.bincount(octets[:, place], minlength=256)
        chi_square = ((counts - BIG / 256) ** 2 / (BIG / 256)).sum()
        assert deviation(chi_square, 255, 2 * 255) < 4


def other_streams():
    folded = np.array([*folded_key((1, 2, 0, 0), 0), 0, 0], dtype="uint32")
    return {
        "the next number": (leaf_of(), 1),
        "the next call": (leaf_of(calls=1), 0),
        "a call 2**32 later": (leaf_of(calls=2**32), 0),
        "the next key": (leaf_of(key0=2), 0),
        "the keys exchanged": (leaf_of(key0=2, key1=1), 0),
        "a folded key": (folded, 0),
    }


@pytest.mark.parametrize("name", other_streams())
def test_a_stream_is_independent_of(name):
    one = draw("uint32", (BIG,), leaf_of(), 0)
    leaf, number = other_streams()[name]
    other = draw("uint32", (BIG,), leaf, number)
    # Of BIG pairs of words, BIG / 2**32 agree; 3 has a probability below 1e-12.
    assert (one == other).sum() < 3
    bits = np.unpackbits((one ^ other).view("uint8"))
    assert deviation(bits.mean(), 1 / 2, 1 / 4 / bits.size) < 4
    a, b = one / 2**32 - 0.5, other / 2**32 - 0.5
    for lag in (0, 1, BIG // 2):
        # The product of two independent uniform numbers has variance 1 / 144.
        assert deviation((a * np.roll(b, lag)).mean(), 0, 1 / 144 / BIG) < 4


def test_neighbours_in_one_draw_are_independent():
    u = draw("float64", (BIG,), leaf_of()) - 0.5
    for lag in (1, 2, BIG // 2):
        assert deviation((u[lag:] * u[:-lag]).mean(), 0, 1 / 144 / (BIG - lag)) < 4


# -- as nodes of a graph


def test_no_gradient_goes_through_a_draw_or_a_fold():
    leaf = pt.tensor("leaf", dtype="uint32", shape=(4,))
    w = pt.vector("w")
    noise = Draw("float64")(FoldIn()(leaf, np.uint32(1)), np.uint32(0), w.shape[0])
    loss = (w * noise).sum()
    gradient, value = pytensor.function([w, leaf], [pytensor.grad(loss, w), noise], mode=PY)(np.ones(3), LEAF)
    np.testing.assert_array_equal(gradient, value)
    with pytest.raises(DisconnectedInputError, match="leaf"):
        pytensor.grad(loss, leaf)


def test_equal_draws_merge_and_draws_of_other_numbers_do_not():
    leaf = pt.tensor("leaf", dtype="uint32", shape=(4,))
    numbers = [np.uint32(0), np.uint32(0), np.uint32(1)]
    f = pytensor.function([leaf], [Draw("uint32")(leaf, number, 3) for number in numbers], mode="CVM")
    assert sum(isinstance(node.op, Draw) for node in f.maker.fgraph.apply_nodes) == 2
    first, second, third = f(LEAF)
    np.testing.assert_array_equal(first, second)
    assert (first != third).all()


def test_a_draw_of_constants_stays_in_the_program():
    f = pytensor.function([], Draw("uint32")(LEAF, NUMBER, 3), mode="CVM")
    assert [type(node.op) for node in f.maker.fgraph.apply_nodes] == [Draw]


def test_the_shape_of_a_draw_is_known_without_drawing():
    x = pt.matrix("x")
    drawn = Draw("float32")(LEAF, NUMBER, x.shape[0], 3)
    assert drawn.type.shape == (None, 3)
    assert Draw("float32")(LEAF, NUMBER).type.shape == ()
    f = pytensor.function([x], [*drawn.shape, *FoldIn()(LEAF, NUMBER).shape], mode="CVM")
    assert not any(isinstance(node.op, Draw | FoldIn) for node in f.maker.fgraph.apply_nodes)
    assert f(np.zeros((2, 5))) == [2, 3, 4]


def test_dimensions_of_any_integer_type_become_int64():
    dim = pt.scalar("dim", dtype="int16")
    node = Draw("uint32")(LEAF, NUMBER, dim, np.int8(3), 300).owner
    assert [dim.type.dtype for dim in node.inputs[2:]] == ["int64"] * 3
    assert node.outputs[0].type.shape == (None, 3, 300)


def test_ops_of_one_dtype_are_equal():
    assert Draw("float32") == Draw("float32")
    assert Draw("float32") != Draw("float64")
    assert FoldIn() == FoldIn()


def test_vectorize_graph_leaves_an_unbatched_draw_as_it_is():
    leaf = pt.tensor("leaf", dtype="uint32", shape=(4,))
    x = pt.vector("x")
    noisy = x + Draw("float64")(FoldIn()(leaf, np.uint32(2)), np.uint32(0), 3)
    batch = pt.matrix("batch")
    f = pytensor.function([leaf, batch], vectorize_graph(noisy, {x: batch}), mode=PY)
    alone = pytensor.function([leaf, x], noisy, mode=PY)
    out = f(LEAF, np.zeros((2, 3)))
    np.testing.assert_array_equal(out, [alone(LEAF, np.zeros(3))] * 2)


def test_vectorize_graph_refuses_to_batch_a_draw():
    leaf = pt.tensor("leaf", dtype="uint32", shape=(4,))
    leaves = pt.tensor("leaves", dtype="uint32", shape=(None, 4))
    number, numbers = pt.scalar("number", dtype="uint32"), pt.vector("numbers", dtype="uint32")
    x, batch = pt.vector("x"), pt.matrix("batch")
    drawn = Draw("float64")(leaf, number, x.shape[0])
    with pytest.raises(ValueError, match=r"batched key .* no batch axis of its own"):
        vectorize_graph(drawn, {leaf: leaves})
    with pytest.raises(ValueError, match="batched number "):
        vectorize_graph(drawn, {number: numbers})
    with pytest.raises(ValueError, match="batched shape "):
        vectorize_graph(drawn, {x: batch})
    with pytest.raises(ValueError, match="batched data "):
        vectorize_graph(FoldIn()(leaf, number), {number: numbers})


# -- mistakes


def test_an_unknown_dtype_is_refused():
    with pytest.raises(
        TypeError, match=r"Draw\('float16'\) has no such dtype; write one of Draw\('uint32'\)"
    ):
        Draw("float16")


@pytest.mark.parametrize(
    "key",
    [
        np.array([1, 2], dtype="uint32"),
        np.array([1, 2, 0, 0]),
        np.zeros((2, 4), dtype="uint32"),
        pt.vector("key", dtype="uint32"),
    ],
)
def test_a_key_of_another_type_is_refused(key):
    with pytest.raises(TypeError, match=r"takes the key as uint32\[4\].*specify_shape\(key, \(4,\)\)"):
        Draw("uint32")(key, NUMBER, 3)
    with pytest.raises(TypeError, match=r"FoldIn.* takes the key as uint32\[4\]"):
        FoldIn()(key, NUMBER)


@pytest.mark.parametrize("word", [3, np.zeros(2, dtype="uint32"), pt.scalar("number", dtype="int64")])
def test_a_number_of_another_type_is_refused(word):
    with pytest.raises(TypeError, match=r"takes its number as a uint32 scalar.*numpy.uint32\(3\)"):
        Draw("uint32")(LEAF, word, 3)
    with pytest.raises(TypeError, match=r"takes its data as a uint32 scalar.*astype\('uint32'\)"):
        FoldIn()(LEAF, word)


def test_a_dimension_that_is_no_integer_is_refused():
    with pytest.raises(TypeError, match="must be scalar integers"):
        Draw("uint32")(LEAF, NUMBER, 3.0)


def test_a_negative_dimension_is_refused_when_it_is_written():
    with pytest.raises(ValueError, match=r"shape \(2, -1\) was asked for"):
        Draw("uint32")(LEAF, NUMBER, 2, -1)
