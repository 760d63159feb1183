"""FedSOL's toy example (arXiv 2308.12532 v4, figure 12): `python -m analysis.toy [--rho 0.5] [--mu 0.1] [--out DIR]`.

Local training in the plane: from the global model x = (1, 1), 4000 steps of lr 0.01 on a quadratic with δ = 0.1, as
the paper says. Ours, where it says nothing we know of: the local loss ½ (w1² + δ w2²), the proximal loss ½ ||w - x||²,
μ, ρ, and a perturbation of fixed radius ρ. Writes the picture (PNG, PDF), the paths (CSV) and the caption.
"""

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.figure import Figure

from analysis.style import axes, save, styled, styles

DELTA, LR, STEPS = 0.1, 0.01, 4000
START = np.array([1.0, 1.0])
CURVATURE = np.array([1.0, DELTA])


def local_gradient(w: np.ndarray) -> np.ndarray:
    """Of ½ (w1² + δ w2²)."""
    result: np.ndarray = CURVATURE * w
    return result


def path(direction: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """float64 `(4001, 2)`: the iterates of w <- w - lr q(w) from the global model."""
    points = [START]
    for _ in range(STEPS):
        points.append(points[-1] - LR * direction(points[-1]))
    return np.array(points)


def paths(mu: float, rho: float) -> dict[str, np.ndarray]:
    """Method -> path. FedAvg: the local loss alone. FedProx: plus μ times the proximal loss.

    FedSOL: the local gradient at w + ρ g_p / ||g_p||, where g_p = w - x is the proximal loss's gradient (0 at x).
    """

    def fedsol(w: np.ndarray) -> np.ndarray:
        away = w - START
        return local_gradient(w + rho * away / (np.linalg.norm(away) + 1e-12))

    return {
        "fedavg": path(local_gradient),
        f"fedprox μ={mu:g}": path(lambda w: local_gradient(w) + mu * (w - START)),
        f"fedsol ρ={rho:g}": path(fedsol),
    }


@styled
def draw(found: dict[str, np.ndarray]) -> Figure:
    """The paths over contours of the local loss."""
    figure, panel = axes("$w_1$", "$w_2$", "", 0.85)
    grid = np.linspace(-0.15, 1.15, 200)
    first, second = np.meshgrid(grid, grid)
    panel.contour(first, second, 0.5 * (first**2 + DELTA * second**2), 12, colors="0.8", linewidths=0.5)
    for style, (name, points) in zip(styles(), found.items(), strict=False):
        panel.plot(*points.T, label=name, markevery=[*range(0, 400, 60), *range(400, STEPS, 600), STEPS], **style)
    panel.plot(*START, marker="s", color="black", markersize=5, linestyle="", label="global model")
    panel.plot(0, 0, marker="+", color="black", markersize=7, linestyle="", label="local minimum")
    panel.grid(visible=False)
    panel.legend(loc="lower right")
    return figure


def caption(found: dict[str, np.ndarray]) -> str:
    """What the picture shows, whose choice it is, and where the paths end."""
    ends = "; ".join(
        f"{name} at ({end[0]:.3f}, {end[1]:.3f}), local loss {0.5 * CURVATURE @ end**2:.4f}, distance to "
        f"the global model {np.linalg.norm(end - START):.3f}"
        for name, end in ((name, points[-1]) for name, points in found.items())
    )
    return (
        f"FedSOL's toy example: {STEPS} local steps of lr {LR:g} from the global model (1, 1), δ = {DELTA:g}. The "
        "local loss ½ (w1² + δ w2²), the proximal loss ½ ||w - (1, 1)||², the fixed radius ρ, and the values of μ "
        f"and ρ are our choice. Ends: {ends}.\n"
    )


def main(
    mu: Annotated[float, typer.Option(min=0, help="FedProx's weight")] = 0.1,
    rho: Annotated[float, typer.Option(min=0, help="FedSOL's radius")] = 0.5,
    out: Annotated[Path, typer.Option(help="folder for what is written")] = Path("figures"),
) -> None:
    """Draw FedSOL's toy example."""
    found = paths(mu, rho)
    written = save({"": draw(found)}, out, "fedsol-figure12")
    written += [out / "fedsol-figure12.csv", out / "fedsol-figure12.txt"]
    with written[-2].open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", "step", "w1", "w2"])
        writer.writerows(
            [name, k, f"{w[0]:.8g}", f"{w[1]:.8g}"] for name, points in found.items() for k, w in enumerate(points)
        )
    written[-1].write_text(caption(found), encoding="utf-8")
    sys.stdout.write("".join(f"{one}\n" for one in written) + caption(found))


if __name__ == "__main__":
    from fedray.common.entry import entry

    entry(main)
