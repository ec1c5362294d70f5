"""The vector mathematics against wider arithmetic: float32 in float64, float64 in 80 bits."""

import ctypes
import re

import numpy as np
import pytest
from llvmlite import ir
from scipy import special

from ptml.backends.numba import native
from ptml.backends.numba.vectormath import ARITY, BOUNDS, SUPPORTED, emit

KINDS = {"float32": ir.FloatType(), "float64": ir.DoubleType()}
WIDER = {"float32": np.float64, "float64": np.longdouble}
INFINITY, NAN = np.inf, np.nan
FLAGS = ("nsz", "arcp", "contract", "reassoc")

no_extended = np.finfo(np.longdouble).nmant < 63
needs_extended = pytest.mark.skipif(no_extended, reason="no floating point here is wider than float64")
both = pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=needs_extended)])


def loop(name: str, dtype: str, flags: tuple[str, ...] = ()) -> ir.Module:
    """Write ``for i: out[i] = f(in[i])``; with flags, of ``-(0 - in[i])`` under them."""
    kind, pointer, size = KINDS[dtype], ir.PointerType(), ir.IntType(64)
    module = ir.Module()
    arity = ARITY[name]
    written = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer] * (arity + 1) + [size]), "loop")
    *arrays, count = written.args
    for array in arrays:
        array.add_attribute("noalias")
    entry, body, done = (written.append_basic_block(block) for block in ("entry", "body", "done"))
    builder = ir.IRBuilder(entry)
    builder.cbranch(builder.icmp_signed(">", count, size(0)), body, done)
    builder.position_at_end(body)
    i = builder.phi(size)
    values = [builder.load(builder.gep(array, [i], source_etype=kind), typ=kind) for array in arrays[:arity]]
    if flags:
        values = [builder.fsub(ir.Constant(kind, 0.0), value, flags=flags) for value in values]
        values = [builder.fneg(value, flags=flags) for value in values]
    result = emit(name, builder, *values)
    if flags:
        result = builder.fadd(result, ir.Constant(kind, 0.0), flags=flags)
    builder.store(result, builder.gep(arrays[arity], [i], source_etype=kind))
    following = builder.add(i, size(1))
    builder.cbranch(builder.icmp_signed("<", following, count), body, done)
    i.add_incoming(size(0), entry)
    i.add_incoming(following, body)
    builder.position_at_end(done)
    builder.ret_void()
    return module


def compiled(name: str, dtype: str, flags: tuple[str, ...] = ()):
    """Give the function over arrays."""
    code = native.compile_module(loop(name, dtype, flags))
    arguments = [ctypes.c_void_p] * (ARITY[name] + 1) + [ctypes.c_int64]
    call = ctypes.CFUNCTYPE(None, *arguments)(code.address("loop"))

    def run(*arrays):
        arrays = [np.ascontiguousarray(array, dtype) for array in arrays]
        out = np.empty_like(arrays[0])
        call(*(array.ctypes.data for array in arrays), out.ctypes.data, out.size)
        return out

    run.code = code
    return run


def root_of_pi(kind):
    # pi as float64 and what that lacks.
    return np.sqrt(kind(np.pi) + kind(1.2246467991473532e-16))


def erf(x):
    """The series of Abramowitz and Stegun 7.1.6, whose terms all have one sign."""
    if x.dtype == np.float64:
        return special.erf(x)
    size = np.minimum(np.abs(x), 7)
    term = total = size
    for n in range(1, 250):
        term = term * (2 * size * size / (2 * n + 1))
        total = total + term
    return np.copysign(2 / root_of_pi(x.dtype.type) * np.exp(-size * size) * total, x)


def erfc(x):
    """The continued fraction of Abramowitz and Stegun 7.1.14 where 1 - erf(x) cancels."""
    if x.dtype == np.float64:
        return special.erfc(x)
    size = np.clip(np.abs(x), 1.5, 40)
    fraction = np.zeros_like(size)
    for n in range(300, 0, -1):
        fraction = (n / x.dtype.type(2)) / (size + fraction)
    high = size.astype(np.float32).astype(x.dtype)
    decay = np.exp(-high * high) * np.exp(-(size - high) * (size + high))
    far = decay / (size + fraction) / root_of_pi(x.dtype.type)
    return np.where(x > 1.5, far, np.where(x < -1.5, 2 - far, 1 - erf(x)))


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


REFERENCES = {
    "erf": erf,
    "erfc": erfc,
    "pow": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": sigmoid,
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
}


