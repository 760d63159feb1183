"""Sharpness of a run's minimum: `fedray sharpness SWEEP [--cell CELL] [--plot random|eigen] [--out DIR]`.

The top Hessian eigenvalues of the global model in the run's newest checkpoint, λ1 and λ1/λ5, on training samples picked
by the run's seed; and the loss in a plane through it, as a picture (PNG, PDF) and as data (CSV). Results are printed
and written to files; the store is only read.

The loss is the mean cross-entropy over fixed samples, computed as in a test: no augmentation, no dropout, no weight
decay, running statistics if the model has them.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d import Axes3D
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, normalize

from fedray.analysis.data.collect import load_run
from fedray.analysis.data.stored import read_sweep
from fedray.analysis.plots.style import ACROSS, WIDE, WIDTH, make_panels, save, styled
from fedray.cells.status import Status
from fedray.client import CHUNK
from fedray.common.entry import Overwrite
from fedray.common.errors import UserError, escape, restate, unknown
from fedray.common.output import OutputFile
from fedray.common.rng import generator
from fedray.datasets.dataset import Samples
from fedray.engine.result import refuse_without_model
from fedray.models.network import Layout, Network, Output
from fedray.tracking.store import get_label, open_reader

COUNT = 5
"""Number of eigenvalues; FedSOL's figure 8 prints λ1 and λ1/λ5."""
PLANES = ("none", "random", "eigen")
TOLERANCE = 1e-4
"""Relative accuracy of an eigenvalue at which Lanczos stops; products are in float32."""


@dataclass(frozen=True)
class Sharpness:
    """eigenvalues: the largest of the Hessian, descending. samples: number of training samples."""

    run: str
    label: str
    round: int
    samples: int
    loss: float
    eigenvalues: list[float]

    @property
    def ratio(self) -> float:
        """λ1/λ5."""
        return self.eigenvalues[0] / self.eigenvalues[-1]

    def __str__(self) -> str:
        values = ", ".join(f"{value:.4g}" for value in self.eigenvalues)
        return (
            f"{escape(self.label)}: round {self.round}, loss {self.loss:.4g} on {self.samples} training samples\n"
            f"  λ1 {self.eigenvalues[0]:.4g}, λ1/λ5 {self.ratio:.4g}; eigenvalues {values}"
        )


class Landscape:
    """The loss over some samples as a function of θ, float32 `(P,)`. The buffers `(B,)` do not change.

    `indices` are positions of the samples to use; `logits` is the generic model's (`Algorithm.logits`).
    """

    def __init__(
        self,
        network: Network,
        buffers: Tensor,
        samples: Samples,
        indices: np.ndarray,
        logits: Callable[[Output], Tensor] = lambda output: output.logits,
    ) -> None:
        self.network, self.samples, self.indices, self.logits = network, samples, indices, logits
        network.reset(buffers)
        network.train(False)

    def compute_loss(self, theta: Tensor) -> float:
        """Return the mean cross-entropy at θ."""
        self.network.load(theta)
        with torch.no_grad():
            return sum(float(part) for part in self._iter_losses())

    def multiply_hessian(self, theta: Tensor, v: Tensor) -> Tensor:
        """Return the Hessian at θ times v `(P,)`."""
        self.network.load(theta)
        parameters = self.network.trained
        views = self.network.layout.views(v)
        along = [views[name] for name in self.network.layout.names]
        total = torch.zeros_like(theta)
        # cuDNN's recurrent kernels and fused attention have no derivative of their backward pass
        with torch.backends.cudnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
            for part in self._iter_losses():
                gradients = torch.autograd.grad(part, parameters, create_graph=True, materialize_grads=True)
                slope = torch.stack([(g * u).sum() for g, u in zip(gradients, along, strict=True)]).sum()
                if slope.requires_grad:  # a loss that is linear in θ has no second derivative
                    products = torch.autograd.grad(slope, parameters, materialize_grads=True)
                    total += torch.cat([h.detach().reshape(-1) for h in products])
        return total

    def _iter_losses(self) -> Iterator[Tensor]:
        """Yield the loss, chunk by chunk of samples."""
        for start in range(0, len(self.indices), CHUNK):
            x, y = self.samples.make_batch(self.indices[start : start + CHUNK])
            yield cross_entropy(self.logits(self.network(x)), y, reduction="sum") / len(self.indices)


