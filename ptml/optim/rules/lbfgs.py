"""L-BFGS, with a line search for the strong Wolfe conditions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import equal_computations
from pytensor.graph.replace import clone_replace
from pytensor.scalar import upcast
from pytensor.tensor.variable import TensorVariable

from ptml.flatten import flatten
from ptml.optim.hyperparameters import (
    LearningRate,
    Rate,
    a_rate,
    as_scalar,
    checked,
    checked_rate,
    is_schedule,
    namespace,
    number,
    working_dtype,
)
from ptml.optim.linesearch import wolfe_search
from ptml.optim.ownership import counter, scalar_state, state_for
from ptml.optim.rules.parts import Amounts, apply_rule
from ptml.optim.transform import Rule
from ptml.optim.updates import Gradients, Steps, Updates, get_gradients
from ptml.validate import positive_int
from ptml_state import SlotVariable

__all__ = ["Lbfgs", "lbfgs", "lbfgs_updates"]

NO_LOSS = (
    "Lbfgs searches along the loss, and is given gradients alone. Give it the loss, as in "
    "compile_train(loss, lbfgs()) or lbfgs()(loss, parameters)."
)
NOT_ITS_GRADIENT = (
    "Lbfgs searches along the loss, and needs its gradient as it is: a transform ahead of it has made "
    "another of it for {addresses}. Put clips and scales behind it, and write a penalty into the loss."
)
CROSSED = "Lbfgs: decrease must be below curvature; got {decrease!r} and {curvature!r}."

_share = number(lambda value: (value > 0) & (value < 1), "a number in (0, 1)")


class Lbfgs(Rule, kw_only=False):
    r"""L-BFGS: Newton's step, by a curvature that is learnt from the last steps, and a line search along it.

    All parameters are one vector :math:`p`. From the last :math:`m` steps :math:`s_i` and changes of the
    gradient :math:`y_i` on them, the two-loop recursion gives the direction :math:`d = -H g`, where
    :math:`H` is what the BFGS formula makes, pair by pair, of :math:`\gamma I` with
    :math:`\gamma = s^\top y / y^\top y` of the last pair. The step is :math:`\alpha d` with a length that
    satisfies the strong Wolfe conditions

    .. math::

        f(p + \alpha d) \le f(p) + c_1 \alpha g^\top d, \qquad
        |\nabla f(p + \alpha d)^\top d| \le c_2 |g^\top d|

    It is for losses that are the same at every step: the whole data, or batches so large that their noise is
    small. The length of one is tried first and mostly passes, so that a step computes the loss and its
    gradient twice; the search ends at the first length that passes. At every trial dropout draws the masks
    of the step, and batch norm takes the statistics of its batch; running statistics move once. Where no
    trial lessens the loss enough, no step is made, and the curvature is learnt anew.

    Parameters
    ----------
    learning_rate : number, scalar tensor or schedule, default 1.0
        The first length tried; at the very first step it is divided by the gradient's norm where that is
        above 1. A schedule runs on the rule's own clock, ``<namespace>/step_count``.
    memory_size : int, default 10
        How many pairs m are kept: two copies of the parameters for each.
    max_linesearch_steps : int, default 20
        The most trials of a step.
    decrease : number or scalar tensor, default 1e-4
        The constant :math:`c_1`, in (0, `curvature`).
    curvature : number or scalar tensor, default 0.9
        The constant :math:`c_2`, in (`decrease`, 1).
    namespace : str, default "lbfgs"
        The first part of the addresses of its state: ``lbfgs/position_changes/<parameter>`` and
        ``lbfgs/gradient_changes/<parameter>``, of shape ``(memory_size, *shape)`` with the newest last, and
        ``lbfgs/step_length``, the last step's :math:`\alpha`: zero where none was made.

    Raises
    ------
    ValueError
        If a number is outside its range; for a symbolic one, when the graph runs. When it is called: if it
        is given gradients without a loss, or a transform ahead of it has changed them.

    References
    ----------
    Nocedal and Wright, "Numerical Optimization", 2006, algorithms 7.4 and 7.5. The recursion runs on inner
    products of the pairs and the gradient, which is the same and reads the memory once: Chen, Wang and Zhou,
    "Large-scale L-BFGS using MapReduce", 2014.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.layers import Input, Linear
    >>> from ptml.loss import SquaredError, supervised_loss
    >>> from ptml.optim import compile_train, lbfgs
    >>> loss, y = supervised_loss(Linear("fc", n_in=2, n_out=1)(Input("X", shape=(None, 2))), SquaredError())
    >>> step = compile_train(loss, lbfgs(), seed=0)
    >>> x = np.random.default_rng(0).normal(size=(20, 2))
    >>> for _ in range(10):
    ...     value = step(x, x[:, :1] - x[:, 1:] + 1)
    >>> step.state["fc/W"].round(6).tolist(), step.state["fc/b"].round(6).tolist()
    ([[1.0], [-1.0]], [1.0])
    """

    learning_rate: LearningRate = attrs.field(default=1.0, validator=a_rate)
    memory_size: int = attrs.field(default=10, validator=positive_int)
    max_linesearch_steps: int = attrs.field(default=20, validator=positive_int)
    decrease: Rate = attrs.field(default=1e-4, validator=_share)
    curvature: Rate = attrs.field(default=0.9, validator=_share)
    namespace: str = attrs.field(default="lbfgs", validator=namespace)

    def __attrs_post_init__(self) -> None:
        low, high = self.decrease, self.curvature
        if isinstance(low, float) and isinstance(high, float) and low >= high:
            raise ValueError(CROSSED.format(decrease=low, curvature=high))

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        loss = _searchable(gradients)
        moving = list(gradients.amounts)
        dtype = upcast(*(working_dtype(parameter) for parameter in moving))
        here = [_as_vector(amount, p, dtype) for p, amount in gradients.amounts.items()]
        changes = [self._memory(parameter, "position_changes") for parameter in moving]
        bends = [self._memory(parameter, "gradient_changes") for parameter in moving]

        newton, learnt = _newton_direction(_rows(changes, dtype), _rows(bends, dtype), here)
        # Rounding, or a loss that has changed since, may turn the direction uphill.
        descends = learnt & pt.lt(_inner(newton, here), 0)
        directions = [pt.switch(descends, d, -g) for d, g in zip(newton, here, strict=True)]
        count = counter(f"{self.namespace}/step_count") if is_schedule(self.learning_rate) else None
        rate = as_scalar(checked_rate(self, count), dtype)
        first = rate * pt.switch(descends, 1, 1 / pt.maximum(1, pt.sqrt(_inner(here, here))))
        found = wolfe_search(
            _trials(loss, gradients.amounts, dtype),
            [*moving, *directions],
            loss=pt.cast(loss, dtype),
            slope=_inner(directions, here),
            gradients=here,
            first=first,
            decrease=as_scalar(checked(self, "decrease"), dtype),
            curvature=as_scalar(checked(self, "curvature"), dtype),
            max_steps=self.max_linesearch_steps,
        )

        steps = {
            # Where no step is made, the direction may be no number.
            p: pt.switch(pt.gt(found.length, 0), _step(p, found.length, d), 0)
            for p, d in zip(moving, directions, strict=True)
        }
        # Of the change as it is rounded, whose gradient was looked at.
        moved = [_as_vector(_moved(p, step), p, dtype) - _as_vector(p, p, dtype) for p, step in steps.items()]
        turned = [after - before for after, before in zip(found.gradients, here, strict=True)]
        bend, lengths = _inner(moved, turned), pt.sqrt(_inner(moved, moved)) * pt.sqrt(_inner(turned, turned))
        keeps = pt.gt(bend, as_scalar(np.finfo(dtype).eps, dtype) * lengths)
        fails = pt.eq(found.length, 0) & pt.gt(first, 0) & pt.lt(pt.abs(loss), np.inf)
        state: Amounts = {self._last_length: pt.cast(found.length, self._last_length.dtype)}
        for memories, new in ((changes, moved), (bends, turned)):
            for memory, row in zip(memories, new, strict=True):
                row = pt.reshape(pt.cast(row, memory.dtype), (1, *memory.type.shape[1:]))
                kept = pt.switch(keeps, pt.concatenate([memory[1:], row]), memory)
                state[memory] = pt.switch(fails, pt.zeros_like(memory), kept)
        return gradients.to_steps(steps).with_state(state)

    def _memory(self, parameter: SlotVariable, what: str) -> SlotVariable:
        shape = (self.memory_size, *parameter.slot.shape)
        return state_for(parameter, f"{self.namespace}/{what}", shape=shape)

    @property
    def _last_length(self) -> SlotVariable:
        return scalar_state(f"{self.namespace}/step_length")


def _searchable(gradients: Gradients) -> TensorVariable:
    """Give the loss that gradients are of."""
    if gradients.loss is None:
        raise ValueError(NO_LOSS)
    amounts = gradients.amounts
    true = get_gradients(gradients.loss, amounts)
    if not equal_computations(list(amounts.values()), true):
        changed = [
            parameter.slot.address
            for (parameter, amount), gradient in zip(amounts.items(), true, strict=True)
            if not equal_computations([amount], [gradient])
        ]
        raise ValueError(NOT_ITS_GRADIENT.format(addresses=", ".join(changed)))
    return gradients.loss


def _trials(loss: TensorVariable, amounts: Amounts, dtype: str) -> Callable[..., tuple]:
    """Give the function that builds one trial: the loss, the slope and the gradient at a length."""
    [flat] = flatten([loss])
    moving = list(amounts)

    def look(length: TensorVariable, given: Sequence[TensorVariable]) -> tuple:
        places, directions = given[: len(moving)], given[len(moving) :]
        trial = {
            parameter: _moved(place, _step(parameter, length, direction))
            for parameter, place, direction in zip(moving, places, directions, strict=True)
        }
        there, *slopes = clone_replace([flat, *amounts.values()], trial)
        vectors = [_as_vector(g, p, dtype) for g, p in zip(slopes, moving, strict=True)]
        return pt.cast(there, dtype), _inner(directions, vectors), vectors

    return look


def _newton_direction(
    changes: Sequence[TensorVariable], bends: Sequence[TensorVariable], gradients: Sequence[TensorVariable]
) -> tuple[list[TensorVariable], TensorVariable]:
    """Give the direction that the two-loop recursion makes of pairs, the newest last; and if there are any.

    A pair of zeros is none. All that the recursion needs are inner products of the pairs and the gradient.
    """
    size = changes[0].type.shape[0]

    def products(left: Sequence[TensorVariable], right: Sequence[TensorVariable]) -> TensorVariable:
        return sum(a @ b for a, b in zip(left, right, strict=True))

    transposed = [bend.T for bend in bends]
    across, within = products(changes, transposed), products(bends, transposed)
    toward, remaining = products(bends, gradients), products(changes, gradients)
    bend = pt.diagonal(across)
    there = pt.gt(bend, 0)
    inverse = pt.switch(there, 1 / pt.switch(there, bend, 1), 0)

    # Inner products of vectors, though most of their elements are zero: rewrites would take elements of sums
    # apart, into more operands than one loop can have.
    units = np.eye(size, dtype=across.type.dtype)
    taken: dict[int, TensorVariable] = {}
    removed = pt.zeros_like(remaining)
    for i in reversed(range(size)):
        taken[i] = inverse[i] * (remaining[i] - across[i] @ removed)
        removed = removed + taken[i] * units[i]
    learnt = there[-1]
    scale = pt.switch(learnt, bend[-1] / pt.switch(learnt, within[-1, -1], 1), 1)
    slope = scale * (toward - within @ removed)
    along = pt.zeros_like(slope)
    for i in range(size):
        along = along + (taken[i] - inverse[i] * (slope[i] + across[:, i] @ along)) * units[i]
    directions = [
        -(scale * (g - removed @ bend) + along @ change)
        for g, bend, change in zip(gradients, bends, changes, strict=True)
    ]
    return directions, learnt


def _as_vector(tensor: TensorVariable, parameter: SlotVariable, dtype: str) -> TensorVariable:
    return pt.reshape(pt.cast(tensor, dtype), (math.prod(parameter.slot.shape),))


def _rows(memories: Sequence[SlotVariable], dtype: str) -> list[TensorVariable]:
    return [pt.reshape(pt.cast(m, dtype), (m.slot.shape[0], math.prod(m.slot.shape[1:]))) for m in memories]


def _inner(left: Sequence[TensorVariable], right: Sequence[TensorVariable]) -> TensorVariable:
    """Give the inner product of two vectors in parts."""
    return sum(a @ b for a, b in zip(left, right, strict=True))


def _step(parameter: SlotVariable, length: TensorVariable, direction: TensorVariable) -> TensorVariable:
    dtype = working_dtype(parameter)
    return pt.cast(length, dtype) * pt.reshape(pt.cast(direction, dtype), parameter.slot.shape)


def _moved(place: TensorVariable, step: TensorVariable) -> TensorVariable:
    """Give where a parameter is after a step, rounded as the update of the parameter is."""
    return pt.cast(pt.cast(place, step.dtype) + step, place.dtype)


lbfgs = Lbfgs


def lbfgs_updates(
    loss: TensorVariable,
    parameters: Iterable[SlotVariable],
    learning_rate: LearningRate = 1.0,
    memory_size: int = 10,
    max_linesearch_steps: int = 20,
    decrease: Rate = 1e-4,
    curvature: Rate = 0.9,
    namespace: str = "lbfgs",
) -> Updates:
    """Build the updates of :class:`Lbfgs`, with new state at every call outside :func:`reuses_state`.

    Parameters
    ----------
    loss : scalar tensor
    parameters : sequence of handles
    learning_rate, memory_size, max_linesearch_steps, decrease, curvature, namespace
        As for :class:`Lbfgs`.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1, bias=False)
    >>> for handle in lbfgs_updates((fc(pt.matrix("X")) ** 2).mean(), [fc.W], memory_size=5).state:
    ...     handle.slot
    Slot('lbfgs/step_length', Role.OPTIMIZER, float64[])
    Slot('lbfgs/position_changes/fc/W', Role.OPTIMIZER, float64[5,2,1])
    Slot('lbfgs/gradient_changes/fc/W', Role.OPTIMIZER, float64[5,2,1])
    """
    rule = Lbfgs(learning_rate, memory_size, max_linesearch_steps, decrease, curvature, namespace)
    return apply_rule(rule, loss, parameters)
