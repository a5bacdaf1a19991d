"""FedBPS: the specification's oracles O1 to O15 and its errata, on the functions the engine runs.

O14 (the partition into major classes) is test_major_classes_follow_fedbps_o14 in tests/data/test_partition.py.
"""

import itertools
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.func import grad, hessian

from posterity import models
from posterity.core.messages import Moments, Sum, fold_stack, merge, packed
from posterity.core.passes import Training, log_likelihood
from posterity.core.protocol import Batch, Now
from posterity.core.random import make_key
from posterity.engine.blocks import receive_stack
from posterity.engine.engines import ORACLE
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedbps import FedBPS, State, personal_entries, unpacked_like
from posterity.methods.fedbps.curvature import along, diagonal, signs
from posterity.methods.fedbps.squares import held_numbers, single_layers
from posterity.methods.local import Local

from .sims import DOUBLE, Run, each_engine, federate, full_batch, leaves, mlp, points, same_bits, worst

TRAINING = Training(lr=0.1, batch=4, epochs=2)
NOW = Now(1, 1, torch.zeros(2, dtype=torch.int64), 2)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def units(like):
    """The P unit vectors as directions (P, ...)."""
    sizes = [p.numel() for p in like.values()]
    parts = torch.split(torch.eye(sum(sizes), dtype=DOUBLE), sizes, 1)
    return {n: part.reshape(-1, *p.shape) for (n, p), part in zip(like.items(), parts, strict=True)}


def exact_diagonal(params, batch, here):
    """The diagonal of the Hessian by unit vectors: P products."""
    return along(lambda m: -log_likelihood(m, batch, here), params, [units(params)])


def started(run, engine=ORACLE):
    """What each client holds right after the broadcast: its mixed leaves (clients, ...)."""
    clients = torch.arange(run.sim.federation.clients)
    here, _ = receive_stack(run.sim, engine, run.state, run.store, clients, run.played + 1)
    mixed = engine.start(run.sim, here)
    return (
        mixed.params if engine is not ORACLE else {n: torch.stack([c.params[n] for c in mixed]) for n in here.initial}
    )


def messages(method, federation, model):
    """What every client sends in the first round (clients, ...)."""
    run = Run(method, federation, model)
    here, _ = receive_stack(run.sim, ORACLE, run.state, run.store, torch.arange(federation.clients), 1)
    return ORACLE.visit(run.sim, run.sim.method.passes(), here).message


def combined(weights, means, variances, method=None):
    """The server's next state from clients with these means and variances (clients, P)."""
    n, w, v = (torch.as_tensor(t, dtype=DOUBLE) for t in (weights, means, variances))
    w, v = w.reshape(len(n), -1), v.reshape(len(n), -1)
    sent = {"moments": Moments(n, {"w": w}, {"w": n[:, None] * v}), "within": Sum((n[:, None] * v).sum(1))}
    empty = torch.zeros(w.shape[1], dtype=DOUBLE)
    method, total = method or FedBPS(), fold_stack(sent)
    state = method.combine(State({"w": empty}, {"w": empty}, packed(empty > 0)), total, NOW)
    return state, method.report(state, total)


def mask_of(state):
    return unpacked_like(state.mask, state.variance)["w"]


@each_engine
@pytest.mark.parametrize("norm", [False, True])
def test_o01_nothing_personal_is_fedavg(engine, norm):
    federation = points((9, 5, 1, 13))
    for dtype in (torch.float64, torch.float32):
        methods = FedBPS(TRAINING, p=0.0), FedAvg(TRAINING)
        runs = [Run(m, federation, mlp(federation, norm=norm), engine, dtype=dtype).rounds(3) for m in methods]
        if dtype == torch.float32:
            assert same_bits(runs[0].state.params, runs[1].state.params)
        for name, value in runs[1].state.params.items():
            assert torch.allclose(runs[0].state.params[name], value, rtol=1e-12, atol=0)
    outputs = [run.outputs("received") for run in runs]
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


