"""Engines that are there only to be faster: they record the steps of `stacked` or of the loop once and replay them.

A file without an underscore is an engine of its name, and `engine` in it is what runs. Without this folder every number
stays what it is.
"""
