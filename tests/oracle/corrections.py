"""Methods with a memory on each client: SCAFFOLD, FedDyn and FedDC, and their forms with other gradients (2.5-2.17)."""

from .tensors import Tensors, mean, norm, total, zeros
from .world import Direction, Local, World


def effective_steps(w: World, c: Local, divisor: str) -> float:
    """K, or FedSOL's a(K) = (K - m (1 - m^K) / (1 - m)) / (1 - m) for a local momentum m (`effective`, D-32)."""
    m = w.momentum
    return c.counted if divisor == "steps" else (c.K - m * (1 - m**c.K) / (1 - m)) / (1 - m)


def variate_rate(w: World, c: Local, variate_lr: str) -> float:
    """eta_t, or eta_0 (FedDC's code, D-23)."""
    return w.lr if variate_lr == "first" else c.eta


def part_of_change(w: World, c: Local, variates: str) -> float:
    """1, or M n_i / sum_S n_j: FedSOL's server adds (M/N) times the mean change by samples to its variate (D-32)."""
    sizes = {j: len(w.clients[j][1]) for j in w.cohorts[c.t]}
    return len(sizes) * sizes[c.i] / sum(sizes.values()) if variates == "samples" else 1.0


def with_variates(
    w: World,
    gradient: Direction,
    divisor: str = "steps",
    variates: str = "uniform",
    variate_lr: str = "round",
    correction: float = 1.0,
    scaling: str = "clients",
    scaled: bool = False,
) -> Tensors:
    """SCAFFOLD, option II, with another gradient. correction: the coefficient of c - c_i (D-11c).

    scaling `samples`: c = sum_i n_i c_i / sum_j n_j (D-127); scaled: that too, and c / w_i in the step."""
    x, c_server, c_client = w.x0, zeros(w.x0), w.each(w.x0)
    for t in range(w.rounds):
        u, change = {}, []
        for c in w.participants(t, x):
            c_here = c_server / shares(w, "samples" if scaled else "constant")[c.i]
            for batch in c.batches:
                c.step(gradient(c, batch) + correction * (c_here - c_client[c.i]))
            length = effective_steps(w, c, divisor) * variate_rate(w, c, variate_lr)
            new = c_client[c.i] - c_server - c.u / length
            change.append(part_of_change(w, c, variates) * (new - c_client[c.i]))
            u[c.i], c_client[c.i] = c.u, new
        x = x + w.server_lr * w.average(u)
        c_server = c_server + total(change) / w.N
        if scaling == "samples" or scaled:
            sizes = [len(y) for _, y in w.clients]
            c_server = total([(n / sum(sizes)) * own for n, own in zip(sizes, c_client, strict=True)])
        assert (variates, scaling, scaled) != ("uniform", "clients", False) or norm(c_server - mean(c_client)) < 1e-12
    return x


def scaffold(w: World, correction: str = "plain", **options: str) -> Tensors:
    """Karimireddy et al., ICML 2020, option II; correction `scaled`: as FedDyn's code (D-127)."""
    return with_variates(w, w.plain, scaled=correction == "scaled", **options)  # type: ignore[arg-type]


def shares(w: World, scaling: str) -> list[float]:
    """w_i of the official FedDyn and FedDC code, n_i N / sum n (`samples`), or 1 (`constant`); D-17."""
    sizes = [len(y) for _, y in w.clients]
    return [n * w.N / sum(sizes) if scaling == "samples" else 1.0 for n in sizes]


def with_duals(
    w: World, gradient: Direction, alpha: float, scaling: str = "constant", dual_mean: str = "all"
) -> Tensors:
    """FedDyn in model units (form b) with another gradient; dual_mean `cohort`: the participants' duals (D-15)."""
    x, H = w.x0, w.each(w.x0)
    for t in range(w.rounds):
        trained = {}
        for c in w.participants(t, x):
            a = alpha / shares(w, scaling)[c.i]
            for batch in c.batches:
                c.step(gradient(c, batch) + a * (c.y - c.start + H[c.i]), pull=a)
            H[c.i] = H[c.i] + c.u
            trained[c.i] = c
        x = x + w.server_lr * w.update(trained)
        x = x + (mean(H) if dual_mean == "all" else w.average({i: H[i] for i in trained}))
    return x


def feddyn(w: World, alpha: float, scaling: str = "constant") -> Tensors:
    """Acar et al., ICLR 2021."""
    return with_duals(w, w.plain, alpha, scaling)


def feddc(w: World, alpha: float, scaling: str = "constant", variate_lr: str = "round") -> Tensors:
    """Gao et al., CVPR 2022: drift h_i and control variates c_i, both unweighted over N.

    scaling `samples`: the official code's w_i, with alpha / w_i and c / w_i on the client and w_i in c's update."""
    x, h, c_client, c_server = w.x0, w.each(w.x0), w.each(w.x0), zeros(w.x0)
    for t in range(w.rounds):
        u, change = {}, []
        for c in w.participants(t, x):
            w_i = shares(w, scaling)[c.i]
            a, c_here = alpha / w_i, c_server / w_i
            for batch in c.batches:
                c.step(w.grad(c.y, batch) + a * (c.y - x + h[c.i]) + (c_here - c_client[c.i]))
            h[c.i] = h[c.i] + c.u
            new = c_client[c.i] - c_here - c.u / (c.counted * variate_rate(w, c, variate_lr))
            change.append(w_i * (new - c_client[c.i]))
            u[c.i], c_client[c.i] = c.u, new
        x = x + w.server_lr * w.average(u) + mean(h)
        c_server = c_server + total(change) / w.N
    return x
