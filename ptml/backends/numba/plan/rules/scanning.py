"""The rule of loops: a table for one iteration, which a kernel of the outer table runs again and again.

The iteration's graph is planned as any other. What moves from one iteration to the next (elements of
sequences, states, the places of results) is to its table what inputs are to a program's: memory that lies
elsewhere each time. The kernel of the loop says where, before each iteration: it counts through the traces as
rings. Results are written where they belong in the trace; a state whose trace is one element long is written
over itself, as updates are written in their cells.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.scan.op import Scan
from pytensor.tensor.elemwise import Elemwise

from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.fusing import expand_others
from ptml.backends.numba.plan.lowering import aliased_inputs, rule
from ptml.backends.numba.plan.memory import Fixed, Live, Value, address_of
from ptml.backends.numba.plan.rules.elementwise import copy_into
from ptml.backends.numba.plan.runtime.cache import kernels
from ptml.backends.numba.plan.runtime.executor import data_offset, runner_address
from ptml.backends.numba.plan.schedule import Schedule, inline_nested

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__: list[str] = []

# The table of the kernel: what runs a table and its frame, how many iterations and how many things that move,
# and six words for each of those: where its address is to be written, where its first element is, the bytes
# from one element to the next, where it begins and where it wraps around, in bytes, and where it is by now.
_SOURCE = """
define i32 @kernel(ptr %table) {
entry:
  %run = load ptr, ptr %table
  %at1 = getelementptr i64, ptr %table, i64 1
  %frame = load ptr, ptr %at1
  %at2 = getelementptr i64, ptr %table, i64 2
  %n_steps = load i64, ptr %at2
  %at3 = getelementptr i64, ptr %table, i64 3
  %n_moving = load i64, ptr %at3
  %moving = getelementptr i64, ptr %table, i64 4
  %any = icmp sgt i64 %n_moving, 0
  br i1 %any, label %begin, label %iteration
begin:
  %b = phi i64 [ 0, %entry ], [ %b_next, %begin ]
  %b_word = mul i64 %b, 6
  %b_item = getelementptr i64, ptr %moving, i64 %b_word
  %b_start_at = getelementptr i64, ptr %b_item, i64 3
  %b_start = load i64, ptr %b_start_at
  %b_now_at = getelementptr i64, ptr %b_item, i64 5
  store i64 %b_start, ptr %b_now_at
  %b_next = add i64 %b, 1
  %b_more = icmp slt i64 %b_next, %n_moving
  br i1 %b_more, label %begin, label %iteration
iteration:
  %i = phi i64 [ 0, %entry ], [ 0, %begin ], [ %i_next, %following ]
  br i1 %any, label %move, label %work
move:
  %k = phi i64 [ 0, %iteration ], [ %k_next, %move ]
  %word = mul i64 %k, 6
  %item = getelementptr i64, ptr %moving, i64 %word
  %place = load ptr, ptr %item
  %base_at = getelementptr i64, ptr %item, i64 1
  %base = load i64, ptr %base_at
  %step_at = getelementptr i64, ptr %item, i64 2
  %step = load i64, ptr %step_at
  %end_at = getelementptr i64, ptr %item, i64 4
  %end = load i64, ptr %end_at
  %now_at = getelementptr i64, ptr %item, i64 5
  %now = load i64, ptr %now_at
  %address = add i64 %base, %now
  store i64 %address, ptr %place
  %later = add i64 %now, %step
  %wraps = icmp eq i64 %later, %end
  %then = select i1 %wraps, i64 0, i64 %later
  store i64 %then, ptr %now_at
  %k_next = add i64 %k, 1
  %k_more = icmp slt i64 %k_next, %n_moving
  br i1 %k_more, label %move, label %work
work:
  %stopped = call i64 %run(ptr %frame)
  %done = icmp eq i64 %stopped, -1
  br i1 %done, label %following, label %failed
following:
  %i_next = add i64 %i, 1
  %more = icmp slt i64 %i_next, %n_steps
  br i1 %more, label %iteration, label %end_of_loop
failed:
  ret i32 1
end_of_loop:
  ret i32 0
}
"""


@attrs.define(eq=False)
class _Trace:
    """What an output of a loop is written in, iteration after iteration.

    Attributes
    ----------
    output : Variable
    n_elements : int
        How many elements it has.
    shape : tuple of int, or None
        That of an element; None until it is known.
    initial : Value or None
        What it holds before the loop.
    lead : int
        How many elements stand before that of the first iteration.
    ordered : bool
        Whether its elements are put in their order afterwards, and those that were not reached are zero.
    alone : bool
        Whether the output is its only element, without an axis for iterations.
    buffer : Value or None
        Its memory, once it has some.
    """

    output: Variable
    n_elements: int
    shape: tuple[int, ...] | None
    initial: Value | None = None
    lead: int = 0
    ordered: bool = True
    alone: bool = False
    buffer: Value | None = None

    @property
    def dtype(self) -> str:
        return self.output.type.dtype

    @property
    def whole_shape(self) -> tuple[int, ...]:
        return (self.n_elements, *(self.shape or ()))


@attrs.frozen(eq=False)
class _Moving:
    """What lies elsewhere in each iteration, or in each call.

    Attributes
    ----------
    shape, strides, dtype
        How it lies in one.
    source : Value or _Trace
        What it is an element of.
    start : int or None
        Which, in the first iteration; None for what stays where it is throughout a call.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    source: Value | _Trace
    start: int | None = None

    @classmethod
    def of_trace(cls, trace: _Trace, tap: int) -> _Moving:
        shape = trace.shape or ()
        strides = np.empty(shape, trace.dtype).strides
        return cls(shape, strides, trace.dtype, trace, (trace.lead + tap) % trace.n_elements)

    @classmethod
    def of_sequence(cls, value: Value) -> _Moving:
        array = value.array
        return cls(array.shape[1:], array.strides[1:], str(array.dtype), value, 0)

    @classmethod
    def staying(cls, value: Value) -> _Moving:
        return cls(value.array.shape, value.array.strides, str(value.array.dtype), value)

    def is_where(self, other: object) -> bool:
        """Say whether another one is the same element."""
        return isinstance(other, _Moving) and other.source is self.source and other.start == self.start

    def stand_in(self) -> np.ndarray:
        """Give an array that lies like it, at an address that nothing else has."""
        return np.lib.stride_tricks.as_strided(np.empty(1, self.dtype), self.shape, self.strides)

    def words(self, place: int) -> list[int | Value]:
        """Give what the kernel of the loop reads."""
        value = self.source.buffer if isinstance(self.source, _Trace) else self.source
        assert value is not None
        if self.start is None:
            return [place, value, 0, 0, 0, 0]
        step = value.array.strides[0]
        return [place, value, step, self.start * step, len(value.array) * step, 0]