def special_values(dtype):
    limits = np.finfo(dtype)
    sizes = [0.0, 0.5, 1.0, 2.0, limits.max, limits.tiny, limits.smallest_subnormal, INFINITY]
    return np.array([sign * size for size in sizes for sign in (1, -1)] + [NAN], dtype)


def numbers(dtype, seed=0):
    """All exponents with random fractions, denormals included; then the ranges where the functions bend."""
    rng = np.random.default_rng(seed)
    if dtype == "float32":
        step = 2**12
        bits = np.arange(0, 2**32, step) + rng.integers(0, step, 2**20)
        every = bits.astype(np.uint32).view(np.float32)
    else:
        every = rng.integers(0, 2**64, 60_000, np.uint64).view(np.float64)
    few = 4_000
    ranges = [rng.uniform(-size, size, few) for size in (0.01, 0.5, 1, 2, 5, 20, 110, 800)]
    ranges += [np.exp(rng.uniform(-40, 8, few)) * rng.choice([-1, 1], few)]
    ranges += [1 + rng.uniform(-0.5, 0.5, few), 1 + 1e-4 * rng.normal(size=few)]
    # Next to multiples of pi / 2, of which the largest are beyond the usual reduction.
    ranges += [np.pi / 2 * rng.integers(-2_000_000, 2_000_000, few)]
    return np.concatenate([every, *(r.astype(dtype) for r in ranges), special_values(dtype)])


def arguments(name, dtype):
    x = numbers(dtype)
    if ARITY[name] == 1:
        return (x,)
    rng = np.random.default_rng(1)
    # Besides any two numbers: results that spread over the whole range, from bases far from 1 and near it.
    bases = [np.exp(rng.uniform(-60, 60, 60_000)), 1 + 1e-3 * rng.normal(size=60_000)]
    powers = [rng.uniform(-1, 1, 60_000) * np.log(np.finfo(dtype).max) * 1.05 / np.log(b) for b in bases]
    some = special_values(dtype)
    whole = np.concatenate([some, np.arange(-4, 5), [2.5, -2.5, 2.0**53, 2.0**53 - 1, 2.0**24 - 1]])
    grid = np.meshgrid(np.concatenate([some, [-1.5, 3.25]]), whole)
    bases += [x, np.abs(x), grid[0].ravel()]
    powers += [rng.permutation(x), rng.permutation(x), grid[1].ravel()]
    # Among the random bits are signalling NaNs.
    with np.errstate(invalid="ignore"):
        return np.concatenate(bases).astype(dtype), np.concatenate(powers).astype(dtype)


def distances(got, wanted):
    """Units of the narrow type in the last place of what is wanted; infinite for a wrong special value."""
    dtype = got.dtype
    limits = np.finfo(dtype)
    with np.errstate(all="ignore"):
        rounded = wanted.astype(dtype)
    finite = np.isfinite(rounded) & np.isfinite(got)
    _, exponent = np.frexp(np.where(finite, wanted, 1))
    unit = np.ldexp(np.ones_like(wanted), np.maximum(exponent - 1, limits.minexp) - limits.nmant)
    error = np.abs(np.where(finite, got, 0).astype(wanted.dtype) - np.where(finite, wanted, 0)) / unit
    same = (rounded == got) | (np.isnan(rounded) & np.isnan(got))
    return np.where(finite, error, np.where(same, 0, INFINITY)).astype(np.float64)


def checked(name, run, *arrays):
    got = run(*arrays)
    reference = REFERENCES.get(name) or getattr(np, name)
    with np.errstate(all="ignore"):
        wanted = reference(*(array.astype(WIDER[got.dtype.name]) for array in arrays))
    error = distances(got, wanted)
    worst = int(np.argmax(error))
    bound = BOUNDS[name][got.dtype == np.float64]
    where = [float(array[worst]) for array in arrays]
    # The reference has eleven bits more, so its own error is up to a thousandth of a unit.
    assert error[worst] <= bound * (1 + 1e-3), f"{name}{where} is {got[worst]}, wanted {wanted[worst]}"
    zeros = (got == 0) & (wanted == 0)
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(wanted[zeros]))


@both
@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_every_function_keeps_its_bound_over_the_whole_range(name, dtype):
    checked(name, compiled(name, dtype), *arguments(name, dtype))


