"""What runs a table: the loop, memory for kernels, threads, BLAS."""
