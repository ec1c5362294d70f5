"""sin and cos.

The angle is reduced to ``|r| <= pi/4`` by subtracting a multiple of pi/2 in four parts, of which the
products with the first three are exact for multiples below 2**20 (W. J. Cody and W. Waite, Software Manual
for the Elementary Functions, 1980, chapter 8). For float32 the reduction, and no more, is done in float64,
with two parts.

Angles beyond 2**20 need a number pi/2 of a thousand bits, and hardly ever occur: they take the C library's
function, one by one. So that this does not keep LLVM from vectorizing the loop, the call of the function
that chooses names vector forms of it (LLVM's "vector-function-abi-variant"). These look whether any element
of a vector is large, and only then go through the elements. Where LLVM knows no such form the loop runs
scalar, and as right.
"""

from __future__ import annotations

from llvmlite import ir

from ptml.backends.numba.vectormath.lane import Integer, Real, constant, polynomial, select

__all__ = ["cos", "sin"]

# pi/2: three parts of 33 bits and the rest; and one of 33 bits and the rest.
HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32)
HALF_PI_SHORT = (1.5707963267341256, 6.077100506506192e-11)
TWO_OVER_PI = 0.6366197723675814
# (sin(r)/r - 1) / r**2 and (cos(r) - 1 + r**2/2) / r**4 in r*r, to 2**-58. For float32, to 2**-27 and
# somewhat beyond pi/4, as the multiple there is not always the nearest one.
SIN = (
    -0.16666666666666632,
    0.008333333333322455,
    -0.0001984126982981342,
    2.755731368757639e-06,
    -2.505075671508768e-08,
    1.589668190450543e-10,
)
COS = (
    0.041666666666666595,
    -0.0013888888888873307,
    2.480158728896523e-05,
    -2.7557314203079646e-07,
    2.087570313962107e-09,
    -1.1358617010027505e-11,
)
SIN_SHORT = (-0.16666652262210846, 0.00833200290799141, -0.00019493285799399018)
COS_SHORT = (0.04166664183139801, -0.0013887115055695176, 2.4409318939433433e-05)
# Beyond this size an angle is large.
LARGE = 2.0**20
WIDTHS = (2, 4, 8, 16, 32)


class _CallAttributes(ir.instructions.CallInstrAttributes):
    """A call's attributes with one that llvmlite has no name for."""

    def __init__(self, text: str) -> None:
        super().__init__(("nounwind", "readnone"))
        self._text = text

    def _to_list(self, kind: ir.Type) -> list[str]:
        return [*super()._to_list(kind), self._text]


def _library(module: ir.Module, name: str) -> ir.Function:
    """Declare the C library's function."""
    if name in module.globals:
        return module.globals[name]
    double = ir.DoubleType()
    declared = ir.Function(module, ir.FunctionType(double, [double]), name)
    for attribute in ("nounwind", "readnone"):
        declared.attributes.add(attribute)
    return declared


def _vector_form(module: ir.Module, name: str, chooser: ir.Function, width: int) -> ir.Function:
    """Write the form of the chooser that takes ``width`` elements."""
    element, index = chooser.args[0].type, ir.IntType(32)
    kind = ir.VectorType(element, width)
    written = ir.Function(module, ir.FunctionType(kind, [kind, kind]), name)
    written.linkage = "linkonce_odr"
    for attribute in ("alwaysinline", "nounwind", "readnone"):
        written.attributes.add(attribute)
    entry = written.append_basic_block("entry")
    each = written.append_basic_block("each")
    done = written.append_basic_block("done")
    builder = ir.IRBuilder(entry)
    x, usual = written.args
    limits = [ir.Constant(element, limit) for limit in (LARGE, -LARGE)]
    above, below = (ir.Constant(kind, [limit] * width) for limit in limits)
    large = builder.or_(builder.fcmp_ordered(">=", x, above), builder.fcmp_ordered("<=", x, below))
    as_one = builder.bitcast(large, ir.IntType(width))
    builder.cbranch(builder.icmp_unsigned("!=", as_one, ir.Constant(ir.IntType(width), 0)), each, done)
    builder.position_at_end(each)
    i = builder.phi(index)
    before = builder.phi(kind)
    chosen = builder.call(chooser, [builder.extract_element(x, i), builder.extract_element(before, i)])
    after = builder.insert_element(before, chosen, i)
    following = builder.add(i, ir.Constant(index, 1))
    builder.cbranch(builder.icmp_signed("<", following, ir.Constant(index, width)), each, done)
    i.add_incoming(ir.Constant(index, 0), entry)
    i.add_incoming(following, each)
    before.add_incoming(usual, entry)
    before.add_incoming(after, each)
    builder.position_at_end(done)
    result = builder.phi(kind)
    result.add_incoming(usual, entry)
    result.add_incoming(after, each)
    builder.ret(result)
    return written


