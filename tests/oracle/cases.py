"""What is compared: each method's options in a configuration beside the arguments of its oracle, and the settings."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import averaging, classifiers, corrections, fedsol, losses, newest, sharpness
from .tensors import Tensors

BASE: dict[str, Any] = {
    "local_epochs": 2,
    "batch_size": 4,
    "shuffle": False,
    "lr": 0.1,
    "lr_decay": 0.9,
    "weight_decay": 0.02,
    "momentum": 0.0,
    "clip_norm": None,
    "clip_scope": "direction",
    "aggregation": "uniform",
    "server_lr": 1.0,
    "lr_decay_within": 1.0,
    "weight_decay_on": "all",
    "nominal_steps": False,
    "last_batch": "keep",
}

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.5},
    "clip": {"clip_norm": 0.5},
    "clip as code": {"clip_norm": 0.5, "clip_scope": "code"},
    "samples": {"aggregation": "samples"},
    "batches": {"aggregation": "batches"},
    "server_lr": {"server_lr": 0.7},
    "lr within": {"lr_decay_within": 0.8},
    "decay of weights": {"weight_decay_on": "weights"},
    "whole batches": {"last_batch": "drop", "lr_decay_within": 0.8},
    "shuffle": {"shuffle": True},
    "together": {"momentum": 0.5, "clip_norm": 0.5, "aggregation": "samples", "server_lr": 0.7, "shuffle": True},
    "softmax": {"momentum": 0.5},
}
"""What a setting changes in `training`. `softmax` is softmax regression, every other one the MLP."""


@dataclass(frozen=True)
class Case:
    """`options`: the algorithm section without its name; `arguments`: the oracle's; `setting`: of SETTINGS;
    `equals`: the id of the case that gives the same by definition; `inert`: arguments without influence here;
    `model`: options of the MLP, which only NORMED has.
    """

    method: str
    oracle: Callable[..., Tensors]
    options: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    setting: str = "plain"
    training: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    equals: str = ""
    inert: tuple[str, ...] = ()
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return "-".join(part for part in (self.method, self.label, self.setting) if part)


def cases(
    method: str,
    oracle: Callable[..., Tensors],
    options: dict[str, Any] | None = None,
    label: str = "",
    equals: str = "",
    settings: tuple[str, ...] = ("plain", "together", "softmax"),
    training: dict[str, Any] | None = None,
    inert: tuple[str, ...] = (),
    model: dict[str, Any] | None = None,
    **arguments: Any,
) -> list[Case]:
    """One case per setting; the options are the oracle's arguments where they have the same names."""
    return [
        Case(
            method,
            oracle,
            arguments if options is None else options,
            arguments,
            setting,
            training or {},
            label,
            equals and f"{equals}-{setting}",
            inert,
            model or {},
        )
        for setting in settings
    ]


NORMED: dict[str, Any] = {"model": {"feature_norm": "batch"}, "training": {"batch_size": 7}}
"""Batch normalisation before the head, and batches of which none is a single sample."""
MLP_ONLY = ("plain", "together")
PLAIN = ("plain",)
EVERYONE = ("plain", "together", "softmax", "shuffle")
CODE = ("plain", "together")
VARIATES: dict[str, tuple[dict[str, str], dict[str, bool]]] = {
    "variates by samples": ({"variates": "samples"}, {"by_samples": True}),
    "first lr": ({"variate_lr": "first"}, {"first": True}),
}
FORMS = {
    "scalars": ("scalars", "global"),
    "summed": ("vector", "summed"),
    "as the code": ("scalars", "summed"),
}
"""FedLESAM's `shift` and `norm` as its code has them."""
PULL = ("plain", "together", "softmax", "clip as code")

