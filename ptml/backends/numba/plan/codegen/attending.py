"""Kernels of attention in the writing: blocks of queries meet blocks of keys; their scores stay in the cache.

A block of scores is a product by BLAS, of rows that may lie apart from one another. It has a row for each
key, so that what is found for each query, its largest score and its sum, is found for a whole vector of
queries at once. Going forward, a walk over the blocks of keys scales what was summed before when a larger
score turns up (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018). Going back, the
weights are computed again from the logarithm of the sum of exponentials (Dao et al., "FlashAttention", 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from llvmlite import ir

from ptml.backends.numba.plan.codegen.mathematics import emit_math
from ptml.backends.numba.plan.codegen.products import Products
from ptml.backends.numba.plan.codegen.routine import Array, Routine
from ptml.backends.numba.vectormath import exponential, lane

__all__ = ["BLOCK", "LANES", "NUMBERS", "STRIDED", "backward_kernel", "forward_kernel"]

_I64 = ir.IntType(64)

#: How many queries, and how many keys, a block has.
BLOCK = 64

#: How many queries are taken at once: a vector, or several. What is computed for queries that a block lacks,
#: up to a multiple of this, is not used.
LANES = 16

#: The arrays whose places grow by given numbers with the number of an example, of a head, and of a step in
#: time. In a mask, keys are steps, and queries lie one after the other.
STRIDED = ("q", "k", "v", "mask", "out", "g", "of_q", "of_k", "of_v")

#: The numbers of a kernel: how many units of work, and the first one; sizes; and those of the arrays.
NUMBERS = (
    *("count", "first", "heads", "kv_heads", "time_q", "time_k", "d", "d_v"),
    *(f"{name}.{axis}" for name in STRIDED for axis in ("batch", "head", "time")),
)


class _Attending:
    """What both kernels have.

    Parameters
    ----------
    names : sequence of str
        Those of the arrays.
    dtype : {"float32", "float64"}
    mask : tuple or None
        The dtype of the mask, the last array, and whether it is the same for all queries.
    causal, alone : bool
    """

    def __init__(
        self, names: Sequence[str], dtype: str, mask: tuple[str, bool] | None, causal: bool, alone: bool
    ) -> None:
        dtypes = [dtype] * len(names) + ([mask[0]] if mask else [])
        self.routine = Routine(dtypes, len(NUMBERS) + Products.COUNT)
        self.builder, self.causal = self.routine.builder, causal
        self._arrays = dict(zip([*names, "mask"], self.routine.arrays, strict=False))
        self._of_all = mask is not None and mask[1]
        self.n = dict(zip(NUMBERS, self.routine.numbers, strict=False))
        self._products = Products(self.routine, dtype, self.routine.numbers[len(NUMBERS) :], alone)
        self.product = self._products.product
        self.kind = self._arrays["q"].kind
        self.zero, self.nothing = self.kind(0.0), self.kind(-np.inf)
        self.scale = self._arrays["scale"][_I64(0)]
        self.group = self.builder.sdiv(self.n["heads"], self.n["kv_heads"])
        #: How much later the last key is than the last query.
        self.later = self.builder.sub(self.n["time_k"], self.n["time_q"])

    # Whole numbers.

    def least(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.builder.select(self.builder.icmp_signed("<", x, y), x, y)

    def not_below_zero(self, x: ir.Value) -> ir.Value:
        return self.builder.select(self.builder.icmp_signed("<", x, _I64(0)), _I64(0), x)

    def blocks(self, n: ir.Value, size: int = BLOCK) -> ir.Value:
        """Count the blocks of so many."""
        return self.builder.sdiv(self.builder.add(n, _I64(size - 1)), _I64(size))

    def each_unit(self, body: Callable[[ir.Value], None]) -> int:
        """Do something for every unit of work; end the kernel, and give its address."""
        self._products.begin()
        self.routine.each(self.n["count"], lambda x: body(self.builder.add(self.n["first"], x)))
        self._products.end()
        return self.routine.address()

    def each_block(self, n: ir.Value, body: Callable[..., None], skipped: ir.Value | None = None) -> None:
        """Do something for every block of so many: from where it begins, with how many there are in it."""
        builder = self.builder
        first = _I64(0) if skipped is None else skipped

        def one(x: ir.Value) -> None:
            start = builder.mul(builder.add(x, first), _I64(BLOCK))
            body(start, self.least(builder.sub(n, start), _I64(BLOCK)))

        self.routine.each(builder.sub(self.blocks(n), first), one)

    def each_query(self, rows: ir.Value, body: Callable[[ir.Value], None]) -> None:
        """Do something for every query of a block, and for some more, whole vectors of them."""
        builder = self.builder

        def some(x: ir.Value) -> None:
            first = builder.mul(x, _I64(LANES))
            self.routine.each(_I64(LANES), lambda r: body(builder.add(first, r)))

        self.routine.each(self.blocks(rows, LANES), some)

    # Arrays.

    def scratch(self, name: str, count: int) -> list[Array]:
        """Cut scratch memory into parts of a block's numbers, or of numbers for each query."""
        size = BLOCK * BLOCK if name == "scores" else BLOCK
        return [self._arrays[name].from_(_I64(k * size)) for k in range(count)]

    def place(self, name: str, batch: ir.Value, head: ir.Value, time: ir.Value) -> Array:
        """Give where a step in time is."""
        builder, start = self.builder, _I64(0)
        for axis, number in (("batch", batch), ("head", head), ("time", time)):
            start = builder.add(start, builder.mul(number, self.n[f"{name}.{axis}"]))
        return self._arrays[name].from_(start)

    def row(self, array: Array, name: str, r: ir.Value) -> Array:
        """Give a row of a block."""
        return array.from_(self.builder.mul(r, self.n[f"{name}.time"]))

    def log_sums(self, batch: ir.Value, head: ir.Value, time: ir.Value) -> Array:
        """Give where the logarithms of sums are for the queries of a head from one on."""
        before = self.builder.add(self.builder.mul(batch, self.n["heads"]), head)
        return self._arrays["log_sums"].from_(
            self.builder.add(self.builder.mul(before, self.n["time_q"]), time)
        )

    # Scores.

    def multiply_keys(
        self, out: Array, keys: str, left: Array, queries: str, right: Array, block: tuple
    ) -> None:
        """Compute a block's products of keys and queries, scaled, or of values and what comes back."""
        rows, columns = block
        scaled = keys == "k"
        width = self.n["d" if scaled else "d_v"]
        leads = (_I64(BLOCK), self.n[f"{keys}.time"], self.n[f"{queries}.time"])
        factor = self.scale if scaled else None
        self.product(out, left, right, (columns, rows, width), leads, transposed=(False, True), factor=factor)

    def each_score(
        self,
        scores: Array,
        at: tuple[ir.Value, ir.Value, ir.Value, ir.Value],
        block: tuple[ir.Value, ir.Value],
        body: Callable[[ir.Value, ir.Value, ir.Value], None],
    ) -> None:
        """Do something with every score of a block of products.

        Parameters
        ----------
        scores : Array
        at : tuple of ir.Value
            The numbers of the example, of the head, of the first query and of the first key.
        block : tuple of ir.Value
            How many queries and keys there are.
        body : callable
            Takes a place in the block, the number of a query in it, and its score.
        """
        builder, (batch, head, start, first_key), (rows, columns) = self.builder, at, block

        def walk(late: bool) -> None:
            def one_key(c: ir.Value) -> None:
                place = builder.mul(c, _I64(BLOCK))
                key = builder.add(first_key, c)
                mask = None
                if "mask" in self._arrays:
                    mask = self.place("mask", batch, head, key).from_(_I64(0) if self._of_all else start)
                earliest = builder.sub(key, builder.add(start, self.later))

                def one(r: ir.Value) -> None:
                    i = builder.add(place, r)
                    score = self._masked(scores[i], mask, _I64(0) if self._of_all else r)
                    if late:
                        known = builder.icmp_signed(">=", r, earliest)
                        score = builder.select(known, score, self.nothing)
                    body(i, r, score)

                self.each_query(rows, one)

            self.routine.each(columns, one_key)

        if not self.causal:
            walk(False)
            return
        last = builder.add(first_key, columns)
        with builder.if_else(
            builder.icmp_signed(">", last, builder.add(builder.add(start, self.later), _I64(1)))
        ) as (some_are_late, none_is_late):
            with some_are_late:
                walk(True)
            with none_is_late:
                walk(False)

    def _masked(self, score: ir.Value, mask: Array | None, r: ir.Value) -> ir.Value:
        if mask is None:
            return score
        if mask.dtype == "bool":
            return self.builder.select(mask[r], score, self.nothing)
        return self.builder.fadd(score, mask[r])

    def exponential(self, x: ir.Value) -> ir.Value:
        body = exponential.exp_below_zero
        function = lane.function(self.routine.module, "exp_below_zero", 1, x.type, body)
        return self.builder.call(function, [x])

    def finite(self, x: ir.Value) -> ir.Value:
        """Give 0 for minus infinity."""
        is_nothing = self.builder.fcmp_ordered("==", x, self.nothing)
        return self.builder.select(is_nothing, self.zero, x)