@each_engine
def test_o02_everything_personal_is_local_training(engine):
    federation = points((9, 5, 1, 13))
    for dtype in (torch.float64, torch.float32):
        methods = FedBPS(TRAINING, p=1.0), Local(TRAINING)
        runs = [Run(m, federation, mlp(federation), engine, dtype=dtype).rounds(3) for m in methods]
        assert same_bits(runs[0].store.rows, runs[1].store.rows)
        outputs = [run.outputs("received") for run in runs]
        assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


def test_o03_moments_of_the_mixture():
    state, report = combined((0.5, 0.3, 0.2), (0.0, 1.0, -2.0), (1.0, 0.5, 2.0))
    assert float(state.params["w"]) == pytest.approx(-0.1, abs=1e-12)
    assert float(state.variance["w"]) == pytest.approx(2.14, abs=1e-12)
    assert float(report["disagreement_share"]) == pytest.approx(1 - (0.5 + 0.15 + 0.4) / 2.14, abs=1e-12)


def test_o03_is_the_nearest_gaussian():
    """KL(mixture ‖ N(m, v)) up to its entropy, by quadrature: its gradient vanishes at (−0.1, 2.14)."""
    x = torch.linspace(-25, 25, 20001, dtype=DOUBLE)
    parts = zip((0.5, 0.3, 0.2), (0.0, 1.0, -2.0), (1.0, 0.5, 2.0), strict=True)
    density = sum(w * torch.exp(-((x - m) ** 2) / (2 * v)) / (2 * torch.pi * v) ** 0.5 for w, m, v in parts)

    def cross_entropy(at):
        return torch.trapezoid(density * 0.5 * ((x - at[0]) ** 2 / at[1] + torch.log(at[1])), x)

    best = torch.tensor([-0.1, 2.14], dtype=DOUBLE)
    assert grad(cross_entropy)(best).tolist() == pytest.approx([0, 0], abs=1e-9)
    assert bool((torch.linalg.eigvalsh(hessian(cross_entropy)(best)) > 0).all())


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
@pytest.mark.parametrize("kind", ["distinct", "ties", "all equal", "infinite"])
def test_o04_the_mask_has_an_exact_count(share, kind):
    score = random(57).exp()
    if kind == "ties":
        score = (score * 2).round()
    if kind == "all equal":
        score = torch.full_like(score, 2000.0)
    if kind == "infinite":
        score = torch.where(score > 1, torch.inf, score)
    tree = {"a": score[:40].reshape(5, 8), "b": score[40:]}
    mask = personal_entries(tree, share, "global")
    assert int(mask.sum()) == round(share * 57)
    if 0 < share < 1:
        assert float(score[mask].min()) >= float(score[~mask].max())
    if kind == "all equal":
        assert bool(mask[: round(share * 57)].all())  # the first come first
    parts = unpacked_like(packed(personal_entries(tree, share, "per_tensor")), tree)
    assert [int(parts[n].sum()) for n in tree] == [round(share * 40), round(share * 17)]


def test_o04_bits_come_back():
    for size in (1, 7, 8, 9, 64, 100):
        mask, like = random(size) > 0, {"w": torch.zeros(size)}
        assert len(packed(mask)) == (size + 7) // 8
        assert torch.equal(unpacked_like(packed(mask), like)["w"], mask)


@pytest.mark.parametrize("p", [0.0, 0.3, 0.7, 1.0])
def test_o05_identical_clients(p):
    """Three clients with the same rows: v_g is the v of one, and mixing moves nobody."""
    one = points((8,))
    several = federate([(one.x[one.train.rows], one.y[one.train.rows])] * 3, one.classes)
    left = Run(FedBPS(full_batch(3), p=p), several, mlp(one)).rounds(2)
    right = Run(FedBPS(full_batch(3), p=p), one, mlp(one)).rounds(2)
    assert worst(left.state.params, right.state.params) < 1e-12
    for name, value in right.state.variance.items():
        assert torch.allclose(left.state.variance[name], value, rtol=1e-7)
    mixed = started(left)
    assert worst(left.store.rows, {n: mixed[n] for n in left.store.rows}) < 1e-7
    assert left.logs[-1].report["disagreement_share"] < 1e-12


