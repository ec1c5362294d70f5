"""Averages of parameters: kept beside them by a transform, and put in their place for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.optim.hyperparameters import Rate, a_share, as_scalar, checked, namespace, working_dtype
from ptml.optim.masks import a_mask, masked
from ptml.optim.ownership import state_for
from ptml.optim.transform import Transform
from ptml.optim.updates import Steps, Updates
from ptml_state import SlotVariable, State, Store

__all__ = ["Ema", "averaged", "ema"]

AHEAD = (
    "{ema} averages the parameters that a step leads to, and here nothing has decided a step yet. Put it "
    "behind the rule: chain(adam(1e-3), {ema})."
)
AVERAGES_NONE = "{ema} matches none of the parameters that move: {moving}."
NO_AVERAGES = (
    "The state has no averages under {path!r}. They are there after training with a rule such as "
    "chain(adam(1e-3), ema(0.999)); one with a namespace needs averaged(state, namespace)."
)
WITHOUT_PARAMETERS = "The state has averages of {addresses}, and not these parameters themselves."
NOT_A_STATE = "averaged takes a State, a Store or a Program; got {given}."


class Ema(Transform, kw_only=False):
    r"""Keep an exponential moving average of parameters: :math:`a \leftarrow a + (1 - \beta) (p - a)`.

    :math:`p` is the parameter after the step. Nothing else changes: the parameters move as they would. An
    average starts at the values that its parameter has when the program is compiled, so it needs no
    correction. :func:`averaged` puts the averages in the parameters' place.

    It stands last in its chain, behind the rule. The average of a half-precision parameter is float32, in
    which small changes add up.

    Parameters
    ----------
    decay : number or scalar tensor, default 0.999
        The decay :math:`\beta`, in [0, 1). The average looks back over about :math:`1 / (1 - \beta)` steps.
    where : where, or function of a parameter, optional
        Which of the parameters that move are averaged; all unless given.
    namespace : str, default "ema"
        The averages are ``<namespace>/<parameter>``.

    Raises
    ------
    ValueError
        If the decay is outside [0, 1); when it is called, if no rule has decided a step yet, or `where`
        matches none of the parameters that move.
    KeyError
        When it is called, if a name in `where` matches no parameter.

    References
    ----------
    Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992, with weights that
    fade.

    Examples
    --------
    >>> from ptml.optim import adam, chain
    >>> chain(adam(1e-3), Ema(0.99))
    Chain(Adam(), Ema(0.99))
    """

    decay: Rate = attrs.field(default=0.999, validator=a_share)
    where: Any = attrs.field(default=None, validator=a_mask)
    namespace: str = attrs.field(default="ema", validator=namespace, kw_only=True)
    _last: ClassVar[str | None] = "it averages what the step leads to, which anything behind it would change"

    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        if not isinstance(updates, Steps):
            raise ValueError(AHEAD.format(ema=repr(self)))
        state: dict[SlotVariable, TensorVariable] = {}
        chosen = masked(self.where, updates.amounts)
        if not chosen:
            moving = ", ".join(parameter.slot.address for parameter in updates.amounts)
            raise ValueError(AVERAGES_NONE.format(ema=repr(self), moving=moving))
        for parameter in chosen:
            dtype = working_dtype(parameter)
            average = state_for(parameter, self.namespace, parameter, dtype=dtype)
            share = as_scalar(1 - checked(self, "decay"), dtype)
            state[average] = average + share * (pt.cast(updates[parameter], dtype) - average)
        return updates.with_state(state)


ema = Ema


def averaged(state: Any, namespace: str = "ema") -> State:
    """Give a state whose parameters are their averages, for evaluation.

    Parameters
    ----------
    state : State, Store or Program
        It has averages, of :class:`Ema`.
    namespace : str, default "ema"
        Theirs. ``"lookahead/slow"`` gives the slow weights of :class:`ptml.optim.Lookahead`.

    Returns
    -------
    State
        Every leaf as it was, but the parameters that have an average.

    Raises
    ------
    ValueError
        If the state has no averages there, or not the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Input, Linear
    >>> from ptml.optim import chain, compile_train, ema, sgd
    >>> X, fc = Input("X", shape=(None, 1)), Linear("fc", n_in=1, n_out=1, bias=False)
    >>> step = compile_train((fc(X) ** 2).mean(), chain(sgd(0.1), ema(0.9)), state=ptml.init(fc, seed=0))
    >>> _ = step(np.ones((1, 1)))
    >>> predict = ptml.compile_predict(fc(X), state=averaged(step))
    >>> bool(predict(np.ones((1, 1))) == step.state["ema/fc/W"])
    True
    """
    live = getattr(state, "store", state)
    snapshot = live.state if isinstance(live, Store) else live
    if not isinstance(snapshot, State):
        raise TypeError(NOT_A_STATE.format(given=type(state).__name__))
    path = f"{namespace}/"
    averages = {address.removeprefix(path): address for address in snapshot if address.startswith(path)}
    if not averages:
        raise ValueError(NO_AVERAGES.format(path=path))
    lacking = [address for address in averages if address not in snapshot]
    if lacking:
        raise ValueError(WITHOUT_PARAMETERS.format(addresses=", ".join(lacking)))
    return snapshot.replace(
        {
            address: np.asarray(snapshot[average], snapshot[address].dtype)
            for address, average in averages.items()
        }
    )
