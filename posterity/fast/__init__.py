"""Which engine and which kernels a run uses: measured at its start.

Engines that record the steps of `stacked` or `loop` once and replay them.

Functions of tensors as flat lists of operators.
"""