@pytest.mark.parametrize("scope", ["global", "per_tensor"])
def test_o06_masks_are_nested(scope):
    variance = {"a": random(6, 7).exp(), "b": (random(11, seed=1) * 2).round().exp()}
    masks = [personal_entries(variance, p / 20, scope) for p in range(21)]
    assert all(bool((small <= large).all()) for small, large in itertools.pairwise(masks))


def linear_model(inputs, task="regression", classes=1, bias=False):
    net = nn.Sequential(OrderedDict(head=nn.Linear(inputs, 1, bias=bias)))
    return models.wrap(net, "head", classes, task, shape=(inputs,))


def here_of(model, key=0):
    return SimpleNamespace(model=model, key=make_key(key))


def whole_batch(x, y):
    return Batch(x, y, torch.ones(len(y), dtype=DOUBLE))


@pytest.mark.parametrize("s", [1.0, 0.5, 3.0])
def test_o07_linear_gaussian(s):
    """Noise of standard deviation s is unit noise on rows divided by s. The message's v is 1/(n(h + τ))."""
    x, y = random(12, 4) / s, random(12, seed=1) / s
    model = linear_model(4)
    expected = (x**2).sum(0) / 12  # diag(XᵀX/s²)/n
    params = model.init(0, DOUBLE)
    for estimate in (exact_diagonal, partial(diagonal, "ggn")):
        h = estimate(params, whole_batch(x, y), here_of(model))["head.weight"][0] / 12
        assert torch.allclose(h, expected, atol=1e-9)
    sent = messages(FedBPS(TRAINING), federate([(x, y)]), model)
    assert torch.allclose(sent["moments"].square["head.weight"][0, 0], 1 / (expected + 5e-4), atol=1e-9)


def test_o08_logistic_regression():
    x, y = random(15, 4), (random(15, seed=1) > 0).long()
    model = linear_model(4, "classification", 2)
    params = {"head.weight": random(1, 4, seed=2)}
    p = torch.sigmoid(x @ params["head.weight"][0])
    expected = (p * (1 - p)) @ x**2 / 15
    for estimate in (exact_diagonal, partial(diagonal, "ggn")):
        h = estimate(params, whole_batch(x, y), here_of(model))["head.weight"][0] / 15
        assert torch.allclose(h, expected, atol=1e-9)


def test_o09_all_sign_vectors_give_the_exact_diagonal():
    """Two inputs, two hidden units, two classes, no head bias: P = 2·2 + 2 + 2·2 = 10 and 2^10 sign vectors."""
    net = nn.Sequential(OrderedDict(a=nn.Linear(2, 2), t=nn.Tanh(), head=nn.Linear(2, 2, bias=False)))
    model = models.wrap(net, "head", 2, shape=(2,))
    params, x, y = model.init(0, DOUBLE), random(9, 2), (random(9, seed=1) > 0).long()
    here, batch = here_of(model), whole_batch(x, y)
    exact = exact_diagonal(params, batch, here)
    flat = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=10)), dtype=DOUBLE)
    parts = flat.split([p.numel() for p in params.values()], 1)
    every = {n: part.reshape(-1, *p.shape) for (n, p), part in zip(params.items(), parts, strict=True)}
    found = along(lambda m: -log_likelihood(m, batch, here), params, [every])
    dense = hessian(lambda m: -log_likelihood(m, batch, here))(params)
    for name, leaf in params.items():
        assert torch.allclose(found[name] / 1024, exact[name], atol=1e-9)
        full = dense[name][name].reshape(leaf.numel(), leaf.numel())
        assert torch.allclose(exact[name].flatten(), full.diagonal(), atol=1e-9)


