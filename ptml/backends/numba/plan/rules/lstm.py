"""Rules of long short-term memory."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from llvmlite import ir

from ptml.backends.numba.plan.codegen.routine import same_floats
from ptml.backends.numba.plan.codegen.steps import Layout, Steps
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Value
from ptml.backends.numba.plan.rules.recurrence import Sequence
from ptml.ops.recurrence.lstm import LSTMGradient, LSTMSequence

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__: list[str] = []


def _optional(op: LSTMSequence | LSTMGradient) -> list[str]:
    peepholes = ["w_i", "w_f", "w_o"] if op.peepholes else []
    return [*["mask"] * op.masked, *peepholes, *["W_hr"] * op.projects]


@rule(LSTMSequence, takes=same_floats)
def lower_lstm(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    op = unit.node.op
    sequence = Sequence(plan, unit, values, "projected", "W_hh", "h0", "c0", *_optional(op))
    sequence.read("projected", "W_hh", *_optional(op))
    h_last, c_last = sequence.state("h", 1, "h0"), sequence.state("c", 2, "c0")
    sequence.scratch("a", "BG")
    if op.projects:
        sequence.scratch("whole", "BH")
        sequence.scratch("new", "BP")
    outputs = sequence.write({"outputs": 0})
    kept = sequence.write({"gates": 3, "h_before": 4, "c_before": 5, "squashed": 6})
    sequence.emit(_kernel, functions=5)
    return [*outputs, h_last, c_last, *kept]


@rule(LSTMGradient, takes=same_floats)
def lower_lstm_gradient(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    op = unit.node.op
    names = ["gates", "c_before", "squashed", "g_h", "g_c", *["g_outputs"] * op.of_outputs]
    sequence = Sequence(plan, unit, values, "W_hh", *names, *_optional(op))
    sequence.read_turned("W_hh", "W_hr")
    sequence.read("gates", "c_before", "squashed", "g_outputs", "mask", "w_i", "w_f", "w_o")
    of_h0, of_c0 = sequence.state("dh", 1, "g_h"), sequence.state("dc", 2, "g_c")
    sequence.scratch("slopes", "BG")
    of_projected = sequence.write({"of_projected": 0})
    of_hidden: list[Value] = []
    if op.projects:
        sequence.scratch("dh_now", "BP")
        sequence.scratch("dm", "BH")
        of_hidden = sequence.write({"of_hidden": 3})
    sequence.emit(_gradient_kernel, functions=0)
    return [*of_projected, of_h0, of_c0, *of_hidden]


@cache
def _kernel(layout: Layout) -> int:
    w = Steps(layout)
    projects, seen = "W_hr" in w, "w_i" in w

    def peep(name: str, a: ir.Value, c: ir.Value, j: ir.Value) -> ir.Value:
        return w.sum(a, w.times(w.whole(name)[j], c)) if seen else a

    def pass_on(b: ir.Value, t: ir.Value, j: ir.Value, new: ir.Value) -> None:
        h = w.row("h", b, t)
        if "h_before" in w:
            w.row("h_before", b, t)[j] = h[j]
        if "outputs" in w:
            w.row("outputs", b, t)[j] = new
        h[j] = new

    def step(t: ir.Value) -> None:
        w.product("a", "h", "W_hh", t)

        def take(b: ir.Value) -> None:
            xs, sums, c = w.parts("projected", b, t, 4), w.parts("a", b, t, 4), w.row("c", b, t)

            def unit(j: ir.Value) -> None:
                old = c[j]
                a_i, a_f, a_g, a_o = (w.sum(x[j], a[j]) for x, a in zip(xs, sums, strict=True))
                i, f = w.sigmoid(peep("w_i", a_i, old, j)), w.sigmoid(peep("w_f", a_f, old, j))
                g = w.tanh(a_g)
                cell = w.sum(w.times(f, old), w.times(i, g))
                o = w.sigmoid(peep("w_o", a_o, cell, j))
                squashed = w.tanh(cell)
                if "gates" in w:
                    for part, gate in zip(w.parts("gates", b, t, 4), (i, f, g, o), strict=True):
                        part[j] = gate
                    w.row("c_before", b, t)[j] = old
                    w.row("squashed", b, t)[j] = squashed
                c[j] = cell
                if projects:
                    w.row("whole", b, t)[j] = w.times(o, squashed)
                else:
                    pass_on(b, t, j, w.times(o, squashed))

            w.each("H", unit)

        def leave(b: ir.Value) -> None:
            w.fill(("gates", "squashed", "whole"), b, t)
            if "c_before" in w:
                w.each("H", lambda j: w.row("c_before", b, t).put(j, w.row("c", b, t)[j]))
            if not projects:
                w.each("H", lambda j: pass_on(b, t, j, w.row("h", b, t)[j]))

        w.each_row(t, take, leave)
        if projects:
            w.product("new", "whole", "W_hr", t)

            def every(name: str, b: ir.Value) -> None:
                w.each("P", lambda j: pass_on(b, t, j, w.row(name, b, t)[j]))

            w.each_row(t, lambda b: every("new", b), lambda b: every("h", b))

    return w.address(step)


@cache
def _gradient_kernel(layout: Layout) -> int:
    w = Steps(layout)
    projects, seen, masked = "W_hr" in w, "w_i" in w, "mask" in w

    def total(b: ir.Value, t: ir.Value, j: ir.Value) -> ir.Value:
        own = w.row("dh", b, t)[j]
        return w.sizable(w.sum(own, w.row("g_outputs", b, t)[j]) if "g_outputs" in w else own)

    def stay(b: ir.Value, t: ir.Value, letter: str) -> None:
        w.each(letter, lambda j: w.row("dh", b, t).put(j, total(b, t, j)))

    def project(t: ir.Value) -> None:
        def take(b: ir.Value) -> None:
            def one(j: ir.Value) -> None:
                value = total(b, t, j)
                for name in ("dh_now", "of_hidden"):
                    if name in w:
                        w.row(name, b, t)[j] = value
                if masked:
                    w.row("dh", b, t)[j] = w.zero()

            w.each("P", one)

        def leave(b: ir.Value) -> None:
            w.fill(("dh_now", "of_hidden"), b, t)
            stay(b, t, "P")

        w.each_row(t, take, leave)
        w.product("dm", "dh_now", "W_hr", t)

    def step(t: ir.Value) -> None:
        if projects:
            project(t)

        def take(b: ir.Value) -> None:
            gates = w.parts("gates", b, t, 4)

            def unit(j: ir.Value) -> None:
                i, f, g, o = (gate[j] for gate in gates)
                squashed, dc = w.row("squashed", b, t)[j], w.row("dc", b, t)
                dm = w.row("dm", b, t)[j] if projects else total(b, t, j)
                of_o = w.times(dm, squashed, o, w.one_less(o))
                d_cell = w.sizable(w.sum(dc[j], w.times(dm, o, w.one_less(w.times(squashed, squashed)))))
                if seen:
                    d_cell = w.sum(d_cell, w.times(of_o, w.whole("w_o")[j]))
                of_i = w.times(d_cell, g, i, w.one_less(i))
                of_f = w.times(d_cell, w.row("c_before", b, t)[j], f, w.one_less(f))
                of_g = w.times(d_cell, i, w.one_less(w.times(g, g)))
                before = w.times(d_cell, f)
                if seen:
                    ways = ((of_i, "w_i"), (of_f, "w_f"))
                    before = w.sum(before, *(w.times(slope, w.whole(name)[j]) for slope, name in ways))
                dc[j] = before
                for name in ("slopes", "of_projected"):
                    if name in w:
                        for part, slope in zip(w.parts(name, b, t, 4), (of_i, of_f, of_g, of_o), strict=True):
                            part[j] = slope
                if masked and not projects:
                    w.row("dh", b, t)[j] = w.zero()

            w.each("H", unit)

        def leave(b: ir.Value) -> None:
            w.fill(("slopes", "of_projected"), b, t)
            if not projects:
                stay(b, t, "H")

        w.each_row(t, take, leave)
        w.product("dh", "slopes", "W_hh", t, add=masked)

    return w.address(step)
