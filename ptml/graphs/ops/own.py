"""The library's own ops."""

from __future__ import annotations

from ptml import bits, checks, labels, marks, moments, rng, softmax
from ptml.graphs.fields import COUNT, FLAG, INTEGER, NUMBER, TEXT, choice, items, optional
from ptml.graphs.registry import register_op
from ptml.loss import entropy

__all__: list[str] = []

register_op(bits.Draw, "ptml.Draw", fields={"dtype": choice(*bits.DRAW_DTYPES)})
register_op(bits.FoldIn, "ptml.FoldIn", fields={})
register_op(rng.AsGenerator, "ptml.AsGenerator", fields={})

register_op(marks.Advance, "ptml.Advance", fields={})
register_op(marks.InTraining, "ptml.InTraining", fields={})

_CHECKED = {"layer": TEXT, "axis": INTEGER, "wants": TEXT}
register_op(checks.AxisCheck, "ptml.AxisCheck", fields={**_CHECKED, "size": COUNT})
register_op(checks.SameSize, "ptml.SameSize", fields=_CHECKED)
register_op(
    checks.RowCount,
    "ptml.RowCount",
    fields={"layer": TEXT, "axes": items(INTEGER), "minimum": INTEGER, "wants": TEXT, "hint": TEXT},
)
_LABELS = {"loss": TEXT, "ignore": optional(INTEGER)}
register_op(labels.CheckLabels, "ptml.CheckLabels", fields=_LABELS)
register_op(labels.CheckIds, "ptml.CheckIds", fields=_LABELS)
register_op(labels.CheckProbabilities, "ptml.CheckProbabilities", fields={"loss": TEXT, "predicted": FLAG})
register_op(labels.CheckShape, "ptml.CheckShape", fields={"loss": TEXT, "labels": FLAG})

register_op(softmax.Softmax, "ptml.Softmax", fields={})
register_op(softmax.SoftmaxGradient, "ptml.SoftmaxGradient", fields={})
register_op(softmax.LogSoftmax, "ptml.LogSoftmax", fields={})
register_op(softmax.LogSoftmaxGradient, "ptml.LogSoftmaxGradient", fields={})
register_op(moments.Moments, "ptml.Moments", fields={})
register_op(
    entropy.LabelEntropy,
    "ptml.LabelEntropy",
    fields={"smoothing": NUMBER, "ignore": optional(INTEGER), "weighted": FLAG},
)
register_op(entropy.TargetEntropy, "ptml.TargetEntropy", fields={})
