"""FedNP: the specification's oracles O1 to O17 and the numbers of its errata, on the functions the engine runs."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch.func import grad, vmap

from posterity import models
from posterity.core.gaussian import Gaussian
from posterity.core.messages import Mean, Sum, fold_stack
from posterity.core.passes import Training
from posterity.core.protocol import Facts, Now
from posterity.methods.fedavg import FedAvg
from posterity.methods.fednp import (
    F_BIAS,
    F_WEIGHT,
    FedNP,
    State,
    closed_ratios,
    constants,
    curvature,
    kl_each,
    log_power,
    match,
    npn_linear,
    npn_sigmoid,
    slopes,
    tilted_grid,
)

from .sims import DOUBLE, ENGINES, Run, each_engine, federate, images, mlp, points, same_bits, scalar_model

F = (1.0, 0.5, -0.8)  # the factors of O5 to O7
CASES = ((0.0, 1.0, 1.0), (0.5, 1.0, 1.0), (-1.0, 0.5, 2.0), (0.0, 1.0, 3.0), (1.0, 0.5, 1.0), (-1.0, 2.0, 1.0))


def num(*values):
    return [torch.tensor(v, dtype=DOUBLE) for v in values]


def moments(m, s, f, kind="quadrature", points=201):
    """z_m, z_s, λ, η as numbers."""
    z_m, z_s, site = match(*num(m, s, f), kind, points)
    return float(z_m), float(z_s), float(site.precision), float(site.shift)


def quadrature_ratios(m, s, f, points=129):
    """log E σ, r₂ and r₃ on the grid: under the tilted weights, r₂ is the mean of σ and r₃ that of σ²."""
    _, log_weight, sigma, _ = tilted_grid(m, s, f, points)
    _, other, _, _ = tilted_grid(m, s, -f, points)  # E σ(C) = 1 − E σ(−C): keeps the digits of log E σ near 0
    rest = torch.exp(torch.logsumexp(other, -1)).clamp(max=0.5)
    log_one = torch.where(f * m > 0, torch.log1p(-rest), torch.logsumexp(log_weight, -1))  # log S_0
    weight = torch.softmax(log_weight, -1)
    return log_one, (weight * sigma).sum(-1), (weight * sigma**2).sum(-1)


def direct(m, s, f):
    """Mean and variance of σ(fz) N(z; m, s) by adaptive quadrature in z: none of the functions under test."""
    sd = math.sqrt(s)

    def density(z):
        return math.exp(-0.5 * ((z - m) / sd) ** 2) / (1 + math.exp(-f * z))

    def whole(g):
        return quad(g, m - 12 * sd, m + 12 * sd, epsabs=1e-14, epsrel=1e-13, limit=500)[0]

    z0 = whole(density)
    mean = whole(lambda z: z * density(z)) / z0
    return mean, whole(lambda z: (z - mean) ** 2 * density(z)) / z0


def factors_only(engine, values=F, **how):
    """A federation in which client k's f is `values[k]` for ever: one feature x = f_k, an identity layer, no steps."""
    data = [(torch.full((2, 1), v, dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE)) for v in values]
    run = Run(FedNP(Training(lr=0.0), latent=1, **how), federate(data), scalar_model(), engine)
    layer = {F_WEIGHT: torch.ones(1, 1, dtype=DOUBLE), F_BIAS: torch.zeros(1, dtype=DOUBLE)}
    run.state = State({**run.state.params, **layer}, run.state.totals)
    return run


def posterior(run):
    return float(run.state.totals.mean()), float(run.state.totals.covariance())


def test_o01_a_single_update():
    expected = [0.4132419283, 0.8292311087, 0.2059364265, 0.4983434943]
    assert moments(0.0, 1.0, 1.0) == pytest.approx(expected, abs=1e-8)
    assert moments(0.0, 1.0, 1.0, points=129) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("kind", ["closed", "quadrature"])
