"""Student's t distribution in plain Python (tail, quantile, power of its test), and Wilson's interval for a share.

The tail is the regularised incomplete beta function, by its continued fraction:

    P(|T| ≥ t) = I_x(ν/2, 1/2),  x = ν / (ν + t²)                                                                   (1)

(Abramowitz and Stegun, 1964, 26.7.1 and 26.5.8). Power is that of a test of size `level` when the mean lies `shift`
standard errors from zero: the statistic is then (Z + shift) / U with U² a chi-square over its ν degrees of freedom, and

    power = E_U [ Φ(shift − c U) + Φ(−shift − c U) ],  c the quantile of `level`.                                   (2)

How far a share p of n independent trials can be trusted: Wilson's interval (1927), which stays inside 0 and 1, with z
the normal quantile:

    (p + z²/2n ± z √( p(1−p)/n + z²/4n² )) / (1 + z²/n)                                                            (3)
"""

import math
from statistics import NormalDist

SMALL = 1e-300  # stands for zero in the continued fraction
STEPS = 100_000  # of the fraction; about √ν are needed
POINTS = 120  # of the integral over U; and more for few degrees of freedom, whose U has a long tail


def two_sided(t: float, df: float) -> float:
    """P(|T| ≥ |t|): the two-sided p-value, accurate in relative terms however small it is."""
    if math.isnan(t):
        return math.nan
    # t² may overflow, so both shares come from the ratio; each is computed from its smaller side
    ratio = (t / math.sqrt(df)) ** 2 if abs(t) < 1e150 else math.inf
    if math.isinf(ratio):
        return 0.0
    a, log_x, y = df / 2, -math.log1p(ratio), ratio / (1 + ratio)
    x = 1 / (1 + ratio)
    front = math.exp(a * log_x + 0.5 * math.log(y) - _log_beta(a)) if y > 0 else 0.0
    if x < (a + 1) / (a + 2.5):
        return front * _fraction(a, 0.5, x) / a  # (1)
    return 1 - front * _fraction(0.5, a, y) / 0.5


def quantile(level: float, df: float) -> float:
    """The t whose two-sided p-value is `level`: 0.05 gives the factor of a 95 % interval.

    Newton's method on ln p as a function of ln t, which is concave: after the first step it comes from one side.
    """
    if df == 1:
        return 1 / math.tan(math.pi * level / 2)  # of a Cauchy distribution, whose tail may be too far for steps
    t = max(-NormalDist().inv_cdf(level / 2), 1e-12)
    for _ in range(200):
        p = two_sided(t, df)
        step = p * math.log(p / level) / (2 * t * density(t, df))
        t *= math.exp(min(step, 20.0))
        if abs(step) < 1e-14:
            break
    return t


def density(t: float, df: float) -> float:
    """The density at t."""
    return math.exp(-(df + 1) / 2 * math.log1p(t * t / df) - _log_beta(df / 2) - 0.5 * math.log(df))


def power(shift: float, df: float, level: float = 0.05) -> float:
    """Chance of a two-sided p-value below `level` when the mean lies `shift` standard errors from zero."""
    cut, half = quantile(level, df), 1 / math.sqrt(2 * df)
    low, high = -36 / df - 8 * half, 8 * half  # of ln U: all but 1e-15 of its probability
    points = POINTS + round(3000 / df)
    width = (high - low) / points
    total = mass = 0.0
    for k in range(points + 1):
        y = low + k * width
        u = math.exp(y)
        weight = math.exp(df * (y - (u * u - 1) / 2))  # density of ln U, up to a factor
        mass += weight
        total += weight * (_above(cut * u - shift) + _above(cut * u + shift))  # (2)
    return total / mass


def shift_for(df: float, level: float = 0.05, wanted: float = 0.8) -> float:
    """How many standard errors from zero the mean must lie for a power of `wanted`."""
    low, high = 0.0, 1.0
    while power(high, df, level) < wanted:
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, df, level) < wanted else (low, middle)
    return high


def wilson(share: float, trials: float, level: float = 0.05) -> tuple[float, float]:
    """The interval that covers the true share with probability 1 − `level`."""
    if trials <= 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(1 - level / 2)
    centre = share + z * z / (2 * trials)
    reach = z * math.sqrt(max(share * (1 - share), 0.0) / trials + (z / (2 * trials)) ** 2)
    scale = 1 + z * z / trials
    return max((centre - reach) / scale, 0.0), min((centre + reach) / scale, 1.0)  # (3)


def _above(z: float) -> float:
    """P(Z > z) of a normal variable."""
    return 0.5 * math.erfc(z / math.sqrt(2))


def _log_beta(a: float) -> float:
    """ln B(a, 1/2). From a = 30 on by the series of ln Γ(a + 1/2) − ln Γ(a): the two are large and nearly equal."""
    if a < 30:
        return math.lgamma(a) + math.lgamma(0.5) - math.lgamma(a + 0.5)
    r = 1 / (a * a)
    series = -(1 / 8 - r * (1 / 192 - r * (1 / 640 - r * (17 / 14336 - r * 31 / 18432)))) / a
    return 0.5 * math.log(math.pi / a) - series


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1 / _away(1 + term * d), _away(1 + term / c)
            value *= d * c
        if abs(d * c - 1) < 4e-16:
            break
    return value


def _away(value: float) -> float:
    return value if abs(value) > SMALL else SMALL
