"""What the sequence ops share: what they are given, and how their graphs walk over the steps.

Every op takes the input's part of all steps, ``projected`` of shape ``(batch, time, gates * hidden)``, which
one product makes beforehand. Its first output has the hidden state after every step, then come the last
states, then what the gradient needs of each step, so that it computes nothing twice. A gradient walks the
steps the other way; what the weights get is one product over all steps, after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytensor
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.type import Type
from pytensor.tensor.variable import TensorVariable

from ptml.fused import Fused

__all__ = [
    "SequenceOp",
    "by_weights",
    "connected",
    "discrete",
    "given",
    "given_mask",
    "kept",
    "or_zeros",
    "parts",
    "states_before",
    "walk",
]

_RANK = "{op} takes {name} as ({wants}); got {ndim} axes. Give it the axes that it lacks."
_SIZE = "{op} takes {name} as ({wants}); axis {axis} ({letter}) has {got} elements, where {other} has {size}."
_GATES = "{op} takes projected with {gates} numbers for each hidden unit; got {got} for {hidden} units."
_MASK = "{op} takes a mask of booleans, true where a step counts; got {dtype}. Write mask > 0."
_FLOAT = "{op} takes floats; {name} is {dtype}. Write {name}.astype(floatX)."

_WORDS = {"B": "batch", "T": "time", "G": "gates * hidden", "H": "hidden", "P": "projection"}


class SequenceOp(Fused):
    """A fused op over the steps of a batch of sequences.

    A subclass says how its inputs and outputs are shaped, by letters: ``B`` is the batch, ``T`` the steps,
    ``H`` the hidden units, ``G`` those of all gates, ``P`` the size of the hidden state that is passed on.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.recurrence.rnn import RNNSequence
    >>> isinstance(RNNSequence(), SequenceOp)
    True
    """

    #: How many numbers each hidden unit has in ``projected``.
    gates = 1

    def input_letters(self) -> list[str]:
        """Give the axes of each input."""
        raise TypeError(f"{type(self).__name__} does not say how its inputs are shaped.")

    def output_letters(self) -> list[str]:
        """Give the axes of each output."""
        raise TypeError(f"{type(self).__name__} does not say how its outputs are shaped.")

    def output_types(self, *inputs: Any) -> Sequence[Type]:
        sizes: dict[str, int | None] = dict.fromkeys("BTHGP")
        for variable, letters in zip(inputs, self.input_letters(), strict=True):
            for letter, size in zip(letters, variable.type.shape, strict=True):
                sizes[letter] = size if sizes[letter] is None else sizes[letter]
        if sizes["H"] is None and sizes["G"] is not None:
            sizes["H"] = sizes["G"] // self.gates
        dtype = next(v.type.dtype for v in inputs if v.type.dtype.startswith("float"))
        return [
            pt.TensorType(dtype, tuple(sizes[letter] for letter in letters))
            for letters in self.output_letters()
        ]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        sizes: dict[str, Any] = {}
        for shape, letters in zip(shapes, self.input_letters(), strict=True):
            sizes = dict(zip(letters, shape, strict=True)) | sizes
        return [tuple(sizes[letter] for letter in letters) for letters in self.output_letters()]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[v.type.dtype.startswith("float")] * len(node.outputs) for v in node.inputs]


def given(op: str, gates: int, inputs: dict[str, tuple[Any, str]]) -> list[TensorVariable]:
    """Check what a sequence is given, as far as it is known, and give floats of one dtype.

    Parameters
    ----------
    op : str
        What asks.
    gates : int
        How many numbers each hidden unit has in ``projected``.
    inputs : dict
        The value of each input, by its name, and the letters of its axes.

    Raises
    ------
    TypeError
        If an input holds no floats.
    ValueError
        If an input has another number of axes, or sizes that contradict each other.
    """
    sizes: dict[str, tuple[str, int]] = {}
    variables = []
    for name, (value, letters) in inputs.items():
        variable = pt.as_tensor(value)
        wants = ", ".join(_WORDS[letter] for letter in letters)
        if not variable.type.dtype.startswith("float"):
            raise TypeError(_FLOAT.format(op=op, name=name, dtype=variable.type.dtype))
        if variable.type.ndim != len(letters):
            raise ValueError(_RANK.format(op=op, name=name, wants=wants, ndim=variable.type.ndim))
        for axis, (letter, got) in enumerate(zip(letters, variable.type.shape, strict=True)):
            if got is None:
                continue
            other, size = sizes.setdefault(letter, (name, got))
            if size != got:
                raise ValueError(
                    _SIZE.format(
                        op=op,
                        name=name,
                        wants=wants,
                        axis=axis,
                        letter=_WORDS[letter],
                        got=got,
                        other=other,
                        size=size,
                    )
                )
        variables.append(variable)
    if "G" in sizes and "H" in sizes and sizes["G"][1] != gates * sizes["H"][1]:
        raise ValueError(_GATES.format(op=op, gates=gates, got=sizes["G"][1], hidden=sizes["H"][1]))
    dtype = pytensor.scalar.upcast(*(variable.type.dtype for variable in variables))
    return [variable.astype(dtype) for variable in variables]


def given_mask(op: str, mask: Any, projected: TensorVariable) -> list[TensorVariable]:
    """Check a mask of the steps that count, and give it as an input; none for None.

    Raises
    ------
    TypeError
        If it does not hold booleans.
    ValueError
        If it is not shaped as the batch and the steps.
    """
    if mask is None:
        return []
    mask = pt.as_tensor(mask)
    if mask.type.dtype != "bool":
        raise TypeError(_MASK.format(op=op, dtype=mask.type.dtype))
    if mask.type.ndim != 2:
        raise ValueError(_RANK.format(op=op, name="a mask", wants="batch, time", ndim=mask.type.ndim))
    for axis, letter in enumerate("BT"):
        got, size = mask.type.shape[axis], projected.type.shape[axis]
        if None not in (got, size) and got != size:
            raise ValueError(
                _SIZE.format(
                    op=op,
                    name="a mask",
                    wants="batch, time",
                    axis=axis,
                    letter=_WORDS[letter],
                    got=got,
                    other="projected",
                    size=size,
                )
            )
    return [mask]


def parts(x: TensorVariable, count: int) -> list[TensorVariable]:
    """Cut the last axis into equal parts."""
    size = x.type.shape[-1]
    width: Any = x.shape[-1] // count if size is None else size // count
    return [x[..., k * width : (k + 1) * width] for k in range(count)]


def walk(
    step: Callable[..., Sequence[Variable]],
    sequences: Sequence[TensorVariable],
    states: Sequence[TensorVariable],
    others: Sequence[TensorVariable],
    *,
    fresh: int,
    reverse: bool,
) -> tuple[list[TensorVariable], list[TensorVariable]]:
    """Loop over the steps of sequences.

    Parameters
    ----------
    step : callable
        Takes what each sequence has at a step, the states and the others; gives the new states, and what is
        fresh in each step.
    sequences : sequence of tensors, (batch, time, ...)
    states, others : sequence of tensors
    fresh : int
        How many results follow the states.
    reverse : bool
        Whether to begin with the last step.

    Returns
    -------
    traces : list of tensors, (batch, time, ...)
        The states after each step, and what was fresh in it, where the step's sequences are.
    last : list of tensors
        The states after all steps: those at the beginning, where there are none.
    """
    results = pytensor.scan(
        step,
        sequences=[pt.moveaxis(sequence, 1, 0) for sequence in sequences],
        outputs_info=[*states, *[None] * fresh],
        non_sequences=list(others),
        go_backwards=reverse,
        strict=True,
        return_list=True,
        return_updates=False,
    )
    last = [pt.concatenate([s[None], r])[-1] for s, r in zip(states, results[: len(states)], strict=True)]
    traces = [pt.moveaxis(r[::-1] if reverse else r, 0, 1) for r in results]
    return traces, last


def states_before(initial: TensorVariable, after: TensorVariable, reverse: bool) -> TensorVariable:
    """Give the states before each step, of those at the beginning and those after each step."""
    first = pt.expand_dims(initial, 1)
    if reverse:
        return pt.concatenate([after, first], axis=1)[:, 1:]
    return pt.concatenate([first, after], axis=1)[:, :-1]


def by_weights(states: TensorVariable, slopes: TensorVariable) -> TensorVariable:
    """Give what weights get, through which states went at each step: one product over all steps."""
    return pt.dot(_rows(states).T, _rows(slopes))


def _rows(x: TensorVariable) -> TensorVariable:
    return x.reshape((x.shape[0] * x.shape[1], x.shape[2]))


def kept(mask_t: TensorVariable | None, new: TensorVariable, old: Any) -> TensorVariable:
    """Give the new value in the rows where a step counts, else the old one."""
    return new if mask_t is None else pt.switch(mask_t[:, None], new, old)


def connected(cotangents: Sequence[Any]) -> bool:
    """Say whether anything comes back through some outputs."""
    return not all(isinstance(cotangent.type, DisconnectedType) for cotangent in cotangents)


def or_zeros(cotangent: Any, output: Variable) -> Variable:
    """Give what comes back for an output, zeros where nothing does."""
    return pt.zeros_like(output) if isinstance(cotangent.type, DisconnectedType) else cotangent


def discrete(inputs: Sequence[Any]) -> list[Variable]:
    """Give the gradients of masks, through which nothing flows."""
    return [disconnected_type() for _ in inputs]
