"""Recurrent sequences as single ops: all steps of an LSTM, a GRU or a plain recurrence at once."""

from ptml.recurrence.gru import gru_sequence
from ptml.recurrence.lstm import lstm_sequence
from ptml.recurrence.rnn import rnn_sequence

__all__ = ["gru_sequence", "lstm_sequence", "rnn_sequence"]
