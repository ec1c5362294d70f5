"""The ops that layers are built of: most are fused, and have kernels in the plan and on other backends."""

__all__: list[str] = []