class TrainedRun:
    """The global model of a run, from its newest checkpoint, on its training samples.

    samples: their number, drawn without replacement by the run's seed; all if there are fewer. Raises UserError if the
    run cannot be loaded (`fedray.load`), names a plug-in, or has no global model.
    """

    def __init__(self, run: str, samples: int, device: str = "cpu") -> None:
        result = load_run("sharpness", run, trusts=False)
        problem, self.run, self.state = result.problem, run, result.state
        self.config, self.label = problem.config, get_label(open_reader()[0].get_run(run))
        refuse_without_model(self.config.algorithm)
        data, network, train = problem.data, problem.build_network(device), problem.evaluated["train"]
        self.layout, self.theta = result.layout, result.theta.to(device)
        self.indices = np.sort(train[generator(self.config.seed, "sharpness").permutation(len(train))[:samples]])
        shown = Samples(data.x_train, data.y_train, data, device)
        buffers, logits = self.state.buffers.to(device), self.config.algorithm.logits
        self.landscape = Landscape(network, buffers, shown, self.indices, logits)

    def find_eigenvalues(self) -> tuple[Sharpness, np.ndarray]:
        """Return the top eigenvalues and their vectors `(5, P)`. Raises UserError if the model is too small."""
        if self.layout.size <= COUNT:
            raise UserError(f"model: {self.layout.size} parameters; more than {COUNT} are required")
        start = generator(self.config.seed, "lanczos").standard_normal(self.layout.size)
        values, vectors = find_top_eigenvalues(
            lambda v: self.landscape.multiply_hessian(self.theta, v.to(self.theta.device)), start, COUNT
        )
        loss, count = self.landscape.compute_loss(self.theta), len(self.indices)
        return Sharpness(self.run, self.label, self.state.round, count, loss, values.tolist()), vectors

    def measure_plane(self, kind: str, vectors: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Return the loss at θ + steps[i] d1 + steps[j] d2, for each pair of steps."""
        if kind == "random":
            first, second = draw_filter_normalised(self.theta, self.layout, generator(self.config.seed, "surface"))
        else:
            first, second = (torch.from_numpy(v.copy()).to(self.theta.device) for v in vectors[:2])
        return compute_surface(self.landscape, self.theta, (first, second), steps)


def find_top_eigenvalues(
    times: Callable[[Tensor], Tensor], start: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return a symmetric matrix's largest eigenvalues, descending by sign, and their unit eigenvectors `(count, P)`.

    By Lanczos from `start`; `times` gives the product of the matrix with a float32 vector `(P,)`.
    """

    def matvec(v: np.ndarray) -> np.ndarray:
        return times(torch.from_numpy(np.ascontiguousarray(v.reshape(-1), dtype=np.float32))).cpu().numpy()

    operator = LinearOperator((len(start), len(start)), matvec=matvec, dtype=np.float32)
    with restate("sharpness: the Hessian's eigenvalues were not found; it is 0, or not finite", ArpackError):
        values, vectors = eigsh(operator, k=count, which="LA", v0=start.astype(np.float32), tol=TOLERANCE)
    order = np.argsort(values)[::-1]
    return values[order].astype(float), vectors.T[order]


def draw_filter_normalised(theta: Tensor, layout: Layout, rng: np.random.Generator) -> list[Tensor]:
    """Return two orthogonal random directions with filters as long as those of θ (Li et al., NeurIPS 2018).

    A filter belongs to one output: a slice of a weight's first dimension. Biases and norm layers have none
    and are 0. Each filter of the second direction is orthogonal to the same filter of the first; a filter of one
    number has no orthogonal one and is 0 in the second.
    """
    directions: list[Tensor] = []
    for _ in range(2):
        d = torch.from_numpy(rng.standard_normal(layout.size, dtype=np.float32)).to(theta.device)
        parts, weights = layout.views(d), layout.views(theta)
        for name in layout.names:
            if parts[name].ndim < 2:
                parts[name].zero_()
                continue
            filters, like = parts[name].flatten(1), weights[name].flatten(1)
            if directions:
                first = normalize(layout.views(directions[0])[name].flatten(1), dim=1)
                filters -= (filters * first).sum(1, keepdim=True) * first
                filters *= filters.shape[1] > 1
            filters *= torch.linalg.vector_norm(like, dim=1, keepdim=True) / (
                torch.linalg.vector_norm(filters, dim=1, keepdim=True) + 1e-10
            )
        directions.append(d)
    return directions


def compute_surface(landscape: Landscape, theta: Tensor, directions: Sequence[Tensor], steps: np.ndarray) -> np.ndarray:
    """Return float64 `(len(steps), len(steps))`: entry (i, j) is the loss at θ + steps[i] d1 + steps[j] d2."""
    first, second = directions
    points = ([theta + float(a) * first + float(b) * second for b in steps] for a in steps)
    return np.array([[landscape.compute_loss(point) for point in row] for row in points])


WORDS = {"random": "random direction", "eigen": "eigenvector"}
HEIGHT = 2.0
"""Inches: of a panel."""


def main(
    sweep: Annotated[str | None, typer.Argument(metavar="[SWEEP]", help="the sweep whose runs are examined")] = None,
    cell: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CELL",
            help="a cell of the sweep: its number, hash, or a pattern of labels: 'fedavg*'; repeatable; default all",
        ),
    ] = None,
    run: Annotated[list[str] | None, typer.Option(help="in place of a sweep: a cell's run id in MLflow")] = None,
    plot: Annotated[
        str, typer.Option(help="none | random | eigen: the plane in which to draw the loss, a panel per run")
    ] = "none",
    samples: Annotated[int, typer.Option(min=1, help="training samples")] = 2000,
    points: Annotated[int, typer.Option(min=3, help="grid points per side")] = 25,
    reach: Annotated[
        float,
        typer.Option(help="the plane extends from -REACH to REACH, in units of the filters' or eigenvectors' lengths"),
    ] = 1.0,
    device: Annotated[str, typer.Option(help="cpu | cuda")] = "cpu",
    out: Annotated[Path, typer.Option(help="folder for the files")] = Path("sharpness"),
    overwrite: Overwrite = False,
) -> None:
    """Print the top Hessian eigenvalues of runs, and draw the loss around them."""
    if plot not in PLANES:
        raise unknown("--plot", plot, PLANES)
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise UserError(f"--device: found {device!r}; cpu, or cuda where there is one")
    if not 0 < reach < math.inf:
        raise UserError(f"--reach: found {reach:g}; expected a number above 0")
    torch.set_num_threads(1)  # the bits of a sum depend on it
    runs = find_runs(sweep, cell or (), run or ())
    steps, titles, planes = np.linspace(-reach, reach, points), list[str](), list[np.ndarray]()
    for each in runs:
        file = OutputFile("--out", out / f"{each}.json", (".json",), overwrite)
        trained = TrainedRun(each, samples, device)
        found, vectors = trained.find_eigenvalues()
        file.write(json.dumps(asdict(found) | {"ratio": found.ratio}, indent=1) + "\n")
        sys.stdout.write(f"{found}\n  {file.path}\n")
        if plot == "none":
            continue
        losses = trained.measure_plane(plot, vectors, steps)
        planes.append(losses)
        method = trained.config.algorithm.make_label()
        titles.append(f"{method}\nλ1 = {found.eigenvalues[0]:.3g}, λ1/λ5 = {found.ratio:.3g}")
        rows = (f"{a:.6g},{b:.6g},{losses[i, j]:.8g}" for i, a in enumerate(steps) for j, b in enumerate(steps))
        file = OutputFile("--out", out / f"{each}-{plot}.csv", (".csv",), overwrite)
        file.write("\n".join(["first,second,loss", *rows, ""]))
        sys.stdout.write(f"  {file.path}\n")
    for stem, draw in ((plot, draw_contours), (f"{plot}-3d", draw_surfaces)) if planes else ():
        drawn = draw(_tell_apart(titles, runs), plot, steps, planes)
        sys.stdout.write("".join(f"{path}\n" for path in save({"": drawn}, out, stem, overwrite)))


