"""FedSOL's toy example (arXiv 2308.12532 v4, figure 12): `python -m analysis.toy [--rho 0.5] [--mu 0.1] [--out DIR]`.

Local training in the plane, as in appendix H: the server's model x is at (0, 0), the minimum of the local loss at
(1, 1), δ = 0.1, and a client makes 4000 steps of lr 0.01 from x. The local loss is ½ ((w1 - 1)² + δ (w2 - 1)²), the
proximal loss ½ ||w - x||², and the radius of the perturbation is fixed. The figure's caption calls (1, 1) the initial
weights, the text the minimum, as here (D-123). μ and ρ are not printed: ours. FedProx ends at (1/(1 + μ), δ/(δ + μ)),
bent towards the direction of larger curvature; FedSOL ends ρ short of the minimum, in its direction. Writes the picture
(PNG, PDF), the paths (CSV) and the caption with the angles of the ends.
"""

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.figure import Figure

from fedray.analysis.plots.style import choose_styles, make_axes, save, styled

DELTA, LR, STEPS = 0.1, 0.01, 4000
SERVER, MINIMUM = np.zeros(2), np.ones(2)
CURVATURE = np.array([1.0, DELTA])


def local_gradient(w: np.ndarray) -> np.ndarray:
    """Return the gradient of ½ ((w1 - 1)² + δ (w2 - 1)²)."""
    result: np.ndarray = CURVATURE * (w - MINIMUM)
    return result


def path(direction: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """float64 `(4001, 2)`: the iterates of w <- w - lr q(w) from the server's model."""
    points = [SERVER]
    for _ in range(STEPS):
        points.append(points[-1] - LR * direction(points[-1]))
    return np.array(points)


def paths(mu: float, rho: float) -> dict[str, np.ndarray]:
    """Return method -> its iterates on FedSOL's toy problem, float64 `(4001, 2)`.

    FedAvg follows only the local loss. FedProx adds μ times the proximal loss. FedSOL takes the local gradient at
    w + ρ g_p / ||g_p||, where g_p = w - x is the proximal loss's gradient (0 at x).
    """

    def fedsol(w: np.ndarray) -> np.ndarray:
        away = w - SERVER
        return local_gradient(w + rho * away / (np.linalg.norm(away) + 1e-12))

    return {
        "fedavg": path(local_gradient),
        f"fedprox μ={mu:g}": path(lambda w: local_gradient(w) + mu * (w - SERVER)),
        f"fedsol ρ={rho:g}": path(fedsol),
    }


@styled
def draw(found: dict[str, np.ndarray]) -> Figure:
    """Draw the paths over contours of the local loss."""
    figure, panel = make_axes("w₁", "w₂", "", 0.85)
    grid = np.linspace(-0.15, 1.15, 200)
    first, second = np.meshgrid(grid, grid)
    panel.contour(first, second, 0.5 * ((first - 1) ** 2 + DELTA * (second - 1) ** 2), 12, colors="0.8", linewidths=0.5)
    styles = choose_styles((name, name) for name in found)
    for name, points in found.items():
        panel.plot(
            *points.T, label=name, markevery=[*range(0, 400, 60), *range(400, STEPS, 600), STEPS], **styles[name]
        )
    panel.plot(*SERVER, marker="s", color="black", markersize=5, linestyle="", label="server's model")
    panel.plot(*MINIMUM, marker="+", color="black", markersize=7, linestyle="", label="local minimum")
    panel.grid(visible=False)
    panel.legend(loc="upper left")
    return figure


def measure_turn(end: np.ndarray) -> float:
    """Return the angle in degrees between a model and the local minimum, both seen from the server's model."""
    (a, b), (c, d) = MINIMUM - SERVER, end - SERVER
    return float(np.degrees(abs(np.arctan2(a * d - b * c, a * c + b * d))))


def caption(found: dict[str, np.ndarray]) -> str:
    """Return the picture's contents, the origin of its constants, and the ends of the paths, as text."""
    ends = "; ".join(
        f"{name} at ({end[0]:.3f}, {end[1]:.3f}), local loss {0.5 * CURVATURE @ (end - MINIMUM) ** 2:.4f}, "
        f"distance to the server's model {np.linalg.norm(end - SERVER):.3f}, {measure_turn(end):.1f} degrees from the "
        "direction of the local minimum"
        for name, end in ((name, points[-1]) for name, points in found.items())
    )
    return (
        f"FedSOL's toy example: {STEPS} local steps of lr {LR:g} from the server's model (0, 0), δ = {DELTA:g}, "
        "local loss ½ ((w1 - 1)² + δ (w2 - 1)²), proximal loss ½ ||w||², fixed radius ρ. The values of μ and ρ are our "
        f"choice. In print FedSOL keeps the direction of the local minimum, and FedProx turns it. Ends: {ends}.\n"
    )


def main(
    mu: Annotated[float, typer.Option(min=0, help="FedProx's weight")] = 0.1,
    rho: Annotated[float, typer.Option(min=0, help="FedSOL's radius")] = 0.5,
    out: Annotated[Path, typer.Option(help="folder for the files")] = Path("figures"),
) -> None:
    """Draw FedSOL's toy example."""
    found = paths(mu, rho)
    written = [*save({"": draw(found)}, out, "fedsol-figure12")]
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
    from fedray.common.entry import run_command

    run_command(main)
