"""What is compared: each method's options in a configuration beside the arguments of its oracle, and the settings."""

from . import averaging, classifiers, corrections, losses, newest, sharpness
from .case import CODE, EVERYONE, MLP_ONLY, NORMED, PLAIN, PULL, SETTINGS, Case, cases
from .cases_perturbed import PERTURBED

VARIATES: dict[str, tuple[dict[str, str], dict[str, bool]]] = {
    "variates by samples": ({"variates": "samples"}, {"by_samples": True}),
    "first lr": ({"variate_lr": "first"}, {"first": True}),
}

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
    *cases("fedprox", averaging.fedprox, settings=PULL, mu=0.7),
    *cases("scaffold", corrections.scaffold),
    *cases("feddyn", corrections.feddyn, settings=PULL, alpha=0.3),
    *cases(
        "feddyn", corrections.feddyn_gradient_units, label="gradient units", equals="feddyn", settings=PULL, alpha=0.3
    ),
    *cases("fedcm", averaging.fedcm, alpha=0.3),
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
            ("fedwmsam", newest.fedwmsam, {"rho": 0.5, "alpha": 0.4}, {"rho": 0.5, "alpha": 0.4}),
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
    *PERTURBED,
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