@pytest.mark.parametrize("c", [0.25, 4.0, 1024.0])
def test_o10_a_common_scale_leaves_the_mask(c):
    n, w, v = torch.tensor([3.0, 5.0, 2.0]), random(3, 40), random(3, 40, seed=1).exp()
    before = mask_of(combined(n, w, v)[0])
    assert torch.equal(before, mask_of(combined(n, c**0.5 * w, c * v)[0]))


def test_o10_a_scale_of_the_variances_alone_does_not():
    n, w, v = torch.tensor([3.0, 5.0, 2.0]), random(3, 40), random(3, 40, seed=1).exp()
    assert not torch.equal(mask_of(combined(n, w, v)[0]), mask_of(combined(n, w, 100 * v)[0]))


def test_o11_deviations_cancel():
    """Which is why line 6 of Algorithm 1, without the square, sees no disagreement (B2)."""
    federation = points((9, 5, 13))
    run = Run(FedBPS(TRAINING), federation, mlp(federation)).rounds(2)
    weights = federation.train.counts.double() / 27
    for name, rows in run.store.rows.items():
        assert float(torch.tensordot(weights, rows - run.state.params[name], 1).abs().max()) < 1e-6


def test_o12_merging_moments():
    number = [torch.tensor(v, dtype=DOUBLE) for v in (3.0, 1.0, 2.0, 2.0, 4.0, 0.5)]
    total = Moments(*number[:3]) + Moments(*number[3:])
    assert [float(v) for v in (total.weight, total.mean, total.square)] == pytest.approx([5, 2.2, 13.3], abs=1e-12)


def test_o12_streaming_is_two_pass():
    federation = points((9, 5, 1, 13))
    sent = messages(FedBPS(TRAINING), federation, mlp(federation))
    singles = [fold_stack(_row(sent, k)) for k in range(4)]
    streamed = merge(merge(singles[2], singles[0]), merge(singles[3], singles[1]))["moments"]
    n = sent["moments"].weight
    for name, w in sent["moments"].mean.items():
        share = (n / n.sum()).reshape(-1, *[1] * (w.dim() - 1))
        mean = (share * w).sum(0)
        v = sent["moments"].square[name] / n.reshape(share.shape)
        variance = (share * (v + (w - mean) ** 2)).sum(0)
        assert torch.allclose(streamed.mean[name], mean, rtol=1e-12, atol=1e-14)
        assert torch.allclose(streamed.variance()[name], variance, rtol=1e-12)


def _row(sent, k):
    moments = sent["moments"]
    mean, square = ({n: t[k : k + 1] for n, t in tree.items()} for tree in (moments.mean, moments.square))
    return {"moments": Moments(moments.weight[k : k + 1], mean, square), "within": Sum(sent["within"].value[k : k + 1])}


def test_o13_float32_survives_disagreement_near_one():
    """w = 1 + 1e-4 N(0, 1), 100 clients: E[w²] − E[w]² is a multiple of 6e-8; Chan's rule gives 1e-8 to 1e-3."""
    w = (1 + 1e-4 * random(100)).float()
    true = float(w.double().var(correction=0))
    naive = float((w**2).mean() - w.mean() ** 2)
    assert abs(naive / true - 1) > 0.5
    zero, one = torch.zeros(()), torch.ones(())
    total = Moments(one, w[0], zero)
    for value in w[1:]:
        total = total + Moments(one, value, zero)
    assert float(total.variance()) == pytest.approx(true, rel=1e-3)
    folded = combined(torch.ones(100), w[:, None], torch.zeros(100, 1))[0]
    assert float(folded.variance["w"]) == pytest.approx(true, rel=1e-6)


@each_engine
@pytest.mark.parametrize("scope", ["global", "per_tensor"])
def test_o15_common_entries_are_common(engine, scope):
    federation = points((9, 5, 1, 13))
    run = Run(FedBPS(TRAINING, scope=scope), federation, mlp(federation), engine).rounds(2)
    mask, mixed = unpacked_like(run.state.mask, run.state.variance), started(run, engine)
    for name, own in run.store.rows.items():
        common = run.state.params[name].expand_as(own)
        assert torch.equal(mixed[name], torch.where(mask[name], own, common))
        assert not mask[name].any() or not torch.equal(own[0], own[3])


