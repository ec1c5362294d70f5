"""Lines of the list of mistakes for layers that take images and sequences: see ``test_mistakes.py``."""

from __future__ import annotations

import pytensor.tensor as pt

from ptml.layers import (
    GRU,
    LSTM,
    RNN,
    AdaptiveAvgPool2D,
    AvgPool1D,
    Bidirectional,
    CausalSelfAttention,
    Conv1D,
    Conv2D,
    Conv3D,
    ConvTranspose2D,
    FeedForward,
    GlobalAvgPool2D,
    Input,
    LastStep,
    MaxPool2D,
    MultiheadAttention,
    ReflectionPad2D,
    TransformerBlock,
    ZeroPad2D,
    scaled_dot_product_attention,
)


def X(*shape, dtype=None, axes=None):
    return Input("X", shape, dtype, axes=axes)


def given(*shape, dtype="bool"):
    return pt.tensor("given", shape=shape, dtype=dtype)


def conv(kernel_size=3, **options):
    return Conv2D("here", in_channels=3, out_channels=8, kernel_size=kernel_size, **options)


def lstm(*inputs, **options):
    return LSTM("here", n_in=3, n_hidden=4)(*inputs, **options)


def attention(*inputs, n_head=2, kv_dim=None, **options):
    return MultiheadAttention("here", n_embd=8, n_head=n_head, kv_dim=kv_dim)(*inputs, **options)


FIRST = r"Axis 1 has 3: move it to the end, the layout is channels last"

