"""One package for each backend: the kernels of our own ops, registered by its `load()`."""
