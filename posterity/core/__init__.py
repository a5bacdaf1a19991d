"""What a method is made of: one import line, `from posterity.core import (…)`, has all of it.

    protocol          Method and the records that its functions are given
    network           what a network must have
    messages, wire    what clients send: sums, means, moments, rows; what need not travel
    passes, losses    ready-made walks over a client's data, and what they minimise
    training, optim   how a client trains
    averaging         the server's usual step
    classes           sums over a client's samples, class by class
    second            two networks in one visit
    prox              a personal model around a centre
    gaussian          Gaussian factors
    random            draws that are functions of a key
    tree              records that `torch.func` sees as trees
    hyperparameters   documented fields of a method
    wrapper           methods made of a method

Names are looked up when they are first asked for: settings are read without PyTorch, whose import takes seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posterity.core.averaging import averaged, weighted
    from posterity.core.classes import count_labels, sum_classes, sum_features
    from posterity.core.gaussian import Gaussian, cholesky, kl, matvec
    from posterity.core.hyperparameters import check_fields, hyper, within
    from posterity.core.losses import (
        NOISE,
        fit,
        fit_head,
        log_likelihood,
        log_predictive,
        masked_mean,
        mixture,
        one_hot,
        pointwise,
    )
    from posterity.core.messages import Bag, LogMean, Mean, Message, Moments, Rows, Sum
    from posterity.core.network import Network, Params
    from posterity.core.optim import SGD, Adam, Groups, Optimiser, RMSprop, clipped, norm
    from posterity.core.passes import (
        Loss,
        Partition,
        Summary,
        base,
        constrained,
        deal,
        descend,
        directed,
        everything,
        gather,
        head,
        held_by,
        holding,
        meta,
        opened,
        sample,
        squared_distance,
        trainable,
        watched,
    )
    from posterity.core.precision import exact_products
    from posterity.core.protocol import (
        Batch,
        Carry,
        Facts,
        Here,
        Method,
        Now,
        Own,
        Pass,
        Personal,
        Plan,
        Point,
        Shared,
        State,
        tuned,
    )
    from posterity.core.prox import proximal
    from posterity.core.random import bits, categorical, fold, make_key, normal, permutation, uniform
    from posterity.core.second import as_second, first_network, first_of, on_second, second_network, second_of
    from posterity.core.slope import mean_slope, require_plain_sgd
    from posterity.core.training import Training
    from posterity.core.tree import (
        STATIC,
        Tree,
        record,
        tree_bytes,
        tree_cast,
        tree_filled,
        tree_leaves,
        tree_map,
        tree_named,
        tree_rows,
        tree_stack,
    )
    from posterity.core.wire import Sparse, packed, unpacked
    from posterity.core.wrapper import Wrapper

MODULES = ("averaging", "classes", "gaussian", "hyperparameters", "losses", "messages", "network", "optim", "passes",
           "precision", "protocol", "prox", "random", "second", "slope", "training", "tree", "wire",
           "wrapper")  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in MODULES:  # a name that several of them have is the same thing in all
            found = vars(import_module(f"{__name__}.{module}"))
            if name in found:
                return globals().setdefault(name, found[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "NOISE", "SGD", "STATIC", "Adam", "Bag", "Batch", "Carry", "Facts", "Gaussian", "Groups", "Here", "LogMean", "Loss",
    "Mean", "Message", "Method", "Moments", "Network", "Now", "Optimiser", "Own", "Params", "Partition", "Pass",
    "Personal", "Plan", "Point", "RMSprop", "Rows", "Shared", "Sparse", "State", "Sum", "Summary", "Training", "Tree",
    "Wrapper", "as_second", "averaged", "base", "bits", "categorical", "check_fields", "cholesky", "clipped",
    "constrained", "count_labels", "deal", "descend", "directed", "everything", "exact_products", "first_network",
    "first_of", "fit", "fit_head", "fold", "gather", "head", "held_by", "holding", "hyper", "kl", "log_likelihood",
    "log_predictive", "make_key", "masked_mean", "matvec", "mean_slope", "meta", "mixture", "norm", "normal",
    "on_second", "one_hot", "opened", "packed", "permutation", "pointwise", "proximal", "record", "require_plain_sgd",
    "sample", "second_network", "second_of", "squared_distance", "sum_classes", "sum_features", "trainable",
    "tree_bytes", "tree_cast", "tree_filled", "tree_leaves", "tree_map", "tree_named", "tree_rows", "tree_stack",
    "tuned", "uniform", "unpacked", "watched", "weighted", "within",
]  # fmt: skip
