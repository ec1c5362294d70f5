"""One kernel call for many pieces of work: the same computation on one array after another.

An optimizer does the same to every parameter. Units that compute alike stand together in the schedule, and
where their operands lie flat in memory, each is a *segment*: the addresses of its operands and a number of
elements. A segmented kernel has one loop nest, and takes a list of segments to run it on: a call costs what
its elements cost, and a few nanoseconds for each segment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs
from pytensor.graph.basic import Variable

from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.forms import Form, Pattern
from ptml.backends.numba.plan.memory import Live, Place, Value
from ptml.backends.numba.plan.runtime.pool import Share
from ptml.backends.numba.plan.runtime.sharing import cut_of

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__ = ["UNUSED", "Segments", "copy_each", "lay_flat"]

#: From so many elements on, work may be worth sharing out among threads.
LARGE = 2**14
#: The number of parts that are enough for any number of threads.
MANY = 64

#: What stands for a result that nothing reads.
UNUSED = Value(None, Live(-1))


@attrs.frozen(eq=False)
class _Call:
    """A kernel that waits for its call, with its segments: the words and the number of elements of each."""

    unit: Unit
    form: Form
    pattern: Pattern
    segments: list[tuple[list[Value], int]] = attrs.field(factory=list)

    def emit(self, plan: Planner, kernel: int) -> None:
        """Add it to the table; the work is shared out among threads where there is enough of it."""
        segments, share = self.segments, None
        total = sum([n for _, n in segments])
        if total >= LARGE:
            n_operands = len(self.pattern[0]) + len(self.form.results)
            cut = cut_of(self.form.op, n_operands, [total], ())
            if cut is not None:
                if not self.form.reduces:
                    part = cut.grain * max(math.ceil(total / (MANY * cut.grain)), 1)
                    segments = [piece for words, n in segments for piece in _cut(words, n, part)]
                n_words = len(segments[0][0]) + 1
                grain = math.ceil(cut.grain * len(segments) / total)
                share = Share(1, len(segments), {0: 8 * n_words}, grain)
        words: list[Value | int] = []
        for values, n in segments:
            words += values
            words.append(n)
        plan.emit_listed(kernel, len(segments), words, self.unit, share)


def _cut(words: list[Value], n: int, part: int) -> Iterator[tuple[list[Value], int]]:
    """Cut a segment into parts of so many elements, and a rest."""
    if n <= part:
        yield words, n
        return
    arrays = [value.array.reshape(-1) for value in words]
    for start in range(0, n, part):
        end = min(start + part, n)
        pieces = zip(words, arrays, strict=True)
        yield (
            [value.seen_as(flat[start:end]) if flat.size == n else value for value, flat in pieces],
            end - start,
        )


class Segments:
    """The segments that wait for their kernels' calls, by kernel."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Call] = {}

    def add(self, unit: Unit, form: Form, pattern: Pattern, words: list[Value], n: int) -> None:
        """Add a segment to the list of a form's kernel."""
        kernel = form.kernel(pattern, True)
        call = self._waiting.get(kernel)
        if call is None:
            call = self._waiting[kernel] = _Call(unit, form, pattern)
        call.segments.append((words, n))

    def emit(self, plan: Planner) -> None:
        """Emit one call of each kernel, on all its segments."""
        for kernel, call in self._waiting.items():
            call.emit(plan, kernel)
        self._waiting.clear()


