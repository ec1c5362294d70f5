"""Rules of gated recurrent units."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from llvmlite import ir

from ptml.backends.numba.plan.codegen.routine import same_floats
from ptml.backends.numba.plan.codegen.steps import Layout, Steps
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Value
from ptml.backends.numba.plan.rules.recurrence import Sequence
from ptml.ops.recurrence.gru import GRUGradient, GRUSequence

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__: list[str] = []


@rule(GRUSequence, takes=same_floats)
def lower_gru(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    op = unit.node.op
    optional = [*["mask"] * op.masked, *["b"] * op.biased]
    sequence = Sequence(plan, unit, values, "projected", "W_hh", "h0", *optional)
    sequence.read("projected", "W_hh", *optional)
    h_last = sequence.state("h", 1, "h0")
    sequence.scratch("a", "BG")
    outputs = sequence.write({"outputs": 0})
    kept = sequence.write({"gates": 2, "s": 3, "h_before": 4})
    sequence.emit(_kernel, functions=3)
    return [*outputs, h_last, *kept]


@rule(GRUGradient, takes=same_floats)
def lower_gru_gradient(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    op = unit.node.op
    optional = [*["g_outputs"] * op.of_outputs, *["mask"] * op.masked]
    sequence = Sequence(plan, unit, values, "W_hh", "gates", "s", "h_before", "g_h", *optional)
    sequence.read_turned("W_hh")
    sequence.read("gates", "s", "h_before", *optional)
    of_h0 = sequence.state("dh", 2, "g_h")
    sequence.scratch("slopes", "BG")
    of_projected = sequence.write({"of_projected": 0})
    of_states = sequence.write({"of_states": 1})
    sequence.emit(_gradient_kernel, functions=0)
    return [*of_projected, *of_states, of_h0]


@cache
def _kernel(layout: Layout) -> int:
    w = Steps(layout)

    def step(t: ir.Value) -> None:
        w.product("a", "h", "W_hh", t)

        def pass_on(b: ir.Value, j: ir.Value, new: ir.Value) -> None:
            h = w.row("h", b, t)
            if "h_before" in w:
                w.row("h_before", b, t)[j] = h[j]
            if "outputs" in w:
                w.row("outputs", b, t)[j] = new
            h[j] = new

        def take(b: ir.Value) -> None:
            x_r, x_z, x_n = w.parts("projected", b, t, 3)
            a_r, a_z, a_n = w.parts("a", b, t, 3)

            def unit(j: ir.Value) -> None:
                r, z = w.sigmoid(w.sum(x_r[j], a_r[j])), w.sigmoid(w.sum(x_z[j], a_z[j]))
                s = w.sum(a_n[j], w.whole("b")[j]) if "b" in w else a_n[j]
                n = w.tanh(w.sum(x_n[j], w.times(r, s)))
                if "gates" in w:
                    for part, gate in zip(w.parts("gates", b, t, 3), (r, z, n), strict=True):
                        part[j] = gate
                    w.row("s", b, t)[j] = s
                pass_on(b, j, w.sum(w.times(w.one_less(z), n), w.times(z, w.row("h", b, t)[j])))

            w.each("H", unit)

        def leave(b: ir.Value) -> None:
            w.fill(("gates", "s"), b, t)
            w.each("H", lambda j: pass_on(b, j, w.row("h", b, t)[j]))

        w.each_row(t, take, leave)

    return w.address(step)


@cache
def _gradient_kernel(layout: Layout) -> int:
    w = Steps(layout)

    def step(t: ir.Value) -> None:
        def total(b: ir.Value, j: ir.Value) -> ir.Value:
            own = w.row("dh", b, t)[j]
            return w.sizable(w.sum(own, w.row("g_outputs", b, t)[j]) if "g_outputs" in w else own)

        def take(b: ir.Value) -> None:
            gates, dh = w.parts("gates", b, t, 3), w.row("dh", b, t)

            def unit(j: ir.Value) -> None:
                r, z, n = (gate[j] for gate in gates)
                whole = total(b, j)
                of_z = w.times(whole, w.less(w.row("h_before", b, t)[j], n), z, w.one_less(z))
                of_n = w.times(whole, w.one_less(z), w.one_less(w.times(n, n)))
                of_r = w.times(of_n, w.row("s", b, t)[j], r, w.one_less(r))
                of_s = w.times(of_n, r)
                for name, last in (("of_projected", of_n), ("of_states", of_s), ("slopes", of_s)):
                    if name in w:
                        for part, slope in zip(w.parts(name, b, t, 3), (of_r, of_z, last), strict=True):
                            part[j] = slope
                dh[j] = w.times(whole, z)

            w.each("H", unit)

        def leave(b: ir.Value) -> None:
            w.fill(("of_projected", "of_states", "slopes"), b, t)
            w.each("H", lambda j: w.row("dh", b, t).put(j, total(b, j)))

        w.each_row(t, take, leave)
        w.product("dh", "slopes", "W_hh", t, add=True)

    return w.address(step)
