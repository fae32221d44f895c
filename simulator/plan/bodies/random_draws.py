"""Ops that draw random numbers. Does not import torch."""

_DISTRIBUTIONS = ("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "random", "uniform")
_LIKE = ("rand", "randint", "randn")
#: Names of the aten ops that draw from a generator. Ops with dropout inside (attention, recurrent layers) have other forms in a plan.
RANDOM = frozenset(
    {
        *_DISTRIBUTIONS, *(f"{name}_" for name in _DISTRIBUTIONS), *_LIKE, *(f"{name}_like" for name in _LIKE),
        "_sample_dirichlet", "_standard_gamma", "binomial", "multinomial", "native_dropout", "poisson", "randperm", "rrelu_with_noise",
    }
)  # fmt: skip


def is_random(target: str) -> bool:
    """Whether `target` is an op, `aten.NAME.OVERLOAD`, that draws random numbers."""
    return target.startswith("aten.") and target.split(".")[1] in RANDOM
