"""The library's own ops."""

from __future__ import annotations

from ptml import bits, checks, labels, lengths, marks, rng, sequences
from ptml.graphs.fields import COUNT, FLAG, INTEGER, NUMBER, TEXT, choice, items, optional
from ptml.graphs.registry import register_op
from ptml.loss import entropy
from ptml.ops import attention, convolution, moments, normalization, recompute, softmax
from ptml.ops.recurrence import gru, lstm, rnn

__all__: list[str] = []

register_op(bits.Draw, "ptml.Draw", fields={"dtype": choice(*bits.DRAW_DTYPES)})
register_op(bits.FoldIn, "ptml.FoldIn", fields={})
register_op(rng.AsGenerator, "ptml.AsGenerator", fields={})

register_op(marks.Advance, "ptml.Advance", fields={})
register_op(marks.InTraining, "ptml.InTraining", fields={})
register_op(recompute.After, "ptml.After", fields={"n": COUNT})

_CHECKED = {"layer": TEXT, "axis": INTEGER, "wants": TEXT}
register_op(checks.AxisCheck, "ptml.AxisCheck", fields={**_CHECKED, "size": COUNT})
register_op(checks.SameSize, "ptml.SameSize", fields=_CHECKED)
register_op(
    checks.RowCount,
    "ptml.RowCount",
    fields={"layer": TEXT, "axes": items(INTEGER), "minimum": INTEGER, "wants": TEXT, "hint": TEXT},
)
register_op(
    lengths.LengthCheck,
    "ptml.LengthCheck",
    fields={"layer": TEXT, "axis": INTEGER, "minimum": COUNT, "of": TEXT, "hint": TEXT},
)
_LABELS = {"loss": TEXT, "ignore": optional(INTEGER)}
register_op(labels.CheckLabels, "ptml.CheckLabels", fields=_LABELS)
register_op(labels.CheckIds, "ptml.CheckIds", fields=_LABELS)
register_op(sequences.CheckLengths, "ptml.CheckLengths", fields=_LABELS)
register_op(sequences.CheckSteps, "ptml.CheckSteps", fields=_LABELS)
register_op(labels.CheckProbabilities, "ptml.CheckProbabilities", fields={"loss": TEXT, "predicted": FLAG})
register_op(labels.CheckShape, "ptml.CheckShape", fields={"loss": TEXT, "labels": FLAG})

register_op(softmax.Softmax, "ptml.Softmax", fields={})
register_op(softmax.SoftmaxGradient, "ptml.SoftmaxGradient", fields={})
register_op(softmax.LogSoftmax, "ptml.LogSoftmax", fields={})
register_op(softmax.LogSoftmaxGradient, "ptml.LogSoftmaxGradient", fields={})
register_op(moments.Moments, "ptml.Moments", fields={})
_NORMALIZED = {"epsilon": NUMBER, "centred": FLAG}
register_op(normalization.Normalize, "ptml.Normalize", fields=_NORMALIZED)
register_op(normalization.NormalizeGradient, "ptml.NormalizeGradient", fields=_NORMALIZED)
_ATTENDING = {"is_causal": FLAG, "scale": optional(NUMBER)}
register_op(attention.Attention, "ptml.Attention", fields=_ATTENDING)
register_op(attention.AttentionGradient, "ptml.AttentionGradient", fields=_ATTENDING)
register_op(attention.AttentionMaskGradient, "ptml.AttentionMaskGradient", fields=_ATTENDING)
register_op(
    entropy.LabelEntropy,
    "ptml.LabelEntropy",
    fields={"smoothing": NUMBER, "ignore": optional(INTEGER), "weighted": FLAG},
)
register_op(entropy.TargetEntropy, "ptml.TargetEntropy", fields={})

_SLIDING = {
    **{name: items(COUNT) for name in ("kernel_size", "stride", "dilation")},
    "padding": items(items(COUNT)),
    "groups": COUNT,
}
register_op(convolution.Convolve, "ptml.Convolve", fields=_SLIDING)
register_op(convolution.ConvolveKernel, "ptml.ConvolveKernel", fields={**_SLIDING, "bias": FLAG})
register_op(
    convolution.ConvolveTransposed,
    "ptml.ConvolveTransposed",
    fields={**_SLIDING, "extra": optional(items(COUNT))},
)

_WAYS = {"reverse": FLAG, "masked": FLAG}
_OF_LSTM = {**_WAYS, "peepholes": FLAG, "projects": FLAG}
_ACTIVATED = {"activation": choice("tanh", "relu"), **_WAYS}
register_op(lstm.LSTMSequence, "ptml.LSTMSequence", fields=_OF_LSTM)
register_op(lstm.LSTMGradient, "ptml.LSTMGradient", fields={**_OF_LSTM, "of_outputs": FLAG})
register_op(gru.GRUSequence, "ptml.GRUSequence", fields={**_WAYS, "biased": FLAG})
register_op(gru.GRUGradient, "ptml.GRUGradient", fields={**_WAYS, "of_outputs": FLAG})
register_op(rnn.RNNSequence, "ptml.RNNSequence", fields=_ACTIVATED)
register_op(rnn.RNNGradient, "ptml.RNNGradient", fields={**_ACTIVATED, "of_outputs": FLAG})
