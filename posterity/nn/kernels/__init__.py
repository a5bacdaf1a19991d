"""Triton kernels and the operators made of them."""
