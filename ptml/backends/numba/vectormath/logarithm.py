"""log and its relatives: log2, log10, log1p, softplus.

``log(x) = k * ln 2 + log(1 + f)`` with ``1 + f`` between the roots of 1/2 and of 2. With ``s = f / (2 +
f)``, ``log(1 + f) = 2 * artanh(s) = f - (f*f/2 - s * (f*f/2 + s*s*R(s*s)))``, in which all but f is small
(W. J. Cody and W. Waite, Software Manual for the Elementary Functions, 1980, chapter 5). R is the
polynomial of least greatest error, by Remez' exchange, its coefficients then rounded.
"""

from __future__ import annotations

from ptml.backends.numba.vectormath.exponential import LN2, RANGE, scaled_exp
from ptml.backends.numba.vectormath.lane import (
    FRACTION,
    Integer,
    Real,
    constant,
    maximum,
    polynomial,
    power_of_two,
    select,
)

__all__ = ["joined", "log", "log10", "log1p", "log2", "normalised", "positive_only", "softplus"]

# R: (2 artanh(s) - 2 s) / s**3 in s*s, to 2**-34 (2**-58) of s**3.
R = {
    "float": (0.6666666269302368, 0.40000972151756287, 0.2849879264831543, 0.24278752505779266),
    "double": (
        0.6666666666666735,
        0.3999999999940935,
        0.28571428743686716,
        0.2222219842893537,
        0.18183572357926345,
        0.153138320713971,
        0.1479825987117637,
    ),
}
# log10(2), its first part with 15 (41) bits: a whole number below 2**8 (2**11) times it is exact.
LOG10_2 = {
    "float": (0.301025390625, 4.605039066518657e-06),
    "double": (0.3010299956640665, -8.532344317057107e-14),
}
# 1 / ln 2 and 1 / ln 10, the first part with 12 (24) bits.
LOG2_E = {
    "float": (1.44287109375, -0.00017605285393074155),
    "double": (1.4426950216293335, 1.9259629911266175e-08),
}
LOG10_E = {
    "float": (0.434326171875, -3.168997136526741e-05),
    "double": (0.4342944920063019, -1.0103050052231683e-08),
}
# The low half of the fraction, to be cleared for exact products.
LOW_HALF = {"float": (1 << 12) - 1, "double": (1 << 32) - 1}
# The bits of the root of 1/2, and the least normal number.
ROOT_HALF = {"float": 0x3F3504F3, "double": 0x3FE6A09E667F3BCD}
TINY = {"float": 2.0**-126, "double": 2.0**-1022}


def _halved(x: Real) -> tuple[Integer, Real]:
    """Give k and ``x / 2**k`` between the roots of 1/2 and of 2, for a normal positive x."""
    name = str(x.type)
    bits = x.bits()
    # Counted from the root of 1/2, the exponent's field changes where the interval ends.
    k = (bits - ROOT_HALF[name]) >> FRACTION[name]
    return k, (bits - (k << FRACTION[name])).as_real()


def normalised(x: Real) -> tuple[Real, Real]:
    """Give k and f of ``x = 2**k * (1 + f)``, for any positive finite x."""
    name = str(x.type)
    denormal = x < TINY[name]
    lift = FRACTION[name] + 2
    k, rest = _halved(select(denormal, x * 2.0**lift, x))
    return k.to_real(x.type) - select(denormal, constant(x, lift), 0.0), rest - 1.0


def _series(f: Real) -> tuple[Real, Real]:
    """Give a and b of ``log(1 + f) = f - (a - b)``; a is ``f*f/2``."""
    s = f / (f + 2.0)
    z = s * s
    square = 0.5 * f * f
    return square, s * z.times_plus(polynomial(z, R[str(f.type)]), square)


def joined(k: Real, f: Real) -> Real:
    """Give ``k * ln 2 + log(1 + f)``."""
    first, second = LN2[str(f.type)]
    a, b = _series(f)
    return k * first - ((a - k.times_plus(second, b)) - f)


def _in_base(x: Real, base: dict[str, tuple[float, float]], two: tuple[float, float]) -> Real:
    """Give the logarithm whose unit is ``base`` of natural ones, and ``two`` the logarithm of 2."""
    name = str(x.type)
    k, f = normalised(x)
    a, b = _series(f)
    high = ((f - a).bits() & ~LOW_HALF[name]).as_real()
    low = ((f - high) - a) + b
    product = high * base[name][0]
    rest = low.times_plus(base[name][0], (low + high) * base[name][1])
    if two[1]:
        rest = k.times_plus(two[1], rest)
    whole = k * two[0]
    total = whole + product
    return positive_only(x, total + (rest + ((whole - total) + product)))


def positive_only(x: Real, result: Real) -> Real:
    """Put -inf where x is zero, NaN where it is negative, and x where it is infinite or NaN."""
    infinity = float("inf")
    special = select(x.equals(0.0), -infinity, select(x < 0.0, float("nan"), x + x))
    return select((x > 0.0) & (x < infinity), result, special)


def log(x: Real) -> Real:
    """Write the natural logarithm: at most 1 ulp in both widths."""
    return positive_only(x, joined(*normalised(x)))


def log2(x: Real) -> Real:
    """Write the logarithm to base 2: at most 1 ulp in both widths."""
    return _in_base(x, LOG2_E, (1.0, 0.0))


def log10(x: Real) -> Real:
    """Write the logarithm to base 10: at most 1 ulp in both widths."""
    return _in_base(x, LOG10_E, LOG10_2[str(x.type)])


def _log1p_within(x: Real) -> Real:
    # What 1 + x rounds away is small beside f, and is added to it.
    total = x + 1.0
    back = total - 1.0
    lost = (1.0 - (total - back)) + (x - back)
    k, rest = _halved(total)
    # In halves, so that 2**-k stays in the range of normal numbers or becomes zero.
    f = (0.5 * lost).times_plus(power_of_two(-k + 1), rest - 1.0)
    return joined(k.to_real(x.type), f)


def log1p(x: Real) -> Real:
    """Write log(1 + x): at most 2 ulp in both widths."""
    return positive_only(x + 1.0, _log1p_within(x)).signed_like(x)


def softplus(x: Real) -> Real:
    """Write log(1 + exp(x)): at most 2 ulp in both widths.

    It is max(x, 0) + log1p(exp(-|x|)), in which nothing overflows.
    """
    e = scaled_exp((-x.absolute()).within(RANGE[str(x.type)][0], 0.0))
    return maximum(x, 0.0) + _log1p_within(e)