@cache
def forward_kernel(dtype: str, mask: tuple[str, bool] | None, causal: bool, alone: bool) -> int:
    """Give the kernel of (q, k, v, out, log_sums, scale, scores, of_queries[, mask]), and `NUMBERS`.

    Scratch memory is for a block of scores, and three numbers for each of its queries. A unit of work is a
    block of the queries of a head.
    """
    names = ("q", "k", "v", "out", "log_sums", "scale", "scores", "of_queries")
    code = _Attending(names, dtype, mask, causal, alone)
    routine, builder, n = code.routine, code.builder, code.n
    [scores], (most, sums, factors) = code.scratch("scores", 1), code.scratch("of_queries", 3)
    per_head = code.blocks(n["time_q"])

    def one_unit(unit: ir.Value) -> None:
        pair, start = builder.sdiv(unit, per_head), builder.mul(builder.srem(unit, per_head), _I64(BLOCK))
        batch, head = builder.sdiv(pair, n["heads"]), builder.srem(pair, n["heads"])
        of_keys = builder.sdiv(head, code.group)
        rows = code.least(builder.sub(n["time_q"], start), _I64(BLOCK))
        q, out = (code.place(name, batch, head, start) for name in ("q", "out"))

        def begin(r: ir.Value) -> None:
            most[r], sums[r] = code.nothing, code.zero

        code.each_query(rows, begin)

        def one_block(first_key: ir.Value, columns: ir.Value) -> None:
            block, at = (rows, columns), (batch, head, start, first_key)
            k, v = (code.place(name, batch, of_keys, first_key) for name in ("k", "v"))
            code.multiply_keys(scores, "k", k, "q", q, block)
            code.each_query(rows, lambda r: factors.put(r, most[r]))

            def compare(i: ir.Value, r: ir.Value, score: ir.Value) -> None:
                if mask or causal:
                    scores[i] = score
                # NaN is not lost: its exponential is NaN too.
                larger = builder.fcmp_ordered(">", score, most[r])
                most[r] = builder.select(larger, score, most[r])

            code.each_score(scores, at, block, compare)

            def rescale(r: ir.Value) -> None:
                factors[r] = factor = code.exponential(builder.fsub(factors[r], code.finite(most[r])))
                sums[r] = builder.fmul(sums[r], factor)

            code.each_query(rows, rescale)

            def one_key(c: ir.Value) -> None:
                place = builder.mul(c, _I64(BLOCK))

                def add(r: ir.Value) -> None:
                    i = builder.add(place, r)
                    scores[i] = power = code.exponential(builder.fsub(scores[i], code.finite(most[r])))
                    sums[r] = builder.fadd(sums[r], power)

                code.each_query(rows, add)

            routine.each(columns, one_key)
            more = builder.icmp_signed(">", first_key, _I64(0))
            with builder.if_then(more):
                scale_rows(out, rows)
            leads = (n["out.time"], _I64(BLOCK), n["v.time"])
            sizes = (rows, n["d_v"], columns)
            code.product(out, scores, v, sizes, leads, accumulate=more, transposed=(True, False))

        n_keys = n["time_k"]
        if causal:
            end = builder.add(builder.add(start, rows), code.later)
            n_keys = code.least(code.not_below_zero(end), n_keys)
        code.each_block(n_keys, one_block)

        def finish(r: ir.Value) -> None:
            factors[r] = builder.fdiv(code.kind(1.0), sums[r])
            most[r] = builder.fadd(most[r], emit_math("log", builder, sums[r]))

        code.each_query(rows, finish)
        log_sums = code.log_sums(batch, head, start)
        routine.each(rows, lambda r: log_sums.put(r, most[r]))

        def end_row(r: ir.Value) -> None:
            own, factor = code.row(out, "out", r), factors[r]
            empty = builder.fcmp_ordered("==", sums[r], code.zero)
            routine.each(
                n["d_v"],
                lambda c: own.put(c, builder.select(empty, code.zero, builder.fmul(own[c], factor))),
            )

        routine.each(rows, end_row)

    def scale_rows(out: Array, rows: ir.Value) -> None:
        def one_row(r: ir.Value) -> None:
            own, factor = code.row(out, "out", r), factors[r]
            routine.each(n["d_v"], lambda c: own.put(c, builder.fmul(own[c], factor)))

        routine.each(rows, one_row)

    return code.each_unit(one_unit)


