"""What a method is made of: one import line, `from posterity import core`, has all of it.

protocol          Method and the records that its functions are given
network           what a network must have; leaves that stay as they are
messages          what clients send: sums, means, moments, rows; what need not travel
likelihood        what a network's outputs say about labels
passes            ready-made walks over a client's data, what they minimise, how a client trains
optim             optimisers
common            what unrelated methods share: the server's usual step, sums class by class, two networks in one
                  visit, a personal model around a centre
gaussian          Gaussian factors
random            draws that are functions of a key
tree              records that `torch.func` sees as trees
wrapper           methods made of a method
"""

from __future__ import annotations

from posterity.core.common import (
    Leaves,
    as_second,
    averaged,
    count_labels,
    first_network,
    first_of,
    mean_slope,
    on_second,
    proximal,
    require_plain_sgd,
    require_two_parts,
    second_network,
    second_of,
    sum_classes,
    sum_features,
    weighted,
)
from posterity.core.gaussian import Gaussian, cholesky, exact_products, kl, matvec
from posterity.core.likelihood import NOISE, masked_mean, mixture, one_hot, pointwise
from posterity.core.messages import Bag, LogMean, Mean, Message, Moments, Rows, Sparse, Sum, packed, unpacked
from posterity.core.network import Instead, Network, Params
from posterity.core.optim import SGD, Adam, Groups, Optimiser, RMSprop, clipped, norm
from posterity.core.passes import (
    Loss,
    Partition,
    Summary,
    Training,
    base,
    constrained,
    deal,
    descend,
    directed,
    everything,
    fit,
    fit_head,
    gather,
    head,
    held_by,
    holding,
    log_likelihood,
    meta,
    opened,
    run_features,
    sample,
    squared_distance,
    trainable,
    watched,
)
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
    log_predictive,
    tuned,
)
from posterity.core.random import bits, categorical, fold, make_key, normal, permutation, uniform
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
from posterity.core.wrapper import Wrapper
from posterity.settings.hyperparameters import check_fields, hyper

__all__ = [
    "NOISE", "SGD", "STATIC", "Adam", "Bag", "Batch", "Carry", "Facts", "Gaussian", "Groups", "Here", "Instead",
    "Leaves", "LogMean", "Loss", "Mean", "Message", "Method", "Moments", "Network", "Now", "Optimiser", "Own",
    "Params", "Partition", "Pass", "Personal", "Plan", "Point", "RMSprop", "Rows", "Shared", "Sparse", "State",
    "Sum", "Summary", "Training", "Tree", "Wrapper", "as_second", "averaged", "base", "bits", "categorical",
    "check_fields", "cholesky", "clipped", "constrained", "count_labels", "deal", "descend", "directed",
    "everything", "exact_products", "first_network", "first_of", "fit", "fit_head", "fold", "gather", "head",
    "held_by", "holding", "hyper", "kl", "log_likelihood", "log_predictive", "make_key", "masked_mean", "matvec",
    "mean_slope", "meta", "mixture", "norm", "normal", "on_second", "one_hot", "opened", "packed", "permutation",
    "pointwise", "proximal", "record", "require_plain_sgd", "require_two_parts", "run_features", "sample",
    "second_network", "second_of", "squared_distance", "sum_classes", "sum_features", "trainable", "tree_bytes",
    "tree_cast", "tree_filled", "tree_leaves", "tree_map", "tree_named", "tree_rows", "tree_stack", "tuned",
    "uniform", "unpacked", "watched", "weighted",
]  # fmt: skip
