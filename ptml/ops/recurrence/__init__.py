"""Recurrent sequences as single ops: all steps of an LSTM, a GRU or a plain recurrence at once."""

from ptml.ops.recurrence.gru import gru_sequence
from ptml.ops.recurrence.lstm import lstm_sequence
from ptml.ops.recurrence.rnn import rnn_sequence

__all__ = ["gru_sequence", "lstm_sequence", "rnn_sequence"]
