"""The paper's constants, Theorem 1 and Table 1; where a printed bound fails, a corrected one.

Letters: p is `pos_ratio`, eta `lr`, T `steps`, I `sync_every`, K `workers`, m `dual_samples`.
The score h lies in [0, 1], |grad h| <= G_h, and grad h is L_h-Lipschitz (Assumption 1).
D = max(p, 1-p) / (p (1-p)) bounds |alpha|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from codauc._internal.checks import known_arguments, real, whole


class StepLimits(NamedTuple):
    """Step sizes above which alpha (`refuse`) or a and b (`warn`) may leave their bounds."""

    refuse: float
    warn: float


class Complexity(NamedTuple):
    """Leading orders of the iterations and of the communication rounds, without constants."""

    iterations: float
    rounds: float


@dataclass(frozen=True)
class Constants:
    """The constants of Lemmas 1, 2 and 6; see `constants`."""

    mu_alpha: float
    L_alpha: float
    G_alpha: float
    G_v: float
    B_v: float
    B_alpha: float
    L_1: float
    L_2: float
    L_v: float


@dataclass(frozen=True)
class Theorem1:
    """Settings of Theorem 1, one entry per stage in `lr`, `steps`, `sync_every`, `dual_samples`.

    `lr_limit` is Lemma 2's largest step size for the same L, G_h and p: the theorem speaks only
    where `lr[0] <= lr_limit`.
    """

    c: float
    gamma: float
    lr_limit: float
    lr: tuple[float, ...]
    steps: tuple[int, ...]
    sync_every: tuple[int, ...]
    dual_samples: tuple[int, ...]


@known_arguments
def step_limits(pos_ratio: float) -> StepLimits:
    """Lemmas 7 and 8: the step sizes that keep |alpha| <= D, and |a|, |b| <= 1.

    `refuse = 1/(2 p (1-p))` and `warn = 1/(2 max(p, 1-p))`.

    >>> step_limits(0.5)
    StepLimits(refuse=2.0, warn=1.0)
    """
    p = _ratio(pos_ratio)
    return StepLimits(refuse=1 / (2 * p * (1 - p)), warn=1 / (2 * max(p, 1 - p)))


@known_arguments
def constants(pos_ratio: float, G_h: float, L_h: float, *, printed: bool = False) -> Constants:
    """The constants of Lemmas 1, 2 and 6, corrected; `printed=True` gives them as in the paper.

    They hold for every sample with |a|, |b| <= 1 and |alpha| <= D. With P = max(p, 1-p):

        mu_alpha = L_alpha = 2p(1-p)       G_v = 2P G_h       B_alpha = 2 + 4P
        B_v^2 = (6 + 2D)^2 G_h^2 + 16(1-p)^2 + 16p^2

    Two printed constants are not bounds:

    - `G_alpha`, the Lipschitz constant of grad_v F in alpha: printed 2P. The derivative is
      -2(1-p) grad h on a positive and 2p grad h on a negative, so it is 2P G_h.
    - `L_2`, the Lipschitz constant of grad_v F in v: printed
      (G_h^2 + L_h + 4 + 16 D (1-p)^2 (G_h^2 + 1))^(1/2). The Hessian of F at a positive, in (w, a),
      is 2(1-p) [u u^T + (h-a-1-alpha) hess h] with u = (grad h, -1), and at a negative, in (w, b),
      2p [u u^T + (h-b+1+alpha) hess h]. As |u|^2 <= G_h^2 + 1, and both factors of hess h are at
      most 3 + D in size, L_2 = 2P (G_h^2 + 1 + (3 + D) L_h). A linear h attains it.

    For p = 0.9, G_h = 1 and L_h = 0 the printed L_2 is 2.86 and the true one 3.6. The other
    constants hold as printed, some of them loosely.

    `L_1` is the smoothness of phi(v) = max_alpha f(v, alpha), a premise of the paper. It is bounded
    by L_2 + G_alpha G_v / mu_alpha: grad phi(v) = grad_v f(v, alpha*(v)) by Danskin's theorem, and
    alpha* is G_v/mu_alpha-Lipschitz. With `printed=True` it is L_2. L_v is the larger of the two.

    >>> round(constants(0.9, G_h=1, L_h=0, printed=True).L_2, 2)
    2.86
    >>> round(constants(0.9, G_h=1, L_h=0).L_2, 2)
    3.6
    """
    p = _ratio(pos_ratio)
    G_h = _positive("G_h", G_h, "give a bound on the norm of the gradient of the score")
    L_h = real("L_h", L_h, least=0, remedy="give 0 for a linear score")
    P, mu = max(p, 1 - p), 2 * p * (1 - p)
    D = 2 * P / mu
    G_v = 2 * P * G_h
    if printed:
        G_alpha = 2 * P
        L_1 = L_2 = math.sqrt(G_h**2 + L_h + 4 + 16 * D * (1 - p) ** 2 * (G_h**2 + 1))
    else:
        G_alpha = G_v
        L_2 = 2 * P * (G_h**2 + 1 + (3 + D) * L_h)
        L_1 = L_2 + G_alpha * G_v / mu
    return Constants(
        mu_alpha=mu,
        L_alpha=mu,
        G_alpha=G_alpha,
        G_v=G_v,
        B_v=math.sqrt((6 + 2 * D) ** 2 * G_h**2 + 16 * (1 - p) ** 2 + 16 * p**2),
        B_alpha=2 + 4 * P,
        L_1=L_1,
        L_2=L_2,
        L_v=max(L_1, L_2),
    )


@known_arguments
def dual_samples(lr_next: float, steps_next: float, pos_ratio: float, workers: int) -> int:
    """Theorem 1's number of samples a worker draws to estimate alpha, rounded up, at least 1.

        m_s = max( (1+C) / (eta_{s+1}^2 T_{s+1} p^2 (1-p)^2),  log K / log(1/P) )
        P = max(p, 1-p),   C = 3 P^(1/ln(1/P)) / (2 ln(1/P)) = 3 / (2 e ln(1/P))

    `lr_next` and `steps_next` are eta_{s+1} and T_{s+1}. The appendix divides the first term by
    sigma_alpha^2 as well. As the paper's sigma_alpha is at least 8, this m_s is the larger one.

    >>> dual_samples(lr_next=0.1, steps_next=1000, pos_ratio=0.5, workers=4)
    3
    """
    p = _ratio(pos_ratio)
    eta = _positive("lr_next", lr_next, "give the step size of the next stage")
    T = _positive("steps_next", steps_next, "give the number of steps of the next stage")
    K = _workers(workers)
    log_inverse = -math.log1p(-min(p, 1 - p))
    C = 3 / (2 * math.e * log_inverse)
    accuracy = (1 + C) / (eta**2 * T * p**2 * (1 - p) ** 2)
    return max(1, round_up(accuracy), round_up(math.log(K) / log_inverse))


@known_arguments
def theorem1(
    lr0: float, workers: int, stages: int, *, mu: float, L: float, G_h: float, pos_ratio: float
) -> Theorem1:
    """The settings of Theorem 1; T, I and m are rounded up to integers.

        c = (mu/L)/(5 + mu/L)                 gamma = 1/(2L)
        eta_s = eta_0 K exp(-(s-1)c)          T_s = max(8, 8 G_h^2)/(L eta_0 K) exp((s-1)c)
        I_s = max(1, 1/sqrt(K eta_s))         m_s as `dual_samples` of eta_{s+1}, T_{s+1}

    `lr0` is eta_0, `L` is L_v of `constants`, `mu` the PL constant of phi, at most L.

    This is the theorem as printed. Its proof asks for a little more in two places: the step that
    cancels |v_s - v_{s-1}|^2 needs eta_s T_s L >= max(8, 16 G_h^2), up to twice the T_s above, and
    it needs I_s <= 1/sqrt(K eta_s), where rounding up can at most double I_s.

    >>> plan = theorem1(0.01, 4, 2, mu=0.5, L=2.0, G_h=1.0, pos_ratio=0.5)
    >>> plan.steps, plan.sync_every, plan.gamma
    ((100, 105), (3, 3), 0.25)
    """
    eta0 = _positive("lr0", lr0, "give eta_0; the first stage runs with workers * lr0")
    K = _workers(workers)
    S = whole("stages", stages, least=1, remedy="use 1 for a single stage")
    L = _positive("L", L, "give L_v of codauc.algorithm.theory.constants")
    G_h = _positive("G_h", G_h, "give a bound on the norm of the gradient of the score")
    p, c = _ratio(pos_ratio), _rate(mu, L)
    if S * c > 100:
        raise ValueError(
            f"stages={S}: expected at most {100 / c:.0f}, as T_s grows by exp(c) per stage."
        )
    lr = [eta0 * K * math.exp(-s * c) for s in range(S + 1)]
    steps = [max(8, 8 * G_h**2) / (L * eta0 * K) * math.exp(s * c) for s in range(S + 1)]
    G_v, mu_alpha = 2 * max(p, 1 - p) * G_h, 2 * p * (1 - p)
    return Theorem1(
        c=c,
        gamma=1 / (2 * L),
        lr_limit=min(
            1 / (L + 3 * G_v**2 / mu_alpha),
            1 / (mu_alpha + 3 * G_v**2 / L),
            3 / (2 * mu_alpha),
            *step_limits(p),
        ),
        lr=tuple(lr[:S]),
        steps=tuple(max(1, round_up(T)) for T in steps[:S]),
        sync_every=tuple(max(1, round_up(1 / math.sqrt(K * eta))) for eta in lr[:S]),
        dual_samples=tuple(dual_samples(lr[s], steps[s], p, K) for s in range(1, S + 1)),
    )


@known_arguments
def table1(workers: int, mu: float, epsilon: float) -> dict[str, Complexity]:
    """Table 1: iterations and rounds to reach epsilon, without constants and logarithms.

        PPD-SG      1/(mu^2 eps)        none
        NP-PPD-SG   1/(K mu^2 eps)      1/(K mu^2 eps)
        CoDA        1/(K mu^2 eps)      1/(mu^(3/2) eps^(1/2))

    It holds for mu <= 1 and K <= 1/mu; CoDA has the fewest rounds while K <= 1/sqrt(mu eps).

    >>> table1(workers=4, mu=0.25, epsilon=0.01)["CoDA"]
    Complexity(iterations=400.0, rounds=80.0)
    """
    K = _workers(workers)
    mu = _positive("mu", mu, "give the PL constant of phi")
    epsilon = _positive("epsilon", epsilon, "give the gap phi(v_S) - phi* to reach")
    if mu > 1:
        raise ValueError(f"mu={mu!r}: expected at most 1, as Table 1 assumes; scale the problem.")
    single = 1 / (mu**2 * epsilon)
    return {
        "PPD-SG": Complexity(single, 0.0),
        "NP-PPD-SG": Complexity(single / K, single / K),
        "CoDA": Complexity(single / K, 1 / (mu**1.5 * epsilon**0.5)),
    }


def round_up(number: float) -> int:
    """The least integer >= `number`, after rounding errors: 10 * 1.1 is 11, not 12.

    >>> round_up(10 * 1.1), round_up(10.01)
    (11, 11)
    """
    nearest = round(number)
    return nearest if math.isclose(number, nearest, rel_tol=1e-12) else math.ceil(number)


def _rate(mu: float, L: float) -> float:
    """Theorem 1's c = (mu/L)/(5 + mu/L)."""
    mu = _positive("mu", mu, "give the PL constant of phi")
    if mu > L:
        raise ValueError(f"mu={mu!r}: expected at most L={L!r}; an L-smooth phi has no larger one.")
    return (mu / L) / (5 + mu / L)


def _ratio(pos_ratio: float) -> float:
    remedy = "give the share of positives in all the data"
    return real("pos_ratio", pos_ratio, above=0, below=1, remedy=remedy)


def _workers(workers: int) -> int:
    return whole("workers", workers, least=1, remedy="use 1 for a single machine")


def _positive(name: str, value: float, remedy: str) -> float:
    return real(name, value, above=0, remedy=remedy)