@cache
def backward_kernel(dtype: str, mask: tuple[str, bool] | None, causal: bool, alone: bool) -> int:
    """Give the kernel of (q, k, v, out, log_sums, g, of_q, of_k, of_v, scale, scores, of_queries[, mask]).

    `NUMBERS` follow. Scratch memory is for two blocks of scores, and two numbers for each query of a block. A
    unit of work is a head of keys and values, with all the queries that it serves.
    """
    names = ("q", "k", "v", "out", "log_sums", "g", "of_q", "of_k", "of_v", "scale", "scores", "of_queries")
    code = _Attending(names, dtype, mask, causal, alone)
    routine, builder, n = code.routine, code.builder, code.n
    (weights, slopes), (shifts, means) = code.scratch("scores", 2), code.scratch("of_queries", 2)

    def one_unit(unit: ir.Value) -> None:
        batch, of_keys = builder.sdiv(unit, n["kv_heads"]), builder.srem(unit, n["kv_heads"])
        first_head = builder.mul(of_keys, code.group)
        if causal:
            routine.each(code.group, lambda x: clear(batch, builder.add(first_head, x)))

        def of_some_keys(first_key: ir.Value, columns: ir.Value) -> None:
            k, v, of_k, of_v = (
                code.place(name, batch, of_keys, first_key) for name in ("k", "v", "of_k", "of_v")
            )
            skipped = _I64(0)
            if causal:
                # Queries that are earlier than all of these keys have nothing to do with them.
                skipped = builder.sdiv(code.not_below_zero(builder.sub(first_key, code.later)), _I64(BLOCK))

            def one_block(x: ir.Value, start: ir.Value, rows: ir.Value) -> None:
                head, block = builder.add(first_head, x), (rows, columns)
                q, out, g, of_q = (code.place(name, batch, head, start) for name in ("q", "out", "g", "of_q"))
                code.multiply_keys(weights, "k", k, "q", q, block)
                code.multiply_keys(slopes, "v", v, "g", g, block)
                log_sums = code.log_sums(batch, head, start)

                def begin(r: ir.Value) -> None:
                    result, back = code.row(out, "out", r), code.row(g, "g", r)
                    shifts[r] = code.finite(log_sums[r])
                    means[r] = routine.reduced(
                        "add", dtype, n["d_v"], lambda c: builder.fmul(result[c], back[c])
                    )

                routine.each(rows, begin)

                def one(i: ir.Value, r: ir.Value, score: ir.Value) -> None:
                    weights[i] = weight = code.exponential(builder.fsub(score, shifts[r]))
                    slopes[i] = builder.fmul(weight, builder.fsub(slopes[i], means[r]))

                code.each_score(weights, (batch, head, start, first_key), block, one)
                first = builder.add(x, builder.sub(start, builder.mul(skipped, _I64(BLOCK))))
                more = builder.icmp_signed(">", first, _I64(0))
                for name, out, left, right, of, width, factor in (
                    ("of_v", of_v, weights, g, "g", "d_v", None),
                    ("of_k", of_k, slopes, q, "q", "d", code.scale),
                ):
                    leads = (n[f"{name}.time"], _I64(BLOCK), n[f"{of}.time"])
                    sizes = (columns, n[width], rows)
                    code.product(out, left, right, sizes, leads, accumulate=more, factor=factor)
                code.product(
                    of_q,
                    slopes,
                    k,
                    (rows, n["d"], columns),
                    (n["of_q.time"], _I64(BLOCK), n["k.time"]),
                    accumulate=builder.icmp_signed(">", first_key, _I64(0)),
                    transposed=(True, False),
                    factor=code.scale,
                )

            def one_head(x: ir.Value) -> None:
                code.each_block(n["time_q"], lambda start, rows: one_block(x, start, rows), skipped)

            routine.each(code.group, one_head)

        code.each_block(n["time_k"], of_some_keys)

    def clear(batch: ir.Value, head: ir.Value) -> None:
        """Write zeros for queries that are earlier than all keys."""

        def one(t: ir.Value) -> None:
            own = code.place("of_q", batch, head, t)
            routine.each(n["d"], lambda c: own.put(c, code.zero))

        routine.each(code.least(code.not_below_zero(builder.neg(code.later)), n["time_q"]), one)

    return code.each_unit(one_unit)
