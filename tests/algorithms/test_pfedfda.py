"""pFedFDA: the Gaussian classifier, its betas, what it reduces to, and what a client answers."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor, nn

from fedray.algorithms.heads import FedBABU
from fedray.algorithms.pfedfda import EPS, PFedFDA, find_least, make_lda, number_in_class, score_betas, shrink
from fedray.common.errors import UserError
from fedray.common.vectors import Vectors
from fedray.engine.messages import ClientTask
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.worker import Worker
from fedray.engine.server.simulation import Simulation
from fedray.models.network import Layout
from tests.algorithms.digits import final as last_state
from tests.algorithms.digits import problem, states

ALONE: dict[str, Any] = {"clients": {"cohorts": [[4]] * 4}}


def test_the_classifier_is_the_posterior_of_gaussians() -> None:
    """Logits differ by log π_c N(h; μ_c, S) - log π_0 N(h; μ_0, S), as SciPy has the densities."""
    rng = np.random.default_rng(0)
    means, root, h = rng.normal(size=(4, 3)), rng.normal(size=(3, 3)), rng.normal(size=(6, 3))
    covariance, priors = root @ root.T, np.array([0.4, 0.3, 0.2, 0.1])
    weight, bias = (each.numpy() for each in make_lda(*map(torch.from_numpy, (means, covariance, priors))))
    S = shrink(torch.from_numpy(covariance)).numpy()
    expected = np.stack(
        [np.log(p) + multivariate_normal(mean, S).logpdf(h) for p, mean in zip(priors, means, strict=True)], 1
    )
    found = h @ weight.T + bias
    assert found - found[:, :1] == pytest.approx(expected - expected[:, :1], rel=1e-10, abs=1e-10)


def test_without_covariance_and_priors_the_nearest_mean_wins() -> None:
    """With Σ = I the logits are h·μ - |μ|²/2 + const = -|h - μ|²/2 + |h|²/2 + const."""
    torch.manual_seed(0)
    means, h = torch.randn(5, 3).double(), torch.randn(40, 3).double()
    weight, bias = make_lda(means, torch.eye(3), torch.ones(5))
    assert torch.equal((h @ weight.T + bias).argmax(1), torch.cdist(h, means).argmin(1))


def test_shrinking() -> None:
    """diag(1, 3), mean of the diagonal 2: (1 - ε) + 2 ε and 3 (1 - ε) + 2 ε; the trace stays."""
    found = shrink(torch.diag(torch.tensor([1.0, 3.0], dtype=torch.float64)))
    assert torch.allclose(found, torch.diag(torch.tensor([1 + EPS, 3 - EPS], dtype=torch.float64)))


def test_halves_alternate_within_a_class() -> None:
    labels = torch.tensor([2, 0, 2, 2, 0, 5, 2])
    assert number_in_class(labels).tolist() == [0, 0, 1, 2, 1, 0, 3]
    assert number_in_class(labels[:0]).tolist() == []


def test_the_table_of_losses() -> None:
    """Every corner is the cross-entropy of the classifier with these moments: β_Σ by rows, β_μ by columns."""
    torch.manual_seed(1)
    h, y = torch.randn(9, 2).double(), torch.arange(9) % 3
    means, others = torch.randn(2, 3, 2).double()
    covariance, other = torch.eye(2).double(), 3 * torch.eye(2).double() + 0.5
    priors = torch.tensor([0.5, 0.3, 0.2]).double()
    found = score_betas(h, y, (means, covariance), (others, other), priors)
    for i, s in ((0, covariance), (-1, other)):
        for j, mu in ((0, means), (-1, others)):
            weight, bias = make_lda(mu, s, priors)
            expected = torch.nn.functional.cross_entropy(h @ weight.T + bias, y)
            assert float(found[i, j]) == pytest.approx(float(expected), abs=1e-12)


def test_of_equal_losses_the_first_counts() -> None:
    assert find_least(torch.tensor([0.5, 1e-9, 0.0, 2e-6])) == 1
    assert find_least(torch.tensor([0.5, 2e-6, 0.0])) == 2
    assert find_least(torch.tensor([0.5, float("nan")])) == 0


def never(self: PFedFDA, *moments: Tensor) -> tuple[float, float]:
    """β = 0."""
    return 0.0, 0.0


def test_with_beta_0_the_means_never_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everyone has μ and Σ = I: the draws of x⁰, to which averaging returns."""
    monkeypatch.setattr(PFedFDA, "find_betas", never)
    *_, state = states("pfedfda")
    drawn = problem("pfedfda").build_network("cpu").initial[-170:-10].view(10, 16)
    assert drawn.min() >= 0
    assert drawn.std() == pytest.approx(12**-0.5, rel=0.1)
    assert torch.allclose(state.server.means, drawn, atol=1e-6)
    assert torch.allclose(state.server.covariance, torch.eye(16), atol=1e-6)


