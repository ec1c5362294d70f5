"""What callbacks of a training loop are told, and what they can ask for."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import attrs

from ptml.training.history import History

__all__ = ["STOP", "Event", "Stop"]


class Stop(enum.Enum):
    """What a callback returns to end a run after this step: ``ptml.training.STOP``."""

    STOP = "stop"


STOP = Stop.STOP


@attrs.frozen(eq=False)
class Event:
    """Something that happened in a run of :func:`ptml.fit`.

    Attributes
    ----------
    kind : {"step", "epoch", "end"}
        A step was made, an epoch finished (validation included), or the run ended.
    epoch : int
        Counted from 1.
    step : int
        How many steps were made.
    values : mapping
        Of a step: ``loss``, and what the program tells besides. Of an epoch: its row of the history. Of the
        end: nothing.
    program : Program
        With its store: ``event.program.store.set({...})`` steers a leaf.
    history : History
        Of the epochs before.
    """

    kind: str
    epoch: int
    step: int
    values: Mapping[str, Any]
    program: Any
    history: History
