"""Rules of sequence ops: what they have in common, and plain recurrences.

At every step there is one product for the whole batch, and one walk over its rows that does all the rest.
What the gradient needs is written in that walk, where something reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import attrs
from llvmlite import ir

from ptml.backends.numba.plan.codegen.products import Products
from ptml.backends.numba.plan.codegen.routine import in_order, same_floats
from ptml.backends.numba.plan.codegen.steps import Layout, Steps
from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Value
from ptml.backends.numba.plan.rules.elementwise import copy_into
from ptml.backends.numba.plan.runtime.sharing import share_over
from ptml.ops.recurrence.rnn import RNNGradient, RNNSequence

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__ = ["Sequence"]

#: Parts have a multiple of so many rows: BLAS takes that many at once.
ROWS = 8

#: What a function, and the rest of a hidden unit's arithmetic, cost, as `share_over` counts.
_FUNCTION, _REST = 8, 30


class Sequence:
    """A sequence op that becomes a kernel: its arrays by name, and the memory of its results.

    Parameters
    ----------
    plan : Planner
    unit : Unit
    values : list of Value
        Those of the op's inputs.
    *names : str
        The names of the op's inputs.
    """

    def __init__(self, plan: Planner, unit: Unit, values: list[Value], *names: str) -> None:
        self.plan, self.unit, self.op = plan, unit, unit.node.op
        self.sizes: dict[str, int] = {}
        letters = self.op.input_letters()
        for value, axes in zip(values, letters, strict=True):
            for letter, size in zip(axes, value.array.shape, strict=True):
                if self.sizes.setdefault(letter, size) != size:
                    raise Unsupported("sizes that do not go together")
        self.sizes.setdefault("G", self.sizes["H"] * self.op.gates)
        self.sizes.setdefault("P", self.sizes["H"])
        if self.sizes["G"] != self.sizes["H"] * self.op.gates or max(self.sizes.values()) >= 2**31:
            raise Unsupported("sizes that do not go together")
        self.dtype = str(unit.node.outputs[0].type.dtype)
        self._inputs = dict(zip(names, zip(values, letters, strict=True), strict=True))
        self._arrays: dict[str, tuple[Value, str]] = {}

    def read(self, *names: str) -> None:
        """Let the kernel read inputs, those that there are."""
        for name in names:
            if name in self._inputs:
                value, axes = self._inputs[name]
                self._arrays[name] = in_order(self.plan, self.unit, value), axes

    def read_turned(self, *names: str) -> None:
        """Let the kernel read matrices, those that there are, with their axes turned round.

        BLAS is quicker with a matrix that lies as it is read, and reads it at every step.
        """
        for name in names:
            if name in self._inputs:
                value, axes = self._inputs[name]
                turned = self.plan.temporary(value.array.shape[::-1], self.dtype)
                copy_into(self.plan, self.unit, turned, value.seen_as(value.array.T))
                self._arrays[name] = turned, axes[::-1]

    def state(self, name: str, output: int, initial: str) -> Value:
        """Take memory for an output that goes from step to step, and begins as an input."""
        value = self._new(output)
        copy_into(self.plan, self.unit, value, self._inputs[initial][0])
        self._arrays[name] = value, self._axes(output)
        return value

    def write(self, names: dict[str, int]) -> list[Value]:
        """Take memory for outputs, if any of them is read; the others stand for what is not there."""
        outputs = self.unit.node.outputs
        if any(self.plan.is_used(outputs[k], set()) for k in names.values()):
            for name, k in names.items():
                self._arrays[name] = self._new(k), self._axes(k)
            return [self._arrays[name][0] for name in names]
        return [self.plan.temporary((0,), self.dtype) for _ in names]

    def scratch(self, name: str, axes: str) -> None:
        """Take memory for the kernel itself."""
        shape = [self.sizes[letter] for letter in axes]
        self._arrays[name] = self.plan.temporary(shape, self.dtype), axes

    def emit(self, kernel: Callable[[Layout], int], *, functions: int) -> None:
        """Emit a kernel, shared out by rows where that is worth it.

        Parameters
        ----------
        kernel : callable
            From a layout to the address of its kernel.
        functions : int
            How many functions a hidden unit takes in a step.
        """
        sizes, reverse = self.sizes, self.op.reverse
        if not math.prod(sizes.values()):
            return
        words, alone = Products.words(self.dtype)
        arrays = [value for value, _ in self._arrays.values()]
        letters = {name: axes for name, (_, axes) in self._arrays.items()}
        numbers = [sizes["B"], sizes["T"], sizes["T"] - 1 if reverse else 0, -1 if reverse else 1]
        numbers += [sizes["H"], sizes["P"], *words]
        work = sizes["P"] * sizes["G"] // 2 + (_FUNCTION * functions + _REST) * sizes["H"]
        apart = {
            k: math.prod(sizes[letter] for letter in axes[1:]) * value.array.itemsize
            for k, (value, axes) in enumerate(self._arrays.values())
            if axes[0] == "B"
        }
        share = share_over(sizes["B"], sizes["T"] * work, len(arrays), apart) if alone else None
        if share is not None:
            share = attrs.evolve(share, grain=ROWS, each=1)
        layout = Layout(self.dtype, self.op.gates, tuple(letters.items()), alone)
        self.plan.emit_shared(kernel(layout), [*arrays, *numbers], self.unit, share)

    def _axes(self, output: int) -> str:
        return self.op.output_letters()[output]

    def _new(self, output: int) -> Value:
        shape = [self.sizes[letter] for letter in self._axes(output)]
        return self.plan.new(shape, self.dtype, self.unit.node.outputs[output])


@rule(RNNSequence, takes=same_floats)
def lower_rnn(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    op = unit.node.op
    sequence = Sequence(plan, unit, values, "projected", "W_hh", "h0", *["mask"] * op.masked)
    sequence.read("projected", "W_hh", "mask")
    h_last = sequence.state("h", 1, "h0")
    sequence.scratch("a", "BH")
    outputs = sequence.write({"outputs": 0})
    before = sequence.write({"h_before": 2})
    sequence.emit(_tanh if op.activation == "tanh" else _relu, functions=1)
    return [*outputs, h_last, *before]


@rule(RNNGradient, takes=same_floats)
def lower_rnn_gradient(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    op = unit.node.op
    optional = [*["g_outputs"] * op.of_outputs, *["mask"] * op.masked]
    sequence = Sequence(plan, unit, values, "W_hh", "outputs", "g_h", *optional)
    sequence.read_turned("W_hh")
    sequence.read("outputs", *optional)
    of_h0 = sequence.state("dh", 1, "g_h")
    sequence.scratch("slopes", "BH")
    of_projected = sequence.write({"of_projected": 0})
    sequence.emit(_through_tanh if op.activation == "tanh" else _through_relu, functions=0)
    return [*of_projected, of_h0]


@cache
def _tanh(layout: Layout) -> int:
    w = Steps(layout)
    return _forward(w, w.tanh)


@cache
def _relu(layout: Layout) -> int:
    w = Steps(layout)

    def relu(a: ir.Value) -> ir.Value:
        # NaN stays.
        return w.builder.select(w.builder.fcmp_ordered("<", a, w.zero()), w.zero(), a)

    return _forward(w, relu)


def _forward(w: Steps, activation: Callable[[ir.Value], ir.Value]) -> int:
    def step(t: ir.Value) -> None:
        w.product("a", "h", "W_hh", t)

        def row(b: ir.Value, new: Callable[[ir.Value], ir.Value] | None) -> None:
            h = w.row("h", b, t)

            def one(j: ir.Value) -> None:
                old = h[j]
                value = old if new is None else new(j)
                if "h_before" in w:
                    w.row("h_before", b, t)[j] = old
                if "outputs" in w:
                    w.row("outputs", b, t)[j] = value
                h[j] = value

            w.each("H", one)

        def take(b: ir.Value) -> None:
            x, a = w.row("projected", b, t), w.row("a", b, t)
            row(b, lambda j: activation(w.sum(x[j], a[j])))

        w.each_row(t, take, lambda b: row(b, None))

    return w.address(step)


@cache
def _through_tanh(layout: Layout) -> int:
    w = Steps(layout)
    return _backward(w, lambda h, dh: w.times(dh, w.one_less(w.times(h, h))))


@cache
def _through_relu(layout: Layout) -> int:
    w = Steps(layout)
    return _backward(
        w, lambda h, dh: w.builder.select(w.builder.fcmp_ordered(">", h, w.zero()), dh, w.zero())
    )


def _backward(w: Steps, slope: Callable[[ir.Value, ir.Value], ir.Value]) -> int:
    def step(t: ir.Value) -> None:
        def total(b: ir.Value, j: ir.Value) -> ir.Value:
            own = w.row("dh", b, t)[j]
            return w.sizable(w.sum(own, w.row("g_outputs", b, t)[j]) if "g_outputs" in w else own)

        def take(b: ir.Value) -> None:
            def one(j: ir.Value) -> None:
                value = slope(w.row("outputs", b, t)[j], total(b, j))
                for name in ("slopes", "of_projected"):
                    if name in w:
                        w.row(name, b, t)[j] = value
                if "mask" in w:
                    w.row("dh", b, t)[j] = w.zero()

            w.each("H", one)

        def leave(b: ir.Value) -> None:
            w.fill(("slopes", "of_projected"), b, t)
            w.each("H", lambda j: w.row("dh", b, t).put(j, total(b, j)))

        w.each_row(t, take, leave)
        w.product("dh", "slopes", "W_hh", t, add="mask" in w)

    return w.address(step)
