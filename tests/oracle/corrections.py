"""Methods with a memory on each client: SCAFFOLD, FedDyn in both parametrisations, FedDC (2.5, 2.7, 2.17)."""

from .tensors import Tensors, mean, norm, total, zeros
from .world import Local, World


def effective_steps(w: World, c: Local, divisor: str) -> float:
    """K, or FedSOL's a(K) = (K - m (1 - m^K) / (1 - m)) / (1 - m) for a local momentum m (`effective`, D-32)."""
    m = w.momentum
    return c.counted if divisor == "steps" else (c.K - m * (1 - m**c.K) / (1 - m)) / (1 - m)


def variate_lr(w: World, c: Local, first: bool) -> float:
    """eta_t, or eta_0 (FedDC's code, D-23)."""
    return w.lr if first else c.eta


def part_of_change(w: World, c: Local, by_samples: bool) -> float:
    """1, or M n_i / sum_S n_j: FedSOL's server adds (M/N) times the mean change by samples to its variate (D-32)."""
    sizes = {j: len(w.clients[j][1]) for j in w.cohorts[c.t]}
    return len(sizes) * sizes[c.i] / sum(sizes.values()) if by_samples else 1.0


def scaffold(w: World, divisor: str = "steps", by_samples: bool = False, first: bool = False) -> Tensors:
    """Karimireddy et al., ICML 2020, option II."""
    x = w.x0
    c_server, c_client = zeros(x), w.each(x)
    for t in range(w.rounds):
        u, change = {}, []
        for c in w.participants(t, x):
            for batch in c.batches:
                c.step(w.grad(c.y, batch) + c_server - c_client[c.i])
            new = c_client[c.i] - c_server - c.u / (effective_steps(w, c, divisor) * variate_lr(w, c, first))
            change.append(part_of_change(w, c, by_samples) * (new - c_client[c.i]))
            u[c.i], c_client[c.i] = c.u, new
        x = x + w.server_lr * w.average(u)
        c_server = c_server + total(change) / w.N
        assert by_samples or norm(c_server - mean(c_client)) < 1e-12
    return x


def scaffnew(w: World, p: float | None = None) -> Tensors:
    """Mishchenko et al., ICML 2022: the variates move when x is there; p: of the coin, None for 1/K_i."""
    x, h = w.x0, w.each(w.x0)
    for t in range(w.rounds):
        y, u, rate = {}, {}, {}
        for c in w.participants(t, x):
            for batch in c.batches:
                c.step(w.grad(c.y, batch) - h[c.i])
            y[c.i], u[c.i], rate[c.i] = c.y, c.u, (1 / c.K if p is None else p) / c.eta
        x = x + w.server_lr * w.average(u)
        for i in y:
            h[i] = h[i] + rate[i] * (x - y[i])
    return x


def shares(w: World, scaling: str) -> list[float]:
    """w_i of the official FedDyn and FedDC code, n_i N / sum n (`samples`), or 1 (`constant`); D-17."""
    sizes = [len(y) for _, y in w.clients]
    return [n * w.N / sum(sizes) if scaling == "samples" else 1.0 for n in sizes]


def feddyn(w: World, alpha: float, scaling: str = "constant") -> Tensors:
    """Acar et al., ICLR 2021, model units (form b)."""
    x = w.x0
    H = w.each(x)
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            a = alpha / shares(w, scaling)[c.i]
            for batch in c.batches:
                c.step(w.grad(c.y, batch) + a * (c.y - x + H[c.i]), pull=a)
            H[c.i] = H[c.i] + c.u
            u[c.i] = c.u
        x = x + w.server_lr * w.average(u) + mean(H)
    return x


def feddyn_gradient_units(w: World, alpha: float) -> Tensors:
    """The same in gradient units (form a, the paper's): lambda_i = -alpha H_i, h = mean lambda_i."""
    x = w.x0
    dual, h = w.each(x), zeros(x)
    for t in range(w.rounds):
        u = {}
        for c in w.participants(t, x):
            for batch in c.batches:
                c.step(w.grad(c.y, batch) - dual[c.i] + alpha * (c.y - x), pull=alpha)
            dual[c.i] = dual[c.i] - alpha * c.u
            u[c.i] = c.u
        h = h - (alpha / w.N) * total(list(u.values()))
        x = x + w.server_lr * w.average(u) - h / alpha
        assert norm(h - mean(dual)) < 1e-12
    return x


def feddc(w: World, alpha: float, scaling: str = "constant", first: bool = False) -> Tensors:
    """Gao et al., CVPR 2022: drift h_i and control variates c_i, both unweighted over N.

    scaling `samples`: the official code's w_i, with alpha / w_i and c / w_i on the client and w_i in c's update.
    """
    x = w.x0
    h, c_client, c_server = w.each(x), w.each(x), zeros(x)
    for t in range(w.rounds):
        u, change = {}, []
        for c in w.participants(t, x):
            w_i = shares(w, scaling)[c.i]
            a, c_here = alpha / w_i, c_server / w_i
            for batch in c.batches:
                c.step(w.grad(c.y, batch) + a * (c.y - x + h[c.i]) + (c_here - c_client[c.i]))
            h[c.i] = h[c.i] + c.u
            new = c_client[c.i] - c_here - c.u / (c.counted * variate_lr(w, c, first))
            change.append(w_i * (new - c_client[c.i]))
            u[c.i], c_client[c.i] = c.u, new
        x = x + w.server_lr * w.average(u) + mean(h)
        c_server = c_server + total(change) / w.N
    return x
