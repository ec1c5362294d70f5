"""A run of the training loop: where it stands, and what is done after a step, an epoch and at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from ptml.data import DataLoader
from ptml.training.divergence import broken_leaf, cause_of
from ptml.training.evaluating import Evaluator
from ptml.training.events import STOP, Event
from ptml.training.history import History, plain_value
from ptml.training.leaks import check_groups
from ptml.training.means import Means
from ptml.training.notices import cast_inputs, no_better, not_moving, rows_in_both, short_batch
from ptml.training.progress import Silence
from ptml.training.sources import Batches, arrays_of
from ptml.training.stopping import Watch
from ptml_state import Checkpointer, State

__all__ = ["Run"]

NOT_EPOCHS = "epochs is a positive whole number; got {given!r}."
NO_EVALUATION = (
    "validation= needs what measures it: evaluate=compile_evaluate(prediction, {'loss': loss}, "
    "state=program)."
)
NO_VALIDATION = "evaluate= needs the data to measure: validation=(X_valid, y_valid), or a DataLoader."
RESUME_FROM = "resume=True goes on from the checkpoints of a run: give checkpoints=Checkpointer(folder)."
OTHER_RUN = (
    "{folder} has the checkpoints of a run, the latest of step {step}. Write resume=True to go on with it, "
    "or start this one in another folder."
)
NO_POSITION = (
    "checkpoints= saves the place in the data, which a {given} does not have. Give a DataLoader, or an "
    "object with `state` and `load(state)`."
)
KEEPS_NO_BEST = (
    "EarlyStopping goes back to the best state, which these checkpoints may have deleted by then. Write "
    "Checkpointer(folder, keep_best=1, mode={mode!r}), or EarlyStopping(..., restore_best=False)."
)
NOT_OF_FIT = (
    "The checkpoint {path} was not saved by fit. Go on with it as it was saved, or in another folder."
)
NOT_A_LOSS = "A step gives a loss, or what begins with one: a number; got {given}."
NOT_FINITE = "The loss is {loss} at step {step} (epoch {epoch}): {cause}."


@attrs.define
class _Beginning:
    """What an epoch, or what was left of one, began with: the state, the place in the data, the steps."""

    state: State
    step: int
    position: Any = None


@attrs.define
class Run:
    """One call of :func:`ptml.fit`; its arguments are documented there.

    Attributes
    ----------
    history : History
    step : int
        How many steps were made.
    means : Means
        Of the epoch so far.
    """

    program: Any
    data: DataLoader | Batches
    epochs: int
    validation: Any
    evaluate: Any
    watch: Watch | None
    checkpoints: Checkpointer | None
    callbacks: tuple[Callable[[Event], Any], ...]
    groups: Any
    history: History = attrs.field(factory=History)
    step: int = 0
    means: Means = attrs.field(factory=Means)
    reporter: Silence = attrs.field(factory=Silence)
    _saved: int = -1
    _seconds: float = 0.0

    # ---- before

    def begin(self, resume: bool) -> None:
        """Check the arguments, and take up what a run before has left."""
        if not isinstance(self.epochs, int) or isinstance(self.epochs, bool) or self.epochs < 1:
            raise ValueError(NOT_EPOCHS.format(given=self.epochs))
        if (self.validation is None) != (self.evaluate is None):
            raise TypeError(NO_EVALUATION if self.evaluate is None else NO_VALIDATION)
        if self.groups is not None:
            check_groups(self.groups, (_rows(self.data), _rows(self.validation)))
        if self.checkpoints is None:
            if resume:
                raise TypeError(RESUME_FROM)
            return
        rule = None if self.watch is None else self.watch.rule
        keeps_best = rule is None or (self.checkpoints.keep_best and self.checkpoints.mode == rule.mode)
        if rule is not None and rule.restore_best and not keeps_best:
            raise ValueError(KEEPS_NO_BEST.format(mode=rule.mode))
        loader = self._loader()
        if resume:
            self._take_up(self.checkpoints, loader)
        elif (latest := self.checkpoints.latest()) is not None:
            raise ValueError(OTHER_RUN.format(folder=self.checkpoints.directory, step=latest.step))

    def _loader(self) -> Any:
        loader = self.data if isinstance(self.data, DataLoader) else self.data.batches
        if not (hasattr(loader, "state") and hasattr(loader, "load")):
            raise TypeError(NO_POSITION.format(given=type(loader).__name__))
        return loader

    def _take_up(self, checkpoints: Checkpointer, loader: Any) -> None:
        latest = checkpoints.latest()
        if latest is not None and not (isinstance(latest.extra, dict) and "history" in latest.extra):
            raise ValueError(NOT_OF_FIT.format(path=latest.path))
        found = checkpoints.resume(self.program, loader)
        if found is None:
            return
        self.step = self._saved = found.step
        saved = found.extra
        self.history.rows = [_as_arrays(row) for row in saved["history"]]
        self.history.notices = list(saved["notices"])
        self.means = Means.of(saved["means"])
        self._seconds = saved["seconds"]
        if isinstance(self.data, Batches):
            self.data.epoch = len(self.history)
        if self.watch is not None:
            self.watch.best, self.watch.epoch = saved["best"]
            self.history.best_epoch = self.watch.epoch

    @property
    def batches_per_epoch(self) -> int | None:
        """How many batches an epoch has, where that is known."""
        if isinstance(self.data, DataLoader):
            rows, size = self.data.rows, self.data.batch_size
            return rows // size if self.data.state["drop_last"] else -(-rows // size)
        return len(self.data) if hasattr(self.data.batches, "__len__") else None

    # ---- the loop

    def go(self, reporter: Silence, interrupted: Callable[[], bool]) -> None:
        """Train until the run ends."""
        self.reporter = reporter
        for text in [*rows_in_both(self.data, self.validation), *short_batch(self.program, self.data)]:
            self.notice(text)
        reason = None
        while reason is None:
            if len(self.history) >= self.epochs:
                reason = "epochs"
            elif self.watch is not None and self.watch.gives_up(len(self.history)):
                reason = "no improvement"
            else:
                reason = self._epoch(interrupted)
        self._end(reason)

    def _epoch(self, interrupted: Callable[[], bool]) -> str | None:
        """Make the steps of an epoch, and give a reason to stop, or None."""
        epoch, began = len(self.history) + 1, time.perf_counter() - self._seconds
        beginning = _Beginning(self.program.store.state, self.step)
        for batch in self.data:
            if beginning.position is None and isinstance(self.data, DataLoader):
                place = self.data.state
                beginning.position = {**place, "batch": place["batch"] - 1}
                if self.step == 0:
                    for text in cast_inputs(self.program, batch):
                        self.notice(text)
            loss, values = _parts(self.program(*batch))
            self.step += 1
            self.means.add({"loss": loss, **_numbers(values)}, len(batch[0]))
            self._seconds = time.perf_counter() - began
            reason = None
            if not math.isfinite(loss) and self._diverged(loss, batch, beginning, epoch):
                reason = "diverged"
            if self._tell("step", epoch, {**values, "loss": loss}):
                reason = reason or "callback"
            if interrupted():
                reason = reason or "interrupted"
            if reason is not None:
                return reason
            self.reporter.step(self.means.steps, loss)
            if self._due():
                self._save()
        return self._finished(epoch, beginning)

    def _finished(self, epoch: int, beginning: _Beginning) -> str | None:
        """Measure after an epoch, and give a reason to stop, or None."""
        row: dict[str, Any] = {"epoch": epoch, "steps": self.step, **self.means.numbers()}
        if self.evaluate is not None:
            row |= {f"validation/{name}": value for name, value in self._measured().items()}
        row["seconds"] = self._seconds
        best = self.watch is not None and self.watch.improves(row)
        asked = self._tell("epoch", epoch, row)
        self.history.rows.append(row)
        if best:
            self.history.best_epoch, self.history.best_state = epoch, self.program.store.state
        self.means, self._seconds = Means(), 0.0
        if epoch == 1 and beginning.step == 0:
            for text in not_moving(beginning.state, self.program.store.state, row):
                self.notice(text)
        self.reporter.epoch(row, best)
        if self.checkpoints is not None and (best or self.checkpoints.every is None):
            self._save(self._metric(row))
        return "callback" if asked else None

    def _measured(self) -> dict[str, Any]:
        data = self.validation
        if isinstance(self.evaluate, Evaluator):
            found = self.evaluate(*data) if _are_arrays(data) else self.evaluate.over(data)
            return found if isinstance(found, dict) else {next(iter(self.evaluate.metrics)): found}
        result = self.evaluate(*data) if _are_arrays(data) else None
        if result is None:
            means = Means()
            for batch in data:
                loss, values = _parts(self.evaluate(*batch))
                means.add({"loss": loss, **_numbers(values)}, len(batch[0]))
            return means.numbers()
        loss, values = _parts(result)
        return {"loss": loss, **_numbers(values)}

    def _diverged(self, loss: float, batch: Sequence[Any], beginning: _Beginning, epoch: int) -> bool:
        """Say, once, where a loss that is not finite comes from; give whether it has got into the state."""
        broken = broken_leaf(self.program.store.state) is not None
        if broken or not any(text.startswith("The loss is ") for text in self.history.notices):
            steps = (beginning.step, self.step)
            known = None if beginning.position is None else beginning.state
            cause = cause_of(self.program, batch, known, self.data, beginning.position, steps)
            self.notice(NOT_FINITE.format(loss=loss, step=self.step, epoch=epoch, cause=cause))
        return broken

    def _end(self, reason: str) -> None:
        self.history.stopped = reason
        if self.checkpoints is not None and reason != "diverged" and self._saved != self.step:
            self._save()
        if reason != "interrupted" and self.watch is not None and self.watch.rule.restore_best:
            self._go_back(self.watch)
        if len(self.history) and reason not in ("interrupted", "callback"):
            row = self.history.rows[(self.history.best_epoch or len(self.history)) - 1]
            for text in no_better(self.evaluate, self.data, self.validation, row):
                self.notice(text)
        self._tell("end", len(self.history), {})

    def _go_back(self, watch: Watch) -> None:
        """Load the best state: kept here, or by a run before this one in its checkpoints."""
        if watch.epoch is None:
            return
        if self.history.best_state is None and self.checkpoints is not None:
            best = self.checkpoints.best()
            if best is not None and best.metric == watch.best:
                self.history.best_state = best.restore()
        if self.history.best_state is not None:
            self.program.store.load(self.history.best_state)

    # ---- what is told, and saved

    def notice(self, text: str) -> None:
        """Say something, once."""
        if text not in self.history.notices:
            self.history.notices.append(text)
            self.reporter.say(f"notice: {text}")

    def _tell(self, kind: str, epoch: int, values: dict[str, Any]) -> bool:
        if not self.callbacks:
            return False
        event = Event(kind, epoch, self.step, values, self.program, self.history)
        answers = [callback(event) for callback in self.callbacks]
        return STOP in answers

    def _due(self) -> bool:
        checkpoints = self.checkpoints
        return checkpoints is not None and checkpoints.every is not None and checkpoints.due(self.step)

    def _metric(self, row: dict[str, Any]) -> float | None:
        if self.watch is not None:
            return float(row[self.watch.rule.monitor])
        measured = [name for name in row if name.startswith("validation/") and np.ndim(row[name]) == 0]
        return float(row[measured[0] if measured else "loss"])

    def _save(self, metric: float | None = None) -> None:
        assert self.checkpoints is not None
        extra = {
            "history": [
                {name: plain_value(value) for name, value in row.items()} for row in self.history.rows
            ],
            "notices": self.history.notices,
            "means": attrs.asdict(self.means),
            "seconds": self._seconds,
            "best": None if self.watch is None else [self.watch.best, self.watch.epoch],
        }
        self.checkpoints.save(
            self.step, self.program, extra, loader=self._loader(), metric=metric, force=True
        )
        self._saved = self.step


def _rows(data: Any) -> int | None:
    arrays = arrays_of(data)
    return None if arrays is None else len(arrays[0])


def _are_arrays(data: Any) -> bool:
    return isinstance(data, tuple) and arrays_of(data) is not None


def _parts(result: Any) -> tuple[float, dict[str, Any]]:
    """Give the loss of a step, and what it gives by name."""
    loss, values = result, {}
    if isinstance(result, dict):
        loss, values = result.get("loss"), result
    elif isinstance(result, tuple | list) and result:
        loss = result[0]
        values = result[-1] if isinstance(result[-1], dict) else {}
    if np.ndim(loss) != 0 or loss is None or isinstance(loss, str):
        raise TypeError(NOT_A_LOSS.format(given=repr(result)))
    return float(loss), values


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if np.ndim(value) == 0 and name != "loss"}


def _as_arrays(row: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value) if isinstance(value, list) else value for name, value in row.items()}
