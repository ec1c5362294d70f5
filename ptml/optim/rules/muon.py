"""Muon: momentum, made orthogonal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.optim.hyperparameters import (
    LearningRate,
    Rate,
    a_rate,
    a_share,
    as_scalar,
    checked,
    checked_rate,
    is_schedule,
    namespace,
    non_negative,
    working_dtype,
)
from ptml.optim.masks import a_mask
from ptml.optim.ownership import counter, state_for
from ptml.optim.rules.parts import Amounts, apply_rule, descend, faded, root_mean_square, with_decay
from ptml.optim.transform import Rule
from ptml.optim.updates import Gradients, Steps, Updates
from ptml.validate import flag, positive_int
from ptml_state import SlotVariable

__all__ = ["Muon", "muon", "muon_updates"]

#: The quintic of the Newton-Schulz iteration: a x + b x^3 + c x^5 brings singular values near to 1.
COEFFICIENTS = (3.4445, -4.775, 2.0315)

NOT_MATRICES = (
    "Muon moves matrices, and {addresses} {are} none. Give the others a rule of their own: "
    "partition({{'**/W': muon(0.02)}}, otherwise=adamw(3e-4)), where the selector names the matrices that "
    "map features to features. Embeddings and output layers are better off with adamw too."
)


def _orthogonal(matrix: TensorVariable, shape: tuple[int, ...], n_steps: int) -> TensorVariable:
    """Bring all singular values of a matrix near to 1, and keep its singular vectors."""
    dtype = matrix.dtype
    a, b, c = (as_scalar(coefficient, dtype) for coefficient in COEFFICIENTS)
    norm = root_mean_square(matrix, shape) * as_scalar(math.sqrt(math.prod(shape)), dtype)
    x = matrix / pt.switch(pt.eq(norm, 0), 1, norm)
    tall = shape[0] > shape[1]
    x = x.T if tall else x
    for _ in range(n_steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if tall else x


class Muon(Rule, kw_only=False):
    r"""Muon: momentum whose singular values are all brought to about 1, for matrices.

    With :math:`v \leftarrow \mu v + g`, and :math:`u = g + \mu v` in Nesterov's form, else :math:`u = v`,

    .. math::

        p \leftarrow p - \eta \left( \sqrt{\max(1, n_\text{out} / n_\text{in})}\, O(u) + \lambda p \right)

    where :math:`O` is the Newton-Schulz iteration
    :math:`x \leftarrow a x + (b x x^\top + c (x x^\top)^2) x` from :math:`u / \lVert u \rVert_F`, which
    approaches the nearest orthogonal matrix. A weight is (n_in, n_out), as in `Linear`.

    Biases, gains and convolution kernels are no matrices, and are refused: give them a rule of their own by
    `partition`.

    Parameters
    ----------
    learning_rate : number, scalar tensor or schedule, default 0.02
        The rate :math:`\eta`: the spectral norm of a step, about. A schedule runs on the rule's own clock,
        ``<namespace>/step_count``.
    momentum : number or scalar tensor, default 0.95
        The decay :math:`\mu` of the velocity, in [0, 1).
    nesterov : bool, default True
        Whether to look ahead along the velocity.
    weight_decay : number or scalar tensor, default 0.0
        The coefficient :math:`\lambda` of decoupled decay.
    n_steps : int, default 5
        How often the iteration is applied. After 5, singular values lie between about 0.7 and 1.2.
    mask : where, or function of a parameter, optional
        Which parameters decay; all unless given.
    namespace : str, default "muon"
        The first part of the addresses of its state: ``muon/velocity/<parameter>``.

    Raises
    ------
    ValueError
        If the rate or the decay is negative or not finite, or the momentum outside [0, 1); for a symbolic
        one, when the graph runs. When it is called, if a parameter is no matrix.
    KeyError
        When it is called, if a name in `mask` matches no parameter.

    References
    ----------
    Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.

    Examples
    --------
    >>> Muon(weight_decay=0.01)
    Muon(weight_decay=0.01)
    """

    learning_rate: LearningRate = attrs.field(default=0.02, validator=a_rate)
    momentum: Rate = attrs.field(default=0.95, validator=a_share)
    nesterov: bool = attrs.field(default=True, validator=flag)
    weight_decay: Rate = attrs.field(default=0.0, validator=non_negative)
    n_steps: int = attrs.field(default=5, validator=positive_int)
    mask: Any = attrs.field(default=None, validator=a_mask)
    namespace: str = attrs.field(default="muon", validator=namespace)

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        others = [p.slot.address for p in gradients.amounts if p.type.ndim != 2]
        if others:
            are = "is" if len(others) == 1 else "are"
            raise ValueError(NOT_MATRICES.format(addresses=", ".join(others), are=are))
        count = counter(f"{self.namespace}/step_count") if is_schedule(self.learning_rate) else None
        momentum = checked(self, "momentum")
        directions: Amounts = {}
        state: Amounts = {}
        for parameter, gradient in gradients.amounts.items():
            dtype, shape = working_dtype(parameter), parameter.slot.shape
            decay = as_scalar(momentum, dtype)
            velocity = state_for(parameter, f"{self.namespace}/velocity")
            moved = faded(decay, pt.cast(velocity, dtype)) + gradient
            state[velocity] = pt.cast(moved, velocity.dtype)
            ahead = gradient + decay * moved if self.nesterov else moved
            directions[parameter] = ahead
            if 0 not in shape:
                stretch = as_scalar(math.sqrt(max(1, shape[1] / shape[0])), dtype)
                directions[parameter] = stretch * _orthogonal(ahead, shape, self.n_steps)
        decayed = with_decay(directions, checked(self, "weight_decay"), self.mask)
        return gradients.to_steps(descend(decayed, checked_rate(self, count))).with_state(state)


muon = Muon


def muon_updates(
    loss_gradients_or_updates: Any,
    parameters: Iterable[SlotVariable],
    learning_rate: LearningRate = 0.02,
    momentum: Rate = 0.95,
    nesterov: bool = True,
    weight_decay: Rate = 0.0,
    n_steps: int = 5,
    mask: Any = None,
    namespace: str = "muon",
) -> Updates:
    """Build the updates of :class:`Muon`, with new state at every call outside :func:`reuses_state`.

    Parameters
    ----------
    loss_gradients_or_updates : scalar tensor, sequence, mapping or Gradients
    parameters : sequence of handles
    learning_rate, momentum, nesterov, weight_decay, n_steps, mask, namespace
        As for :class:`Muon`.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1, bias=False)
    >>> [handle.slot.address for handle in muon_updates((fc(pt.matrix("X")) ** 2).mean(), [fc.W]).state]
    ['muon/velocity/fc/W']
    """
    rule = Muon(learning_rate, momentum, nesterov, weight_decay, n_steps, mask, namespace)
    return apply_rule(rule, loss_gradients_or_updates, parameters)