def _chooser(module: ir.Module, name: str, kind: ir.Type) -> ir.Function:
    """Write the function of x and of its usual result that gives the C library's where x is large."""
    full = f"ptml.{name}.large.{kind}"
    if full in module.globals:
        return module.globals[full]
    written = ir.Function(module, ir.FunctionType(kind, [kind, kind]), full)
    written.linkage = "internal"
    for attribute in ("noinline", "nounwind", "readnone"):
        written.attributes.add(attribute)
    builder = ir.IRBuilder(written.append_basic_block("entry"))
    large = written.append_basic_block("large")
    usual = written.append_basic_block("usual")
    x = Real(builder, written.args[0])
    builder.cbranch((x.absolute() >= LARGE).value, large, usual)
    builder.position_at_end(large)
    found = builder.call(_library(module, name), [x.cast(ir.DoubleType()).value])
    builder.ret(Real(builder, found).cast(kind).value)
    builder.position_at_end(usual)
    builder.ret(written.args[1])
    _keep(module, [_vector_form(module, f"{full}.{width}", written, width) for width in WIDTHS])
    return written


def _choose(name: str, x: Real, usual: Real) -> Real:
    """Give the C library's result where x is large. The call, not the function, names the vector forms: the
    forms call the function too, and must not be turned into themselves."""
    chooser = _chooser(x.builder.module, name, x.type)
    call = x.builder.call(chooser, [x.value, usual.value])
    forms = ",".join(f"_ZGV_LLVM_N{width}vv_{chooser.name}({chooser.name}.{width})" for width in WIDTHS)
    call.attributes = _CallAttributes(f'"vector-function-abi-variant"="{forms}"')
    return Real(x.builder, call)


def _keep(module: ir.Module, functions: list[ir.Function]) -> None:
    """Tell LLVM that functions are used, though only an attribute names them."""
    name = "llvm.compiler.used"
    pointer = ir.PointerType()
    kept = [function.bitcast(pointer) for function in functions]
    used = module.globals.get(name)
    if used is None:
        used = ir.GlobalVariable(module, ir.ArrayType(pointer, 0), name)
        used.linkage = "appending"
        used.section = "llvm.metadata"
    else:
        kept = [*used.initializer.constant, *kept]
    used.value_type = ir.ArrayType(pointer, len(kept))
    used.initializer = ir.Constant(used.value_type, kept)


def _reduced(x: Real) -> tuple[Real, Real, Integer]:
    """Give r, what its rounding lost, and the multiple of pi/2."""
    whole, n = (x * TWO_OVER_PI).rounded()
    first, second, third, fourth = HALF_PI
    r = x - whole * first
    lost = whole * -fourth
    for part in (second, third):
        term = whole * -part
        total = r + term
        back = total - r
        lost = lost + ((r - (total - back)) + (term - back))
        r = total
    total = r + lost
    return total, (r - total) + lost, n


def _sine_and_cosine(x: Real) -> tuple[Real, Real, Integer]:
    """Give the sine and the cosine of r, and the multiple of pi/2."""
    if isinstance(x.type, ir.FloatType):
        # Which multiple is near need not be exact; how far it is away has to be.
        whole, n = (x * TWO_OVER_PI).rounded()
        wide, multiple = x.cast(ir.DoubleType()), whole.cast(ir.DoubleType())
        r = multiple.times_plus(-HALF_PI_SHORT[1], multiple.times_plus(-HALF_PI_SHORT[0], wide)).cast(x.type)
        z = r * r
        sine = (r * z).times_plus(polynomial(z, SIN_SHORT), r)
        cosine = (z * z).times_plus(polynomial(z, COS_SHORT), z.times_plus(-0.5, 1.0))
        return sine, cosine, n
    r, low, n = _reduced(x)
    z = r * r
    half = 0.5 * z
    sine = r + (r * z).times_plus(polynomial(z, SIN), low - half * low)
    top = 1.0 - half
    cosine = top + (((1.0 - top) - half) + (z * z).times_plus(polynomial(z, COS), -(r * low)))
    return sine, cosine, n


def _write(name: str, x: Real, quarter: int) -> Real:
    """Write sin of x plus so many quarter turns."""
    near = select(x.absolute() >= LARGE, 0.0, x)
    sine, cosine, n = _sine_and_cosine(near)
    n = n + quarter
    swapped = (n & 1).equals(1)
    chosen = select(swapped, cosine, sine)
    # The second bit of the quarter is the sign.
    sign = 30 if isinstance(x.type, ir.FloatType) else 62
    result = _choose(name, x, (chosen.bits() ^ ((n & 2) << sign)).as_real())
    if quarter == 0:
        # Rounding -0 to a multiple loses its sign.
        result = select(x.equals(0.0), x, result)
    return select(x.absolute().equals(float("inf")), constant(x, float("nan")), result)


def sin(x: Real) -> Real:
    """Write sin: at most 2 ulp in float32, 1 ulp in float64."""
    return _write("sin", x, 0)


def cos(x: Real) -> Real:
    """Write cos: at most 2 ulp in float32, 1 ulp in float64."""
    return _write("cos", x, 1)
