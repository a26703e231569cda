"""The loops under the partitions: arrays in, arrays out, no validation, no classes.

Each kernel takes a stretch of a batch, holds no Python lock while it runs, and treats every picture on its own, so
that `_threads.spread` may cut a batch over the cores in any way. They are compiled when first called, and cached on
disk. All of them are exact functions of their input: no fast-math that could differ with a picture's place in its
batch but for fused multiply-add, which the compiler uses alike for all.
"""
