"""Training loops and evaluation, over any program and data."""

from ptml.training.evaluating import Evaluator, compile_evaluate
from ptml.training.events import STOP, Event
from ptml.training.history import History
from ptml.training.loop import fit
from ptml.training.stopping import EarlyStopping

__all__ = ["STOP", "EarlyStopping", "Evaluator", "Event", "History", "compile_evaluate", "fit"]
