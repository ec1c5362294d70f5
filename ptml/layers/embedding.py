"""Embedding: a table of vectors, looked up by number."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.type import integer_dtypes
from pytensor.tensor.variable import TensorVariable

from ptml.checks import check_axis, check_floating, check_ndim
from ptml.declare import parameter, slot
from ptml.initializers import HeNormal, Initializer
from ptml.labels import CheckIds
from ptml.layer import Layer
from ptml.ops.products import features_times
from ptml.validate import an_axis, an_initializer, described, positive_int

__all__ = ["Embedding"]

NOT_INTEGER = "{who} takes integer ids; got {given}. Write ids.astype('int64'), or Input(..., dtype='int64')."


class Embedding(Layer):
    """Look up a vector for each integer id, for ids of any shape: ``W[ids]``, of shape ``(..., n_features)``.

    Parameters
    ----------
    name : str, optional
    n_embeddings : int
        The number of rows of the table. Ids are 0 to ``n_embeddings - 1``.
    n_features : int
        The size of a row.
    padding : int, optional
        The id that stands for nothing: its vector is zeros, and no gradient comes from it. It may be the
        number of a row, such as 0, which then is never read, or any other number, such as -1. None unless
        given.
    weight_initializer : Initializer
        Of ``W``; normal with variance ``1 / n_features`` unless given.

    Raises
    ------
    TypeError
        When called, if the ids are no integers.
    ValueError
        By the running graph, if an id is neither a row's number nor the padding. Negative ones do not count
        from the end. JAX, MLX and PyTorch cannot raise: there the vector is NaN.

    Examples
    --------
    >>> from ptml.layers import Embedding, Input
    >>> embedding = Embedding("tokens", n_embeddings=1000, n_features=64)
    >>> vectors = embedding(Input("ids", (None, 20), dtype="int64"))
    >>> vectors.type.shape
    (None, 20, 64)
    >>> embedding.attend(vectors).type.shape
    (None, 20, 1000)
    """

    n_embeddings: int = attrs.field(validator=positive_int)
    n_features: int = attrs.field(validator=positive_int)
    padding: int | None = attrs.field(default=None, validator=attrs.validators.optional(an_axis))
    weight_initializer: Initializer = attrs.field(
        default=HeNormal(1.0, mode="fan_out"), validator=an_initializer
    )

    n_inputs = 1

    @slot
    def W(self) -> Any:
        """The table, ``(n_embeddings, n_features)``."""
        return parameter((self.n_embeddings, self.n_features), self.weight_initializer)

    def build(self, ids: TensorVariable) -> TensorVariable:
        who = described(self)
        if ids.type.dtype not in integer_dtypes:
            raise TypeError(NOT_INTEGER.format(who=who, given=ids.type))
        if np.iinfo(ids.type.dtype).bits < 32:
            ids = ids.astype("int32")
        ids = CheckIds(who, self.padding)(ids, np.int64(self.n_embeddings))
        possible = pt.ge(ids, np.int8(0)) & pt.lt(ids, np.int64(self.n_embeddings))
        dtype = self.W.type.dtype
        rows = self.W[pt.switch(possible, ids, np.int8(0))]
        rows = pt.switch(possible[..., None], rows, np.asarray(np.nan, dtype))
        if self.padding is None:
            return rows
        return pt.switch(pt.eq(ids, self.padding)[..., None], np.zeros((), dtype), rows)

    def attend(self, X: TensorVariable) -> TensorVariable:
        """Give the inner product of vectors with each row: the output projection that shares the table.

        Parameters
        ----------
        X : tensor
            Floats of shape ``(..., n_features)``.

        Returns
        -------
        tensor
            Shape ``(..., n_embeddings)``. A padding row counts as zeros here too. In a `Sequential` write
            ``Lambda(embedding.attend)``; the gradients of both uses go to the one ``W``.

        Raises
        ------
        ValueError
            If the last axis has another size than `n_features`.
        TypeError
            If `X` holds integers, or is wider than the table.
        """
        X = pt.as_tensor(X)
        wants = f"(..., {self.n_features} features) to attend"
        check_floating(self, X, dtype=self.W.type.dtype)
        check_ndim(self, X, minimum=1, wants=wants)
        X = check_axis(self, X, self.n_features, wants=wants)
        products = features_times(X, self.W.T)
        if self.padding is None or not 0 <= self.padding < self.n_embeddings:
            return products
        unread = np.arange(self.n_embeddings) == self.padding
        return pt.switch(unread, np.zeros((), products.type.dtype), products)
