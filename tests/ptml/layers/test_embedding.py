"""Embedding: ids outside the table, padding, and the projection that shares it."""

from __future__ import annotations

import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.layers import Embedding, Input, Lambda, Linear, Sequential
from ptml_state import State

PYTHON = Mode(linker="py", optimizer="fast_compile")
ROWS = np.arange(8.0).reshape(4, 2)


def _lookup(padding=None, backend=None, dtype="int64", floatX="float64"):
    with pytensor.config.change_flags(floatX=floatX):
        embedding = Embedding("tokens", n_embeddings=4, n_features=2, padding=padding)
        ids = Input("ids", (None,), dtype=dtype)
        vectors = embedding(ids)
        gradient = pytensor.grad((vectors * np.asarray([1.0, 2.0], floatX)).sum(), embedding.W)
        how = {"mode": PYTHON} if backend is None else {"backend": backend}
        state = ptml.init(embedding, seed=0).replace({"tokens/W": ROWS.astype(floatX)})
        return ptml.function([ids], [vectors, gradient], state=state, **how)


@pytest.mark.parametrize("wrong", [4, 1000000, -1, -6])
@pytest.mark.backends("numba", "c")
def test_an_id_outside_the_table_is_an_error_that_names_it(backend, wrong):
    message = (
        rf"tokens \(Embedding\): there is no row {wrong} in its table of 4, whose rows are numbered 0 to 3"
    )
    with pytest.raises(ValueError, match=message):
        _lookup(backend=backend)(np.array([0, wrong, 1]))


@pytest.mark.backends("jax", "mlx", "pytorch")
def test_where_a_backend_cannot_raise_the_vector_of_an_id_outside_the_table_is_nan(backend):
    program = _lookup(backend=backend, floatX="float32")
    vectors, gradient = program(np.array([0, 4, 1000000, -1, -6, 3]))
    np.testing.assert_array_equal(np.asarray(vectors)[[0, 5]], [[0, 1], [6, 7]])
    assert np.isnan(np.asarray(vectors)[1:5]).all()
    np.testing.assert_array_equal(gradient, [[1, 2], [0, 0], [0, 0], [1, 2]])


@pytest.mark.parametrize("backend", [None, "numba"])
@pytest.mark.parametrize("padding", [0, -1])
def test_padding_gives_zeros_and_takes_no_gradient(backend, padding):
    vectors, gradient = _lookup(padding, backend)(np.array([padding, 1, 1, padding, 3]))
    np.testing.assert_array_equal(vectors, [[0, 0], [2, 3], [2, 3], [0, 0], [6, 7]])
    np.testing.assert_array_equal(gradient, [[0, 0], [2, 4], [0, 0], [1, 2]])


def test_padding_is_zeros_also_where_its_row_is_not_finite():
    program = _lookup(2)
    program.store.set({"tokens/W": np.where(np.arange(4)[:, None] == 2, np.nan, ROWS)})
    vectors, gradient = program(np.array([2, 0]))
    np.testing.assert_array_equal(vectors, [[0, 0], [0, 1]])
    np.testing.assert_array_equal(gradient, [[1, 2], [0, 0], [0, 0], [0, 0]])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64"])
def test_ids_of_every_integer_dtype_are_looked_up(dtype):
    vectors, _ = _lookup(dtype=dtype)(np.array([3, 0], dtype))
    np.testing.assert_array_equal(vectors, ROWS[[3, 0]])


def test_a_small_dtype_looks_up_a_large_table():
    embedding = Embedding("tokens", n_embeddings=1000, n_features=1)
    ids = Input("ids", (None,), dtype="uint8")
    program = ptml.function([ids], embedding(ids), seed=0, mode=PYTHON)
    np.testing.assert_array_equal(program(np.array([255], "uint8")), program.state["tokens/W"][[255]])


