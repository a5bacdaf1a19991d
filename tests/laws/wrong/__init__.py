"""Methods that a real author might write and that break one law each, beside a twin that does it right.

Every file has `LAW` (the law that must catch it), `Wrong` and `Right`. They inherit from FedAvg to stay small; methods
of the package do not inherit from methods.
"""
