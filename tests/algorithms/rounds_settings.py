"""Hand-derived rounds of FedExP and FedDisco: FedAvg on the two quadratics, u0 = (-1.5, 2), u1 = (2.5, -0.25)."""

from tests.algorithms.quadratic import Case, derived


@derived
def fedexp() -> Case:
    """U = (0.5, 0.875), ||U||² = 1.015625; the mean of ||u||² is (6.25 + 6.3125)/2 = 6.28125. With ε = 0.484375 the
    factor is 6.28125/(2 · 1.5) = 2.09375, x = 2.09375 U.
    """
    return Case({"name": "fedexp", "epsilon": 0.484375}, [{"theta": (1.046875, 1.83203125)}])


@derived
def fedexp_over_the_cohort() -> Case:
    """As `fedexp`, M = 2: with ε = 0.2421875 the same."""
    return Case(
        {"name": "fedexp", "epsilon": 0.2421875, "epsilon_scale": "cohort"}, [{"theta": (1.046875, 1.83203125)}]
    )


@derived
def feddisco() -> Case:
    """Both clients hold label 0 alone, of two classes: d = ½ + ½ in l1. p = (1/3, 2/3); with a = 1/6, b = ½
    p - a d + b = (2/3, 1), π = (2/5, 3/5): x = (2 u0 + 3 u1)/5 = (0.9, 0.65).
    """
    return Case({"name": "feddisco", "a": 1 / 6, "b": 0.5, "metric": "l1"}, [{"theta": (0.9, 0.65)}])