def find_runs(sweep: str | None, cells: Sequence[str], runs: Sequence[str]) -> list[str]:
    """Return the run ids of a sweep's cells, in the order of `cells`, or the given ones; each once.

    Raises UserError if neither or both are given, a text names no cell, or a named cell has no finished run.
    """
    if sweep is None:
        if cells or not runs:
            raise UserError("sharpness: a sweep is required, with --cell for some of its cells; or --run ID")
        return list(dict.fromkeys(runs))
    if runs:
        raise UserError("--run: a sweep is given too; --cell names its cells")
    found = read_sweep(sweep)
    chosen = dict.fromkeys(hash for text in cells for hash in found.select(text, "--cell")) or found.cells
    if lacking := next((hash for hash in chosen if found.get_status(hash) is not Status.FINISHED), ""):
        label = found.cells[lacking].label
        raise UserError(f"sharpness: {label} of {found.name} has no finished run; --cell names others")
    return [found.records[hash].run_id for hash in chosen]


def _tell_apart(titles: Sequence[str], runs: Sequence[str]) -> list[str]:
    """Add its run to each title whose first line is another's, too."""
    methods = [title.partition("\n")[0] for title in titles]
    return [
        f"{run[:8]}: {title}" if methods.count(method) > 1 else title
        for title, method, run in zip(titles, methods, runs, strict=True)
    ]


