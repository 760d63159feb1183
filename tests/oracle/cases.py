"""Cases of the comparison: each method with its options, which are also the oracle's arguments, and the settings."""

from collections.abc import Callable
from typing import Any

from . import adaptive, averaging, classifiers, corrections, fedsol, sharpness
from .case import NORMED, OWN, PLAIN, PULL, SETTINGS, Case, cases
from .tensors import Tensors

ORACLES: dict[str, Callable[..., Tensors]] = {
    name.replace("_", "-"): getattr(module, name)
    for module, names in (
        (averaging, "fedavg fedprox fednova fedavgm fedadam fedyogi fedacg fedcm mimelite fedexp feddisco"),
        (corrections, "scaffold feddyn feddc"),
        (averaging, "fedntd fedavg_kl moon fedrcl"),
        (classifiers, "fedgela fedge fedavg_la fedrs fedlc fedrod fedbabu fedrep"),
        (sharpness, "fedsam mofedsam fedasam fedgamma fedspeed fedsmoo fedlesam fedlesam_s fedlesam_d fedtoga"),
        (sharpness, "fedrobust fedgloss fedswa fedmoswa fedwmsam fednsam"),
        (fedsol, "fedsol projection"),
        (adaptive, "local_adamw local_muon fedadamw fedlada fedmuon fedgmt feduv feddecorr fedadagrad"),
    )
    for name in names.split()
}

ADAPTIVE = {"lr": 0.1, "beta1": 0.8, "beta2": 0.95, "tau": 0.02}
GLOSS = {"alpha": 0.3, "rho": 0.4, "rho_l": 0.3}
TOGA = {"alpha": 0.2, "rho": 0.3, "kappa": 2.0, "beta": 0.8}
VARIATES = {"variates by samples": {"variates": "samples"}, "first lr": {"variate_lr": "first"}}
FORMS: dict[str, dict[str, str]] = {
    "scalars": {"shift": "scalars"},
    "summed": {"norm": "summed"},
    "as the code": {"shift": "scalars", "norm": "summed"},
}
"""`shift` and `norm` as the codes of FedLESAM and FedWMSAM have them."""
KL: dict[str, Any] = {"rho": 1.0, "perturb": "all"}
DISTILLED: dict[str, Any] = {"name": "kl", "tau": 2.0}
RADII: dict[str, dict[str, str]] = {
    "fixed": {"radius": "fixed"},
    "dim0": {"radius": "adaptive"},
    "layer": {"radius": "adaptive", "lambda_norm": "layer"},
    "tensor": {"radius": "adaptive", "lambda_norm": "tensor"},
}
ADAMW = {"alpha": 0.4, "beta1": 0.8, "beta2": 0.9, "eps": 0.02}
LADA = {"alpha": 0.3, "beta1": 0.8, "beta2": 0.9, "eps": 0.02}
MUON = {"gamma": 0.4, "momentum": 0.8, "lr_factor": 1.5}
STRATEGIES = {"A0": 1.0, "A2": 0.6, "A3": 0.6, "A4": 1.0, "A5": 1.0, "A6": 0.6}
COMBINED: dict[str, dict[str, float]] = {
    "fedprox": {"mu": 0.7},
    "scaffold": {},
    "feddyn": {"alpha": 0.3},
    "moon": {"mu": 2.0, "tau": 0.1},
    "fednova": {},
}
# A factor of L_p is lost when its gradient is normalised: nothing stays of FedProx's and MOON's mu, of FedDyn's alpha.


def each(labels: dict[str, dict[str, Any]], method: str, **options: Any) -> list[Case]:
    """The cases of several labels, each with options of its own."""
    return [case for label, own in labels.items() for case in cases(method, label, **{**options, **own})]


def values(method: str, option: str, *choices: str, **options: Any) -> list[Case]:
    """The cases of several values of an option, which are the labels."""
    return each({choice: {option: choice} for choice in choices}, method, **options)