@pytest.mark.parametrize(("m", "s", "f"), [*CASES, (3.0, 4.0, 5.0), (-6.0, 1.0, 2.0), (20.0, 100.0, 1.0)])
def test_o02_cavity_times_site_is_q(m, s, f, kind):
    z_m, z_s, precision, shift = moments(m, s, f, kind)
    assert 1 / s + precision == pytest.approx(1 / z_s, rel=1e-12, abs=1e-12)
    assert m / s + shift == pytest.approx(z_m / z_s, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("f", [-4.0, -1.0, 0.0, 1e-3, 0.5, 1.0, 3.0, 10.0, 100.0])
@pytest.mark.parametrize("s", [0.2, 1.0, 1.7])
def test_o03_a_centred_cavity_keeps_its_second_moment(s, f):
    z_m, z_s, _, _ = moments(0.0, s, f)
    assert z_s + z_m**2 == pytest.approx(s, abs=1e-9)


@pytest.mark.parametrize(("m", "s", "f"), [*CASES, (0.3, 2.0, -1.5), (2.0, 0.3, 4.0), (0.5, 1.0, 0.01), (0.2, 1.0, 6)])
def test_o04_the_update_is_direct_quadrature(m, s, f):
    assert moments(m, s, f)[:2] == pytest.approx(direct(m, s, f), abs=1e-8)


@each_engine
def test_o05_the_fixed_point(engine):
    """Sites one after another, 40 sweeps, through the rounds of the engine."""
    run = factors_only(engine)
    for _ in range(40):
        for client in range(3):
            run.rounds(1, [client])
    assert posterior(run) == pytest.approx((0.2464539228, 0.7053447382), abs=1e-7)
    sites = run.store.rows["site"]
    assert sites.precision[:, 0].tolist() == pytest.approx([0.21405605, 0.05975699, 0.14393342], abs=1e-7)
    assert sites.shift[:, 0].tolist() == pytest.approx([0.49962158, 0.24996677, -0.40017917], abs=1e-7)


def test_o06_the_exact_posterior():
    z = torch.linspace(-12, 12, 4001, dtype=DOUBLE)
    weight = torch.softmax(sum(torch.nn.functional.logsigmoid(f * z) for f in F) - 0.5 * z * z, 0)
    mean = float((weight * z).sum())
    exact = mean, float((weight * (z - mean) ** 2).sum())
    assert exact == pytest.approx((0.2465153938, 0.7055635154), abs=1e-9)
    ours = posterior(factors_only(ENGINES[0]).rounds(20))
    assert abs(ours[0] - exact[0]) == pytest.approx(6e-5, rel=0.1)
    assert abs(ours[1] - exact[1]) == pytest.approx(2e-4, rel=0.1)


@each_engine
def test_o07_the_parallel_schedule(engine):
    run, means = factors_only(engine), []
    for _ in range(3):
        means.append(posterior(run.rounds(1))[0])
    assert means == pytest.approx([0.2482615166, 0.2464864844, 0.2464545319], abs=1e-8)
    assert posterior(run.rounds(20)) == pytest.approx((0.2464539228, 0.7053447382), abs=1e-8)


@pytest.mark.parametrize(("m", "s"), [(0.0, 1.0), (0.0, 2.0), (0.3, 1.0), (0.7, 0.5), (-1.0, 2.0)])
def test_o08_a_vanishing_factor(m, s):
    """f = 10⁻³; (z_m − m)/f still has its next term, −s f m/4, which is taken off: at m = −1, s = 2 it is 5·10⁻⁴."""
    f = 1e-3
    z_m, z_s, _, _ = moments(m, s, f)
    assert (z_m - m) / f + s * f * m / 4 == pytest.approx(s / 2, abs=1e-4)
    assert (s - z_s) / f**2 == pytest.approx(s * s / 4, abs=1e-4)


@pytest.mark.parametrize("kind", ["closed", "quadrature"])
@pytest.mark.parametrize("f", [0.0, 1e-12, 1e-6])
def test_o08_no_factor_no_site(f, kind):
    assert moments(0.7, 0.5, f, kind) == pytest.approx((0.7, 0.5, 0.0, 0.0), abs=f)


def test_o09_exact_sites_are_never_negative():
    """m, s and f on a wide lattice: f² s up to 10⁴, cavities up to 6 sd from 0."""
    place, s, f = (v.flatten() for v in torch.meshgrid(
        torch.linspace(-6, 6, 25, dtype=DOUBLE), torch.logspace(-3, 2, 11, dtype=DOUBLE),
        torch.cat([-torch.logspace(-4, 1, 11, dtype=DOUBLE), torch.logspace(-4, 1, 11, dtype=DOUBLE)]), indexing="ij",
    ))  # fmt: skip
    m = place * s.sqrt()
    _, z_s, site = match(m, s, f, "quadrature", 201)
    assert bool((site.precision >= 0).all())
    assert bool(((z_s > 0) & (z_s <= s)).all())
    first, second = slopes(m, s, f, "quadrature", 201)
    fine = f * f * s <= 100
    kappa = (second / (f * f))[fine]
    assert bool((kappa > 0).all())
    assert float(kappa.max()) <= 0.25 + 1e-9
    assert bool((first * f > 0).all())
    _, r2, r3 = quadrature_ratios(m, s, f, 201)
    assert torch.allclose(curvature(r2, r3)[fine], kappa, atol=1e-8)


@pytest.mark.parametrize("kind", ["closed", "quadrature"])
@pytest.mark.parametrize(("m", "s", "f"), CASES)
def test_o10_a_sign_flip(m, s, f, kind):
    one, two = moments(m, s, f, kind), moments(-m, s, -f, kind)
    assert two == pytest.approx((-one[0], one[1], one[2], -one[3]), abs=1e-12)


@each_engine
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_o11_equal_coordinates_stay_equal(engine, dtype):
    federation = points((9, 5, 7))
    spans = {}
    for output in ("scalar", "vector"):
        method = FedNP(Training(lr=0.05, batch=4), f_output=output, lam=0.1)
        run = Run(method, federation, mlp(federation), engine, dtype=dtype).rounds(3)
        site, totals = run.store.rows["site"], run.state.totals
        leaves = (totals.precision[None], totals.shift[None], site.precision, site.shift)
        spans[output] = [float((leaf - leaf[:, :1]).abs().max()) for leaf in leaves]
    assert spans["scalar"] == [0.0] * 4
    assert min(spans["vector"]) > 1e-3


@each_engine
@pytest.mark.parametrize("network", ["mlp", "mlp_bn", "cnn"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_o12_without_divergences_the_trajectory_is_fedavgs(engine, network, dtype):
    """λ = 0: parameters, running statistics and losses bit for bit, with momentum, decay and clipping, and absences."""
    federation = images() if network == "cnn" else points((9, 5, 1, 6))
    if network == "cnn":
        model, cohorts = models.build("cnn", (1, 8, 8), 3, feature_dim=8), (None, [0, 2])
    else:
        model, cohorts = mlp(federation, norm=network == "mlp_bn"), (None, [0, 2, 3], [1, 2])
    training = Training(lr=0.05, batch=4, momentum=0.5, weight_decay=1e-3, clip=1.0)
    ours = Run(FedNP(training, lam=0.0), federation, model, engine, dtype=dtype)
    theirs = Run(FedAvg(training), federation, model, engine, dtype=dtype)
    for cohort in cohorts:
        ours.rounds(1, cohort)
        theirs.rounds(1, cohort)
        assert same_bits({n: ours.state.params[n] for n in model.leaves}, theirs.state.params)
        assert ours.logs[-1].loss == theirs.logs[-1].loss


def test_o13_npn_linear():
    mean, variance, weight, bias = num([1.0, -2], [0.5, 0.1], [[0.3, -0.1], [0.2, 0.4]], [1.0, 2.0])
    out, var = npn_linear(mean, variance, weight, bias)
    assert out.tolist() == pytest.approx([0.9, 1.1], abs=1e-12)
    assert var.tolist() == pytest.approx([0.5 * 0.09 + 0.1 * 0.04, 0.5 * 0.01 + 0.1 * 0.16], abs=1e-12)


def test_o14_npn_sigmoid():
    out, var = npn_sigmoid(*num(0.5, 1.0))
    assert float(out) == pytest.approx(0.6043642976, abs=1e-9)
    assert float(var) == pytest.approx(0.0456639429, abs=1e-9)
    log_e1, r2, _ = quadrature_ratios(*num(0.5, 1.0, 1.0), 201)
    e1 = float(log_e1.exp())
    assert (e1, e1 * float(r2) - e1**2) == pytest.approx((0.602027, 0.040604), abs=1e-6)
    assert float(npn_sigmoid(*num(30.0, 1e-9))[1]) == 1e-6  # the floor


def test_o15_the_divergences():
    assert float(kl_each(*num(0.1, 0.04, 0.15, 0.01))) == pytest.approx(0.9318528194, abs=1e-9)
    assert float(kl_each(*num(0.3, 0.5, 0.0), 1.0)) == pytest.approx(0.1415735903, abs=1e-9)


def test_o16_the_prior_counts_once():
    """A conjugate mean: sites (n_k, sum_k) through the fold and `combine`; local posteriors count the prior thrice."""
    sums, counts = num([[2.0], [-1.0], [4.5]], [[3.0], [1.0], [5.0]])
    method, model = FedNP(latent=1), scalar_model()
    params = model.init(0, DOUBLE)
    state = method.init(model, params, Facts(3, 9, 0))

    def combined(sites):
        three = {n: p.expand(3, *p.shape) for n, p in state.params.items()}
        total = fold_stack({"params": Mean(counts[:, 0], three), "site": Sum(sites)})
        totals = method.combine(state, total, Now(1, 1, torch.zeros(2), 3)).totals
        return float(totals.mean()), float(totals.covariance())

    assert combined(Gaussian(counts, sums)) == pytest.approx((0.55, 0.1), abs=1e-12)
    naive = Gaussian(counts + 1 - torch.eye(3, dtype=DOUBLE)[:, :1], sums)  # three priors, one of them in the totals
    assert combined(naive) == pytest.approx((0.458333, 0.083333), abs=1e-6)


def test_o17_the_constants():
    expected = {1: (1, 0), 2: (1.1715728753, -0.8813735870), 3: (1.2377968441, -1.3473773483)}
    for power, pair in expected.items():
        assert constants(power) == pytest.approx(pair, abs=1e-9)
    assert constants(2)[0] == pytest.approx(4 - 2 * math.sqrt(2), abs=1e-15)


# --- errata N1 to N3: what the printed constants, the code's constants and the printed S_2 would give ----------------
PRINTED = ((1.0, 0.0), (4 - 2 * 2**0.5, math.log(2**0.5 + 1)), (6 * (1 - 2**-0.5), math.log(2 ** (1 / 3) - 1)))
CODE = ((1.0, 0.0), (4 - 2 * 2**0.5, math.log(2**0.5 + 1)), (6 * (1 - 2**-1.5), math.log(2**1.5 - 1)))


def powers(m, s, f, source):
    """E_1, E_2, E_3 of N(fm, f²s)."""
    if isinstance(source, tuple):
        return [float(log_power(*num(f * m, f * f * s), a, b).exp()) for a, b in source]
    ratios = closed_ratios(*num(m, s, f)) if source == "closed" else quadrature_ratios(*num(m, s, f), 201)
    e1 = float(ratios[0].exp())
    return [e1, e1 * float(ratios[1]), e1 * float(ratios[2])]


def full(m, s, f, source):
    """Mean and variance by (33), (37) and (39), with divisions by f: an independent way to the boxed update."""
    e1, e2, e3 = powers(m, s, f, source)
    c, v = f * m, f * f * s
    first, mixed = (c + v) * e1 - v * e2, (c + 2 * v) * e2 - 2 * v * e3
    mean = first / (e1 * f)
    return mean, (v * e1 + (c + v) * first - v * mixed) / (e1 * f * f) - mean**2


def printed(m, s, f, source):
    """Mean and variance by (11) and (12) as printed."""
    e1, e2, e3 = powers(m, s, f, source)
    c, v = f * m, f * f * s
    mean = ((c + v) * e1 - v * e2) / (e1 * f)
    return mean, ((c + 2 * v) * e2 - 2 * v * e3) / (e1 * f * f) - mean**2


@pytest.mark.parametrize(
    ("m", "source", "expected"),
    [
        (0.0, "exact", (0.500000, 0.293379, 0.190069)),
        (0.0, "closed", (0.500000, 0.303147, 0.211183)),
        (0.0, PRINTED, (0.5, 0.696853, 0.169135)),
        (0.0, CODE, (0.5, 0.696853, 0.709004)),
        (0.5, "exact", (0.602027, 0.403041, 0.288603)),
        (0.5, "closed", (0.604364, 0.410920, 0.303903)),
        (0.5, PRINTED, (0.604364, 0.786599, 0.268729)),
        (0.5, CODE, (0.604364, 0.786599, 0.835954)),
    ],
)
def test_n2_n3_the_powers(m, source, expected):
    assert powers(m, 1.0, 1.0, source) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("case", "exact", "closed"),
    [
        ((0.5, 1.0, 1.0), (0.830527, 0.841105), (0.820079, 0.863480)),
        ((0.0, 1.0, 1.0), (0.413242, 0.829231), (0.393705, 0.870845)),
        ((-1.0, 0.5, 2.0), (None, 0.368113), (None, 0.422323)),
        ((0.0, 1.0, 3.0), (None, 0.525241), (None, 0.558074)),
        ((1.0, 0.5, 1.0), (1.131484, 0.459122), (1.128226, 0.460858)),
        ((-1.0, 2.0, 1.0), (0.000000, 1.442635), (-0.109280, 1.633234)),
    ],
)
def test_n1_our_moments(case, exact, closed):
    """Both back-ends, at the table's digits; the chain with divisions agrees with the boxed update."""
    for kind, source, expected in (("quadrature", "exact", exact), ("closed", "closed", closed)):
        ours = moments(*case, kind)[:2]
        assert ours == pytest.approx(full(*case, source), abs=1e-9)
        for value, wanted in zip(ours, expected, strict=True):
            assert wanted is None or value == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    ("case", "as_printed", "as_coded"),
    [
        ((0.5, 1.0, 1.0), (0.198469, 2.325143), (0.198469, 0.770876)),
        ((0.0, 1.0, 1.0), (-0.393705, 1.955868), (-0.393705, 0.499897)),
        ((-1.0, 0.5, 2.0), (None, -1.898785), (None, -1.561803)),
        ((0.0, 1.0, 3.0), (None, 0.682915), (None, -2.236609)),
    ],
)
def test_n1_to_n3_what_is_not_reproduced(case, as_printed, as_coded):
    for values, expected in ((printed(*case, PRINTED), as_printed), (full(*case, CODE), as_coded)):
        for value, wanted in zip(values, expected, strict=True):
            assert wanted is None or value == pytest.approx(wanted, abs=1e-6)


def test_n1_the_printed_second_moment_is_wrong_with_exact_powers():
    assert printed(0.5, 1.0, 1.0, "exact")[1] == pytest.approx(0.025134, abs=1e-6)
    assert printed(-1.0, 0.5, 2.0, "exact")[1] == pytest.approx(-0.131887, abs=1e-6)


def test_the_closed_forms_error():
    """|m| ≤ 8, s ≤ 25: at most 0.0150, 0.0270, 0.0385 for E_1, E_2, E_3."""
    spread = torch.cat([torch.logspace(-6, 0, 20, dtype=DOUBLE), torch.linspace(1, 25, 100, dtype=DOUBLE)])
    m, s = (v.flatten() for v in torch.meshgrid(torch.linspace(-8, 8, 161, dtype=DOUBLE), spread, indexing="ij"))
    exact, r2, r3 = quadrature_ratios(m, s, torch.ones_like(m), 401)
    truth = (exact.exp(), exact.exp() * r2, exact.exp() * r3)
    near = [log_power(m, s, *constants(d)).exp() for d in (1, 2, 3)]
    worst = [float((a - b).abs().max()) for a, b in zip(near, truth, strict=True)]
    assert worst == pytest.approx([0.0150, 0.0270, 0.0385], abs=1e-4)


@pytest.mark.parametrize(("count", "error"), [pytest.param(129, 1e-6, marks=pytest.mark.everything), (201, 3e-10)])
def test_the_quadratures_error(count, error):
    """Variance of C up to 100; the specification's errors are rounded to one digit."""
    m, s = (v.flatten() for v in torch.meshgrid(torch.linspace(-8, 8, 81, dtype=DOUBLE),
            torch.linspace(0.5, 100, 60, dtype=DOUBLE), indexing="ij"))  # fmt: skip
    one = torch.ones_like(m)
    (a, a2, a3), (b, b2, b3) = quadrature_ratios(m, s, one, count), quadrature_ratios(m, s, one, 2001)
    gaps = [(a.exp() - b.exp()), a.exp() * a2 - b.exp() * b2, a.exp() * a3 - b.exp() * b3]
    assert max(float(g.abs().max()) for g in gaps) < 1.05 * error


@pytest.mark.parametrize(("f", "mean", "variance"), [(10.0, 1e-6, 1e-6), (30.0, 2e-3, 1e-3), (1000.0, 0.04, 0.012)])
def test_a_steep_factor_is_met_gracefully(f, mean, variance):
    """Beyond f² s = 100 the 129 points lose digits, but the moments stay those of a density: f → ∞ cuts N in half."""
    m = torch.linspace(-3, 3, 61, dtype=DOUBLE)
    one, factor = torch.ones_like(m), torch.full_like(m, f)
    ours, fine = match(m, one, factor, "quadrature"), match(m, one, factor, "quadrature", 40_001)
    assert float((ours[0] - fine[0]).abs().max()) < mean
    assert float((ours[1] - fine[1]).abs().max()) < variance
    half = math.sqrt(2 / math.pi), 1 - 2 / math.pi
    assert moments(0.0, 1.0, 1e6, points=40_001)[:2] == pytest.approx(half, abs=1e-3)


def test_n5_the_closed_form_is_clamped():
    """Far out κ turns negative and s κ exceeds 1: sites stay proper and finite, also in float32."""
    m, s = (v.flatten() for v in torch.meshgrid(torch.linspace(-200, 200, 81), torch.logspace(-4, 4, 40),
                                                indexing="ij"))  # fmt: skip
    for kind in ("closed", "quadrature"):
        for f in (1.0, -3.0, 1e-4, 50.0):
            z_m, z_s, site = match(m, s, torch.tensor(f), kind)
            assert all(bool(t.isfinite().all()) for t in (z_m, z_s, site.precision, site.shift))
            assert bool((site.precision >= 0).all())
            assert bool((z_s > 0).all())


@pytest.mark.parametrize("kind", ["closed", "quadrature"])
@pytest.mark.parametrize("value", [0.0, 1e-3, 0.999, 1.001, 4.0])
def test_n4_gradients_are_finite_and_right(kind, value):
    """Of z_m and z_s by f, at f = 0 too and on both sides of the switch at f² s = 1."""
    m, s, f = num(0.3, 1.0, value)
    for index in (0, 1):
        slope = float(grad(lambda f: match(m, s, f, kind, 201)[index])(f))  # noqa: B023
        h = 1e-5
        ahead, behind = (moments(0.3, 1.0, value + d, kind)[index] for d in (h, -h))
        assert slope == pytest.approx((ahead - behind) / (2 * h), abs=1e-6)


# --- where factor and cavity disagree ---------------------------------------------------------------------------------
# The tilted density lies up to min(|f| √s, |m|/√s) sd away from the cavity, and may be 1/|f| wide.
APART = (
    (12.0, 1.0, -8.0),
    (12.0, 1.0, -50.0),
    (20.0, 1.0, -3.0),
    (-8.0, 0.25, 40.0),
    (40.0, 0.5, -100.0),
    (40.0, 1e-4, -100.0),
    (-9.0, 0.25, 6.0),
    (5.0, 4.0, -30.0),
    (30.0, 100.0, -100.0),
    (0.0, 100.0, 100.0),
    (-0.3, 25.0, 61.0),
)


def log_density(z, m, s, f):
    """log N(z; m, s) σ(fz)."""
    return -0.5 * (z - m) ** 2 / s - 0.5 * math.log(2 * math.pi * s) - np.logaddexp(0, -f * z)


def adaptive(m, s, f):
    """Mean, variance and log Z by adaptive quadrature around the mode, which bisection of the slope finds."""
    low, high = sorted((m, m + f * s))
    for _ in range(200):
        z = 0.5 * (low + high)
        rising = f / (1 + math.exp(min(f * z, 700.0))) > (z - m) / s
        low, high = (z, high) if rising else (low, z)
    top, ends = log_density(low, m, s, f), []
    for way in (-1, 1):
        width = 1e-6 * math.sqrt(s)
        while log_density(low + way * width, m, s, f) > top - 45:
            width *= 1.2
        ends.append(low + way * width)
    inner = [x for x in (low, *(k / abs(f) for k in (-9, -3, -1, 0, 1, 3, 9))) if ends[0] < x < ends[1]]

    def whole(g):
        each = {"points": inner, "limit": 400, "epsabs": 1e-12 * math.sqrt(s), "epsrel": 1e-12}
        return quad(lambda z: g(z) * math.exp(log_density(z, m, s, f) - top), *ends, **each)[0]

    z0 = whole(lambda z: 1.0)
    mean = whole(lambda z: z - low) / z0 + low
    return mean, whole(lambda z: (z - mean) ** 2) / z0, top + math.log(z0)


def panels(m, s, f):
    """The same by 40 Gauss points on each of some hundred panels: around 0, m, m + fs, and the sigmoid's corner."""
    sd = math.sqrt(s)
    halves, widths = 0.5 * np.arange(-44, 45), np.concatenate([np.arange(40), 40 * 1.3 ** np.arange(40)])
    cuts = [m + sd * halves, m + f * s + sd * halves, sd * np.arange(-40, 41) / 8, widths / abs(f), -widths / abs(f)]
    edges = np.unique(np.concatenate(cuts))
    at, weight = np.polynomial.legendre.leggauss(40)
    half = 0.5 * np.diff(edges)[:, None]
    z = 0.5 * (edges[1:] + edges[:-1])[:, None] + half * at
    logs = log_density(z, m, s, f)
    mass = np.exp(logs - logs.max()) * half * weight
    mean = (mass * z).sum() / mass.sum()
    return mean, (mass * (z - mean) ** 2).sum() / mass.sum(), logs.max() + math.log(mass.sum())


def test_a_factor_far_from_its_cavity():
    """N(12, 1) times σ(−8z) is N(4, 1) but for its end at 0: a grid around the cavity gave a variance of 0.376."""
    mean, variance = moments(12.0, 1.0, -8.0, points=129)[:2]
    assert variance == pytest.approx(0.9992573527031, abs=1e-10)
    assert mean == pytest.approx(4.0001964470154, abs=1e-10)


@pytest.mark.parametrize(("m", "s", "f"), APART)
def test_moments_where_factor_and_cavity_disagree(m, s, f):
    mean, variance, log_z = adaptive(m, s, f)
    assert panels(m, s, f) == pytest.approx((mean, variance, log_z), rel=1e-9)  # two references
    ours = moments(m, s, f, points=129)
    assert ours[:2] == pytest.approx((mean, variance), rel=1e-9)
    assert ours[2] == pytest.approx(1 / variance - 1 / s, rel=1e-6, abs=1e-9 / s)
    assert ours[3] == pytest.approx(mean / variance - m / s, rel=1e-6)
    assert float(quadrature_ratios(*num(m, s, f))[0]) == pytest.approx(log_z, rel=1e-11)


def lattice():
    """|m| ≤ 40, s from 1e-4 to 100, |f| ≤ 100."""
    m, s, f = np.meshgrid((-40, -12, -3, -0.3, 0.01, 1, 5.3, 31, 40), 10.0 ** np.arange(-4, 3),
                          (-100, -37, -8, -1.1, -0.01, 0.05, 0.7, 6.3, 23, 100))  # fmt: skip
    return np.stack([m.ravel(), s.ravel(), f.ravel()])


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-9), (torch.float32, 1.5e-7)])
def test_moments_on_a_wide_lattice(dtype, close):
    """Relative errors of mean and variance; the mean of m = −fs/2 is 0, so where |mean| < sd its error is in sd."""
    given = [torch.tensor(v, dtype=dtype) for v in lattice()]
    z_m, z_s, site = match(*given, "quadrature")
    exact = np.array([panels(*p) for p in zip(*(v.tolist() for v in given), strict=True)])
    gap = np.abs(z_m.double().numpy() - exact[:, 0]) / np.maximum(np.abs(exact[:, 0]), np.sqrt(exact[:, 1]))
    assert gap.max() < close
    assert np.abs(z_s.double().numpy() / exact[:, 1] - 1).max() < close
    assert bool((site.precision >= 0).all())
    assert bool((site.shift * given[2] >= 0).all())


