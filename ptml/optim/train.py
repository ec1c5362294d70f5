"""Compile a training step from a loss and a rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from pytensor.graph.basic import Variable

from ptml.compile.collector import collector_paused
from ptml.compile.function import build
from ptml.compile.program import Program
from ptml.optim.masks import building_for
from ptml.optim.observing import observations
from ptml.optim.rates import noting_rates, set_by_data
from ptml.optim.transform import take_step
from ptml.optim.updates import as_parameters
from ptml.start import slots
from ptml_state import Role, SlotVariable, State, Store

__all__ = ["compile_train"]

NO_PARAMETERS = (
    "The loss depends on no parameters: there is nothing to train. Compute it by layers that have some, or "
    "give parameters=."
)
RULE_FIRST = "compile_train(loss, rule): the loss is a scalar tensor; got {loss}. Are the two swapped?"
NOT_A_RULE = (
    "compile_train(loss, rule): the rule is a transform such as adam(1e-3), or a function of a loss and "
    "parameters; got {rule}."
)
NOT_A_SEQUENCE = "extra_outputs is a sequence of tensors; got {given}. Write extra_outputs=[{given}]."


@collector_paused()
def compile_train(
    loss: Variable,
    rule: Any,
    *,
    parameters: Iterable[SlotVariable] | None = None,
    inputs: Sequence[Any] | None = None,
    extra_outputs: Sequence[Variable] | Mapping[str, Variable] | None = None,
    observe: Sequence[str] = (),
    extra_updates: Any = None,
    state: State | Store | Program | None = None,
    seed: int | None = None,
    backend: str | None = None,
    compile_kwargs: Mapping[str, Any] | None = None,
) -> Program:
    """Compile a training step: one call computes the loss of a batch and moves the parameters.

    Parameters
    ----------
    loss : scalar tensor
        What to lessen.
    rule : Transform
        How: ``adam(1e-3)``, ``chain(clip_by_global_norm(1.0), adam(1e-3))``, or any callable of a loss and
        parameters that gives updates.
    parameters : iterable of handles, optional
        What to move; every parameter that the loss depends on unless given.
    inputs : sequence of Variable or In, optional
        What a call takes; the roots of loss and rule in the order in which they were made, unless given.
    extra_outputs : sequence of tensors, or mapping of tensors by name, optional
        What a call gives after the loss. They observe: no statistic or clock moves because of them.
    observe : sequence of {"learning_rate", "gradient_norm", "update_norm"}, optional
        What a call tells besides, by name: the rate that the step was made with, and the L2 norms of the
        loss's gradient and of the step, over all parameters. Of several rules, ``learning_rate/adam`` and so
        on.
    extra_updates : mapping or pairs, optional
        Further new values, of slots by handle or of shared variables.
    state : State, Store or Program, optional
        Where the state comes from: a new store is made from a `State`; a `Store`, or another program's, is
        shared. Leaves that it lacks are drawn.
    seed : int, optional
        Decides what is drawn; a random seed unless given.
    backend : {"numba", "c", "jax", "mlx", "pytorch"}, optional
        Where it runs; PyTensor's default mode decides unless given.
    compile_kwargs : mapping, optional
        Further arguments of ``pytensor.function``, such as ``{"mode": ...}``.

    Returns
    -------
    Program
        A call gives the loss, computed before the step, alone or as ``(loss, *extra_outputs)``. What has a
        name comes last, in a dict: ``(loss, {"learning_rate": ..., ...})``.

    Raises
    ------
    TypeError
        If the loss is no tensor, or an update has another type than what it writes.
    ValueError
        If the loss is no scalar or depends on no parameters, if two pieces of state have one address, if
        the state belongs to another network, or if something is to be observed that there is not.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.layers import Input, Linear
    >>> from ptml.loss import SquaredError, supervised_loss
    >>> from ptml.optim import compile_train, sgd
    >>> X = Input("X", shape=(None, 2))
    >>> loss, y = supervised_loss(Linear("fc", n_in=2, n_out=1)(X), SquaredError())
    >>> step = compile_train(loss, sgd(0.1), seed=0)
    >>> x = np.eye(2)
    >>> losses = [float(step(x, np.ones((2, 1)))) for _ in range(50)]
    >>> losses[-1] < losses[0]
    True
    """
    if not isinstance(loss, Variable):
        raise TypeError(RULE_FIRST.format(loss=repr(loss)))
    if not callable(rule) or isinstance(rule, type):
        raise TypeError(NOT_A_RULE.format(rule=rule.__name__ if isinstance(rule, type) else repr(rule)))
    if isinstance(extra_outputs, Variable):
        raise TypeError(NOT_A_SEQUENCE.format(given=extra_outputs))
    named = dict(extra_outputs) if isinstance(extra_outputs, Mapping) else {}
    listed = [] if isinstance(extra_outputs, Mapping) else list(extra_outputs or ())
    handles = slots(loss, Role.PARAMETER) if parameters is None else as_parameters(parameters)
    if not handles and parameters is None:
        raise ValueError(NO_PARAMETERS)
    further = list(extra_updates.items() if isinstance(extra_updates, Mapping) else extra_updates or ())
    graphs = [loss, *listed, *named.values(), *(new for _, new in further)]
    with building_for(graphs, handles), noting_rates() as rates:
        updates = take_step(rule, loss, handles)
    noted = list(rates.values())
    named |= observations(observe, loss, handles, updates, noted)
    return build(
        inputs,
        [loss],
        observed=[*listed, *named.values()],
        updates=[*updates.items(), *further],
        state=state,
        seed=seed,
        backend=backend,
        options=dict(compile_kwargs or {}),
        structure=_Results(len(listed), tuple(named)),
        rates_set_by_data=set_by_data(noted),
    )


@attrs.frozen
class _Results:
    """What a call gives: the loss, so many further results, and those that have names."""

    n_listed: int
    names: tuple[str, ...]

    def __call__(self, results: list[Any]) -> Any:
        if not self.names:
            return tuple(results) if self.n_listed else results[0]
        n = 1 + self.n_listed
        return (*results[:n], dict(zip(self.names, results[n:], strict=True)))
