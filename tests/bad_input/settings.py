"""Settings of a run."""

import yaml

from tests.bad_input.case import RUN, Case, put, run

BOUNDS: list[tuple[str, int | float | str, str]] = [
    ("algorithm.rho", -1, "greater than or equal to 0"), ("clients.total", 10**12, "less than or equal to 10000000"),
    ("data.channels", 2, "1 or 3"), ("runtime.actors", 0, "greater than 0 or 'auto'"),
    ("runtime.backend", "dask", "'inline' or 'ray'"), ("runtime.threads", 2**31, "less than or equal to 1024"),
    ("training.aggregation", "mean", "'uniform', 'samples', 'batches' or 'feddisco'"),
    ("training.batch_size", 0, "greater than 0 or 'full'"), ("training.momentum", 1, "less than 1"),
]  # fmt: skip
VALUES: dict[str, str] = {
    **{f"{key}={value}": f"found {value!r}; input should be {rule}" for key, value, rule in BOUNDS},
    "runtime.mirror=[wandb, wandb]": "found wandb twice; each viewer once is required",
    "training.lr=.nan": "found nan; input should be a finite number",
    "training.lr=O.6": "found 'O.6'; input should be a number",
    "training.rounds=1.5": "found 1.5; input should be an integer",
    "evaluation.train=2": "found 2; input should be true or false",
    "training.lr=[0.1, 0.2]": "found [0.1, 0.2]; input should be a number; several values go into a sweep's "
    "`grid`: `training.lr: [0.1, 0.2]`",
    "training.lr=1e308": "found 1e+308; the number is too large",
    "training.lr=true": "found True; expected a number, got a boolean",
    "training.batch_size=all": "found 'all'; input should be an integer or 'full'",
    "training.local_steps=3": "give either local_steps or local_epochs, not both",
    "runtime.cpus_per_actor=1e-5": "found 1e-05; Ray counts in units of 0.0001",
    "runtime.cpus_per_actor=0": "found 0; an actor without a GPU needs some CPU",
    "runtime.gpus_per_actor=1.5": "found 1.5; a fraction below 1 or whole GPUs",
    "runtime.gpus_per_actor=auto": "found 'auto'; input should be a number",
    "clients.per_round=11": "found 11; clients.total is only 10",
    "clients.per_round=1.5": "found 1.5; a fraction is at most 1.0, a number of clients is written without a point",
    "clients.cohorts=[[0], []]": "round 1 lists []; different ids in 0..9 are required, at least one",
    "seed=0x" + "f" * 9000: "found <int>; the number is too large",
    "clients.cohorts=[[0]]": "lists 1 rounds, training.rounds is 2",
}
"""Value of a setting -> what is said about it."""

CHANGES: dict[str, str] = {
    "evaluation.personal={epochs: five}": "run.yaml with --set: evaluation.personal.epochs: found 'five'; input should "
    "be an integer or a list",
    "training.learning_rate=1": "run.yaml with --set: training: unknown name 'learning_rate';…",
    "algorithm=fed_sam": "run.yaml with --set: algorithm.name: unknown name 'fed_sam'; did you mean 'fe…",
    "partition={name: dirichlet}": "run.yaml with --set: partition.alpha is required",
    "data={name: synthetic, train_samples: 1000000000000}": "run.yaml with --set: data.train_samples: samples and "
    "shape ask for 3.07e+15 values; at most 4e+09 are allowed",
    "seed=010": "--set seed: line 1: 010 is octal in YAML; write 10, or quote it if it is a string",
    "seed=1:30": "--set seed: line 1: 1:30 is the number 90 in YAML; write 90, or quote it if it…",
    "algorithm={rho: 1}": "run.yaml with --set: algorithm.name is required: found algorithm.rho without it; `fedray…",
    "runtime.device=cuda": "runtime.device: no CUDA device is visible to PyTorch here; set runtime.device: cpu",
    "model.hidden=[10000000000000]": "model: mlp cannot be built: RuntimeError: [enforce fail…",
    "partition={name: pathological, classes: 11}": "partition.classes: found 11; the data have 10 classes",
    "partition={name: pxcy, classes: 11}": "partition.classes: found 11; 10 clients cover the data's 10 classes with…",
    "partition={name: sharding, shards: 144}": "partition.shards: 10 clients x 144 shards are more than the 1437 tr…",
    "partition=natural": "partition.name: data digits have no natural clients (client_train)",
    "model={name: mlp, hidden: [8], lora: {}, freeze: [body]}": "model.freeze: found body; the adapters of model.lora…",
    "algorithm=nowhere:X": "run.yaml with --set: algorithm.name: 'nowhere:X' cannot be imported: ModuleNotFound…",
    "training.lr": "--set: found 'training.lr'; KEY=VALUE is required, without a space: --…",
    "=1": "--set: found '=1'; KEY=VALUE is required",
    "seed.x=1": "seed.x: seed holds 0, which has no keys",
}
"""What --set changes -> what is said about it."""