def test_b1_the_printed_score_selects_the_opposite():
    """Identical clients, p = ½ of 92 parameters: the printed mask and the corrected one share no entry."""
    one = points((20,), classes=4)
    several = federate([(one.x[one.train.rows], one.y[one.train.rows])] * 2, one.classes)
    model, masks = mlp(one), []
    for score in ("variance", "hessian"):
        run = Run(FedBPS(full_batch(2), p=0.5, score=score), several, model).rounds(1)
        masks.append(torch.cat([m.flatten() for m in unpacked_like(run.state.mask, run.state.variance).values()]))
        assert len(torch.cat([v.flatten() for v in run.state.variance.values()]).unique()) == model.size  # no ties
    assert int((masks[0] & masks[1]).sum()) == 0


def test_b1_lognormal_curvature():
    """Five clients: the scores are anti-correlated and the 70 % masks overlap less than random ones (0.7)."""
    h, w = torch.exp(random(5, 2000) - 4), 0.02 * random(5, 2000, seed=1)
    n = torch.full((5,), 3000.0, dtype=DOUBLE)
    states = [combined(n, w, FedBPS(score=s).variance(h, n[:, None]))[0] for s in ("variance", "hessian")]
    ranks = [torch.argsort(torch.argsort(s.variance["w"])).double() for s in states]
    assert float(torch.corrcoef(torch.stack(ranks))[0, 1]) < -0.2
    overlap = float((mask_of(states[0]) & mask_of(states[1])).sum()) / 1400
    assert overlap < 0.69


@pytest.mark.parametrize(("scale", "factor"), [("sum", 4.0), ("mean", 1.0)])
def test_b1_the_printed_score_is_the_curvature_of_the_loss(scale, factor):
    """Line 13 of Algorithm 1 for four samples: n h for the summed loss, h for the mean, negative values left out."""
    h, n = torch.tensor([0.5, 3.0, -2.0], dtype=DOUBLE), torch.tensor(4.0, dtype=DOUBLE)
    method = FedBPS(score="hessian", loss_scale=scale, within_scale=2.0)
    assert method.variance(h, n).tolist() == [factor * 1.0, factor * 6.0, 0.0]


def test_b4_the_mean_loss_hides_disagreement():
    """Its v is n times that of the sum, so the share of disagreement all but vanishes."""
    federation = points((9, 9, 9))
    squares, shares = [], []
    for scale in ("sum", "mean"):
        method = FedBPS(TRAINING, loss_scale=scale)
        squares.append(messages(method, federation, mlp(federation))["moments"].square)
        shares.append(Run(method, federation, mlp(federation)).rounds(1).logs[0].report["disagreement_share"])
    assert all(torch.allclose(squares[1][n], 9 * squares[0][n], rtol=1e-12) for n in squares[0])
    assert 0 < shares[1] < shares[0] / 5 < 0.2


def test_the_scale_of_the_variances_is_a_factor():
    federation = points((9, 5))
    plain, scaled, none = (
        messages(FedBPS(TRAINING, within_scale=s), federation, mlp(federation))["moments"].square for s in (1.0, 3.0, 0)
    )
    assert all(torch.allclose(scaled[n], 3 * plain[n], rtol=1e-14) and not none[n].any() for n in plain)


def test_empirical_fisher_is_the_squared_gradient_of_rows():
    federation = points((7,))
    model = mlp(federation)
    params, x, y = model.init(0, DOUBLE), federation.x[:7], federation.y[:7]
    found = diagonal("empirical_fisher", params, whole_batch(x, y), here_of(model))
    rows = [grad(lambda p, i=i: -log_likelihood(p, whole_batch(x[i : i + 1], y[i : i + 1]), here_of(model)))(params)
            for i in range(7)]  # fmt: skip
    for name in params:
        assert torch.allclose(found[name], torch.stack([r[name] ** 2 for r in rows]).sum(0), atol=1e-12)


