"""erf and erfc.

Near zero, ``erf(x) = x + x*P(x*x)``. Further out ``erf(a) = 1 - exp(G(a))``, G a polynomial close to
``log(erfc(a))``, which may be rough: ``erfc(a)`` is at most 0.16 there.

erfc itself has to be right relative to its own size down to the least denormal: ``erfc(a) = exp(-a*a) *
H(q) / (1 + 2a)`` with ``q = (a - 4) / (a + 4)``, which brings the half line onto a short interval (M. M.
Shepherd and J. G. Laframboise, Mathematics of Computation 36, 1981). For float32, ``H(q) / (1 + 2a)`` is one
polynomial of such a quotient.

P, G and H are polynomials of least greatest error, by Remez' exchange, their coefficients then rounded.
"""

from __future__ import annotations

from llvmlite import ir

from ptml.backends.numba.vectormath.exponential import exp2_of_wide, scaled_exp
from ptml.backends.numba.vectormath.lane import Real, polynomial, select

__all__ = ["erf", "erfc"]

P = {
    "float": (
        0.12837916612625122,
        -0.3761262595653534,
        0.11283578723669052,
        -0.026853347197175026,
        0.005187162198126316,
        -0.0007997853099368513,
        7.806903886375949e-05,
    ),
    "double": (
        0.1283791670955126,
        -0.376126389031841,
        0.11283791670971098,
        -0.026866170648031408,
        0.005223977652696559,
        -0.0008548328536107396,
        0.00012055386207403134,
        -1.4926881865203168e-05,
        1.6481066306282541e-06,
        -1.6557218847083683e-07,
        1.6013898367123076e-08,
        -1.646759809306599e-09,
        1.4348832037921209e-10,
    ),
}
G = {
    "float": (
        0.00020206323824822903,
        -1.12964928150177,
        -0.6330659985542297,
        -0.10860602557659149,
        0.02534828893840313,
        -0.004270212724804878,
        0.000460190640296787,
        -2.4718023269088008e-05,
        2.0877028816812526e-07,
    ),
    "double": (
        2.6850027541578398e-08,
        -1.1283795095198685,
        -0.6366177072154515,
        -0.10278043983627391,
        0.019149445375103474,
        0.0001669331560831898,
        -0.0016298830063103192,
        0.0005069957726414291,
        5.860771258067489e-05,
        -0.00013468845076957002,
        7.746888883086036e-05,
        -2.978780382860516e-05,
        8.726673405129206e-06,
        -2.024216412622334e-06,
        3.7499680113920393e-07,
        -5.5095572748079635e-08,
        6.2939797314987186e-09,
        -5.396798731523718e-10,
        3.2690917547476835e-11,
        -1.2471689411084458e-12,
        2.2526995070012126e-14,
    ),
}
# From where on erf(x) rounds to 1: G is good as far as there.
ONE = {"float": 4.0, "double": 6.0}
H = (
    1.2329951186255526,
    -0.1396211168405629,
    0.015379652102619764,
    0.0680970542547366,
    -0.10103906603630115,
    0.09373283499682393,
    -0.06633036581256388,
    0.037167515561851494,
    -0.016197734048423906,
    0.00503196976357523,
    -0.000757773404867246,
    -0.0001992555612862169,
    0.00015062247159340422,
    -2.4402941447979844e-05,
    -1.1225283079881247e-05,
    5.717295133651862e-06,
    3.019564279365364e-07,
    -8.342402481747046e-07,
    6.238911848459415e-08,
    1.1456117679074547e-07,
    -7.77893458887198e-09,
    -1.3386211326876333e-08,
    -1.7176003303996018e-09,
)
# exp(a*a) * erfc(a) in (a - MIDDLE) / (a + MIDDLE), for a from 0.6 to 10.3, to 2**-31.
MIDDLE = 2.5
F_SHORT = (
    0.21080636398182903,
    -0.3717367333437638,
    0.25171320499049926,
    -0.12503309646824823,
    0.03992226219134865,
    -0.003992905114634716,
    -0.002640049634497772,
    0.0008703612132838624,
    0.00021997654534360936,
    -0.00011226870230168746,
    -2.09697027765008e-05,
)
LOG2_E = 1.4426950408889634
# From here on erfc(x) rounds to 0.
ZERO = {"float": 10.3, "double": 27.25}


def erf(x: Real) -> Real:
    """Write the error function: at most 2 ulp in both widths."""
    name = str(x.type)
    size = x.absolute()
    near = x.times_plus(polynomial(x * x, P[name]), x)
    far = select(size > ONE[name], ONE[name], size)
    far = 1.0 - scaled_exp(polynomial(far, G[name]))
    return select(size < 1.0, near, far).signed_like(x)


def _short_tail(size: Real) -> Real:
    """Give erfc in float32, of a size from 0.6 on."""
    wide = size.cast(ir.DoubleType())
    above, below = wide - MIDDLE, wide + MIDDLE
    # The quotient in float32, and what it lacks: 1 / below is (1 - q) / (2 * MIDDLE).
    narrow = (size - MIDDLE) / (size + MIDDLE)
    q = narrow.cast(wide.type)
    q = (above - q * below).times_plus((1.0 - q) * (0.5 / MIDDLE), q)
    return exp2_of_wide(wide * wide * -LOG2_E, size.type, polynomial(q, F_SHORT))


def _tail(size: Real) -> Real:
    """Give erfc in float64, of a size that is not near zero."""
    # The square in two parts: that of the upper half of the bits is exact.
    high = (size.bits() & -(1 << 27)).as_real()
    low = (size - high) * (size + high)
    q = (size - 4.0) / (size + 4.0)
    divisor = size.times_plus(2.0, 1.0)
    lost = 1.0 - (divisor - 2.0 * size)
    ratio = polynomial(q, H) / divisor
    ratio = ratio - ratio * (lost / divisor)
    return scaled_exp(-(high * high), -low, ratio)


def erfc(x: Real) -> Real:
    """Write 1 - erf(x): at most 2 ulp in float32, 4 ulp in float64.

    Near zero it is that difference.
    """
    name = str(x.type)
    size = x.absolute()
    size = select(size > ZERO[name], ZERO[name], size)
    tail = _short_tail(size) if isinstance(x.type, ir.FloatType) else _tail(size)
    far = select(x < 0.0, 2.0 - tail, tail)
    near = 1.0 - x.times_plus(polynomial(x * x, P[name]), x)
    return select(size < 0.65, near, far)