OF_TRAINING: dict[str, str] = {
    "optimizer=adamw & momentum=0.9": "momentum: found 0.9; adamw has training.adamw.betas instead",
    "optimizer=muon & momentum=0.9": "momentum: found 0.9; muon has training.muon.momentum instead",
    "optimizer=adamw & clip_scope=code": "clip_scope: found code, which is sgd's; training.optimizer is adamw",
    "adamw={eps: 0.1}": "adamw: has options, but training.optimizer is sgd",
    "optimizer=adamw & muon={steps: 3}": "muon: has options, but training.optimizer is adamw",
    "optimizer=adamw & adamw={betas: [0.9, 1.0]}": "adamw.betas.1: found 1.0; input should be less than 1",
    "lr_schedule=cosine & lr_decay=0.9": "lr_decay: found 0.9; it is the exponential schedule's, and training.lr_sche…",
    "lr_schedule=step": "lr_step: lr_schedule step needs it: {every: ROUNDS, factor: 0.1}",
    "lr_step={every: 3}": "lr_step: has options, but training.lr_schedule is exponential",
    "lr_schedule=step & lr_step={factor: 0.1}": "lr_step.every is required",
    "warmup=2": "warmup: found 2; training.rounds is only 2",
    "lr='0,1'": "lr: found '0,1'; input should be a number",
}
"""Settings of `training` -> what is said about it."""

OF_METHODS: dict[str, str] = {
    "fedsol, proximal: fedavg": "proximal.name: unknown name 'fedavg'; did you mean 'fednova'? valid: feddyn, …",
    "fedsol, proximal: {name: kl, tau: 0}": "proximal.tau: found 0; input should be greater than 0",
    "fedsol, proximal: {name: fednova, mu: 1}": "proximal.mu: found 1; input should be less than or equal to 0",
    "fedsol, proximal: 3": "proximal: expected a name or a mapping with `name`, got 3; valid names: feddyn, fednova,…",
    "fedsol, proximal: moon, perturb: head": "perturb: found 'head', on which MOON's loss does not depend; body or all",
    "fedwmsam, alpha: 1, rho: 0.1": "alpha: found 1 with rho above 0; α/(1 - α) has to be finite",
    "fedala, threshold: 0.1": "start_epochs: found 10 with a threshold, which needs more than 10",
    "scaffold@forms, scaling: samples, variates: samples": "scaling: found samples with variates samples and "
    "correction plain; only one of the three may weigh the changes of c_i",
}
"""A method with options -> what is said about it."""

OF_AUGMENT: dict[str, str] = {
    "flip": ": found 'flip'; a list of transforms is required, of: crop, cutout, flip, rotate",
    "[flop]": ": unknown name 'flop'; did you mean 'flip'? valid: crop, cutout, flip, rotate",
    "[{crop: 0}]": ".crop: found 0; input should be greater than 0",
    "[{cutout: 3}]": ".cutout: found 3; input should be a multiple of 2",
    "[{crop: 4, colour: 1}]": ": unknown name 'colour'; valid: chance, crop, fill",
}
"""The transforms of training images -> what is said about them."""

OF_RUNS: dict[str, str] = {
    **{
        f"evaluation.personal={{epochs: {given}}}": f"evaluation.personal.epochs: found {found}; 0 or more, or a list "
        "of different ones"
        for given, found in (("-1", "(-1,)"), ("[1, 1]", "(1, 1)"), ("[]", "()"))
    },
    "clients.unseen=2": "clients.unseen: found 2; evaluation.personal is required, which deals and tests their samples",
    "clients.unseen=2 & algorithm=local-only & evaluation.personal={epochs: 1}": "clients.unseen: found 2; local-only "
    "sends nothing to a newcomer",
    "stop={test_accuracy: 90}": "stop: is a key of a sweep's file, next to its `base`; one run has none; in Python, a…",
    "clients=10": "clients: expected a mapping, got 10; its keys: total, per_round, sampling, cohorts, unseen",
    "clients={total: 10, fraction: 0.1}": "clients: unknown name 'fraction'; did you mean 'per_round'? valid: cohorts…",
    "data={name: digits, test: 200}": "data.test: expected a mapping, got 200; its keys: from, fraction, stratify",
    "data=CIFAR-10": "data.name: unknown name 'CIFAR-10'; did you mean 'cifar10'? `fedray list datasets` lists them;…",
    "runtime.gpus=1": "runtime: unknown name 'gpus'; did you mean 'gpus_per_actor'? valid: actors, backend, checkpoin…",
}
"""Settings of several sections -> what is said about them."""