def test_the_normaliser_on_a_wide_lattice():
    """log Z to 1e-11 of itself, however near 0: E σ(C) = 1 − E σ(−C)."""
    m, s, f = lattice()
    ours = quadrature_ratios(*(torch.tensor(v, dtype=DOUBLE) for v in (m, s, f)))[0].numpy()
    sides = [(panels(*p)[2], panels(p[0], p[1], -p[2])[2]) for p in zip(m, s, f, strict=True)]
    exact = np.array([math.log1p(-math.exp(b)) if a > b else a for a, b in sides])
    assert ours == pytest.approx(exact, rel=1e-11, abs=1e-300)


@pytest.mark.parametrize(("m", "s", "f"), [*APART, (0.4, 1.0, 0.9), (1.0, 2.0, 1e-3), (-3.0, 0.5, 1.4)])
def test_gradients_where_factor_and_cavity_disagree(m, s, f):
    """By m, s and f against differences of the panels: places are constants to the gradient, what they weigh is not."""
    point = (m, s, f)
    for index in (0, 1):
        found = grad(lambda p: match(*p, "quadrature")[index])(tuple(num(*point)))  # noqa: B023
        for i, slope in enumerate(found):
            h = 1e-4 * (abs(point[i]) or 0.1)
            five = [panels(*(v + k * h * (i == j) for j, v in enumerate(point)))[index] for k in (-2, -1, 1, 2)]
            wanted = (five[0] - 8 * five[1] + 8 * five[2] - five[3]) / (12 * h)
            assert float(slope) == pytest.approx(wanted, rel=1e-5, abs=1e-7)


def test_mapped_moments_are_those_of_a_batch():
    given = [torch.tensor(v, dtype=DOUBLE) for v in lattice()]
    one, each = match(*given, "quadrature"), vmap(lambda m, s, f: match(m, s, f, "quadrature"))(*given)
    for a, b in ((one[0], each[0]), (one[1], each[1]), (one[2].precision, each[2].precision)):
        assert torch.allclose(a, b, rtol=1e-12, atol=0)
