"""Numba kernels for partitions and noise: arrays in, arrays out, no validation, no classes.

Each kernel takes a slice of a batch, releases the GIL while it runs, and treats every image independently, so
`_threads.parallel_for` may split a batch over the cores in any way. Kernels are compiled on their first call and cached
on disk. Their results are deterministic and do not depend on an image's position in its batch: of the fast-math
transformations, only those that the compiler applies alike to every image are allowed, such as fused multiply-add.
"""
