"""Kernels of convolutions: windows times vectors of channels, which stay in registers.

Data is taken image by image, or band by band of an image. Where zeros are to be around it, the band is
copied into a buffer that has them, and that stays in the second-level cache; nothing else is copied. What
lies in such a band is said by tables, so that a kernel serves any number of axes, stride, dilation and size:

- *rows*, five numbers each: where a row of windows begins in the data and in the result, how many windows it
  has, and its first tap and their number;
- *taps*, two numbers each: how far the tap's channels are from a window's beginning, and where its weights
  are;
- *lines* of the buffer, two numbers each: where one begins, and where in the image what is copied there does,
  or -1 for zeros;
- *bands*, four numbers each: the first row and how many, the first line and how many;
- *blocks* of channels that are computed together, three numbers each: the first channel that is read, the
  first that is written, and how many.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import attrs
from llvmlite import ir

from ptml.backends.numba.plan.codegen.routine import Array, Routine
from ptml.backends.numba.plan.codegen.vectors import Vectors

__all__ = ["BAND_NUMBERS", "Form", "kernel_gradient", "sliding", "summing"]

_I64 = ir.IntType(64)

#: The numbers that both kernels begin with: the units of work (bands of images), the first of them, the bands
#: of an image, the numbers of an image of the data and of the result, the number of blocks, how far windows
#: are apart in the data and in the result, and of a line, the zeros before, the numbers, and the zeros after.
BAND_NUMBERS = (
    *("units", "first", "bands", "image_in", "image_out", "blocks", "step_in", "step_out"),
    *("before", "inside", "after"),
)


@attrs.frozen
class Form:
    """What a kernel's source depends on.

    Attributes
    ----------
    dtype : str
    rows : int
        How many windows, or how many taps' channels, are in registers at once.
    vectors : int
        How many vectors of channels are.
    part : bool
        Whether any block is narrower than these.
    apart : bool
        Whether channels are convolved each by itself.
    copied : bool
        Whether there is a buffer.
    """

    dtype: str
    rows: int
    vectors: int
    part: bool
    apart: bool
    copied: bool


class _Bands:
    """Writes what both kernels have: the walk over bands, and the copy into the buffer."""

    def __init__(self, form: Form, dtypes: list[str], more: int) -> None:
        self.form = form
        tables = ["int64"] * 5
        self.routine = Routine([form.dtype] * 2 + dtypes + tables, len(BAND_NUMBERS) + more)
        self.builder = self.routine.builder
        self.data, self.buffer, *rest = self.routine.arrays
        self.arrays = rest[: len(dtypes)]
        self.rows, self.taps, self.lines, self.bands, self.blocks = rest[len(dtypes) :]
        self.n = dict(zip(BAND_NUMBERS, self.routine.numbers, strict=False))
        self.more = self.routine.numbers[len(BAND_NUMBERS) :]

    def entry(self, table: Array, i: ir.Value, width: int) -> list[ir.Value]:
        """Read an entry of a table."""
        start = table.from_(self.builder.mul(i, _I64(width)))
        return [start[_I64(k)] for k in range(width)]

    def each_band(self, body: Callable[[Array, ir.Value, ir.Value, ir.Value], None]) -> None:
        """Write the walk: a body takes the data, where the image's results begin, and the band's rows."""
        builder, n = self.builder, self.n

        def one(unit: ir.Value) -> None:
            unit = builder.add(unit, n["first"])
            image, band = builder.sdiv(unit, n["bands"]), builder.srem(unit, n["bands"])
            data = self.data.from_(builder.mul(image, n["image_in"]))
            first_row, n_rows, first_line, n_lines = self.entry(self.bands, band, 4)
            if self.form.copied:
                self.routine.each(n_lines, lambda k: self._copy(data, builder.add(first_line, k)))
                data = self.buffer
            body(data, builder.mul(image, n["image_out"]), first_row, n_rows)

        self.routine.each(n["units"], one)

    def _copy(self, data: Array, line: ir.Value) -> None:
        builder, n = self.builder, self.n
        target, source = self.entry(self.lines, line, 2)
        to = self.buffer.from_(target)
        zero = data.kind(0.0)
        with builder.if_else(builder.icmp_signed("<", source, _I64(0))) as (empty, full):
            with empty:
                whole = builder.add(builder.add(n["before"], n["inside"]), n["after"])
                self.routine.each(whole, lambda i: to.put(i, zero))
            with full:
                inside, found = to.from_(n["before"]), data.from_(source)
                after = inside.from_(n["inside"])
                self.routine.each(n["before"], lambda i: to.put(i, zero))
                self.routine.each(n["inside"], lambda i: inside.put(i, found[i]))
                self.routine.each(n["after"], lambda i: after.put(i, zero))

    def each_block(self, body: Callable[[ir.Value, ir.Value, ir.Value, Vectors], None]) -> None:
        """Write the walk over blocks: a body takes its number, its first channels and its vectors."""

        def one(block: ir.Value) -> None:
            read, written, width = self.entry(self.blocks, block, 3)
            form = self.form
            vectors = Vectors(self.builder, form.dtype, form.vectors, width if form.part else None)
            body(block, read, written, vectors)

        self.routine.each(self.n["blocks"], one)


@cache
def sliding(form: Form, bias: bool) -> int:
    """Give the kernel of each window's products with weights, for `Convolve` and its adjoint by the data.

    Its arrays are the data, the buffer, the weights (for each block, the rows of its channels), the bias and
    the result, and the tables; its numbers are `BAND_NUMBERS`, then how many channels a window's tap has, and
    how far the weights of blocks are apart.
    """
    bands = _Bands(form, [form.dtype] * 3, 2)
    builder, routine, n = bands.builder, bands.routine, bands.n
    weights, offsets, result = bands.arrays
    channels, block_step = bands.more

    def windows(vectors: Vectors, at: Array, own: Array, row: list[ir.Value], start: list[ir.Value]) -> list:
        """Write the products of as many windows as are in registers."""
        first_tap, n_taps = row
        cells = vectors.cells(form.rows)
        for line in cells:
            for cell, value in zip(line, start, strict=True):
                builder.store(value, cell)
        places = [at.from_(builder.mul(n["step_in"], _I64(p))) for p in range(form.rows)]

        def tap(t: ir.Value) -> None:
            away, weight = bands.entry(bands.taps, builder.add(first_tap, t), 2)
            there = [place.from_(away) for place in places]
            own_weights = own.from_(weight)

            def channel(c: ir.Value) -> None:
                w = vectors.load(own_weights, builder.mul(c, _I64(vectors.row)))
                for line, place in zip(cells, there, strict=True):
                    if form.apart:
                        x = vectors.load(place, _I64(0), part=True)
                    else:
                        x = [vectors.filled(place[c])] * vectors.count
                    for cell, left, right in zip(line, x, w, strict=True):
                        vectors.add_product(cell, left, right)

            if form.apart:
                channel(_I64(0))
            else:
                routine.each(channels, channel)

        routine.each(n_taps, tap)
        return cells

    def band(data: Array, image_out: ir.Value, first_row: ir.Value, n_rows: ir.Value) -> None:
        def block(b: ir.Value, read: ir.Value, written: ir.Value, vectors: Vectors) -> None:
            own = weights.from_(builder.mul(b, block_step))
            start = [vectors.zero()] * vectors.count
            if bias:
                start = vectors.load(offsets, written, part=True)

            def one_row(r: ir.Value) -> None:
                begin, out, count, *taps = bands.entry(bands.rows, builder.add(first_row, r), 5)
                source = data.from_(builder.add(begin, read))
                target = result.from_(builder.add(builder.add(image_out, out), written))
                last = builder.sub(count, _I64(form.rows))

                def some(k: ir.Value) -> None:
                    # The last windows of a row are taken again rather than one by one.
                    p = builder.mul(k, _I64(form.rows))
                    p = builder.select(builder.icmp_signed("<", p, last), p, last)
                    at = source.from_(builder.mul(p, n["step_in"]))
                    cells = windows(vectors, at, own, taps, start)
                    for w, line in enumerate(cells):
                        place = builder.mul(builder.add(p, _I64(w)), n["step_out"])
                        vectors.store([vectors.get(cell) for cell in line], target, place, part=True)

                more = builder.add(count, _I64(form.rows - 1))
                routine.each(builder.sdiv(more, _I64(form.rows)), some)

            routine.each(n_rows, one_row)

        bands.each_block(block)

    bands.each_band(band)
    return routine.address()


@cache
def kernel_gradient(form: Form, bias: bool) -> int:
    """Give the kernel that sums windows times results, for `ConvolveKernel`.

    Its arrays are the data, the buffer, the results and the sums (for each block and each tap's channel, a
    row; then for each block the row of its bias), and the tables, of which the taps are one number for each
    tap's channel; its numbers are `BAND_NUMBERS`, then how many tiles there are of as many taps' channels as
    are in registers, how many numbers all sums are, and where those of the bias begin.
    """
    bands = _Bands(form, [form.dtype] * 2, 3)
    builder, routine, n = bands.builder, bands.routine, bands.n
    results, sums = bands.arrays
    tiles, size, of_bias = bands.more
    routine.each(size, lambda i: sums.put(i, sums.kind(0.0)))

    def band(data: Array, image_out: ir.Value, first_row: ir.Value, n_rows: ir.Value) -> None:
        def block(b: ir.Value, read: ir.Value, written: ir.Value, vectors: Vectors) -> None:
            own = results.from_(builder.add(image_out, written))
            of_block = builder.mul(b, tiles)

            def tile(t: ir.Value) -> None:
                first = builder.mul(builder.add(of_block, t), _I64(form.rows * vectors.row))
                total = sums.from_(first)
                away = [
                    builder.add(a, read)
                    for a in (
                        bands.taps[builder.add(builder.mul(t, _I64(form.rows)), _I64(k))]
                        for k in range(form.rows)
                    )
                ]
                cells = vectors.cells(form.rows)
                for k, line in enumerate(cells):
                    for cell, value in zip(line, vectors.load(total, _I64(k * vectors.row)), strict=True):
                        builder.store(value, cell)

                def one_row(r: ir.Value) -> None:
                    begin, out, count, *_ = bands.entry(bands.rows, builder.add(first_row, r), 5)
                    source, target = data.from_(begin), own.from_(out)
                    places = [source.from_(a) for a in away]

                    def window(p: ir.Value) -> None:
                        at = builder.mul(p, n["step_in"])
                        y = vectors.load(target, builder.mul(p, n["step_out"]), part=True)
                        for line, place in zip(cells, places, strict=True):
                            if form.apart:
                                x = vectors.load(place, at, part=True)
                            else:
                                x = [vectors.filled(place[at])] * vectors.count
                            for cell, left, right in zip(line, x, y, strict=True):
                                vectors.add_product(cell, left, right)

                    routine.each(count, window)

                routine.each(n_rows, one_row)
                for k, line in enumerate(cells):
                    vectors.store([vectors.get(cell) for cell in line], total, _I64(k * vectors.row))

            routine.each(tiles, tile)
            if bias:
                own_sums = sums.from_(builder.add(of_bias, builder.mul(b, _I64(vectors.row))))
                [cells] = vectors.cells(1)
                for cell, value in zip(cells, vectors.load(own_sums, _I64(0)), strict=True):
                    builder.store(value, cell)

                def add_row(r: ir.Value) -> None:
                    _, out, count, *_ = bands.entry(bands.rows, builder.add(first_row, r), 5)
                    target = own.from_(out)

                    def add(p: ir.Value) -> None:
                        y = vectors.load(target, builder.mul(p, n["step_out"]), part=True)
                        for cell, value in zip(cells, y, strict=True):
                            builder.store(builder.fadd(vectors.get(cell), value), cell)

                    routine.each(count, add)

                routine.each(n_rows, add_row)
                vectors.store([vectors.get(cell) for cell in cells], own_sums, _I64(0))

        bands.each_block(block)

    bands.each_band(band)
    return routine.address()


@cache
def summing(dtype: str, vectors: int) -> int:
    """Give the kernel that adds up the sums of parts, in their order, and writes them where they belong.

    Its arrays are the sums, where to write, and the blocks; its numbers are how many parts there are, how
    many numbers each has, the blocks, how many numbers one of them has, how many rows of these, and how many
    numbers a row has where it is written.
    """
    routine = Routine([dtype, dtype, "int64"], 6)
    builder = routine.builder
    sums, out, blocks = routine.arrays
    parts, size, n_blocks, of_block, count, channels = routine.numbers
    row = Vectors(builder, dtype, vectors, None).row

    def block(b: ir.Value) -> None:
        at = builder.mul(b, _I64(3))
        written, width = blocks[builder.add(at, _I64(1))], blocks[builder.add(at, _I64(2))]
        own = sums.from_(builder.mul(b, of_block))

        def one(k: ir.Value) -> None:
            own_row = own.from_(builder.mul(k, _I64(row)))
            target = out.from_(builder.add(builder.mul(k, channels), written))
            routine.each(width, lambda i: target.put(i, own_row[i]))

            def add(part: ir.Value) -> None:
                other = own_row.from_(builder.mul(builder.add(part, _I64(1)), size))
                routine.each(width, lambda i: target.put(i, builder.fadd(target[i], other[i])))

            routine.each(builder.sub(parts, _I64(1)), add)

        routine.each(count, one)

    routine.each(n_blocks, block)
    return routine.address()