class FromThere(FedBABU):
    """FedBABU from pFedFDA's x⁰."""

    def initial(self, theta: Tensor, layout: Layout) -> Tensor:
        return PFedFDA().initial(theta, layout)


def test_with_beta_0_and_equal_priors_it_is_fedbabu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head is x⁰'s for every client and in every round."""
    monkeypatch.setattr(PFedFDA, "find_betas", never)
    monkeypatch.setattr(PFedFDA, "_get_priors", lambda self, c: torch.ones(10) / 10)
    *_, left = states("pfedfda")
    right = last_state("tests.algorithms.test_pfedfda:FromThere")
    assert torch.allclose(left.theta, right.theta, rtol=0, atol=1e-5)
    assert (left.theta - problem("pfedfda").build_network("cpu").initial).abs().max() > 0.01


def personal(options: dict[str, Any], client: int, **training: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """After a run: features of the client's shard at x's body `(n, d)`, its labels, and its answers to the shard."""
    running = Simulation(problem(options, **training), InlineBackend())
    while not running.done:
        running.step()
    worker = Worker(running.problem)
    c = worker.trainer.personalise(
        running._make_broadcast(running._make_server(4, 1)), ClientTask(client, 1.0, Vectors()), 0
    )
    output, y = c.shard(running.state.theta)
    c.start_step(0, *worker.train_samples.make_batch(c.indices))
    return output.features.numpy(), y.numpy(), running.problem.config.algorithm.personal_logits(c).detach().numpy()


@pytest.mark.parametrize("ridge", ["identity", "epsilon"])
def test_a_client_of_local_moments_answers_by_its_own_gaussians(ridge: str) -> None:
    """Means and pooled covariance of its classes (more than two samples each) by NumPy, on the body of x."""
    h, y, found = personal({"name": "pfedfda", "beta": "local", "ridge": ridge}, 4, **ALONE)
    present = np.unique(y)
    assert min((y == k).sum() for k in present) > 2
    apart = h.astype(np.float64)
    means = {k: apart[y == k].mean(0) for k in present}
    scatter = np.cov((apart - np.array([means[k] for k in y])).T)
    d = h.shape[1]
    S = scatter + (np.eye(d) + EPS if ridge == "identity" else EPS * np.eye(d))
    S = (1 - EPS) * S + EPS * np.trace(S) / d * np.eye(d)
    log = np.stack([np.log((y == k).mean() + EPS) + multivariate_normal(means[k], S).logpdf(h) for k in present], 1)
    expected = log - log[:, :1]
    assert found[:, present] - found[:, present[:1]] == pytest.approx(expected, rel=1e-3, abs=1e-3)
    assert np.abs(expected).max() > 1


def test_clients_answer_differently_with_one_model() -> None:
    answers = [personal({"name": "pfedfda"}, client)[2][:20] for client in (4, 5)]
    assert np.abs(answers[0] - answers[1]).max() > 0.1


def test_a_class_of_two_takes_the_mean_received() -> None:
    """Two features of class 0, three of class 1, none of class 2; the covariance is around the means taken."""
    h = torch.tensor([[1.0], [3.0], [2.0], [4.0], [6.0]]).double()
    y, received = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([[7.0], [8.0], [9.0]]).double()
    means, covariance = PFedFDA().estimate(h, y, received)
    assert means.flatten().tolist() == [7, 4, 9]
    assert float(covariance) == pytest.approx((36 + 16 + 4 + 0 + 4) / 4 + 1 + EPS)
    means, covariance = PFedFDA(rare="own", ridge="epsilon").estimate(h, y, received)
    assert means.flatten().tolist() == [2, 4, 9]
    assert float(covariance) == pytest.approx((1 + 1 + 4 + 0 + 4) / 4 + EPS)


@pytest.mark.parametrize("labels", [[], [0], [0, 1, 2], [0, 0], [0, 0, 1]])
def test_too_few_features_take_what_was_received(labels: list[int]) -> None:
    """Neither half has two features of classes that both halves have."""
    y = torch.tensor(labels, dtype=torch.int64)
    h, means = torch.randn(len(y), 2).double(), torch.randn(3, 2).double()
    found = PFedFDA().find_betas(h, y, means, torch.eye(2).double(), torch.ones(3).double() / 3)
    assert found == (0.0, 0.0)


class Biasless(nn.Module):
    """A head without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 3), nn.Linear(3, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.flatten(1)))


def test_a_head_without_bias_is_refused() -> None:
    with pytest.raises(UserError, match=r"^model\.name: its head has no bias; pfedfda needs one for the priors$"):
        problem("pfedfda", model="tests.algorithms.test_pfedfda:Biasless").build_network("cpu")


def test_one_sample_a_client() -> None:
    """Its covariance is over 1, not over 0; and β is 0."""
    *_, state = states("pfedfda", sizes=(1, 1, 1), per_round=2, batch_size=1)
    assert bool(torch.isfinite(state.theta).all())
