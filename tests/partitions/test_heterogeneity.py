"""The picture and the numbers of a partition."""

import matplotlib
import numpy as np
import pytest

from fedray.partitions.heterogeneity import EXACT_CLIENTS, draw_heatmap, measure_heterogeneity


def test_heterogeneity_by_hand() -> None:
    """Clients (4, 0), (2, 2), (0, 0), (0, 8).

    Held classes 1, 2, 1: mean 4/3. Sizes of the three that hold something 4, 4, 8: median 4, upper quartile 6.
    Proportions (1, 0), (1/2, 1/2), (0, 1): total variations 1/2, 1, 1/2, their mean 2/3.
    """
    found = measure_heterogeneity(np.array([[4, 0], [2, 2], [0, 0], [0, 8]]))
    assert found == pytest.approx(
        {
            "clients": 4,
            "empty_clients": 1,
            "samples": 16,
            "mean_classes": 4 / 3,
            "size_min": 4,
            "size_q25": 4,
            "size_median": 4,
            "size_q75": 6,
            "size_max": 8,
            "mean_tv": 2 / 3,
        }
    )


def test_total_variation_of_many_clients_is_sampled_the_same_every_time() -> None:
    """Half the clients hold class 0, half class 1: of all pairs, N/2 / (N - 1) ≈ 1/2 are at distance 1, the others 0.

    A sample of 500 of 5,000 differs from that by about 1/500.
    """
    counts = np.zeros((10 * EXACT_CLIENTS, 2), dtype=np.int64)
    counts[::2, 0] = counts[1::2, 1] = 3
    first = measure_heterogeneity(counts)["mean_tv"]
    assert first == measure_heterogeneity(counts)["mean_tv"]
    assert first == pytest.approx(0.5, abs=0.02)


def test_one_client_has_no_pairs() -> None:
    assert measure_heterogeneity(np.array([[1, 2]]))["mean_tv"] == 0.0


@pytest.mark.parametrize("shape", [(1, 2), (20, 10), (100, 62), (2000, 10)])
def test_heatmap_is_written_and_leaves_matplotlib_alone(tmp_path, shape) -> None:
    """The picture holds the transposed counts: classes down, clients across."""
    counts = np.arange(np.prod(shape)).reshape(shape)
    backend = matplotlib.get_backend()
    figure = draw_heatmap(counts, title="t")
    figure.savefig(tmp_path / "h.png")
    assert (tmp_path / "h.png").read_bytes().startswith(b"\x89PNG")
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), counts.T)
    assert matplotlib.get_backend() == backend
    assert draw_heatmap(counts).axes[0].get_xlabel() == "client"