@styled
def draw_contours(titles: Sequence[str], kind: str, steps: np.ndarray, losses: Sequence[np.ndarray]) -> Figure:
    """Draw contours of the losses `(n, n)`, first direction first: a panel per model, all with the same levels."""
    drawn = make_panels(titles, f"along {WORDS[kind]} 1", f"along {WORDS[kind]} 2", height=HEIGHT)
    # Equal areas between the levels, however steep the losses are.
    levels = np.unique(np.quantile(np.stack(losses), np.linspace(0, 1, 16)))
    if len(levels) < 2 or not np.isfinite(levels).all():
        raise UserError("--reach: the losses along the directions are all equal, or not finite; choose another reach")
    for area, loss in zip(drawn.main.values(), losses, strict=True):
        filled = area.contourf(steps, steps, loss.T, levels, cmap="Greys")
        area.contour(steps, steps, loss.T, levels, colors="black", linewidths=0.3)
        area.plot(0, 0, marker="+", color="red", markersize=6)
        area.grid(visible=False)
        area.locator_params(axis="x", nbins=5)
    areas: list[Axes] = list(drawn.main.values())
    drawn.figure.colorbar(filled, ax=areas, label="training loss", ticks=levels[::3], format="%.3g", spacing="uniform")
    return drawn.figure


@styled
def draw_surfaces(titles: Sequence[str], kind: str, steps: np.ndarray, losses: Sequence[np.ndarray]) -> Figure:
    """Draw the loss over the plane in three dimensions, as `contours`; all panels have the same axis upwards."""
    across = min(len(titles), ACROSS)
    down = -(-len(titles) // across)
    figure = Figure(figsize=(WIDTH if across == 1 else WIDE, down * 2.6), layout="constrained")
    low, high = min(map(np.min, losses)), max(map(np.max, losses))
    first, second = np.meshgrid(steps, steps, indexing="ij")
    for place, (title, loss) in enumerate(zip(titles, losses, strict=True)):
        area: Axes3D = figure.add_subplot(down, across, place + 1, projection="3d")
        area.plot_surface(first, second, loss, cmap="viridis", vmin=low, vmax=high, rstride=1, cstride=1, linewidth=0)
        area.set_zlim(low, high)
        area.set_title(title, pad=-10)
        area.set_xlabel(f"{WORDS[kind]} 1", labelpad=-6)
        area.set_ylabel(f"{WORDS[kind]} 2", labelpad=-6)
        area.set_zlabel("training loss", labelpad=-6)
        area.tick_params(pad=-3)
        area.locator_params(nbins=5)
        area.set_box_aspect(None, zoom=0.78)
    return figure
