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

from posterity.core.common import (
    PREFIX,
    adapt_plainly,
    as_second,
    averaged,
    combine_mean,
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
    zeros,
)
from posterity.core.gaussian import Gaussian, cholesky, exact_products, kl, matvec
from posterity.core.likelihood import NOISE, masked_mean, mixture, one_hot, pointwise
from posterity.core.messages import Bag, LogMean, Mean, Message, Moments, Rows, Sparse, Sum, packed, unpacked
from posterity.core.network import Instead, Network, Params
from posterity.core.optim import SGD, Adam, Groups, Optimiser, RMSprop, clipped, norm
from posterity.core.passes import (
    Loss,
    Training,
    Update,
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
    slope_of,
    squared_distance,
    trainable,
    watched,
)
from posterity.core.protocol import (
    Batch,
    Carry,
    Facts,
    Here,
    Leaves,
    Method,
    Now,
    Own,
    Pass,
    Passes,
    Personal,
    Plan,
    Point,
    Sent,
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
)
from posterity.core.wrapper import Wrapper
from posterity.settings.hyperparameters import check_fields, hyper
