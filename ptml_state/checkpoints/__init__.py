"""Checkpoints: a state, the data's position and extras, in folders that are whole or not there."""

from ptml_state.checkpoints.checkpoint import Checkpoint, CheckpointError
from ptml_state.checkpoints.checkpointer import Checkpointer

__all__ = ["Checkpoint", "CheckpointError", "Checkpointer"]
