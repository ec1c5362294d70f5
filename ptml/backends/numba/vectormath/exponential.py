"""exp and what is made of it: exp2, expm1, tanh, sigmoid.

``exp(x) = 2**n * exp(r)`` with n the whole number nearest ``x / ln 2``, so that ``|r| <= ln(2) / 2``; ln 2 is
subtracted in two parts, the first short enough for ``n`` times it to be exact (W. J. Cody and W. Waite,
Software Manual for the Elementary Functions, 1980, chapter 6). On that interval ``exp(r) = 1 + r + r*r*Q(r)``
with Q the polynomial of least greatest error, by Remez' exchange, its coefficients then rounded.
"""

from __future__ import annotations

import math

from llvmlite import ir

from ptml.backends.numba.vectormath.lane import Integer, Real, polynomial, power_of_two, select

__all__ = ["exp", "exp2", "exp2_of_wide", "exp_below_zero", "expm1", "scaled_exp", "sigmoid", "tanh"]

# ln 2, its first part with 15 (41) bits: a whole number below 2**8 (2**11) times it is exact.
LN2 = {
    "float": (0.693145751953125, 1.428606765330187e-06),
    "double": (0.6931471805601177, -1.7239444525614835e-13),
}
# Q, to 2**-29 (2**-57) of exp.
Q = {
    "float": (
        0.5,
        0.1666666716337204,
        0.04166635125875473,
        0.00833327230066061,
        0.0013941169017925858,
        0.00019914386211894453,
    ),
    "double": (
        0.5000000000000006,
        0.16666666666666685,
        0.041666666666572684,
        0.008333333333314373,
        0.0013888888932752704,
        0.00019841269903599678,
        2.4801503938946513e-05,
        2.7557227373793657e-06,
        2.762654628027959e-07,
        2.5114676028517782e-08,
    ),
}
# (2**r - 1) / r for |r| <= 1/2; in float32 the best of the roundings nearby.
P2 = {
    "float": (
        0.6931471824645996,
        0.24022646248340607,
        0.055503588169813156,
        0.009618675336241722,
        0.001339143724180758,
        0.0001528298744233325,
    ),
    "double": (
        0.6931471805599453,
        0.24022650695910133,
        0.05550410866482174,
        0.009618129107592834,
        0.001333355814637839,
        0.00015403530458785823,
        1.5252733868182404e-05,
        1.3215434432558172e-06,
        1.0178046190521005e-07,
        7.073931007930697e-09,
        4.457428258149661e-10,
    ),
}
# Where exp is 0 and where it is infinite, after rounding; the same for exp2.
RANGE = {"float": (-105.0, 89.0), "double": (-747.0, 710.0)}
RANGE2 = {"float": (-151.0, 129.0), "double": (-1076.0, 1025.0)}
# (tanh(x)/x - 1) / x**2 in x*x for |x| < 0.55, where tanh(x) is 1/2, to 2**-29.
TANH = (
    -0.33333316445350647,
    0.13332544267177582,
    -0.0538475476205349,
    0.021050717681646347,
    -0.00624285452067852,
)
HALF_AT = 0.55
# Where exp is the least normal number, nearly.
NORMAL = {"float": -87.0, "double": -708.0}
# From where on expm1(x) rounds to -1, and tanh(x) to 1.
MINUS_ONE = {"float": -18.0, "double": -38.0}
ONE = {"float": 9.5, "double": 19.5}


def reduced(x: Real, low: Real | None = None) -> tuple[Real, Integer]:
    """Give r and n of ``x + low``; x within `RANGE`, low much smaller."""
    first, second = LN2[str(x.type)]
    whole, n = (x * (1 / math.log(2))).rounded()
    r = whole.times_plus(-second, whole.times_plus(-first, x))
    return (r if low is None else r + low), n


def scaled(y: Real, n: Integer) -> Real:
    """Give ``y * 2**n`` with one rounding, also where it is denormal or infinite: in two steps."""
    half = n >> 1
    return y * power_of_two(half) * power_of_two(n - half)


def scaled_exp(x: Real, low: Real | None = None, factor: Real | float = 1.0) -> Real:
    """Give ``factor * exp(x + low)`` for x within `RANGE` and a much smaller low.

    The factor is worked in before ``exp(r)`` is rounded.
    """
    r, n = reduced(x, low)
    beyond = (r * r).times_plus(polynomial(r, Q[str(x.type)]), r)
    return scaled(beyond.times_plus(factor, factor), n)


