"""The functions by name, and `emit`, which writes them where they are called.

A call of the C library's tanh in a loop keeps the loop scalar. The functions here are arithmetic and
selections without branches or tables, so that a loop around them is as vectorizable as one around an
addition. `emit` writes each into a module once, as a private function that is inlined.

None of their instructions carries a fast-math flag, whatever flags the caller's carry: the low parts that
make the results right must not be reassociated away. They hold their bounds with and without an instruction
that multiplies and adds with one rounding. They rely on denormal numbers being kept, as they are unless a
process has told its processor otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ptml.backends.numba.vectormath import (
    error_function,
    exponential,
    lane,
    logarithm,
    power,
    trigonometric,
)

__all__ = ["ARITY", "BOUNDS", "SUPPORTED", "emit"]

UNKNOWN = "emit has no function {name!r}; it has {known}."
ARGUMENTS = "{name} takes {arity} argument(s); got {given}."
TYPES = "emit takes float or double values of one type; {name} got {given}. Convert them first."

_FUNCTIONS: dict[str, Callable[..., lane.Real]] = {
    "cos": trigonometric.cos,
    "erf": error_function.erf,
    "erfc": error_function.erfc,
    "exp": exponential.exp,
    "exp2": exponential.exp2,
    "expm1": exponential.expm1,
    "log": logarithm.log,
    "log10": logarithm.log10,
    "log1p": logarithm.log1p,
    "log2": logarithm.log2,
    "pow": power.power,
    "rsqrt": power.reciprocal_root,
    "sigmoid": exponential.sigmoid,
    "sin": trigonometric.sin,
    "softplus": logarithm.softplus,
    "sqrt": power.root,
    "tanh": exponential.tanh,
}

#: The functions that `emit` writes.
SUPPORTED: frozenset[str] = frozenset(_FUNCTIONS)

#: The greatest distance from the true value, in units in the last place of the result (a denormal's being the
#: least number), in float32 and in float64.
BOUNDS: dict[str, tuple[float, float]] = {
    "cos": (2, 1),
    "erf": (2, 2),
    "erfc": (2, 4),
    "exp": (2, 2),
    "exp2": (2, 2),
    "expm1": (2, 2),
    "log": (1, 1),
    "log10": (1, 1),
    "log1p": (2, 2),
    "log2": (1, 1),
    "pow": (2, 2),
    "rsqrt": (2, 2),
    "sigmoid": (2, 2),
    "sin": (2, 1),
    "softplus": (2, 2),
    "sqrt": (0.5, 0.5),
    "tanh": (2, 3),
}

#: How many arguments each takes.
ARITY: dict[str, int] = {name: 2 if name == "pow" else 1 for name in sorted(SUPPORTED)}


def emit(name: str, builder: ir.IRBuilder, *args: ir.Value) -> ir.Value:
    """Write the call of a function, and the function itself where its module has it not yet.

    Parameters
    ----------
    name : str
        One of `SUPPORTED`.
    builder : llvmlite.ir.IRBuilder
        Where to write the call.
    *args : llvmlite.ir.Value
        One value, or two for ``"pow"``, of `ir.FloatType` or `ir.DoubleType`.

    Returns
    -------
    llvmlite.ir.Value
        The result, of the arguments' type. `BOUNDS` says how near it is to the true value.

    Raises
    ------
    ValueError
        If there is no such function, or it takes another number of arguments.
    TypeError
        If the values are of other types, or of different ones.

    Examples
    --------
    >>> from llvmlite import ir
    >>> from ptml.backends.numba.vectormath import emit
    >>> module, double = ir.Module(), ir.DoubleType()
    >>> function = ir.Function(module, ir.FunctionType(double, [double]), "squash")
    >>> builder = ir.IRBuilder(function.append_basic_block())
    >>> result = builder.ret(emit("tanh", builder, function.args[0]))
    >>> "ptml.tanh.double" in module.globals
    True
    """
    if name not in _FUNCTIONS:
        raise ValueError(UNKNOWN.format(name=name, known=", ".join(sorted(SUPPORTED))))
    if len(args) != ARITY[name]:
        raise ValueError(ARGUMENTS.format(name=name, arity=ARITY[name], given=len(args)))
    kind = args[0].type
    if not isinstance(kind, ir.FloatType | ir.DoubleType) or any(argument.type != kind for argument in args):
        raise TypeError(TYPES.format(name=name, given=", ".join(str(argument.type) for argument in args)))
    callee = lane.function(builder.module, name, ARITY[name], kind, _FUNCTIONS[name])
    return builder.call(callee, args)
