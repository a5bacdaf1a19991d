"""Datasets by name: each file of this folder is one, and adding a file is enough.

A dataset file has a docstring (its first line is shown by `posterity datasets`), a function
`load(data_dir, seed, *, …options…) -> Pool`, `NATURAL` (whether it has clients of its own) and, unless it is embedded,
`SOURCE` (where the files come from and in which forms they are read; `posterity datasets NAME` shows it).
`data/registry.py` finds them; `data/files.py` helps to read files.
"""