SET = "run.yaml with --set"
OWN = put("own_wsam.py", "from fedray.algorithms.base import Algorithm\n\n\nclass WSAM(Algorithm):\n    pass\n")
WAYS: dict[str, str] = {
    "algorithm=own_wsam.py:WSAM": "'own_wsam.py:WSAM' cannot be imported: write 'own_wsam:WSAM', without .py",
    "algorithm=own_wsam": "unknown name 'own_wsam'; did you mean…",
    "model=own_wsam.WSAM": "unknown name 'own_wsam.WSAM'; `fedray list models`…",
    "algorithm=own_wsam:Wsam": "'own_wsam:Wsam' cannot be imported: AttributeError: module 'own_wsam' has no attribute "
    "'Wsam'",
}
"""How a class of a file in the folder is named by mistake -> what is said about it."""

CASES: dict[str, Case] = {
    **{change: run(line, change) for change, line in CHANGES.items()},
    **{change[:40]: run(f"{SET}: {change.partition('=')[0]}: {said}", change) for change, said in VALUES.items()},
    **{way: run(f"{SET}: {way.partition('=')[0]}.name: {said}", way, prepare=OWN) for way, said in WAYS.items()},
    **{
        change: run(f"{SET}: training.{said}", *(f"training.{one}" for one in change.split(" & ")))
        for change, said in OF_TRAINING.items()
    },
    **{how: run(f"{SET}: algorithm.{said}", f"algorithm={{name: {how}}}") for how, said in OF_METHODS.items()},
    **{
        f"augment {how}": run(f"{SET}: data.augment{said}", f"data={{name: digits, augment: {how}}}")
        for how, said in OF_AUGMENT.items()
    },
    **{change[:60]: run(f"{SET}: {said}", *change.split(" & ")) for change, said in OF_RUNS.items()},
    "both kinds of own test samples": run(
        "run.yaml with --set: evaluation.personal.split: found share; with data.test clients have test samples already",
        "data={name: digits, test: {from: clients}}",
        "evaluation.personal={split: share}",
    ),
    "no sample to test on": run(
        "data.test.fraction: found 0.25; that is not a single sample of any client that has two",
        "data={name: digits, test: {}}",
        "partition=iid",
        "clients.total=1797",
    ),
    "seed of 5000 digits": run("--set seed: is not YAML: ValueError: Exceeds the limit (4300…", "seed=" + "9" * 5000),
    "a run on a cluster that is not there": run(
        "RAY_ADDRESS: cannot connect to 127.0.0.1:1: [Errno 111] Connection refused",
        "runtime.backend=ray",
        RAY_ADDRESS="127.0.0.1:1",
    ),
    "empty clients": run(
        "partition.min_size: dirichlet left a client with 0 samples in each of 100 draws, 1 are required; lower "
        "clients.total or set min_size: 0",
        "clients.total=300",
        "partition.alpha=0.01",
    ),
    "two options that change the file": Case(
        ["run", "run.yaml", "--set", "seed=-1", "--backend", "inline"],
        "run.yaml with --set and --backend: seed: found -1; input should be greater than or equal to 0",
        put("run.yaml", yaml.safe_dump(RUN)),
    ),
    "plug-in that exits": run(
        "run.yaml with --set: algorithm.name: 'leaving_plugin:X' cannot be imported: SystemExit: 0",
        "algorithm=leaving_plugin:X",
        prepare=put("leaving_plugin.py", "import sys\nsys.exit(0)\n"),
    ),
    "plug-in that raises": run(
        "run.yaml with --set: algorithm.name: 'broken_plugin:X' cannot be imported: ZeroDivisionError: division by "
        "zero",
        "algorithm=broken_plugin:X",
        prepare=put("broken_plugin.py", "1 / 0\n"),
    ),
}