def lay_flat(plan: Planner, unit: Unit, values: Sequence[Value]) -> list[Value] | None:
    """Plan a unit whose operands lie flat: whole arrays of one shape in C order, and single numbers.

    Returns
    -------
    list of Value, or None
        The values of its outputs; None where some operand lies otherwise, and nothing was done.
    """
    fit = unit.fit
    assert fit is not None
    form, steps = fit.form, fit.steps
    values = [values[k] for k in fit.operands]
    shape = _flat_shape(steps, values)
    if shape is None:
        return None
    n = math.prod(shape)
    if n >= LARGE and (form.reduces or not plan.in_group):
        # Large enough to be shared out among threads by itself.
        return None
    if not n and any(result.reduction in ("maximum", "minimum") for result in form.results):
        raise Unsupported("an extreme of nothing")
    single = "c" not in steps
    if single:
        # A single number may be read as an array of one, which lets leaves of one element join the others.
        steps = "c" * len(values)
    lies = list(zip([value.place for value in values], steps, form.inputs, strict=True))
    places: dict[tuple[Place, str, str], int] = {}
    reads = []
    words: list[Value] = []
    for value, how in zip(values, lies, strict=True):
        place = places.get(how)
        if place is None:
            place = places[how] = len(words)
            words.append(value)
        reads.append(place)
    outputs = unit.outputs
    made = [UNUSED] * len(outputs)
    aliases: list[int | None] = []
    for number, result in zip(fit.outputs, form.results, strict=True):
        alias = None
        if result.reduction is None:
            output, alias = _place(plan, outputs[number], shape, result.dtype, values, lies, aliases)
        else:
            output = plan.new((), result.dtype, outputs[number])
        made[number] = output
        words.append(output)
        aliases.append(alias)
    if aliases and (n or form.reduces):
        at = tuple([None if alias is None else reads[alias] for alias in aliases])
        pattern = "".join([step for _, step, _ in places]), tuple(reads), at
        _emit(plan, unit, form, pattern, words, n, single)
    return made


def _flat_shape(steps: str, values: Sequence[Value]) -> tuple[int, ...] | None:
    """Give the shape that the operands have together, if they lie flat."""
    shape: tuple[int, ...] | None = None
    for value, step in zip(values, steps, strict=True):
        array = value.array
        if step == "b":
            if array.size != 1:
                return None
        elif not array.flags.c_contiguous or (shape is not None and array.shape != shape):
            return None
        else:
            shape = array.shape
    return values[0].array.shape if shape is None else shape


def _place(
    plan: Planner,
    variable: Variable,
    shape: tuple[int, ...],
    dtype: str,
    values: Sequence[Value],
    lies: Sequence[tuple[Place, str, str]],
    taken: Sequence[int | None],
) -> tuple[Value, int | None]:
    """Find where a result goes: into its cell, over an operand that nothing reads any more, or elsewhere.

    Returns
    -------
    Value
        The place.
    int or None
        The operand that lies there.
    """
    cell = plan.cell_to_write(variable, shape, dtype)
    if cell is not None:
        found = [i for i, value in enumerate(values) if value.root is cell.root]
        if all(lies[i] == (cell.place, "c", dtype) for i in found):
            plan.write_cell(cell)
            return cell, found[0] if found else None
    for i, value in enumerate(values):
        if lies[i][1] == "c" and plan.dies_whole(value, shape, dtype):
            found = [k for k, other in enumerate(values) if other.root is value.root]
            if all(lies[k] == lies[i] and k not in taken for k in found):
                return plan.take_over(value, variable), i
    return plan.new(shape, dtype, variable), None


def _emit(
    plan: Planner, unit: Unit, form: Form, pattern: Pattern, words: list[Value], n: int, single: bool
) -> None:
    """Emit the kernel of a flat unit, or add a segment to that of its group."""
    _, reads, aliases = pattern
    if plan.in_group:
        if single:
            pattern = form.like(reads, aliases) or pattern
        plan.segments.add(unit, form, pattern, words, n)
    elif single:
        plan.emit(form.kernel(("", reads, aliases), False), words, unit)
    else:
        plan.emit(form.kernel(pattern, False), [*words, n], unit)


def copy_each(plan: Planner, unit: Unit, pairs: Sequence[tuple[Value, Value]]) -> list[tuple[Value, Value]]:
    """Copy arrays, each to a place of its own, by one kernel call for each pair of dtypes.

    Parameters
    ----------
    plan : Planner
    unit : Unit
        Whose work it is.
    pairs : sequence of (Value, Value)
        Targets and sources. No target overlaps any source, nor another target.

    Returns
    -------
    list of (Value, Value)
        Those that do not lie flat, which were not copied.
    """
    others = []
    waiting, forms = Segments(), plan.schedule.forms
    for target, source in pairs:
        to, array = target.array, source.array
        flat = to.flags.c_contiguous and array.flags.c_contiguous and to.shape == array.shape
        if not flat:
            others.append((target, source))
        elif to.size:
            form = forms.copy(str(array.dtype), str(to.dtype))
            waiting.add(unit, form, ("c", (0,), (None,)), [source, target], to.size)
    waiting.emit(plan)
    return others