FEDTOGA: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *[(form, {"perturbation": form}, {"perturbation": form}) for form in ("fusion", "global", "neighbour")],
    ("gradient scale", {"delta_scale": "gradient"}, {"gradient_scale": True}),
    ("dual over cohort", {"dual_divisor": "cohort"}, {"dual_over_cohort": True}),
    ("no sam", {"sam": False}, {"rho": 0.0, "kappa": 0.0}),
    ("no dynamic regularisation", {"dynamic_regularisation": False}, {"dynamic": False, "lam": 0.0}),
    ("no dual correction", {"dual_correction": False}, {"beta": 0.0}),
    ("no sam correction", {"sam_correction": False}, {"sam_correction": False, "kappa": 0.0}),
]

RADII = {
    "fixed": {"radius": "fixed"},
    "dim0": {"radius": "adaptive"},
    "layer": {"radius": "adaptive", "lambda_norm": "layer"},
}
STRATEGIES = {"A0": 1.0, "A2": 0.6, "A3": 0.6, "A4": 1.0, "A5": 1.0, "A6": 0.6}
COMBINED: dict[str, dict[str, float]] = {
    "fedprox": {"mu": 0.7},
    "scaffold": {},
    "feddyn": {"alpha": 0.3},
    "moon": {"mu": 2.0, "tau": 0.1},
    "fednova": {},
}
# A factor of L_p is lost when its gradient is normalised: nothing stays of FedProx's and MOON's mu, of FedDyn's alpha.