@both
@pytest.mark.parametrize("name", ["exp", "log1p", "sin", "tanh"])
def test_the_callers_fast_math_flags_do_not_spoil_a_result(name, dtype):
    x = numbers(dtype, seed=3)
    # A caller who says that the sign of zero is nothing to him has none to check.
    checked(name, compiled(name, dtype, FLAGS), x[x != 0])


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_a_loop_around_a_function_is_vectorized(name, dtype):
    text = native.optimised_ir(loop(name, dtype))
    body = text[text.index("define void @loop") :]
    vector = {"float32": "float", "float64": "double"}[dtype]
    assert re.search(rf"store <\d+ x {vector}>", body)
    if name in ("sin", "cos"):
        # Vector code asks at once whether any element is large.
        assert re.search(r"icmp (eq|ne) i\d+ %[^,]+, 0", body)
    else:
        assert not re.search(r"call \w+ @(?!llvm\.)", body)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_one_large_angle_among_small_ones_takes_the_library_alone(name, dtype):
    x = np.linspace(-3, 3, 67, dtype=dtype)
    run = compiled(name, dtype)
    alone = run(x)
    for position in (0, 5, 33, 66):
        mixed = x.copy()
        mixed[position] = 1e22
        got = run(mixed)
        wide = np.float64(mixed[position])
        assert got[position] == pytest.approx(getattr(np, name)(wide), rel=2 * float(np.finfo(dtype).eps))
        others = np.arange(67) != position
        np.testing.assert_array_equal(got[others], alone[others])


@pytest.mark.parametrize(
    ("dtype", "largest", "least"),
    [("float32", 88.7228, -103.97208), ("float64", 709.782712893384, -745.1332191019411)],
)
def test_exp_turns_infinite_and_zero_where_it_should(dtype, largest, least):
    edge = np.array([largest, least], dtype)
    inside, outside = compiled("exp", dtype)(edge), compiled("exp", dtype)(edge * edge.dtype.type(1.00001))
    assert np.isfinite(inside[0])
    assert inside[1] == np.finfo(dtype).smallest_subnormal
    np.testing.assert_array_equal(outside, [INFINITY, 0])


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(
    ("base", "exponent", "wanted"),
    [
        (NAN, 0.0, 1.0),
        (1.0, NAN, 1.0),
        (-1.0, INFINITY, 1.0),
        (-8.0, 1 / 3, NAN),
        (-0.0, -3.0, -INFINITY),
        (-0.0, 2.5, 0.0),
        (-INFINITY, 3.0, -INFINITY),
        (-INFINITY, -0.5, 0.0),
        (0.5, -INFINITY, INFINITY),
        (2.0, NAN, NAN),
        (-3.0, 3.0, -27.0),
    ],
)
def test_pow_treats_special_values_as_c_does(dtype, base, exponent, wanted):
    np.testing.assert_array_equal(compiled("pow", dtype)([base], [exponent]), [wanted])


def test_a_function_is_written_once_into_a_module():
    module, double = ir.Module(), ir.DoubleType()
    function = ir.Function(module, ir.FunctionType(double, [double]), "twice")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(emit("exp", builder, emit("exp", builder, function.args[0])))
    assert str(module).count('define internal double @"ptml.exp.double"') == 1


def test_sine_and_cosine_live_in_one_module():
    module, double = ir.Module(), ir.DoubleType()
    function = ir.Function(module, ir.FunctionType(double, [double]), "product")
    builder = ir.IRBuilder(function.append_basic_block())
    x = function.args[0]
    builder.ret(builder.fmul(emit("sin", builder, x), emit("cos", builder, x)))
    code = native.compile_module(module)
    product = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(code.address("product"))
    for angle in (0.7, 1e9):
        assert product(angle) == pytest.approx(np.sin(2 * angle) / 2, rel=1e-13)


def builder_of(kind):
    function = ir.Function(ir.Module(), ir.FunctionType(kind, [kind, ir.IntType(32)]), "f")
    return ir.IRBuilder(function.append_basic_block()), *function.args


def test_an_unknown_function_is_named_with_those_there_are():
    builder, x, _ = builder_of(ir.DoubleType())
    with pytest.raises(ValueError, match="no function 'gamma'; it has cos, erf"):
        emit("gamma", builder, x)


def test_the_number_of_arguments_is_checked():
    builder, x, _ = builder_of(ir.DoubleType())
    with pytest.raises(ValueError, match=r"pow takes 2 argument\(s\); got 1"):
        emit("pow", builder, x)


def test_values_of_other_types_are_refused():
    builder, x, n = builder_of(ir.DoubleType())
    with pytest.raises(TypeError, match="exp got i32"):
        emit("exp", builder, n)
    with pytest.raises(TypeError, match="pow got double, i32"):
        emit("pow", builder, x, n)