class Awkward(nn.Module):
    """Layers in every way that they are used in: once on a row, twice, on a sequence, tied, without bias, fixed."""

    def __init__(self):
        super().__init__()
        self.once, self.twice, self.words = nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(2, 2)
        self.tied, self.other, self.bare = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.other.weight = self.tied.weight
        self.fixed, self.unused, self.turned = nn.Linear(4, 4), nn.Linear(3, 3), nn.Linear(4, 4)
        self.fixed.weight.requires_grad_(False)
        self.scale, self.head = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        z = self.words(x.reshape(-1, 3, 2)).tanh().flatten(1)
        z = self.twice(self.twice(self.once(z).tanh()).tanh()).tanh()
        z = self.turned(z[None])[0].tanh()  # a sequence of one step, which comes first
        z = self.fixed(self.bare(self.other(self.tied(z).tanh()).tanh()).tanh())
        return self.head(self.scale(z.tanh()))


class Pictures(nn.Module):
    """Convolutions with and without padding, stride and bias, in groups, spread out; norms."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, (3, 2), padding=(1, 0), stride=(2, 1))
        self.norm, self.last = nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False)
        self.bare, self.groups = nn.Conv2d(4, 4, 2, bias=False), nn.Conv2d(4, 4, 1, groups=2)
        self.spread, self.same = nn.Conv2d(4, 4, (1, 2), dilation=(1, 2)), nn.Conv2d(4, 4, 3, padding="same")
        self.flat, self.head = nn.Flatten(), nn.Linear(16, 3)

    def forward(self, x):
        z = self.bare(self.norm(self.first(x)).tanh()).tanh()
        z = self.last(self.same(self.spread(self.groups(z)).tanh()))
        return self.head(self.flat(z.tanh()))


class Meeting(Pictures):
    """Rows that are normalised together when they are together."""

    def __init__(self):
        super().__init__()
        self.last = nn.BatchNorm2d(4, track_running_stats=False)


AT_ONCE = {
    Awkward: {"words", "once", "bare", "fixed", "head"},
    Pictures: {"first", "norm", "bare", "head"},
    Meeting: set(),
}


@pytest.mark.parametrize("network", AT_ONCE)
@pytest.mark.parametrize("estimator", ["ggn", "empirical_fisher"])
def test_a_layer_is_squared_at_once_only_where_its_rows_allow_it(estimator, network):
    torch.manual_seed(0)
    shape = (6,) if network is Awkward else (2, 5, 6)
    model = models.wrap(network(), "head", 3, shape=shape)
    params, x, y = model.init(0, DOUBLE), random(5, *shape), torch.tensor([0, 1, 2, 1, 0])
    params |= {n: p + 0.3 * random(*p.shape, seed=3).abs() for n, p in params.items() if "norm" in n}
    batch = replace(whole_batch(x, y), mask=torch.tensor([1.0, 1, 0.5, 0, 1], dtype=DOUBLE))
    assert set(single_layers(params, x[:1], model)) == AT_ONCE[network]
    found = diagonal(estimator, params, batch, here_of(model))
    assert list(found) == [n for n in params if n in model.trainable]

    def nll(params, row, label):
        return -log_likelihood(params, whole_batch(x[row : row + 1], torch.tensor([label])), here_of(model))

    for name in found:
        by_hand = torch.zeros_like(params[name])
        for row, share in enumerate(batch.mask.tolist()):
            p = torch.softmax(model(params, x[row : row + 1])[0][0], -1).tolist()
            labels = enumerate(p) if estimator == "ggn" else [(int(y[row]), 1.0)]
            by_hand += sum(share * weight * grad(nll)(params, row, label)[name] ** 2 for label, weight in labels)
        assert torch.allclose(found[name], by_hand, rtol=1e-12, atol=1e-15), name


def test_what_is_held_while_rows_are_squared():
    """Six windows of two pixels and two for the bias, two slopes each, a gradient; of a linear layer its two sides."""
    net = nn.Sequential(OrderedDict(conv=nn.Conv2d(1, 2, (1, 2)), flat=nn.Flatten(), head=nn.Linear(12, 5)))
    model = models.wrap(net, "head", 5, shape=(1, 2, 4))
    assert held_numbers(7, model) == 7 * (6 * (4 + 2 * 2) + 2 * 2 * 4 + 12 + 2 * 5)
    assert held_numbers(7, model) == held_numbers(7, model)  # also when the layers are known
    other = models.wrap(nn.Sequential(OrderedDict(scale=nn.LayerNorm(3), head=nn.Linear(3, 2))), "head", 2, shape=(3,))
    assert held_numbers(7, other) == 7 * (4 * (3 + 3) + 3 + 2 * 2)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_monte_carlo_fisher_is_unbiased(task):
    """4000 copies of a row: the mean over drawn labels is the exact Fisher to five standard errors."""
    model = linear_model(3, task, 2 if task == "classification" else 1)
    params, x, y = {"head.weight": random(1, 3)}, random(1, 3, seed=1).expand(4000, 3), torch.zeros(4000)
    batch = whole_batch(x, y.long() if task == "classification" else y.double())
    drawn = diagonal("mc_fisher", params, batch, here_of(model, 3))["head.weight"] / 4000
    exact = diagonal("ggn", params, batch, here_of(model))["head.weight"] / 4000
    assert torch.allclose(drawn, exact, rtol=5 * 2**0.5 / 4000**0.5)
    assert not torch.equal(drawn, exact)


@pytest.mark.parametrize("probes", [1, 8])
def test_hutchinson_is_a_mean_over_its_probes(probes):
    """With one parameter u² = 1, so that any number of probes gives Σx² exactly."""
    x, y, model = random(6, 1), random(6, seed=1), linear_model(1)
    h = diagonal("hutchinson", model.init(0, DOUBLE), whole_batch(x, y), here_of(model), probes)["head.weight"]
    assert float(h) == pytest.approx(float((x**2).sum()), abs=1e-12)


def test_indefinite_curvature_counts_as_none():
    n = torch.tensor(4.0, dtype=DOUBLE)
    v = FedBPS().variance(torch.tensor([-3.0, 0.0, 1.0], dtype=DOUBLE), n)
    assert v.tolist() == pytest.approx([1 / (4 * 5e-4), 1 / (4 * 5e-4), 1 / (4 * 1.0005)], rel=1e-14)


def test_padding_has_no_curvature():
    federation = points((7,))
    model = mlp(federation)
    params, batch = model.init(0, DOUBLE), whole_batch(federation.x[:7], federation.y[:7])
    padded = Batch(federation.x[[*range(7), 0, 0]], federation.y[[*range(7), 0, 0]], torch.tensor([1.0] * 7 + [0] * 2))
    for estimator in ("ggn", "mc_fisher", "empirical_fisher", "hutchinson"):
        found = [
            diagonal(estimator, params, b, here_of(model)) for b in (batch, replace(padded, mask=padded.mask.double()))
        ]
        assert worst(*found) < 1e-12
        assert list(leaves(found[0])) == list(params)


def test_directions():
    like = {"a": torch.zeros(2, 3, dtype=DOUBLE), "b": torch.zeros(4, dtype=DOUBLE)}
    drawn = signs(make_key(0), like, 200)
    assert {float(v) for leaf in drawn.values() for v in leaf.unique()} == {-1.0, 1.0}
    assert abs(float(drawn["a"].mean())) < 0.15
    basis = units(like)
    flat = torch.cat([basis["a"].flatten(1), basis["b"]], 1)
    assert torch.equal(flat, torch.eye(10, dtype=DOUBLE))
