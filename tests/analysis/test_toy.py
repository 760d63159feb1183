"""FedSOL's toy example against what its paths end at."""

from pathlib import Path

import numpy as np
import pytest

from analysis.toy import main, measure_turn, paths


def test_ends_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Appendix H's equilibria: FedProx turns from the direction of the local minimum, FedSOL keeps it (D-123).

    The server is at 0, the local minimum at 1, curvatures h = (1, 0.1). FedAvg: 1 - w1 = 0.99^4000 = 0, 1 - w2 =
    0.999^4000 = 0.01828. FedProx ends where h (w - 1) + μ w = 0, so at h / (h + μ) = (0.9091, 0.5) for μ = 0.1.
    FedSOL's gradient is 0 where w + ρ u = 1 with u from 0 to w: on the line through both, ρ short of the minimum:
    1 - 0.3536 for ρ = 0.5. The flat direction contracts by 0.999 per step (0.998 with μ), so 4000 steps leave at most
    0.02 of the way.
    """
    avg, prox, sol = (points[-1] for points in paths(0.1, 0.5).values())
    assert all(np.array_equal(points[0], [0, 0]) for points in paths(0.1, 0.5).values())
    assert avg == pytest.approx([1, 1 - 0.999**4000], abs=1e-12)
    assert prox == pytest.approx([10 / 11, 1 / 2], abs=1e-3)
    assert sol == pytest.approx([1 - 0.5 / 2**0.5] * 2, abs=0.02)
    assert [measure_turn(np.array(end)) for end in ((1, 1), (0, 1), (2, 0))] == pytest.approx([0, 45, 45])
    assert measure_turn(prox) == pytest.approx(45 - np.degrees(np.arctan(0.55)), abs=0.1)  # (10/11, 1/2)
    assert measure_turn(sol) < 1
    same = list(paths(0, 0).values())
    assert np.array_equal(same[0], same[1])
    assert np.allclose(same[0], same[2], atol=1e-12)
    main(out=tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv", ".pdf", ".png", ".txt"]
    assert len((tmp_path / "fedsol-figure12.csv").read_text().splitlines()) == 1 + 3 * 4001
    printed = capsys.readouterr().out
    assert "are our choice" in printed
    assert "16.2 degrees from the direction of the local minimum" in printed
