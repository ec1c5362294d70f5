"""The training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ptml.compile.program import Program
from ptml.training.evaluating import Evaluator
from ptml.training.events import Event
from ptml.training.history import History
from ptml.training.interrupts import asked_to_stop
from ptml.training.progress import reporting
from ptml.training.run import Run
from ptml.training.sources import as_batches
from ptml.training.stopping import EarlyStopping, Watch
from ptml_state import Checkpointer

__all__ = ["fit"]

LEFT_AT = "fit stopped here after step {step}; program.store has the state."


def fit(
    program: Program,
    data: Any,
    *,
    epochs: int,
    batch_size: int | None = None,
    validation: Any = None,
    evaluate: Evaluator | Callable[..., Any] | None = None,
    stop: EarlyStopping | None = None,
    checkpoints: Checkpointer | None = None,
    resume: bool = False,
    callbacks: Iterable[Callable[[Event], Any]] = (),
    groups: tuple[Any, Any] | None = None,
    progress: bool | None = None,
) -> History:
    """Train: call a program with batches, epoch by epoch, and look after what a loop is easily wrong about.

    Parameters
    ----------
    program : Program
        What :func:`ptml.compile_train` made, or any program whose result is a loss, or begins with one. What
        it gives by name besides (``observe=``, or a mapping of extra outputs) gets into the history.
    data : DataLoader, tuple of arrays, or iterable of batches
        In the order of the program's inputs. Arrays are shuffled.
    epochs : int
        How many to train for; of a resumed run, those that it had done included.
    batch_size : int, optional
        Rows in a batch, for arrays.
    validation : DataLoader, tuple of arrays, or iterable of batches, optional
        What is measured after each epoch.
    evaluate : Evaluator or program, optional
        What measures it: made by :func:`ptml.compile_evaluate` with ``state=program``.
    stop : EarlyStopping, optional
    checkpoints : Checkpointer, optional
        Saved into when one is due, and at the end. Unless it says ``every=``, one is due after each epoch.
    resume : bool, default False
        Whether to go on from the latest checkpoint, where there is one.
    callbacks : iterable of functions
        Each is called with an :class:`Event` after every step and epoch, and at the end. One that returns
        ``STOP`` ends the run.
    groups : pair of array-like, optional
        The group of each training row, and of each validation row: a split that has one on both sides is
        refused.
    progress : bool, optional
        False prints nothing. Otherwise there is a bar on a terminal where rich is installed, and lines
        elsewhere.

    Returns
    -------
    History
        One row an epoch. The state is in ``program.store``.

    Raises
    ------
    TypeError
        If an argument is of no use.
    ValueError
        If groups are on both sides, or the checkpoints are those of another run.

    Notes
    -----
    Ctrl-C ends the run after the step that is under way, saves a checkpoint and returns. So does a loss that
    is not finite, once it has got into the parameters; the notice says where it came from. An exception of a
    callback or of the disk comes out with a note of the step; the state is in the store, the checkpoints
    before it are whole, and resuming gives what an uninterrupted run would have given, bit for bit.

    What it notices, it says once, and keeps in ``history.notices``: inputs of another dtype than declared,
    validation rows that are training rows too, a last batch that is short while a schedule's horizon depends
    on the batch, parameters that do not move, a loss that is not finite, and a validation loss no better than
    that of the best constant prediction.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Input, Linear
    >>> from ptml.loss import SquaredError, supervised_loss
    >>> from ptml.optim import adam, compile_train
    >>> X = Input("X", shape=(None, 2))
    >>> prediction = Linear("fc", n_in=2, n_out=1)(X)
    >>> loss, y = supervised_loss(prediction, SquaredError())
    >>> step = compile_train(loss, adam(0.1), seed=0)
    >>> measure = ptml.compile_evaluate(prediction, {"loss": loss}, state=step)
    >>> rows = np.random.default_rng(0).normal(size=(60, 2))
    >>> targets = rows @ [[1.0], [-2.0]]
    >>> history = ptml.fit(
    ...     step,
    ...     (rows[:40], targets[:40]),
    ...     epochs=30,
    ...     batch_size=8,
    ...     validation=(rows[40:], targets[40:]),
    ...     evaluate=measure,
    ...     progress=False,
    ... )
    >>> history.stopped, bool(history["validation/loss"][-1] < 1e-3)
    ('epochs', True)
    """
    run = Run(
        program=program,
        data=as_batches(data, batch_size),
        epochs=epochs,
        validation=validation,
        evaluate=evaluate,
        watch=None if stop is None else Watch(stop),
        checkpoints=checkpoints,
        callbacks=tuple(callbacks),
        groups=groups,
    )
    run.begin(resume)
    with reporting(progress, epochs, run.batches_per_epoch) as reporter, asked_to_stop() as interrupted:
        try:
            run.go(reporter, interrupted)
        except BaseException as error:
            error.add_note(LEFT_AT.format(step=run.step))
            raise
    return run.history
