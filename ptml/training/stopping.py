"""Early stopping: when a monitored value has not improved for a while, and the best state so far."""

from __future__ import annotations

import math
from typing import Any

import attrs

from ptml.module import Module
from ptml.validate import flag, non_negative, positive_int

__all__ = ["EarlyStopping", "Watch"]

BAD_MODE = "EarlyStopping: mode must be 'min' or 'max'; got {given!r}."
NOT_MEASURED = "EarlyStopping monitors {monitor!r}, which no epoch has; there are {known}."


def _a_mode(module: Any, field: attrs.Attribute, value: Any) -> None:
    if value not in ("min", "max"):
        raise ValueError(BAD_MODE.format(given=value))


class EarlyStopping(Module):
    """End a run when a value has not improved for some epochs, and go back to the best state.

    Parameters
    ----------
    monitor : str, default "validation/loss"
        A column of the history.
    patience : int, default 10
        How many epochs in a row may pass without improvement.
    min_delta : float, default 0.0
        By how much a value must be better than the best to be an improvement. NaN never is one.
    mode : {"min", "max"}, default "min"
        Which is better.
    restore_best : bool, default True
        Whether the program's store is given the best state when the run ends by itself: at its last epoch or
        by this. After Ctrl-C it keeps the last one, and the history has the best.

    Examples
    --------
    >>> from ptml.training import EarlyStopping
    >>> EarlyStopping("validation/Accuracy", patience=5, mode="max").patience
    5
    """

    monitor: str = attrs.field(default="validation/loss", kw_only=False)
    patience: int = attrs.field(default=10, validator=positive_int)
    min_delta: float = attrs.field(default=0.0, validator=non_negative)
    mode: str = attrs.field(default="min", validator=_a_mode)
    restore_best: bool = attrs.field(default=True, validator=flag)


@attrs.define
class Watch:
    """What early stopping remembers during a run.

    Attributes
    ----------
    rule : EarlyStopping
    best : float or None
    epoch : int or None
        When that was.
    """

    rule: EarlyStopping
    best: float | None = None
    epoch: int | None = None

    def improves(self, row: dict[str, Any]) -> bool:
        """Look at a finished epoch, and say whether it is the best so far.

        Raises
        ------
        ValueError
            If the monitored value is not there.
        """
        if self.rule.monitor not in row:
            known = ", ".join(name for name in row if name not in ("epoch", "steps", "seconds"))
            raise ValueError(NOT_MEASURED.format(monitor=self.rule.monitor, known=known))
        value = float(row[self.rule.monitor])
        sign = 1.0 if self.rule.mode == "min" else -1.0
        better = self.best is None or sign * value < sign * self.best - self.rule.min_delta
        if better and not math.isnan(value):
            self.best, self.epoch = value, row["epoch"]
            return True
        return False

    def gives_up(self, epoch: int) -> bool:
        """Say whether it has waited long enough."""
        return epoch - (self.epoch or 0) >= self.rule.patience
