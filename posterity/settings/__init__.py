"""What a user can set, each said once: fields of a run, hyper-parameters, names, and what users write themselves.

No PyTorch here: help and completion import this folder and nothing else.
"""