CASES: list[Case] = [
    *cases("fedavg", averaging.fedavg, settings=tuple(name for name in SETTINGS if name != "clip as code")),
    *cases("fedexp", averaging.fedexp, {"epsilon": 0.02}, epsilon=0.02),
    *cases(
        "fedexp",
        averaging.fedexp,
        {"epsilon": 0.02, "epsilon_scale": "cohort", "test": "last"},
        label="cohort",
        epsilon=0.02,
        per_client=True,
    ),
    *[
        case
        for metric in ("l2", "l1", "cosine", "kl")
        for case in cases("feddisco", averaging.feddisco, label=metric, a=0.3, b=0.05, metric=metric)
    ],
    *cases(
        "fedgloss",
        newest.fedgloss,
        {"alpha": 0.3, "rho": 0.4, "rho_l": 0.3},
        settings=PULL,
        alpha=0.3,
        rho=0.4,
        rho_l=0.3,
    ),
    *cases(
        "fedgloss",
        newest.fedgloss,
        {"alpha": 0.3, "rho": 0.4, "rho_l": 0.3, "start_rho": 0.1, "warmup": 6, "dual_divisor": "product"},
        label="warm-up, product",
        settings=("plain",),
        alpha=0.3,
        rho=0.4,
        rho_l=0.3,
        start_rho=0.1,
        warmup=6,
        product=True,
    ),
    *cases("fedswa", newest.fedswa, rho=0.3, alpha=1.3),
    *cases("fedmoswa", newest.fedmoswa, rho=0.3, alpha=1.3, gamma=0.4),
    *[
        case
        for label, options, arguments in (
            ("", {}, {}),
            ("fixed", {"adaptive": False}, {"adaptive": False}),
            ("plain momentum", {"variates": False}, {"variates": False}),
            ("downhill", {"sign": "code"}, {"downhill": True}),
            ("scaled", {"target": "scaled"}, {"scaled": True}),
        )
        for case in cases(
            "fedwmsam",
            newest.fedwmsam,
            {"rho": 0.5, "alpha": 0.4, **options},
            label=label,
            settings=MLP_ONLY,
            rho=0.5,
            alpha=0.4,
            **arguments,
        )
    ],
    *cases("fednsam", newest.fednsam, gamma=0.6, rho=0.3),
    *cases(
        "fednsam",
        newest.fednsam,
        {"gamma": 0.6, "rho": 0.3, "perturbation": "momentum"},
        label="momentum",
        gamma=0.6,
        rho=0.3,
        along=True,
    ),
    *cases(
        "fednsam",
        newest.fednsam,
        {"gamma": 0.6, "rho": 0.3, "memory": "last"},
        label="last",
        gamma=0.6,
        rho=0.3,
        short=True,
    ),
    *cases("fedprox", averaging.fedprox, settings=PULL, mu=0.7),
    *cases("scaffold", corrections.scaffold),
    *cases("feddyn", corrections.feddyn, settings=PULL, alpha=0.3),
    *cases(
        "feddyn", corrections.feddyn_gradient_units, label="gradient units", equals="feddyn", settings=PULL, alpha=0.3
    ),
    *cases("fedcm", averaging.fedcm, alpha=0.3),
    *cases("fedsam", sharpness.fedsam, rho=0.3),
    *cases("mofedsam", sharpness.mofedsam, rho=0.3, beta=0.3),
    *[
        case
        for label, options, arguments in FEDTOGA
        for case in cases(
            "fedtoga",
            sharpness.fedtoga,
            {"alpha": 0.2, "rho": 0.3, "kappa": 2.0, "beta": 0.8, **options},
            label=label,
            settings=PULL,
            **{"lam": 0.2, "rho": 0.3, "kappa": 2.0, "beta": 0.8, **arguments},
        )
    ],
    *cases("fedavgm", averaging.fedavgm, beta=0.6),
    *[
        case
        for method, oracle in (("fedadam", averaging.fedadam), ("fedyogi", averaging.fedyogi))
        for case in [
            *cases(
                method,
                oracle,
                {"lr": 0.1, "beta1": 0.8, "beta2": 0.95, "tau": 0.02},
                eta_g=0.1,
                beta1=0.8,
                beta2=0.95,
                tau=0.02,
            ),
            *cases(
                method,
                oracle,
                {"lr": 0.1, "beta1": 0.8, "beta2": 0.95, "tau": 0.02, "start": "zero"},
                label="from zero",
                settings=PLAIN,
                eta_g=0.1,
                beta1=0.8,
                beta2=0.95,
                tau=0.02,
                v0=0.0,
            ),
        ]
    ],
    *cases("fedacg", averaging.fedacg, settings=PULL, lam=0.8, beta=0.3),
    *cases("feddyn", corrections.feddyn, label="scaled", settings=PULL, alpha=0.3, scaling="samples"),
    *cases("feddc", corrections.feddc, settings=PULL, alpha=0.3),
    *cases("feddc", corrections.feddc, label="scaled", alpha=0.3, scaling="samples"),
    *cases("fednova", averaging.fednova),
    *cases("fednova", averaging.fednova, label="prox", settings=PULL, mu=0.7),
    *cases("mimelite", averaging.mimelite, beta=0.6),
    *cases("scaffold", corrections.scaffold, label="effective", settings=("together",), divisor="effective"),
    *[
        case
        for label, (options, arguments) in VARIATES.items()
        for case in [
            *cases("scaffold", corrections.scaffold, options, label=label, settings=CODE, **arguments),
            *cases(
                "fedgamma",
                sharpness.fedgamma,
                {"rho": 0.3, **options},
                label=label,
                settings=CODE,
                rho=0.3,
                **arguments,
            ),
            *cases(
                "fedlesam-s",
                sharpness.fedlesam_s,
                {"rho": 0.3, **options},
                label=label,
                settings=CODE,
                rho=0.3,
                **arguments,
            ),
        ]
    ],
    *cases(
        "feddc",
        corrections.feddc,
        {"alpha": 0.3, "variate_lr": "first"},
        label="first lr",
        settings=CODE,
        alpha=0.3,
        first=True,
    ),
    *[
        case
        for method, oracle, options, arguments in (
            ("scaffold", corrections.scaffold, {}, {}),
            ("feddc", corrections.feddc, {"alpha": 0.3}, {"alpha": 0.3}),
            ("fedcm", averaging.fedcm, {"alpha": 0.3}, {"alpha": 0.3}),
            ("mofedsam", sharpness.mofedsam, {"rho": 0.3, "beta": 0.3}, {"rho": 0.3, "beta": 0.3}),
            (
                "fedtoga",
                sharpness.fedtoga,
                {"alpha": 0.2, "rho": 0.3, "kappa": 2.0, "beta": 0.8},
                {"lam": 0.2, "rho": 0.3, "kappa": 2.0, "beta": 0.8},
            ),
        )
        for case in cases(
            method,
            oracle,
            options,
            label="nominal steps",
            settings=PLAIN,
            training={"nominal_steps": True},
            **arguments,
        )
    ],
    *cases(
        "fednova",
        averaging.fednova,
        {"mu": 0.7, "tau": "steps"},
        label="prox, tau of steps",
        settings=CODE,
        mu=0.7,
        tau_of_steps=True,
    ),
    *cases(
        "fednova",
        averaging.fednova,
        {"mu": 0.7, "tau": "steps", "counting": "twice"},
        label="as the code",
        settings=("together",),
        mu=0.7,
        tau_of_steps=True,
        twice=True,
    ),
    *[
        case
        for part in ("head", "body")
        for case in [
            *cases(
                "fedsam", sharpness.fedsam, {"rho": 0.3, "perturb": part}, label=part, settings=CODE, rho=0.3, part=part
            ),
            *cases(
                "fedgamma",
                sharpness.fedgamma,
                {"rho": 0.3, "perturb": part},
                label=part,
                settings=CODE,
                rho=0.3,
                part=part,
            ),
            *cases(
                "fedspeed",
                sharpness.fedspeed,
                {"alpha": 0.2, "rho": 0.3, "perturb": part},
                label=part,
                settings=CODE,
                lam=0.2,
                rho=0.3,
                part=part,
            ),
        ]
    ],
    *[
        case
        for label, form in FORMS.items()
        for case in [
            *cases(
                "fedlesam",
                sharpness.fedlesam,
                {"rho": 0.3, "shift": form[0], "norm": form[1]},
                label=label,
                settings=CODE,
                rho=0.3,
                form=form,
            ),
            *cases(
                "fedlesam-s",
                sharpness.fedlesam_s,
                {"rho": 0.3, "shift": form[0], "norm": form[1]},
                label=label,
                settings=CODE,
                rho=0.3,
                form=form,
            ),
            *cases(
                "fedlesam-d",
                sharpness.fedlesam_d,
                {"alpha": 0.2, "rho": 0.3, "shift": form[0], "norm": form[1]},
                label=label,
                settings=CODE,
                lam=0.2,
                rho=0.3,
                form=form,
            ),
        ]
    ],
    *[
        case
        for q in ("x", "exp", "sqrt")
        for case in cases(
            "fedgela",
            classifiers.fedgela,
            {"scale_w": 4.0, "phi": q, "gamma": "shared"},
            label=f"{q}, shared",
            settings=MLP_ONLY,
            scale_w=4.0,
            form=q,
            shared=True,
        )
    ],
    *[
        case
        for method, form in (("fedge", "one"), ("fedgela", "x"))
        for case in cases(
            method,
            classifiers.fedgela,
            {"scale_w": 4.0, "feature_norm": "model"},
            label="batch norm",
            settings=MLP_ONLY,
            scale_w=4.0,
            form=form,
            unit=False,
            **NORMED,
        )
    ],
    *cases(
        "fedrep",
        classifiers.fedrep,
        {"body_epochs": 1, "newcomer": "average"},
        label="average newcomers",
        settings=MLP_ONLY,
        body_epochs=1,
        average=True,
    ),
    *cases("fedntd", losses.fedntd, beta=0.8, tau=2.0),
    *cases("fedavg-kl", losses.fedavg_kl, weight=2.0, tau=2.0),
    *cases("moon", losses.moon, settings=MLP_ONLY, mu=2.0, tau=0.4),
    *cases(
        "fedrcl",
        losses.fedrcl,
        {"contrast": 0.7, "relaxation": 1.3, "tau": 0.1, "threshold": 0.6},
        settings=MLP_ONLY,
        scl=0.7,
        penalty=1.3,
        tau=0.1,
        threshold=0.6,
    ),
    *cases("fedrcl", losses.fedrcl, label="as published", settings=MLP_ONLY),
    *cases("fedasam", sharpness.fedasam, rho=0.5, eta_a=0.3),
    *cases(
        "fedasam",
        sharpness.fedasam,
        {"rho": 0.5, "eta_a": 0.3, "scaled": "all"},
        label="all",
        rho=0.5,
        eta_a=0.3,
        everywhere=True,
    ),
    *cases("fedgamma", sharpness.fedgamma, rho=0.3),
    *cases("fedgamma", sharpness.fedgamma, label="effective", settings=("together",), rho=0.3, divisor="effective"),
    *cases("fedspeed", sharpness.fedspeed, {"alpha": 0.2, "rho": 0.3}, settings=PULL, lam=0.2, rho=0.3),
    *cases("fedsmoo", sharpness.fedsmoo, {"alpha": 0.2, "rho": 0.3}, settings=PULL, lam=0.2, rho=0.3),
    *cases(
        "fedsmoo",
        sharpness.fedsmoo,
        {"alpha": 0.2, "rho": 0.3, "perturbation_dual": "corrected"},
        label="corrected",
        lam=0.2,
        rho=0.3,
        paper_upload=True,
    ),
    *cases("fedlesam", sharpness.fedlesam, rho=0.3),
    *cases("fedlesam", sharpness.fedlesam, {"rho": 0.3, "estimate": "server"}, label="server", rho=0.3, broadcast=True),
    *cases("fedlesam-s", sharpness.fedlesam_s, rho=0.3, correction=0.8),
    *cases(
        "fedlesam-s", sharpness.fedlesam_s, {"rho": 0.3, "estimate": "server"}, label="server", rho=0.3, broadcast=True
    ),
    *cases("fedlesam-s", sharpness.fedlesam_s, label="effective", settings=("together",), rho=0.3, divisor="effective"),
    *cases("fedlesam-d", sharpness.fedlesam_d, {"alpha": 0.2, "rho": 0.3}, settings=PULL, lam=0.2, rho=0.3),
    *cases(
        "fedlesam-d",
        sharpness.fedlesam_d,
        {"alpha": 0.2, "rho": 0.3, "estimate": "server"},
        label="server",
        lam=0.2,
        rho=0.3,
        broadcast=True,
    ),
    *[
        case
        for affine in ("full", "diagonal", "channel")
        for case in cases(
            "fedrobust",
            sharpness.fedrobust,
            {"ascent_lr": 0.1, "penalty": 0.5, "affine": affine},
            label=affine,
            eta2=0.1,
            lam=0.5,
            affine=affine,
            channels=2,
        )
    ],
    *[
        case
        for target in ("head", "body", "all")
        for radius, chosen in RADII.items()
        for case in cases(
            "fedsol",
            fedsol.fedsol,
            {"proximal": {"name": "kl", "tau": 2.0}, "rho": 1.0, "perturb": target, **chosen},
            label=f"{target}, {radius}",
            settings=MLP_ONLY,
            rho=1.0,
            tau=2.0,
            target=target,
            radius=radius,
        )
    ],
    *cases(
        "fedsol",
        fedsol.fedsol,
        {"proximal": {"name": "kl", "tau": 2.0}, "rho": 1.0, "perturb": "all"},
        settings=("softmax",),
        rho=1.0,
        tau=2.0,
        target="all",
        radius="dim0",
    ),
    *[
        case
        for strategy, b in STRATEGIES.items()
        for case in cases(
            "fedsol",
            fedsol.fedsol,
            {"proximal": {"name": "kl", "tau": 2.0, "weight": b}, "rho": 1.0, "perturb": "all", "strategy": strategy},
            label=strategy,
            settings=MLP_ONLY,
            equals="fedavg" if strategy == "A0" else "",
            inert={"A0": ("rho", "tau", "b"), "A5": ("rho", "b")}.get(strategy, ()),
            rho=1.0,
            tau=2.0,
            target="all",
            radius="dim0",
            strategy=strategy,
            b=b,
        )
    ],
    *cases(
        "fedsol",
        fedsol.fedsol,
        {"proximal": {"name": "kl", "tau": 2.0, "weight": 0.6}, "rho": 1.0, "perturb": "head", "strategy": "A3"},
        label="A3, head",
        settings=MLP_ONLY,
        rho=1.0,
        tau=2.0,
        target="head",
        radius="dim0",
        strategy="A3",
        b=0.6,
    ),
    *[
        case
        for base, chosen in COMBINED.items()
        for radius in ("dim0", "fixed")
        for case in cases(
            "fedsol",
            fedsol.fedsol_with,
            {"proximal": {"name": base, **chosen}, "rho": 1.0, "perturb": "all", **RADII[radius]},
            label=f"with {base}, {radius}",
            settings=MLP_ONLY,
            inert=("alpha",),
            base=base,
            rho=1.0,
            target="all",
            radius=radius,
            **{name: value for name, value in chosen.items() if name != "mu"},
        )
    ],
    *cases("projection", fedsol.projection, {"proximal": {"name": "kl", "tau": 2.0}}, tau=2.0),
    *cases("projection", fedsol.projection, {"proximal": {"name": "fedprox", "mu": 0.3}}, label="l2", tau=None),
    *cases("fedge", classifiers.fedgela, {"scale_w": 4.0}, settings=MLP_ONLY, scale_w=4.0, form="one"),
    *[
        case
        for q in ("x", "exp", "sqrt")
        for case in cases(
            "fedgela", classifiers.fedgela, {"scale_w": 9.0, "phi": q}, label=q, settings=MLP_ONLY, scale_w=9.0, form=q
        )
    ],
    *cases(
        "fedgela",
        classifiers.fedgela,
        {"scale_w": 9.0, "softmax": "present"},
        label="present",
        settings=MLP_ONLY,
        scale_w=9.0,
        present_only=True,
    ),
    *[
        case
        for q in ("x", "exp", "sqrt")
        for case in cases("fedavg-la", classifiers.fedavg_la, {"phi": q}, label=q, form=q)
    ],
    *cases("fedrs", classifiers.fedrs, alpha=0.4),
    *cases("fedrs", classifiers.fedrs, label="soft", alpha=0.4, soft=True),
    *cases("fedlc", classifiers.fedlc, tau=0.8),
    *cases("fedrod", classifiers.fedrod, settings=MLP_ONLY),
    *cases("fedbabu", classifiers.fedbabu, settings=MLP_ONLY),
    *cases("fedrep", classifiers.fedrep, settings=MLP_ONLY, body_epochs=1),
    *cases("scaffnew", corrections.scaffnew, settings=EVERYONE, p=0.3),
    *cases("scaffnew", corrections.scaffnew, {"steps": "fixed"}, label="fixed", settings=EVERYONE),
    *cases(
        "fedrep",
        classifiers.fedrep,
        label="two of three",
        settings=MLP_ONLY,
        training={"local_epochs": 3},
        body_epochs=2,
    ),
]

NOT_COMPARED = {
    "local-only": "it leaves theta as it is; each client's model is compared in test_personal",
    "fedproto": "as local-only, with the prototypes",
    "perfedavg": "its oracle repeats draws; in test_personal",
    "knnper": "trained as FedAvg is; what it answers is compared in test_personal",
    **dict.fromkeys(
        ("fedper", "lg-fedavg", "fedbn", "ditto", "apfl", "pfedme", "fedala", "fedpac", "fedas"),
        "theta and what its clients keep are compared in test_kept",
    ),
    "fedgen": "its oracle repeats draws, and the generator is compared too; in test_personal",
}
"""Method -> why it is not here."""
