"""Engines that record the steps of `stacked` or `loop` once and replay them."""
