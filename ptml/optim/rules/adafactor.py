"""Adafactor: means of squares of matrices kept as those of their rows and columns."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from ptml.optim.hyperparameters import (
    LearningRate,
    Rate,
    a_rate,
    a_share,
    as_scalar,
    checked,
    checked_rate,
    namespace,
    non_negative,
    number,
    positive,
    working_dtype,
)
from ptml.optim.masks import a_mask, masked
from ptml.optim.ownership import counter, state_for
from ptml.optim.rules.parts import Amounts, apply_rule, faded, hypotenuse, root_mean_square
from ptml.optim.transform import Rule
from ptml.optim.updates import Gradients, Steps, Updates
from ptml.validate import flag, positive_int
from ptml_state import SlotVariable

__all__ = ["Adafactor", "adafactor", "adafactor_updates"]

_rate_or_none = attrs.evolve(a_rate, optional=True)
_positive_or_none = number(lambda value: value > 0, "a number above 0, or None", optional=True)


class Adafactor(Rule, kw_only=False):
    r"""Adafactor: Adam's second moment at the memory of a row and a column, for large matrices.

    At step :math:`t`, counted from 1, with :math:`\beta_t = 1 - t^{-c}` and the mean of squares

    .. math:: s \leftarrow \beta_t s + (1 - \beta_t) (g^2 + \epsilon), \quad u = g / \sqrt{s}, \quad
        p \leftarrow p - \eta_t \max(\epsilon_p, \operatorname{rms}(p))
        \frac{u}{\max(1, \operatorname{rms}(u) / d)}

    Of a matrix with at least `min_size_to_factor` rows and columns, only the means :math:`R` over rows and
    :math:`C` over columns of :math:`s` are kept, and :math:`s_{ij} = R_i C_j / \operatorname{mean}(R)`. Of a
    tensor with more axes the last two make the matrix.

    What is kept is the roots of :math:`R`, :math:`C` and :math:`s`, made from their predecessors without
    squares that could overflow.

    Parameters
    ----------
    learning_rate : number, scalar tensor or schedule, optional
        The rate :math:`\eta_t`; the paper's :math:`\min(0.01, 1 / \sqrt{t})` unless given. A schedule runs on
        the rule's own clock.
    decay_rate : number or scalar tensor, default 0.8
        The exponent :math:`c`: the mean of squares lasts the longer, the more steps there were.
    clipping_threshold : number, scalar tensor or None, default 1.0
        The bound :math:`d` of the root mean square of :math:`u`. None does not bound it.
    scale_by_parameter : bool, default True
        Whether the step is in proportion to the parameter's root mean square.
    beta1 : number or scalar tensor, default 0.0
        The decay of a mean of steps at a rate of one, in [0, 1), which then moves the parameter. At 0 none is
        kept.
    weight_decay : number or scalar tensor, default 0.0
        The coefficient of decoupled decay, multiplied by the rate.
    min_size_to_factor : int, default 128
        A smaller side than this leaves a matrix whole.
    epsilon : number or scalar tensor, default 1e-30
        Added to squares, above 0.
    epsilon_scale : number or scalar tensor, default 1e-3
        The least size :math:`\epsilon_p` that a parameter counts as.
    mask : where, or function of a parameter, optional
        Which parameters decay; all unless given.
    namespace : str, default "adafactor"
        The first part of the addresses of its state: ``adafactor/row_rms/<parameter>`` and
        ``adafactor/column_rms/<parameter>``, or ``adafactor/root_mean_square/<parameter>``; with beta1
        ``adafactor/first_moment/<parameter>``; and the clock ``adafactor/step_count``.

    Raises
    ------
    ValueError
        If a rate or size is negative or not finite, beta1 outside [0, 1), or an epsilon or the threshold not
        above 0; for a symbolic one, when the graph runs.
    KeyError
        When it is called, if a name in `mask` matches no parameter.

    References
    ----------
    Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018,
    algorithms 4 and 5.

    Examples
    --------
    >>> Adafactor(1e-3, scale_by_parameter=False)
    Adafactor(0.001, scale_by_parameter=False)
    """

    learning_rate: LearningRate | None = attrs.field(default=None, validator=_rate_or_none)
    decay_rate: Rate = attrs.field(default=0.8, validator=positive)
    clipping_threshold: Rate | None = attrs.field(default=1.0, validator=_positive_or_none)
    scale_by_parameter: bool = attrs.field(default=True, validator=flag)
    beta1: Rate = attrs.field(default=0.0, validator=a_share)
    weight_decay: Rate = attrs.field(default=0.0, validator=non_negative)
    min_size_to_factor: int = attrs.field(default=128, validator=positive_int)
    epsilon: Rate = attrs.field(default=1e-30, validator=positive)
    epsilon_scale: Rate = attrs.field(default=1e-3, validator=positive)
    mask: Any = attrs.field(default=None, validator=a_mask)
    namespace: str = attrs.field(default="adafactor", validator=namespace)

    @property
    def _keeps_mean(self) -> bool:
        return isinstance(self.beta1, Variable) or self.beta1 > 0

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        count = counter(f"{self.namespace}/step_count")
        rate, decay = checked_rate(self, count), checked(self, "weight_decay")
        names = ("decay_rate", "epsilon", "epsilon_scale", "clipping_threshold", "beta1")
        decay_rate, epsilon, least, threshold, beta1 = (checked(self, name) for name in names)

        @functools.cache
        def scalars(dtype: str) -> tuple[TensorVariable, ...]:
            t = pt.cast(count + 1, dtype)
            log_of_take = -as_scalar(decay_rate, dtype) * pt.log(t)
            own = pt.minimum(as_scalar(0.01, dtype), 1 / pt.sqrt(t))
            return (
                pt.sqrt(-pt.expm1(log_of_take)),
                pt.exp(log_of_take / 2),
                as_scalar(epsilon**0.5, dtype),
                own if rate is None else as_scalar(rate, dtype),
            )

        moves: Amounts = {}
        state: Amounts = {}
        for parameter, gradient in gradients.amounts.items():
            dtype, shape = working_dtype(parameter), parameter.slot.shape
            *weights, eta = scalars(dtype)
            moved = gradient / self._root_of_squares(parameter, gradient, weights, state)
            if threshold is not None:
                moved = moved / pt.maximum(1, root_mean_square(moved, shape) / as_scalar(threshold, dtype))
            if self.scale_by_parameter:
                own_size = root_mean_square(pt.cast(parameter, dtype), shape)
                moved = pt.maximum(own_size, as_scalar(least, dtype)) * moved
            if self._keeps_mean:
                first = state_for(parameter, f"{self.namespace}/first_moment")
                left = faded(as_scalar(beta1, dtype), pt.cast(first, dtype))
                moved = left + as_scalar(1 - beta1, dtype) * moved
                state[first] = pt.cast(moved, first.dtype)
            moves[parameter] = eta * moved
        decaying = masked(self.mask, moves)
        if isinstance(decay, Variable) or decay > 0:
            for parameter in decaying:
                dtype = working_dtype(parameter)
                pull = as_scalar(decay, dtype) * pt.cast(parameter, dtype)
                moves[parameter] = moves[parameter] + scalars(dtype)[3] * pull
        return gradients.to_steps({p: -moved for p, moved in moves.items()}).with_state(state)

    def _root_of_squares(
        self,
        parameter: SlotVariable,
        gradient: TensorVariable,
        weights: Sequence[TensorVariable],
        state: Amounts,
    ) -> TensorVariable:
        """Give the root of the new mean of squares, and put what is kept of it into the state."""
        keep, take, floor = weights
        shape = parameter.slot.shape

        def mean_with(what: str, size: TensorVariable, kept_shape: tuple[int, ...]) -> TensorVariable:
            root = state_for(parameter, f"{self.namespace}/{what}", shape=kept_shape)
            new = hypotenuse(keep * pt.cast(root, gradient.dtype), take * hypotenuse(size, floor))
            state[root] = pt.cast(new, root.dtype)
            return new

        if len(shape) < 2 or min(shape[-2:]) < self.min_size_to_factor:
            return mean_with("root_mean_square", gradient, shape)
        rows = mean_with("row_rms", root_mean_square(gradient, shape, -1), shape[:-1])
        columns = mean_with("column_rms", root_mean_square(gradient, shape, -2), (*shape[:-2], shape[-1]))
        overall = root_mean_square(rows, shape[:-1], -1)
        return (rows / pt.expand_dims(overall, -1))[..., None] * pt.expand_dims(columns, -2)


adafactor = Adafactor


def adafactor_updates(
    loss_gradients_or_updates: Any,
    parameters: Iterable[SlotVariable],
    learning_rate: LearningRate | None = None,
    decay_rate: Rate = 0.8,
    clipping_threshold: Rate | None = 1.0,
    scale_by_parameter: bool = True,
    beta1: Rate = 0.0,
    weight_decay: Rate = 0.0,
    min_size_to_factor: int = 128,
    epsilon: Rate = 1e-30,
    epsilon_scale: Rate = 1e-3,
    mask: Any = None,
    namespace: str = "adafactor",
) -> Updates:
    """Build the updates of :class:`Adafactor`, with new state at every call outside :func:`reuses_state`.

    Parameters
    ----------
    loss_gradients_or_updates : scalar tensor, sequence, mapping or Gradients
    parameters : sequence of handles
    learning_rate, decay_rate, clipping_threshold, scale_by_parameter, beta1, weight_decay
        As for :class:`Adafactor`.
    min_size_to_factor, epsilon, epsilon_scale, mask, namespace
        As for :class:`Adafactor`.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=128, n_out=256, bias=False)
    >>> updates = adafactor_updates((fc(pt.matrix("X")) ** 2).mean(), [fc.W])
    >>> [handle.slot.address for handle in updates.state]
    ['adafactor/row_rms/fc/W', 'adafactor/column_rms/fc/W']
    """
    rule = Adafactor(
        learning_rate,
        decay_rate,
        clipping_threshold,
        scale_by_parameter,
        beta1,
        weight_decay,
        min_size_to_factor,
        epsilon,
        epsilon_scale,
        mask,
        namespace,
    )
    return apply_rule(rule, loss_gradients_or_updates, parameters)
