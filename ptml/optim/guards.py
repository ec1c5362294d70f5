"""Guards: they throw a training step away, with everything that it would have written.

A guard wraps the whole rule. Where one of its conditions holds, the call leaves the whole state as it was,
bit for bit: parameters, optimizer state, the statistics of the model and the clocks that transforms own. What
moves all the same are the counts of skips, random keys (the call has drawn), and clocks that you made
yourself with :func:`ptml.optim.counter`, which count calls. The loss of the call is given as ever. How this
comes about is told in :mod:`ptml.holds`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.type import float_dtypes
from pytensor.tensor.variable import TensorVariable

from ptml.holds import Hold, Written
from ptml.initializers import Constant
from ptml.module import Module
from ptml.optim.hyperparameters import (
    Count,
    Rate,
    as_count,
    as_scalar,
    checked,
    namespace,
    number,
    whole_count,
)
from ptml.optim.ownership import scalar_state
from ptml.optim.transform import Transform, a_rule, decided
from ptml.optim.updates import Updates
from ptml_state import Slot, SlotVariable

__all__ = [
    "Decision",
    "LargeStep",
    "Nonfinite",
    "SkipCondition",
    "SkipIf",
    "apply_if_finite",
    "large_step",
    "nonfinite",
    "skip_if",
]

#: Reads the step that a rule has proposed, ``decide(updates, parameters)``, and gives a scalar boolean graph:
#: true for a step to throw away. ``updates[p]`` is a new value, ``updates.amounts[p]`` the move,
#: ``updates.loss`` the loss, where it is known.
type Decision = Callable[[Updates, Sequence[SlotVariable]], TensorVariable]

NOT_A_CONDITION = (
    "SkipIf: condition is a condition such as nonfinite() or large_step(10.0), a function of updates and "
    "parameters that gives a scalar boolean graph, or a list of them; got {got!r}.{hint}"
)
CALL_IT = " Write {name}()."
NO_CONDITIONS = (
    "SkipIf: condition is an empty list, which no step meets. Give a condition, or leave the guard out."
)
NOT_A_VERDICT = (
    "{condition} gave {got}. A decision gives one verdict on the whole step, a scalar of dtype bool: join "
    "the elements by pt.any(...) or pt.all(...)."
)
NOT_A_COUNT = (
    "SkipIf: {argument} is the handle of a scalar of state, such as scalar_state('skips', dtype='int64'); "
    "got {got!r}."
)
SAME_COUNT = (
    "SkipIf: consecutive_skips and total_skips are one slot, {address!r}. They are two counts: make two."
)
NO_REASON = (
    "SkipCondition: reason is a phrase that goes on from 'the optimizer', such as 'met a spike'; got {got!r}."
)
TOO_MANY = (
    "Too many training steps in a row were thrown away (max_consecutive_skips={limit}), the last because the "
    "optimizer {reason}. The state is as it was before the first of them, and can be saved. Lower the rate, "
    "clip the gradients, or look for what overflows in the loss; a larger max_consecutive_skips allows for "
    "more, and None for any number."
)
IN_A_CHAIN = "a guard throws away the whole step, with the statistics of the model and everything else"


class SkipCondition(Module, kw_only=False):
    """A reason to throw a training step away: a decision, and the phrase that tells of it.

    Parameters
    ----------
    decide : function of ``(updates, parameters)``
        Gives a scalar boolean graph, true for a step to throw away.
    reason : str, default "met a condition to skip"
        Goes on from "the optimizer" in the error that too many skips in a row raise.

    Raises
    ------
    TypeError
        If `decide` is no function, or `reason` no text.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.optim import SkipCondition, adam, skip_if
    >>> spike = SkipCondition(lambda updates, parameters: updates.loss > 100, "met a loss above 100")
    >>> guarded = skip_if(adam(1e-3), spike)
    """

    decide: Decision
    reason: str = "met a condition to skip"

    def __attrs_post_init__(self) -> None:
        if not callable(self.decide) or isinstance(self.decide, type):
            raise TypeError(_not_a_condition(self.decide))
        if not isinstance(self.reason, str) or not self.reason:
            raise TypeError(NO_REASON.format(got=self.reason))

    def __call__(self, updates: Updates, parameters: Sequence[SlotVariable]) -> TensorVariable:
        """Give the verdict on a step.

        Raises
        ------
        TypeError
            If the decision gives no scalar boolean.
        """
        verdict = pt.as_tensor(self.decide(updates, parameters))
        if verdict.ndim != 0 or verdict.type.dtype != "bool":
            raise TypeError(NOT_A_VERDICT.format(condition=repr(self), got=verdict.type))
        return verdict


class Nonfinite(Module):
    """Decide against a step that would write inf or NaN; see :func:`nonfinite`."""

    def __call__(self, updates: Updates, parameters: Sequence[SlotVariable]) -> TensorVariable:
        return Written(_any_nonfinite)


class LargeStep(Module, kw_only=False):
    """Decide against a step whose norm reaches a bound; see :func:`large_step`.

    Parameters
    ----------
    max_norm : number or scalar tensor
        The bound, positive.
    """

    max_norm: Rate = attrs.field(validator=number(lambda norm: norm > 0, "a positive number"))

    def __call__(self, updates: Updates, parameters: Sequence[SlotVariable]) -> TensorVariable:
        bound, parts = checked(self, "max_norm"), []
        for amount in updates.amounts.values():
            # Relative to the bound no square overflows, but where the verdict is clear.
            square = pt.sqr(amount / as_scalar(bound, amount.dtype))
            # By default PyTensor would add float32 up in float64, which JAX has only where it is told to.
            parts.append(pt.sum(square, acc_dtype=amount.dtype))
        return ~pt.lt(reduce(pt.add, parts), 1) | Written(_any_nonfinite)


def _any_nonfinite(values: Mapping[Slot, Variable]) -> TensorVariable:
    """Say whether a floating value among these is inf or NaN where it has no business to be."""
    fine = []
    for slot, new in values.items():
        if slot.dtype in float_dtypes:
            good = (
                ~pt.isnan(new)
                if _starts_infinite(slot)
                else pt.lt(pt.abs(new), np.asarray(np.inf, new.dtype))
            )
            fine.append(pt.all(good))
    return ~reduce(pt.and_, fine) if fine else pt.constant(np.bool_(False))


def _starts_infinite(slot: Slot) -> bool:
    """Say whether a slot is a sentinel, such as the least loss before there was any."""
    first = slot.initializer
    return isinstance(first, Constant) and bool(np.isinf(np.asarray(first.value, "float64")).any())


def nonfinite() -> SkipCondition:
    """Throw the step away when any floating value that it would write is inf or NaN.

    Every value counts: parameters, optimizer state, and the running statistics of the model. What is infinite
    from the start, as the least loss that a plateau policy has seen, may stay so; it may not become NaN.

    Examples
    --------
    >>> nonfinite().reason
    'would have written inf or NaN'
    """
    return SkipCondition(Nonfinite(), "would have written inf or NaN")


def large_step(max_norm: Rate) -> SkipCondition:
    """Throw the step away when the global L2 norm of the moves reaches `max_norm`.

    So is any that :func:`nonfinite` throws away. :func:`ptml.optim.clip_by_global_norm` makes a large step a
    smaller one, and takes it; it cannot rescue one that is not finite.

    Parameters
    ----------
    max_norm : number or scalar tensor
        The bound, positive.

    Raises
    ------
    ValueError
        If the bound is not positive; for a symbolic one, when the graph runs.

    Examples
    --------
    >>> large_step(10.0).reason
    'took a step whose norm reached 10.0'
    """
    bound = "max_norm" if isinstance(max_norm, Variable) else max_norm
    return SkipCondition(LargeStep(max_norm), f"took a step whose norm reached {bound}")


def _not_a_condition(value: Any) -> str:
    called = isinstance(value, type) or value is nonfinite
    return NOT_A_CONDITION.format(got=value, hint=CALL_IT.format(name=value.__name__) if called else "")


def _as_condition(value: Any) -> SkipCondition:
    if isinstance(value, SkipCondition):
        return value
    if not callable(value) or isinstance(value, type) or value is nonfinite or value is large_step:
        raise TypeError(_not_a_condition(value))
    return SkipCondition(value)


def _as_conditions(value: Any) -> Any:
    if value is None:
        return nonfinite()
    if isinstance(value, list | tuple):
        return tuple(_as_condition(one) for one in value)
    return _as_condition(value)


def _a_limit(module: Any, field: attrs.Attribute, value: Any) -> None:
    if value is not None:
        whole_count(module, field, value)


def _a_count(module: Any, field: attrs.Attribute, value: Any) -> None:
    if value is not None and not (isinstance(value, SlotVariable) and value.ndim == 0):
        raise TypeError(NOT_A_COUNT.format(argument=field.alias, got=value))


class SkipIf(Transform, kw_only=False):
    """Throw away any step that meets a condition, and leave the whole state as it was.

    Parameters
    ----------
    rule : transform, or function of ``(updates, parameters)`` that returns Steps
        What is guarded: a rule, a whole chain, a policy, another guard.
    condition : SkipCondition, function of ``(updates, parameters)``, or a list of them, optional
        What to throw a step away for, any of them; :func:`nonfinite` unless given. It is shown what would be
        written after the verdicts of guards inside.
    max_consecutive_skips : int, symbolic integer or None, default 5
        How many steps in a row may be thrown away. The next one raises a FloatingPointError that names the
        reason; the call writes nothing then, its counts included, so the state can be saved, and training may
        go on. With None it never raises.
    consecutive_skips, total_skips : handles of scalars, optional
        Where the skips are counted: those in a row, and all. The guard has ``<namespace>/consecutive_skips``
        and ``<namespace>/total_skips``, of ``int64``, unless they are given.
    namespace : str, default "skip_if"
        The first part of the addresses of its counts.

    Raises
    ------
    TypeError
        If the rule is no transform, or a condition no condition.
    ValueError
        If `max_consecutive_skips` is no whole number of at least 1; when it is called, if it stands inside
        of a chain or of another transform that is no guard and no policy.
    FloatingPointError
        When the program runs, after too many skips in a row.

    Examples
    --------
    >>> from ptml.optim import adam, chain, clip_by_global_norm, large_step, nonfinite, skip_if
    >>> rule = chain(clip_by_global_norm(1.0), adam(1e-3))
    >>> skip_if(rule, large_step(10.0), max_consecutive_skips=3).max_consecutive_skips
    3
    >>> [condition.decide for condition in skip_if(rule, [nonfinite(), large_step(10.0)]).conditions]
    [Nonfinite(), LargeStep(10.0)]
    """

    _wraps: ClassVar[str | None] = IN_A_CHAIN

    rule: Any = attrs.field(validator=a_rule)
    condition: Any = attrs.field(factory=nonfinite, converter=_as_conditions)
    max_consecutive_skips: Count | None = attrs.field(default=5, validator=_a_limit, kw_only=True)
    consecutive_skips: SlotVariable | None = attrs.field(default=None, validator=_a_count, kw_only=True)
    total_skips: SlotVariable | None = attrs.field(default=None, validator=_a_count, kw_only=True)
    namespace: str = attrs.field(default="skip_if", validator=namespace, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if not self.conditions:
            raise ValueError(NO_CONDITIONS)
        if self.total_skips is not None and self.total_skips is self.consecutive_skips:
            raise ValueError(SAME_COUNT.format(address=self.total_skips.slot.address))

    @property
    def conditions(self) -> tuple[SkipCondition, ...]:
        """The conditions, each of which is enough."""
        return self.condition if isinstance(self.condition, tuple) else (self.condition,)

    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        proposed = decided(self.rule, updates, parameters)
        seen = attrs.evolve(proposed.settled(), loss=updates.loss)
        moving = [parameter for parameter in parameters if parameter in seen.amounts]
        verdicts = [condition(seen, moving) for condition in self.conditions]
        when = reduce(pt.or_, verdicts)
        in_a_row = self._count(self.consecutive_skips, "consecutive_skips")
        total = self._count(self.total_skips, "total_skips")
        zero = as_scalar(0, in_a_row.dtype)
        now_in_a_row = self._raising(pt.switch(when, in_a_row + as_scalar(1, in_a_row.dtype), zero), verdicts)
        counts = {in_a_row: now_in_a_row, total: total + pt.cast(when, total.dtype)}
        hold = Hold(when, whole=True, spared=tuple(count.slot for count in counts))
        return proposed.with_state(counts, free=True).held_back(hold)

    def _count(self, given: SlotVariable | None, name: str) -> SlotVariable:
        return scalar_state(f"{self.namespace}/{name}", dtype="int64") if given is None else given

    def _raising(self, skips: TensorVariable, verdicts: Sequence[TensorVariable]) -> TensorVariable:
        """Give a count of skips in a row that raises beyond the limit, naming the condition that was met."""
        if self.max_consecutive_skips is None:
            return skips
        limit = as_count(self.max_consecutive_skips, self, "max_consecutive_skips")
        over = pt.gt(skips, limit)
        for condition, verdict in zip(self.conditions, verdicts, strict=True):
            message = TOO_MANY.format(limit=self.max_consecutive_skips, reason=condition.reason)
            skips = CheckAndRaise(FloatingPointError, message)(skips, ~(over & verdict))
        return skips


skip_if = SkipIf


def apply_if_finite(
    rule: Any,
    *,
    max_consecutive_skips: Count | None = 5,
    consecutive_skips: SlotVariable | None = None,
    total_skips: SlotVariable | None = None,
    namespace: str = "skip_if",
) -> SkipIf:
    """Throw away any step that would write inf or NaN: :class:`SkipIf` with :func:`nonfinite`.

    Parameters
    ----------
    rule, max_consecutive_skips, consecutive_skips, total_skips, namespace
        As for :class:`SkipIf`.

    Examples
    --------
    >>> from ptml.optim import adam, chain, clip_by_global_norm
    >>> apply_if_finite(chain(clip_by_global_norm(1.0), adam(1e-3)))
    SkipIf(Chain(ClipByGlobalNorm(), Adam()))
    """
    return SkipIf(
        rule,
        nonfinite(),
        max_consecutive_skips=max_consecutive_skips,
        consecutive_skips=consecutive_skips,
        total_skips=total_skips,
        namespace=namespace,
    )