CASES: list[Case] = [
    *cases("fedavg", settings=tuple(name for name in SETTINGS if name != "clip as code")),
    *cases("fedexp", epsilon=0.02),
    *cases("fedexp", "cohort", epsilon=0.02, epsilon_scale="cohort", test="last"),
    *values("feddisco", "metric", "l2", "l1", "cosine", "kl", a=0.3, b=0.05),
    *cases("fedprox", settings=PULL, mu=0.7),
    *cases("scaffold"),
    *cases("scaffold@forms", "effective", settings=("together",), divisor="effective"),
    *each(VARIATES, "scaffold@forms"),
    *values("scaffold@forms", "scaling", "samples"),
    *values("scaffold@forms", "correction", "scaled"),
    *cases("feddyn", settings=PULL, alpha=0.3),
    *cases("feddyn@forms", "scaled", settings=PULL, alpha=0.3, scaling="samples"),
    *cases("fedcm", alpha=0.3),
    *cases("fedavgm", beta=0.6),
    *cases("fedadam", **ADAPTIVE),
    *cases("fedadam", "from zero", settings=PLAIN, **ADAPTIVE, start="zero"),
    *values("fedadam", "square", "momentum", settings=PLAIN, **ADAPTIVE),
    *cases("fedyogi", **ADAPTIVE),
    *cases("fedyogi", "from zero", settings=PLAIN, **ADAPTIVE, start="zero"),
    *values("fedyogi", "square", "momentum", settings=PLAIN, **ADAPTIVE),
    *cases("fedacg", settings=PULL, lam=0.8, beta=0.3),
    *cases("feddc", settings=PULL, alpha=0.3),
    *cases("feddc@forms", "scaled", alpha=0.3, scaling="samples"),
    *cases("feddc@forms", "first lr", alpha=0.3, variate_lr="first"),
    *cases("fednova"),
    *cases("fednova", "prox", settings=PULL, mu=0.7),
    *cases("fednova", "prox, tau of steps", mu=0.7, tau="steps"),
    *cases("fednova", "as the code", settings=("together",), mu=0.7, tau="steps", counting="twice"),
    *cases("mimelite", beta=0.6),
    *[
        case
        for method, options in (
            ("scaffold", {}),
            ("feddc", {"alpha": 0.3}),
            ("fedcm", {"alpha": 0.3}),
            ("mofedsam", {"rho": 0.3, "beta": 0.3}),
            ("fedtoga", TOGA),
            ("fedwmsam", {"rho": 0.5, "alpha": 0.4}),
        )
        for word in ("own", "client0")
        for case in cases(method, f"nominal steps {word}", settings=PLAIN, training={"nominal_steps": word}, **options)
    ],
    *cases("fedprox", settings=("relaxed",), mu=0.7),
    *cases("scaffold", settings=("relaxed",)),
    *cases("feddyn", settings=("relaxed", "relaxed, models"), alpha=0.3),
    *cases("mofedsam", settings=("relaxed",), rho=0.3, beta=0.3),
    # logits, features, inner layers
    *cases("fedntd", beta=0.8, tau=2.0),
    *cases("fedavg-kl", weight=2.0, tau=2.0),
    *cases("moon", mu=2.0, tau=0.4),
    *cases("fedrcl", contrast=0.7, relaxation=1.3, tau=0.1, threshold=0.6),
    *cases("fedrcl", "as published"),
    # classifiers
    *cases("fedge", scale_w=4.0),
    *cases("fedge@forms", "batch norm", scale_w=4.0, feature_norm="model", **NORMED),
    *values("fedgela", "phi", "x", "exp", "sqrt", scale_w=9.0),
    *each({f"{q}, shared": {"phi": q} for q in ("x", "exp", "sqrt")}, "fedgela", scale_w=4.0, gamma="shared"),
    *cases("fedgela@forms", "batch norm", scale_w=4.0, feature_norm="model", **NORMED),
    *cases("fedgela@forms", "present", scale_w=9.0, softmax="present"),
    *values("fedavg-la", "phi", "x", "exp", "sqrt"),
    *cases("fedrs", alpha=0.4),
    *cases("fedrs", "soft", alpha=0.4, soft=True),
    *cases("fedlc", tau=0.8),
    *cases("fedrod"),
    *cases("fedbabu"),
    *cases("fedrep", body_epochs=1),
    *cases("fedrep", "two of three", training={"local_epochs": 3}, body_epochs=2),
    *cases("fedrep", "average newcomers", body_epochs=1, newcomer="average"),
    # perturbations
    *cases("fedsam", rho=0.3),
    *values("fedsam@forms", "perturb", "head", "body", rho=0.3),
    *each({"eq. 3": {"sign": True}, "old update": {"delta": "old"}}, "fedsam@forms", rho=0.3),
    *cases("mofedsam", rho=0.3, beta=0.3),
    *values("mofedsam", "step", "printed", rho=0.3, beta=0.3),
    *cases("fedasam", rho=0.5, eta_a=0.3),
    *cases("fedasam@forms", "all", rho=0.5, eta_a=0.3, scaled="all"),
    *cases("fedgamma", rho=0.3),
    *cases("fedgamma@forms", "effective", settings=("together",), rho=0.3, divisor="effective"),
    *each(VARIATES, "fedgamma@forms", rho=0.3),
    *values("fedgamma@forms", "perturb", "head", "body", rho=0.3),
    *cases("fedspeed", settings=PULL, alpha=0.2, rho=0.3),
    *values("fedspeed@forms", "perturb", "head", "body", alpha=0.2, rho=0.3),
    *cases("fedspeed@forms", "mixed", settings=PULL, alpha=0.2, rho=0.3, mix=0.4),
    *cases("fedspeed@forms", "mixed, head", settings=PLAIN, alpha=0.2, rho=0.3, mix=0.4, perturb="head"),
    *values("fedspeed@forms", "dual_mean", "cohort", settings=PULL, alpha=0.2, rho=0.3),
    *cases("fedsmoo", settings=PULL, alpha=0.2, rho=0.3),
    *cases("fedsmoo", "corrected", alpha=0.2, rho=0.3, perturbation_dual="corrected"),
    *cases("fedlesam", rho=0.3),
    *values("fedlesam@forms", "estimate", "server", rho=0.3),
    *each(FORMS, "fedlesam@forms", rho=0.3),
    *cases("fedlesam-s", rho=0.3),
    *cases("fedlesam-s@forms", "correction", rho=0.3, correction=0.8),
    *values("fedlesam-s@forms", "estimate", "server", rho=0.3),
    *cases("fedlesam-s@forms", "effective", settings=("together",), rho=0.3, divisor="effective"),
    *each(VARIATES | FORMS, "fedlesam-s@forms", rho=0.3),
    *cases("fedlesam-d", settings=PULL, alpha=0.2, rho=0.3),
    *values("fedlesam-d@forms", "estimate", "server", alpha=0.2, rho=0.3),
    *each(FORMS, "fedlesam-d@forms", alpha=0.2, rho=0.3),
    *values("fedtoga", "perturbation", "fusion", "global", "neighbour", settings=PULL, **TOGA),
    *each(
        {
            "gradient scale": {"delta_scale": "gradient"},
            "dual over cohort": {"dual_divisor": "cohort"},
            "rho twice": {"radius": "squared", "rho": 0.7},
            "no sam": {"sam": False, "inert": ("rho", "kappa")},
            "no dynamic regularisation": {"dynamic_regularisation": False, "inert": ("alpha",)},
            "no dual correction": {"dual_correction": False, "inert": ("beta",)},
            "no sam correction": {"sam_correction": False, "inert": ("kappa",)},
        },
        "fedtoga@forms",
        settings=PULL,
        **TOGA,
    ),
    *values("fedrobust", "affine", "full", "diagonal", "channel", ascent_lr=0.1, penalty=0.5),
    *cases("fedgloss", settings=PULL, **GLOSS),
    *cases("fedgloss@forms", "warm-up", settings=PLAIN, start_rho=0.1, warmup=6, dual_divisor="product", **GLOSS),
    *cases("fedswa", rho=0.3, alpha=1.3),
    *cases("fedmoswa", rho=0.3, alpha=1.3, gamma=0.4),
    *values("fedmoswa", "first_round", "plain", rho=0.3, alpha=1.3, gamma=0.4),
    *values("fedmoswa", "variate_divisor", "nominal", rho=0.3, alpha=1.3, gamma=0.4),
    *each(
        {"": {}, "fixed": {"adaptive": False}, "plain momentum": {"variates": False}}, "fedwmsam", rho=0.5, alpha=0.4
    ),
    *each(
        {"downhill": {"sign": "code"}, "scaled": {"target": "scaled"}, "decayed": {"delta_decay": True}, **FORMS},
        "fedwmsam@forms",
        rho=0.5,
        alpha=0.4,
    ),
    *cases("fednsam", gamma=0.6, rho=0.3),
    *values("fednsam", "perturbation", "momentum", gamma=0.6, rho=0.3),
    *values("fednsam", "memory", "last", gamma=0.6, rho=0.3),
    *[
        case
        for target in ("head", "body", "all")
        for radius, chosen in RADII.items()
        for case in cases(
            f"fedsol{'@forms' * ('lambda_norm' in chosen)}",
            f"{target}, {radius}",
            settings=("plain", "together") if target == "all" or radius == "dim0" else PLAIN,
            **{**KL, "perturb": target, **chosen},
            proximal=DISTILLED,
        )
    ],
    *cases("fedsol", settings=("softmax",), **KL, proximal=DISTILLED),
    *[
        case
        for strategy, b in STRATEGIES.items()
        for case in cases(
            "fedsol",
            strategy,
            **KL,
            equals="fedavg" if strategy == "A0" else "",
            inert={"A0": ("rho", "tau", "weight"), "A5": ("rho", "weight")}.get(strategy, ()),
            proximal={**DISTILLED, "weight": b},
            strategy=strategy,
        )
    ],
    *cases("fedsol", "A3, head", rho=1.0, perturb="head", proximal={**DISTILLED, "weight": 0.6}, strategy="A3"),
    *[
        case
        for other, chosen in COMBINED.items()
        for radius in ("dim0", "fixed")
        for case in cases(
            "fedsol",
            f"with {other}, {radius}",
            settings=("plain", "together") if radius == "dim0" else PLAIN,
            **KL,
            **RADII[radius],
            inert=("alpha", "mu"),
            proximal={"name": other, **chosen},
        )
    ],
    # local optimisers, which have no momentum in `training`; features; signs
    *cases("local-adamw", settings=OWN, training={"lr": 0.01}),
    *cases("local-muon", settings=OWN, training={"lr": 0.02}),
    *cases("fedadamw", settings=OWN, training={"lr": 0.05}, **ADAMW),
    *values("fedadamw", "second_moment", "full", settings=OWN, training={"lr": 0.05}, **ADAMW),
    *values("fedadamw", "correction", "code", settings=OWN, training={"lr": 0.05}, **ADAMW),
    *values("fedlada", "form", "paper", "vision", settings=OWN, training={"lr": 0.1}, **LADA),
    *cases("fedmuon", settings=OWN, training={"lr": 0.05}, **MUON),
    *cases("fedmuon", "three steps", settings=OWN, training={"lr": 0.05}, nesterov=False, steps=3, **MUON),
    *values("fedmuon", "matrices", "body", settings=OWN, training={"lr": 0.05}, **MUON),
    *cases("fedgmt", gamma=0.8, tau=2.0, beta=4.0, alpha=0.6),
    *values("fedgmt", "dual_mean", "cohort", gamma=0.8, tau=2.0, beta=4.0, alpha=0.6),
    *cases("feduv", lam_v=1.5, lam_u=0.7),
    *cases("feduv", "normalised", lam_v=1.5, lam_u=0.7, normalise=True),
    *cases("feddecorr", training={"batch_size": 7}, beta=0.2),
    *cases("fedadagrad", lr=0.2, beta1=0.6, tau=0.02),
    *values("fedadagrad", "square", "momentum", lr=0.2, beta1=0.6, tau=0.02),
    *cases("fedadagrad", "from zero", settings=PLAIN, lr=0.2, beta1=0.6, tau=0.02, start="zero"),
    *cases("projection", proximal=DISTILLED),
    *cases("projection", "l2", proximal={"name": "fedprox", "mu": 0.3}, inert=("mu",)),
]

NOT_COMPARED = {
    "local-only": "it leaves theta as it is; each client's model is compared in test_personal",
    "fedproto": "as local-only, with the prototypes",
    "perfedavg": "its oracle repeats draws; in test_personal",
    "knnper": "trained as FedAvg is; what it answers is compared in test_personal",
    **dict.fromkeys(
        ("fedper", "lg-fedavg", "fedbn", "ditto", "apfl", "pfedme", "fedala", "fedas"),
        "theta and what its clients keep are compared in test_personal",
    ),
    "fedgen": "its oracle repeats draws, and the generator is compared too; in test_personal",
}
"""Method -> why it is not here."""