@pytest.mark.parametrize("dtype", ["float64", "bool"])
def test_ids_that_are_no_integers_are_refused(dtype):
    with pytest.raises(
        TypeError, match=r"tokens \(Embedding\) takes integer ids; got .*Write ids\.astype\('int64'\)"
    ):
        Embedding("tokens", n_embeddings=4, n_features=2)(Input("ids", (None,), dtype=dtype))


def test_a_scalar_id_gives_one_vector_and_an_empty_batch_none():
    embedding = Embedding("tokens", n_embeddings=4, n_features=2)
    one, many = Input("one", (), dtype="int64"), Input("many", (None, None), dtype="int64")
    program = ptml.function(
        [one, many], [embedding(one), embedding(many)], state=State({"tokens/W": ROWS}), mode=PYTHON
    )
    vector, none = program(2, np.zeros((0, 3), "int64"))
    np.testing.assert_array_equal(vector, [4, 5])
    assert none.shape == (0, 3, 2)


def test_the_output_projection_shares_the_table_and_its_gradient():
    embedding = Embedding("tokens", n_embeddings=4, n_features=2)
    net = Sequential(embedding, Linear("fc", n_in=2, n_out=2, bias=False), Lambda(embedding.attend))
    ids = Input("ids", (None,), dtype="int64")
    logits = net(ids)
    weights = np.random.default_rng(0).normal(size=(3, 4))
    program = ptml.function(
        [ids], [logits, pytensor.grad((weights * logits).sum(), embedding.W)], seed=0, mode=PYTHON
    )
    assert sorted(program.state) == ["fc/W", "tokens/W"]
    at = np.array([1, 3, 1])
    got, gradient = program(at)
    W, fc = program.state["tokens/W"], program.state["fc/W"]
    np.testing.assert_allclose(got, W[at] @ fc @ W.T, rtol=1e-12)
    wanted = weights.T @ (W[at] @ fc)
    np.add.at(wanted, at, weights @ W @ fc.T)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-11)


def test_a_padding_row_is_zeros_in_the_projection_too():
    embedding = Embedding("tokens", n_embeddings=4, n_features=2, padding=1)
    X = Input("X", (None, 2))
    products = embedding.attend(X)
    outputs = [products, pytensor.grad(products.sum(), embedding.W)]
    got, gradient = ptml.function([X], outputs, state=State({"tokens/W": ROWS}), mode=PYTHON)([[1.0, 2.0]])
    np.testing.assert_array_equal(got, [[2, 0, 14, 20]])
    np.testing.assert_array_equal(gradient, [[1, 2], [0, 0], [1, 2], [1, 2]])


def test_the_projection_refuses_a_wrong_width_by_name():
    embedding = Embedding("tokens", n_embeddings=4, n_features=2)
    with pytest.raises(
        ValueError, match=r"tokens \(Embedding\) takes \(\.\.\., 2 features\) to attend; got \(None, 3\)"
    ):
        embedding.attend(Input("X", (None, 3)))
    with pytest.raises(TypeError, match=r"tokens \(Embedding\) computes with floating-point numbers"):
        embedding.attend(Input("X", (None, 2), dtype="int64"))


def test_rows_start_with_the_variance_of_their_width():
    W = ptml.init(Embedding("tokens", n_embeddings=2000, n_features=50), seed=0)["tokens/W"]
    np.testing.assert_allclose(W.var(), 1 / 50, rtol=0.02)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_embeddings": 0, "n_features": 2}, ValueError, "n_embeddings must be a positive integer; got 0"),
        ({"n_embeddings": 2, "n_features": 0}, ValueError, "n_features must be a positive integer; got 0"),
        (
            {"n_embeddings": 2, "n_features": 2, "padding": 0.5},
            TypeError,
            "padding must be an integer; got 0.5",
        ),
    ],
)
def test_impossible_hyperparameters_are_refused_by_name(options, error, message):
    with pytest.raises(error, match=rf"tokens \(Embedding\): {message}"):
        Embedding("tokens", **options)