WRITTEN = {
    "images of channels first": (lambda: conv()(X(None, 3, 32, 32)), ValueError, rf"here \(Conv2D.*{FIRST}"),
    "an image without its batch": (
        lambda: conv()(X(32, 32, 3)),
        ValueError,
        r"here \(Conv2D\) takes \(batch, height, .*got 3 axes",
    ),
    "one channel too many": (
        lambda: conv()(X(None, 32, 32, 4)),
        ValueError,
        r"here \(Conv2D\).*axis -1 is 4, where 3",
    ),
    "a kernel longer than the image": (
        lambda: conv(9)(X(None, 8, 32, 3)),
        ValueError,
        r"here \(Conv2D\).*in height\) along axis -3; got 8",
    ),
    "declared channels first": (
        lambda: Conv2D("here", in_channels=8, out_channels=8, kernel_size=3)(X(None, 8, 8, 8, axes="NCHW")),
        ValueError,
        r"here \(Conv2D\) takes axes NHWC .*Write X\.transpose\(0, 2, 3, 1\)",
    ),
    "declared width before height": (
        lambda: conv()(X(None, 8, 8, 3, axes="NWHC")),
        ValueError,
        r"here .*transpose\(0, 2, 1, 3\)",
    ),
    "a kernel of three axes": (
        lambda: conv((3, 3, 3)),
        ValueError,
        r"here \(Conv2D\): kernel_size must be .*a tuple of 2",
    ),
    "a kernel of nothing": (lambda: conv(0), ValueError, r"here \(Conv2D\): kernel_size must be a pos"),
    "a stride of nothing": (lambda: conv(stride=0), ValueError, r"here \(Conv2D\): stride must be a pos"),
    "an unknown padding": (lambda: conv(padding="full"), ValueError, r"here \(Conv2D\): padding must be"),
    "a negative padding": (lambda: conv(padding=-1), ValueError, r"here \(Conv2D\): padding adds"),
    "channels that groups do not divide": (
        lambda: conv(groups=2),
        ValueError,
        r"here \(Conv2D\): groups must divide in_channels",
    ),
    "a cause in two axes": (
        lambda: conv(padding="causal"),
        ValueError,
        r"here \(Conv2D\): padding='causal' is for one axis",
    ),
    "a series of channels first": (
        lambda: Conv1D("here", in_channels=3, out_channels=8, kernel_size=3)(X(None, 3, 32)),
        ValueError,
        rf"here \(Conv1D\).*{FIRST}",
    ),
    "a series shorter than its kernel": (
        lambda: Conv1D("here", in_channels=3, out_channels=8, kernel_size=3, dilation=8)(X(None, 16, 3)),
        ValueError,
        r"here \(Conv1D\) needs at least 17 positions .*along axis -2; got 16",
    ),
    "a volume of channels first": (
        lambda: Conv3D("here", in_channels=3, out_channels=8, kernel_size=3)(X(None, 3, 8, 8, 8)),
        ValueError,
        rf"here \(Conv3D\).*{FIRST}",
    ),
    "a volume of two axes": (
        lambda: Conv3D("here", in_channels=3, out_channels=8, kernel_size=3)(X(None, 8, 8, 3)),
        ValueError,
        r"here \(Conv3D\) takes .*got 4 axes",
    ),
    "going up with channels first": (
        lambda: ConvTranspose2D("here", in_channels=3, out_channels=8, kernel_size=3)(X(None, 3, 8, 8)),
        ValueError,
        rf"here \(ConvTranspose2D\).*{FIRST}",
    ),
    "more output padding than stride": (
        lambda: ConvTranspose2D("here", in_channels=3, out_channels=8, kernel_size=3, output_padding=1),
        ValueError,
        r"here \(ConvTranspose2D\): output_padding .*along height",
    ),
    "bytes for floats": (
        lambda: conv()(X(None, 8, 8, 3, dtype="uint8")),
        TypeError,
        r"here \(Conv2D\) computes with floating",
    ),
    "pooling without a batch": (
        lambda: MaxPool2D("here", kernel_size=2)(X(8, 8, 3)),
        ValueError,
        r"here \(MaxPool2D\).*got 3 axes",
    ),
    "a window larger than the image": (
        lambda: MaxPool2D("here", kernel_size=9)(X(None, 8, 8, 3)),
        ValueError,
        r"here \(MaxPool2D\).*axis -3",
    ),
    "pooling over channels": (
        lambda: MaxPool2D("here", kernel_size=2)(X(None, 8, 8, 8, axes="NCHW")),
        ValueError,
        r"here \(MaxPool2D\) takes axes NHWC .*transpose\(0, 2, 3, 1\)",
    ),
    "a window of padding alone": (
        lambda: MaxPool2D("here", kernel_size=2, padding=2),
        ValueError,
        r"here \(MaxPool2D\): padding .*height",
    ),
    "a window of nothing": (
        lambda: AvgPool1D("here", kernel_size=0),
        ValueError,
        r"here \(AvgPool1D\): kernel_size must be",
    ),
    "averaging over channels": (
        lambda: GlobalAvgPool2D("here")(X(None, 8, 8, 8, axes="NCHW")),
        ValueError,
        r"here \(GlobalAvgPool2D\) takes axes NHWC .*transpose",
    ),
    "no cells to pool into": (
        lambda: AdaptiveAvgPool2D("here", output_size=0),
        ValueError,
        r"here \(AdaptiveAvgPool2D\): output_size",
    ),
    "padding without a batch": (
        lambda: ZeroPad2D("here", padding=1)(X(8, 8, 3)),
        ValueError,
        r"here \(ZeroPad2D\) takes .*got 3 axes",
    ),
    "reflecting more than there is": (
        lambda: ReflectionPad2D("here", padding=8)(X(None, 8, 8, 3)),
        ValueError,
        r"here \(Refl.*along axis -3",
    ),
    "sequences of another width": (
        lambda: lstm(X(None, 5, 4)),
        ValueError,
        r"here \(LSTM\).*axis -1 is 4, where 3",
    ),
    "a sequence without its batch": (lambda: lstm(X(5, 3)), ValueError, r"here \(LSTM\).*got 2 axes"),
    "time first": (
        lambda: lstm(X(5, None, 3, axes="TNC")),
        ValueError,
        r"here \(LSTM\).*Write X\.transpose\(1, 0, 2\)",
    ),
    "integers for sequences": (
        lambda: RNN("here", n_in=3, n_hidden=4)(X(None, 5, 3, dtype="int64")),
        TypeError,
        r"here \(RNN\) comp",
    ),
    "a mask of time first": (
        lambda: lstm(X(2, 5, 3), mask=given(5, 2)),
        ValueError,
        r"here \(LSTM\) takes a mask .*along axis -2",
    ),
    "a mask of floats": (
        lambda: lstm(X(2, 5, 3), mask=given(2, 5, dtype="float64")),
        TypeError,
        r"here \(LSTM\) takes a mask of",
    ),
    "lengths of another batch": (
        lambda: lstm(X(2, 5, 3), lengths=given(3, dtype="int64")),
        ValueError,
        r"here \(LSTM\) takes lengths .*axis",
    ),
    "lengths that are no integers": (
        lambda: lstm(X(2, 5, 3), lengths=given(2, dtype="float64")),
        TypeError,
        r"here \(LSTM\) takes lengths",
    ),
    "a state of another width": (
        lambda: lstm(X(2, 5, 3), (X(2, 4), X(2, 5))),
        ValueError,
        r"here \(LSTM\).*axis 1 is 5, not 4",
    ),
    "a state without its cell": (
        lambda: lstm(X(2, 5, 3), X(2, 4)),
        ValueError,
        r"here \(LSTM\) carries a state of 2 tensors",
    ),
    "a state of another batch": (
        lambda: GRU("here", n_in=3, n_hidden=4)(X(2, 5, 3), X(3, 4)),
        ValueError,
        r"here \(GRU\).*axis 0 is 3, not 2",
    ),
    "two directions of two widths": (
        lambda: Bidirectional(GRU("here", n_in=3, n_hidden=4), GRU("back", n_in=5, n_hidden=4)),
        ValueError,
        r"here \(GRU\) takes 3 features and back \(GRU\) 5 \(axis -1\)",
    ),
    "the last step of a vector": (lambda: LastStep("here")(X(4)), ValueError, r"here \(LastStep\).*1 axes"),
    "heads that do not divide": (
        lambda: attention(X(2, 5, 8), n_head=3),
        ValueError,
        r"here \(Mult.*: n_embd must be a multiple",
    ),
    "attention to another width": (
        lambda: attention(X(None, 5, 7)),
        ValueError,
        r"here \(Mult.*axis -1 is 7, where 8",
    ),
    "attention without a batch": (lambda: attention(X(5, 8)), ValueError, r"here \(Mult.*got 2 axes"),
    "attention of time first": (
        lambda: attention(X(8, None, 8, axes="TNC")),
        ValueError,
        r"here \(Mult.*transpose\(1, 0, 2\)",
    ),
    "attention of features first": (
        lambda: attention(X(None, 8, 8, axes="NCT")),
        ValueError,
        r"here \(Mult.*transpose\(0, 2, 1\)",
    ),
    "a mask of another length": (
        lambda: attention(X(2, 5, 8), mask=given(5, 6)),
        ValueError,
        r"here \(Mult.*axis -1 is 6",
    ),
    "a mask of integers": (
        lambda: attention(X(2, 5, 8), mask=given(5, 5, dtype="int64")),
        TypeError,
        r"here \(Mult.*takes a mask",
    ),
    "keys of another width": (
        lambda: attention(X(2, 5, 8), X(2, 5, 8), kv_dim=6),
        ValueError,
        r"here \(Mult.*axis -1 is 8, where 6",
    ),
    "keys of another batch": (
        lambda: attention(X(2, 5, 8), X(3, 5, 8)),
        ValueError,
        r"here \(Mult.*differ along axis -3",
    ),
    "causal attention to another width": (
        lambda: CausalSelfAttention("here", n_embd=8, n_head=2)(X(2, 5, 6)),
        ValueError,
        r"here \(Causal.*axis -1",
    ),
    "queries and keys of two widths": (
        lambda: scaled_dot_product_attention(X(2, 5, 8), X(2, 6, 7), X(2, 6, 8)),
        ValueError,
        r"scaled_dot_product_attention: queries and keys .*axis -1",
    ),
    "keys and values of two lengths": (
        lambda: scaled_dot_product_attention(X(2, 5, 8), X(2, 6, 8), X(2, 7, 8)),
        ValueError,
        r"scaled_dot_product_attention: keys and values .*axis -2",
    ),
    "a feed-forward of another width": (
        lambda: FeedForward("here", d_model=8)(X(None, 5, 7)),
        ValueError,
        r"here/fc_in \(Linear\).*axis -1",
    ),
    "a block of another width": (
        lambda: TransformerBlock("here", d_model=8, n_head=2)(X(None, 5, 7)),
        ValueError,
        r"here/norm1 .*axis -1",
    ),
    "a block without a batch": (
        lambda: TransformerBlock("here", d_model=8, n_head=2)(X(5, 8)),
        ValueError,
        r"here/attn .*got 2 axes",
    ),
    "a negative size": (lambda: Input("here", (None, -3)), ValueError, r"Input 'here': shape"),
    "a number for a shape": (lambda: Input("here", 3), TypeError, r"Input 'here': shape must be a tuple"),
    "letters for other axes": (
        lambda: Input("here", (None, 3), axes="NCH"),
        ValueError,
        r"Input 'here': axes='NCH' has 3 letters",
    ),
}
