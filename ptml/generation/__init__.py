"""Generation: sequences made piece by piece, each from what was made before."""

from ptml.generation.decoder import Decoder, compile_decode
from ptml.generation.sampling import generate, stream

__all__ = ["Decoder", "compile_decode", "generate", "stream"]
