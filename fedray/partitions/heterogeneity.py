"""A picture and statistics of a partition: the client x class heatmap of the papers, and measures of heterogeneity."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedray.common.rng import generator

EXACT_CLIENTS = 500
"""With up to this many clients every pair is compared; of more, this many are drawn, always the same ones."""


def draw_heatmap(counts: np.ndarray, title: str, unseen: int = 0) -> Figure:
    """Draw samples per client (across) and class (down), `(clients, classes)`, without changing matplotlib's state.

    A line sets the unseen clients, which are the last ones, apart.
    """
    clients, classes = counts.shape
    figure = Figure(figsize=(7.5, min(max(2.5, 1.2 + 0.22 * classes), 7.5)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(
        counts.T,
        aspect="auto",
        interpolation="nearest",
        cmap="Blues",
        vmin=0,
        extent=(-0.5, clients - 0.5, classes - 0.5, -0.5),
    )
    axes.set(xlabel=f"client (the last {unseen} are unseen)" if unseen else "client", ylabel="class")
    if unseen:
        axes.axvline(clients - unseen - 0.5, color="#d55e00", linewidth=1)
    axes.set_title(title, parse_math=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, label="samples")
    return figure


def measure_heterogeneity(counts: np.ndarray) -> dict[str, float]:
    """Return measures of how unlike the clients are, by their samples of each class, int64 `(clients, classes)`.

    `mean_tv` is the mean, over all pairs of clients, of the total-variation distance of their class proportions, 0 for
    equal and 1 for disjoint ones; with more than 500 clients over the pairs of 500 of them. Clients without samples are
    counted and otherwise left out.
    """
    sizes = counts.sum(axis=1)
    held = counts[sizes > 0]
    low, q25, median, q75, high = (float(q) for q in np.quantile(held.sum(axis=1), (0, 0.25, 0.5, 0.75, 1)))
    some = held
    if len(held) > EXACT_CLIENTS:
        some = held[generator(0, "heterogeneity").choice(len(held), EXACT_CLIENTS, replace=False)]
    shares = some / some.sum(axis=1, keepdims=True)
    total = sum(float(np.abs(shares[i + 1 :] - shares[i]).sum()) for i in range(len(shares) - 1))
    pairs = len(shares) * (len(shares) - 1) / 2
    return {
        "clients": len(counts),
        "empty_clients": len(counts) - len(held),
        "samples": int(sizes.sum()),
        "mean_classes": float((held > 0).sum(axis=1).mean()),
        "size_min": low,
        "size_q25": q25,
        "size_median": median,
        "size_q75": q75,
        "size_max": high,
        "mean_tv": 0.5 * total / pairs if pairs else 0.0,
    }