def exp2_of_wide(exponent: Real, kind: ir.Type, factor: Real | None = None) -> Real:
    """Give ``factor * 2**exponent`` in float32, for an exponent and a factor in float64.

    2 to the small rest of the exponent, of which 1 is most, is what float32 is used for.
    """
    exponent = exponent.within(*RANGE2["float"])
    whole, n = exponent.cast(kind).rounded()
    r = (exponent - whole.cast(exponent.type)).cast(kind)
    p = polynomial(r, P2["float"])
    if factor is None:
        return scaled(r.times_plus(p, 1.0), n)
    return scaled((r * p).cast(factor.type).times_plus(factor, factor).cast(kind), n)


def _expm1_within(x: Real) -> Real:
    # 2^n times expm1(r), plus 2^n - 1; halved and doubled, so that 2^n does not overflow before the result.
    # The larger of expm1's two terms meets 2^n - 1 first: where they cancel nothing is rounded yet.
    r, n = reduced(x)
    half = power_of_two(n - 1)
    bent = r * r * polynomial(r, Q[str(x.type)])
    return 2.0 * half.times_plus(bent, half.times_plus(r, half - 0.5))


def _corrected(quotient: Real, numerator: Real, divisor: Real, lost: Real, inverse: Real) -> Real:
    """Add to a quotient what the rounding of the division and of the divisor took from it.

    The divisor is off by ``lost``; ``inverse`` may be rough. Where the processor cannot multiply and add with
    one rounding, only the divisor's part is made good.
    """
    remainder = (-quotient).times_plus(divisor, numerator) - quotient * lost
    return remainder.times_plus(inverse, quotient)


def exp(x: Real) -> Real:
    """Write exp: at most 2 ulp in both widths."""
    return scaled_exp(x.within(*RANGE[str(x.type)]))


def exp_below_zero(x: Real) -> Real:
    """Write exp for numbers that are not above 0: at most 2 ulp, and 0 where exp is no normal number.

    That leaves out what only large and denormal results need, a quarter of the work.
    """
    least = NORMAL[str(x.type)]
    r, n = reduced(select(x < least, least, x))
    beyond = (r * r).times_plus(polynomial(r, Q[str(x.type)]), r)
    return select(x < least, 0.0, (beyond + 1.0) * power_of_two(n))


def exp2(x: Real) -> Real:
    """Write 2**x: at most 2 ulp in both widths."""
    x = x.within(*RANGE2[str(x.type)])
    whole, n = x.rounded()
    r = x - whole
    return scaled(r.times_plus(polynomial(r, P2[str(x.type)]), 1.0), n)


def expm1(x: Real) -> Real:
    """Write exp(x) - 1: at most 2 ulp in both widths."""
    name = str(x.type)
    return _expm1_within(x.within(MINUS_ONE[name], RANGE[name][1])).signed_like(x)


def tanh(x: Real) -> Real:
    """Write tanh: at most 2 ulp in float32, 3 ulp in float64.

    In float32 it is a polynomial up to where it is 1/2, and then 1 - 2 / (exp(2|x|) + 1), which does not
    cancel. In float64 a polynomial would be long: with e = expm1(2|x|) it is e / (e + 2), and where that is
    over 1/2, 1 - 2 / (e + 2).
    """
    size = x.absolute()
    size = select(size > ONE[str(x.type)], ONE[str(x.type)], size)
    if isinstance(x.type, ir.FloatType):
        square = size * size
        near = (size * square).times_plus(polynomial(square, TANH), size)
        # What rounding the exponent costs is small where it is, and where exp is large.
        exponent = size * (2 / math.log(2))
        whole, n = exponent.rounded()
        e = (exponent - whole).times_plus(polynomial(exponent - whole, P2["float"]), 1.0)
        far = 1.0 - 2.0 / e.times_plus(power_of_two(n), 1.0)
        return select(size < HALF_AT, near, far).signed_like(x)
    e = _expm1_within(size + size)
    large = e > 2.0
    numerator = select(large, 2.0, e)
    divisor = e + 2.0
    back = divisor - e
    lost = (e - (divisor - back)) + (2.0 - back)
    ratio = numerator / divisor
    inverse = 0.5 * select(large, ratio, 1.0 - ratio)
    ratio = _corrected(ratio, numerator, divisor, lost, inverse)
    return select(large, 1.0 - ratio, ratio).signed_like(x)


def sigmoid(x: Real) -> Real:
    """Write 1 / (1 + exp(-x)): at most 2 ulp in both widths.

    Only exp(-|x|) is computed, which cannot overflow: it is the numerator where x is negative.
    """
    e = scaled_exp((-x.absolute()).within(RANGE[str(x.type)][0], 0.0))
    negative = x < 0.0
    numerator = select(negative, e, 1.0)
    divisor = e + 1.0
    ratio = numerator / divisor
    inverse = select(negative, 1.0 - ratio, ratio)
    return _corrected(ratio, numerator, divisor, e - (divisor - 1.0), inverse)
