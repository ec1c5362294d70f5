"""The generator: kernels written in LLVM IR."""
