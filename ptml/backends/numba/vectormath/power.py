"""pow, and the root and its inverse.

``x**y = exp(y * log(x))``. In float64 the logarithm is needed to more bits than a number has: it is carried
as the sum of two (T. J. Dekker, Numerische Mathematik 18, 1971). For float32 a float64 has bits to spare.
"""

from __future__ import annotations

from llvmlite import ir

from ptml.backends.numba.vectormath.exponential import LN2, RANGE, exp2_of_wide, scaled_exp
from ptml.backends.numba.vectormath.lane import Real, constant, polynomial, select
from ptml.backends.numba.vectormath.logarithm import normalised

__all__ = ["power", "reciprocal_root", "root"]

# 2/3 in two parts, and the series of 2 artanh(s) after s**3, to 2**-72.
TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)
R5 = (
    0.3999999999999998,
    0.2857142857144387,
    0.22222222217778612,
    0.1818181884573343,
    0.1538455829090397,
    0.13336270353146604,
    0.11675652864356642,
    0.11982879342592355,
)
# log2(1 + f) / f between the roots of 1/2 and of 2, to 2**-35.
LOG2 = (
    1.4426950408687058,
    -0.7213475208688338,
    0.48089836139566927,
    -0.3606736748172738,
    0.2885372934221103,
    -0.24045316596584798,
    0.20617536172331196,
    -0.1803005977645144,
    0.1587697657142265,
    -0.14315644284583057,
    0.14474863011684502,
    -0.14283961043567295,
    0.07737043243959747,
)
INFINITY = float("inf")
# An exponent beyond this one gives 0, 1 or infinity as well.
LARGEST = 2.0**70


def _product(a: Real, b: Real) -> tuple[Real, Real]:
    """Give a product and what its rounding lost."""
    high = a * b
    return high, a.times_plus_exactly(b, -high)


def _sum(a: Real, b: Real) -> tuple[Real, Real]:
    """Give a sum and what its rounding lost, for a no smaller than b."""
    high = a + b
    return high, b - (high - a)


def _log_in_two_parts(x: Real) -> tuple[Real, Real]:
    """Give log(x) to about 2**-67 of its size, for positive finite x."""
    k, f = normalised(x)
    # s = f / (2 + f), with the remainder of the division.
    divisor, rest = _sum(constant(f, 2.0), f)
    s = f / divisor
    s_low = ((-s).times_plus_exactly(divisor, f) - s * rest) / divisor
    z, z_low = _product(s, s)
    z_low = z_low + 2.0 * s * s_low
    # The series after 2s, divided by s: z * (2/3 + z * R5(z)).
    u, u_low = _sum(constant(z, TWO_THIRDS[0]), z * polynomial(z, R5))
    u_low = u_low + TWO_THIRDS[1]
    v, v_low = _product(z, u)
    v_low = v_low + (z * u_low + z_low * u)
    w, w_low = _product(s, v)
    w_low = w_low + (s * v_low + s_low * v)
    high, low = _sum(2.0 * s, w)
    low = low + (w_low + 2.0 * s_low)
    first, second = LN2[str(x.type)]
    whole = k * first
    total, lost = _sum(whole, high)
    return _sum(total, lost + k.times_plus(second, low))


def _magnitude(size: Real, y: Real) -> Real:
    """Give ``size**y`` in float64 for positive finite size."""
    y = y.within(-LARGEST, LARGEST)
    high, low = _log_in_two_parts(size)
    product, lost = _product(y, high)
    low = y.times_plus(low, lost)
    bottom, top = RANGE["double"]
    inside = (product > bottom) & (product < top)
    return scaled_exp(product.within(bottom, top), select(inside, low, 0.0))


def _short_magnitude(size: Real, y: Real) -> Real:
    """Give ``size**y`` in float32 for positive finite size, by way of ``2**(y * log2(size))``.

    The exponent is computed in float64; when it is whole but for a small rest, float32 goes on with that.
    """
    double = ir.DoubleType()
    k, f = normalised(size)
    f = f.cast(double)
    exponent = y.within(-LARGEST, LARGEST).cast(double) * f.times_plus(polynomial(f, LOG2), k.cast(double))
    return exp2_of_wide(exponent, y.type)


def power(x: Real, y: Real) -> Real:
    """Write x**y: at most 2 ulp in both widths.

    Special values are those of C's pow: ``x**0`` and ``1**y`` are 1 even for NaN, and a negative number to a
    power that is no whole number is NaN.
    """
    size = x.absolute()
    ordinary = (size > 0.0) & (size < INFINITY)
    safe = select(ordinary, size, 1.0)
    result = _magnitude(safe, y) if isinstance(x.type, ir.DoubleType) else _short_magnitude(safe, y)
    result = select(ordinary, result, select(size.equals(0.0) ^ (y > 0.0), constant(x, INFINITY), 0.0))
    whole = y.equals(y.call("llvm.rint"))
    odd = whole & ~(y * 0.5).equals((y * 0.5).call("llvm.rint"))
    negative = x.bits() < 0
    result = select(negative & odd, -result, result)
    result = select((x < 0.0) & ordinary & ~whole, float("nan"), result)
    result = select(x.unordered(y), x + y, result)
    return select(x.equals(1.0) | y.equals(0.0), 1.0, result)


def root(x: Real) -> Real:
    """Write the square root: right to the last bit."""
    return x.call("llvm.sqrt")


def reciprocal_root(x: Real) -> Real:
    """Write 1 / sqrt(x): at most 2 ulp in both widths."""
    return 1.0 / root(x)
