"""The cases of the methods that perturb: FedSAM and its heirs, FedTOGA, FedSOL, and the newest."""

from typing import Any

from . import fedsol, newest, sharpness
from .case import CODE, MLP_ONLY, PULL, Case, cases

FORMS = {
    "scalars": ("scalars", "global"),
    "summed": ("vector", "summed"),
    "as the code": ("scalars", "summed"),
}
"""FedLESAM's `shift` and `norm` as its code has them."""

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

PERTURBED: list[Case] = [
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
]
