"""Accumulation: gradients are gathered over several calls, and one step is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar import upcast
from pytensor.tensor.variable import TensorVariable

from ptml.holds import Hold
from ptml.loss.weight import weight_of
from ptml.optim.hyperparameters import Count, Rate, as_count, as_scalar, namespace, positive, whole_count
from ptml.optim.ownership import enclosing, scalar_state, state_for
from ptml.optim.transform import Chain, Transform
from ptml.optim.updates import Gradients, Updates
from ptml_state import SlotVariable

__all__ = ["Accumulate", "accumulate"]

BEHIND_RULE = (
    "{transform} stands behind a rule, and what it gathers are gradients. Put it ahead of the rule: "
    "chain(accumulate({n}), adam(1e-3))."
)
INSIDE = (
    "{transform} stands inside of {outer}, and everything behind it waits until its window is full. Put it "
    "ahead of that: chain(accumulate({n}), {name}(...), ...)."
)
NO_WEIGHT = (
    "{transform} cannot know how much a micro-batch weighs: {why}. Say it: accumulate({n}, "
    "weight=X.shape[0]) for an input X whose rows the loss averages over, or weight=1 if all are of one size."
)
NO_LOSS = "it was given gradients, and not the loss"
BAD_WEIGHT = "Accumulate: weight must be 0 or more, and this one, which the graph computes, is not."


class Accumulate(Transform, kw_only=False):
    r"""Gather the gradients of `n` micro-batches, and let what stands behind make one step of their mean.

    Micro-batches weigh by the number of losses that each averages over, so that

    .. math:: g = \sum_i w_i g_i \Big/ \sum_i w_i

    is the gradient of one batch that holds them all, whatever their sizes. Until the window is full, all that
    the transforms behind it write stays as it is: parameters, moments, their clocks. Then it advances once.
    What moves at each call are the statistics of the model, which see each micro-batch by itself, random
    keys, and clocks that you made yourself. A window that is not full yet is part of the state: saved, and
    gone on with.

    Parameters
    ----------
    n : int or symbolic integer
        How many micro-batches make a window. Where it is symbolic, a window ends with the first micro-batch
        that is at least the n-th: with ``n = pt.switch(last, 1, 4)`` an input `last` ends it early.
    weight : number or scalar tensor, optional
        What a micro-batch weighs. Known by itself where the loss is the mean of a :class:`ptml.loss.Loss`,
        scaled or with terms that depend on no data; else to be given, as ``X.shape[0]``.
    namespace : str, default "accumulate"
        The first part of the addresses of its state: the mean so far ``accumulate/gradient/<parameter>``, and
        ``accumulate/weight`` and ``accumulate/micro_batches``, of the window so far.

    Raises
    ------
    ValueError
        If `n` is no whole number of at least 1, or the weight not positive; for symbolic ones, when the graph
        runs. When it is called, if it stands behind a rule, or the weight cannot be known.

    Examples
    --------
    >>> from ptml.optim import adam, chain, clip_by_global_norm
    >>> chain(Accumulate(4), clip_by_global_norm(1.0), adam(1e-3))
    Chain(Accumulate(4), ClipByGlobalNorm(), Adam())
    """

    n: Count = attrs.field(validator=whole_count)
    weight: Rate | None = attrs.field(
        default=None, validator=attrs.validators.optional(positive), kw_only=True
    )
    namespace: str = attrs.field(default="accumulate", validator=namespace, kw_only=True)

    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        self._check_place(updates)
        dtype = upcast(*(gradient.dtype for gradient in updates.amounts.values()))
        n = as_count(self.n, self, "n")
        weight = pt.cast(self._weight(updates.loss), dtype)
        so_far = scalar_state(f"{self.namespace}/weight", dtype=dtype)
        gathered = scalar_state(f"{self.namespace}/micro_batches", dtype="int64")
        total = so_far + weight
        # A window of nothing, in which all labels are ignored, has gradients of zero.
        share = weight / pt.switch(pt.gt(total, 0), total, as_scalar(1, dtype))
        full = pt.ge(gathered + 1, n)
        zero = as_scalar(0, dtype)

        means: dict[SlotVariable, TensorVariable] = {}
        state: dict[SlotVariable, TensorVariable] = {
            so_far: pt.switch(full, zero, total),
            gathered: pt.switch(full, as_scalar(0, "int64"), gathered + 1),
        }
        for parameter, gradient in updates.amounts.items():
            mean = state_for(parameter, f"{self.namespace}/gradient")
            before = pt.cast(mean, gradient.dtype)
            means[parameter] = before + pt.cast(share, gradient.dtype) * (gradient - before)
            kept = pt.cast(means[parameter], mean.dtype)
            state[mean] = pt.switch(full, as_scalar(0, mean.dtype), kept)
        gathering = updates.with_state(state).with_amounts(means).held_back(Hold(~full))
        # These are no gradients of this call's loss any more: a line search along it would go astray.
        return attrs.evolve(gathering, loss=None)

    def _check_place(self, updates: Updates) -> None:
        shown = {"transform": repr(self), "n": self.n}
        if not isinstance(updates, Gradients):
            raise ValueError(BEHIND_RULE.format(**shown))
        for outer in enclosing():
            if isinstance(outer, Transform) and not isinstance(outer, Chain) and outer._wraps is None:
                raise ValueError(INSIDE.format(**shown, outer=repr(outer), name=type(outer).__name__.lower()))

    def _weight(self, loss: TensorVariable | None) -> Any:
        if isinstance(self.weight, Variable):
            return CheckAndRaise(ValueError, BAD_WEIGHT)(self.weight, pt.ge(self.weight, 0))
        if self.weight is not None:
            return self.weight
        found = NO_LOSS if loss is None else weight_of(loss)
        if isinstance(found, str):
            raise ValueError(NO_WEIGHT.format(transform=repr(self), n=self.n, why=found))
        return found


accumulate = Accumulate
