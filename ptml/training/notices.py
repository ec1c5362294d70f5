"""What is wrong with data or with a program, as far as it can be seen before the first step or after some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ptml.data import DataLoader
from ptml.training.evaluating import Evaluator
from ptml.training.leaks import repeated_rows
from ptml.training.sources import arrays_of
from ptml_state import Role, State

__all__ = ["cast_inputs", "no_better", "not_moving", "rows_in_both", "short_batch"]

CAST = (
    "{name} is {given}, and {wanted} is declared: every batch is cast. Cast the data once, or declare the "
    "input with dtype={given!r}."
)
IN_BOTH = (
    "{n} of the {total} validation rows have the features of a training row: what the network remembers "
    "would pass for what it has learned."
)
SHORT = (
    "The last batch has {last} rows and the others {size}, and the learning rate of {rules} depends on the "
    "batch: it jumps there. Write drop_last=True in the DataLoader, or a horizon that is a number."
)
STILL = (
    "No parameter moved in epoch {epoch}{why}. Is a learning rate or schedule zero there, or everything "
    "frozen?"
)
NO_BETTER = (
    "The {name} of {value:.4g} on the validation rows is no better than {baseline:.4g}, that of one and the "
    "same prediction for every row, the best for the training rows."
)


def cast_inputs(program: Any, batch: Sequence[Any]) -> list[str]:
    """Tell of inputs of floats that arrive in another dtype than the program declares."""
    found = []
    for variable, array in zip(program.inputs, batch, strict=False):
        given, wanted = str(np.asarray(array).dtype), variable.type.dtype
        if given != wanted and wanted.startswith("float"):
            found.append(CAST.format(name=variable.name, given=given, wanted=wanted))
    return found


def rows_in_both(data: Any, validation: Any) -> list[str]:
    """Tell of validation rows that are training rows too; the last array of each holds the targets."""
    training, held_out = arrays_of(data), arrays_of(validation)
    if training is None or held_out is None:
        return []
    features, others = (arrays[:-1] or arrays for arrays in (training, held_out))
    if [(a.dtype, a.shape[1:]) for a in features] != [(a.dtype, a.shape[1:]) for a in others]:
        return []
    n = repeated_rows(features, others)
    return [IN_BOTH.format(n=n, total=len(others[0]))] if n else []


def short_batch(program: Any, data: Any) -> list[str]:
    """Tell of a last batch that is short, where the learning rate depends on the batch."""
    if not isinstance(data, DataLoader) or data.state["drop_last"] or not program.rates_set_by_data:
        return []
    last = data.rows % data.batch_size
    rules = ", ".join(program.rates_set_by_data)
    return [SHORT.format(last=last, size=data.batch_size, rules=rules)] if last else []


def not_moving(before: State, after: State, row: dict[str, Any]) -> list[str]:
    """Tell of an epoch in which no parameter moved."""
    parameters = [leaf for leaf in before.leaves if leaf.role is Role.PARAMETER]
    if not parameters or any(not np.array_equal(leaf.value, after[leaf.address]) for leaf in parameters):
        return []
    rate = row.get("learning_rate")
    return [STILL.format(epoch=row["epoch"], why="" if rate is None else f", at a learning rate of {rate:g}")]


def no_better(evaluate: Any, data: Any, validation: Any, best: dict[str, Any]) -> list[str]:
    """Tell of losses that one and the same prediction for every row would have too.

    Parameters
    ----------
    evaluate : Evaluator or program
    data, validation
        The last array of each holds the targets.
    best : dict
        The row of the history that counts.
    """
    training, held_out = arrays_of(data), arrays_of(validation)
    if training is None or held_out is None or not isinstance(evaluate, Evaluator):
        return []
    found = []
    for name, baseline in evaluate.baseline(training[-1], held_out[-1]).items():
        value = best.get(f"validation/{name}")
        if value is not None and not value < baseline:
            found.append(NO_BETTER.format(name=name, value=value, baseline=baseline))
    return found