@rule(Scan, raises=True)
def lower_scan(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    info, n_steps = unit.node.op.info, values[0]
    if info.as_while or not n_steps.known or int(n_steps.array) <= 0:
        raise Unsupported("a loop of unknown length")
    return _Loop(plan, unit, values).lower()


class _Loop:
    """A loop that is being planned: for each input of its graph and each output, where that is."""

    def __init__(self, plan: Planner, unit: Unit, values: list[Value]) -> None:
        self.plan, self.unit, self.values = plan, unit, values
        self.op: Scan = unit.node.op
        self.n_steps = int(values[0].array)
        self.traces = list(self._traces())
        self.reads = list(self._reads())
        info = self.op.info
        taps = [*info.mit_mot_out_slices, *[(0,)] * (len(self.traces) - info.n_mit_mot)]
        self.writes = [(trace, tap) for trace, own in zip(self.traces, taps, strict=True) for tap in own]

    def lower(self) -> list[Value]:
        """Emit the loop, and give its outputs."""
        plan = self.plan
        if any(trace.shape is None for trace in self.traces):
            self._find_shapes()
        inner, moving = self._planned()
        table = inner.table
        if table.step is not None or table.finish.commits:
            raise Unsupported("a loop of which some part runs in Python")
        for trace in self.traces:
            self._give_memory(trace, table.can_fail)
        # The table takes addresses from arrays' objects: these numbers stand where an object has its own.
        addresses = np.zeros(max(len(moving), 1), np.uint64)
        first = address_of(addresses)
        words: list[int | Value] = []
        for k, index in enumerate(table.needs):
            table.objects[k] = first + 8 * index - data_offset()
            words += moving[index].words(first + 8 * index)
        head = [runner_address(), table.frame_address, self.n_steps, len(table.needs)]
        plan.emit(kernels.address(_SOURCE), [*head, *words], self.unit, raises=table.can_fail)
        plan.table.keep((table, addresses))
        plan.pool.allocated += inner.pool.allocated
        return [self._finished(trace) for trace in self.traces]

    def _traces(self) -> Iterator[_Trace]:
        op, values, outputs = self.op, self.values, self.unit.node.outputs
        for k in range(op.n_tap_outs):
            initial = values[op.seqs_arg_offset + k]
            n, *shape = initial.array.shape
            yield _Trace(outputs[k], n, tuple(shape), initial, -op.mintaps[k], k >= op.info.n_mit_mot)
        for k in range(op.info.n_nit_sot):
            output, length = outputs[op.n_tap_outs + k], values[op.nit_sot_arg_offset + k]
            if not length.known:
                raise Unsupported("a trace of unknown length")
            static = output.type.shape[1:]
            yield _Trace(output, int(length.array), None if None in static else static)
        states = op.outer_untraced_sit_sot(values)
        for output, state in zip(outputs[op.n_tap_outs + op.info.n_nit_sot :], states, strict=True):
            initial = state.seen_as(state.array[None, ...])
            yield _Trace(output, 1, state.array.shape, initial, 1, ordered=False, alone=True)

    def _reads(self) -> Iterator[_Moving | Value]:
        op, values, info = self.op, self.values, self.op.info
        if not all(trace.n_elements for trace in self.traces):
            raise Unsupported("a trace of no elements")
        for value in op.outer_seqs(values):
            if len(value.array) < self.n_steps:
                raise Unsupported("a sequence that is too short")
            yield _Moving.of_sequence(value)
        taps = itertools.chain(info.mit_mot_in_slices, info.mit_sot_in_slices, info.sit_sot_in_slices)
        for trace, own in zip(self.traces, taps, strict=False):
            for tap in own:
                yield _Moving.of_trace(trace, tap)
        for trace in self.traces:
            if trace.alone:
                yield _Moving.of_trace(trace, -1)
        for value in op.outer_non_seqs(values):
            # What is in planned memory, or known, lies still.
            yield _Moving.staying(value) if isinstance(value.root, Live) else value

    def _planned(self) -> tuple[Planner, list[Any]]:
        """Plan one iteration; give what its live memory is, too."""
        writes = [_Moving.of_trace(trace, tap) for trace, tap in self.writes]
        written_over: list[int | None] = []
        for k, write in enumerate(writes):
            there = [i for i, read in enumerate(self.reads) if write.is_where(read)]
            if len(there) > 1 or any(write.is_where(other) for other in writes[:k]):
                raise Unsupported("an element that is read or written in several ways")
            written_over.append(there[0] if there else None)
        schedule = self._schedule(tuple(written_over))
        inputs = [*self.reads, *(w for w, over in zip(writes, written_over, strict=True) if over is None)]
        moving = [inputs[k] for k in (*schedule.cells, *schedule.inputs)]
        arrays = [thing.stand_in() if isinstance(thing, _Moving) else None for thing in moving]
        variables = [schedule.fgraph.inputs[k] for k in (*schedule.cells, *schedule.inputs)]
        starting = {
            variable: Value(array, Live(k)) if isinstance(thing, _Moving) else thing
            for k, (variable, thing, array) in enumerate(zip(variables, moving, arrays, strict=True))
        }
        inner = self.plan.nested(schedule, arrays, starting)
        inner.plan()
        return inner, moving

    def _schedule(self, written_over: tuple[int | None, ...]) -> Schedule:
        """Give the schedule of an iteration, with its results as updates of the places where they go."""
        schedules, key = self.plan.schedule.loops, (self.unit.node, written_over)
        if key not in schedules:
            graph = self.op.fgraph.unfreeze()
            inline_nested(graph)
            expand_others.rewrite(graph)
            inputs, outputs, mapping = list(graph.inputs), [], {}
            for k, (output, over) in enumerate(zip(graph.outputs, written_over, strict=True)):
                if over is None:
                    over = len(inputs)
                    inputs.append(output.type())
                mapping[k] = over
                outputs.append(_IDENTITY(output) if _is_given(output) else output)
            graph = FunctionGraph(inputs, outputs, clone=False, update_mapping=mapping)
            schedules[key] = Schedule(graph, graph.toposort())
        return schedules[key]

    def _find_shapes(self) -> None:
        """Find the shapes of results that are no states, by a plan that is thrown away."""
        inner, _ = self._planned()
        if inner.table.step is not None:
            raise Unsupported("a loop of which some part runs in Python")
        for (trace, _), output in zip(self.writes, inner.schedule.fgraph.outputs, strict=True):
            if trace.shape is None:
                trace.shape = inner.value(output).array.shape

    def _give_memory(self, trace: _Trace, keeps: bool) -> None:
        """Give a trace memory that holds its first states: theirs, unless an error would need them again."""
        plan, unit, initial = self.plan, self.unit, trace.initial
        shape, dtype = trace.whole_shape, trace.dtype
        if initial is None:
            trace.buffer = plan.new(shape, dtype, trace.output)
            return
        alone = sum(value.root is initial.root for value in self.values) == 1
        if alone and not keeps and plan.dies_whole(initial, shape, dtype):
            trace.buffer = plan.take_over(initial, trace.output)
            return
        trace.buffer = plan.new(shape, dtype, trace.output)
        copy_into(plan, unit, trace.buffer, initial)

    def _finished(self, trace: _Trace) -> Value:
        """Put the elements of a trace in their order, and clear those that were not reached."""
        plan, unit, buffer = self.plan, self.unit, trace.buffer
        assert buffer is not None
        n, end = trace.n_elements, trace.lead + self.n_steps
        if not trace.ordered:
            return buffer.seen_as(buffer.array[0, ...]) if trace.alone else buffer
        if end < n:
            zero = Value(np.zeros((), trace.dtype), Fixed(), known=True)
            copy_into(plan, unit, buffer.seen_as(buffer.array[end:]), zero)
        if end <= n or end % n == 0:
            return buffer
        oldest = end % n
        ordered = plan.new(trace.whole_shape, trace.dtype, trace.output)
        for here, there in (
            (slice(None, n - oldest), slice(oldest, None)),
            (slice(n - oldest, None), slice(None, oldest)),
        ):
            copy_into(plan, unit, ordered.seen_as(ordered.array[here]), buffer.seen_as(buffer.array[there]))
        return ordered


_IDENTITY = Elemwise(ps.identity)


def _is_given(variable: Variable) -> bool:
    """Say whether a variable is an input or a constant, or may be a view of one."""
    node = variable.owner
    if node is None:
        return True
    seen = aliased_inputs(node).get(node.outputs.index(variable), ())
    return any(_is_given(node.inputs[i]) for i in seen)
