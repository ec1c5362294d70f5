"""The rules: how each kind of op becomes kernels."""
