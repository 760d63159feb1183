"""Mistakes in the YAML itself and in a sweep's keys."""

import os
from dataclasses import replace
from typing import Any

import yaml

from fedray.sweep.document import get_sweeps_folder
from tests.bad_input.case import BASE, LAUGHS, RUN, Case, put, sweep, text

LR, FINAL, LONG = {"training.lr": {"loguniform": [0.01, 1]}}, {"seeds": [7]}, "x" * 300

DRAWS: list[tuple[str, list[object], str]] = [
    ("choice", [], "a list of values, at least one"), ("loguniform", [0, 1], "[LOW, HIGH], above 0"),
    ("randint", [1.5, 3], "[LOW, HIGH), integers"), ("uniform", [1, 0], "[LOW, HIGH]"),
]  # fmt: skip

WORDS: dict[str, str] = {
    "grid: {algorithm.rho: [0.1, -0.1]}": "algorithm.rho: found -0.1; input should be greater than or equal to 0",
    "grid: {trainin.lr: [0.1]}": "configuration: unknown name 'trainin'; did you mean 'training'? valid: algorithm,…",
    "grid: {train.lr: [0.1]}": "configuration: unknown name 'train'; did you mean 'training'? valid: algorithm,…",
    "search: {lr: {choice: [1]}}": "configuration: unknown name 'lr'; did you mean 'training.lr'? valid: algorithm,…",
    "cases: []": "cases.cases: found []; list should have at least 1 item after validation, not 0",
    "description: 5": "description: found 5; input should be a text",
    "names: {fedavg: ' '}": "names.fedavg: found ' '; a name is one line of characters that can be printed",
    "names: {fedsan: SAM}": "names: unknown name 'fedsan'; did you mean…",
    "cases: [{model: mlp, grid: {seed: 3}}]": "cases.cases.0.grid.seed: expected a list of values, got 3",
    "cases: [{algorithm: {name: fedsam, rho: 1}, grid: {algorithm.rho: [2]}}]": "cases.cases.0.grid.algorithm.rho: the "
    "case gives algorithm.rho, too; leave one out",
    "cases: [{grid: {search: [{}]}}]": "cases.cases.0.grid.search: `search` belongs next to the case's keys, not in…",
    "grid: {algorithm: [fedavg], algorithm.rho: [0.1]}": "algorithm.rho: fedavg has no options; 'rho' belongs to…",
    "grid: {algorithm: [fedavg, fedsam], algorithm.roh: [0.1]}": "algorithm.roh: none of fedavg, fedsam has it",
    "grid: {seed: 0-2}": "grid.seed: expected a list, got '0-2'",
    "grid: {partition: {name: dirichlet, alpha: [0.1, 0.5]}}": "grid.partition: expected a list, got {name: "
    "dirichlet, alpha: [0.1, 0.5]}",
    "grid: {partition: {alpha: [0.1, 0.5]}}": "grid.partition: expected a list, got {alpha: [0.1, 0.5]}",
    "grid: {partition: [dirichlet α=0.1]}": "partition.name: unknown name 'dirichlet α=0.1'; did you mean "
    "'dirichlet'? valid: dirichlet,…",
    "grid: {algorithm: [{name:fedsam, rho: 0.1}]}": "algorithm.name is required: found algorithm.name:fedsam, "
    "algorithm.rho without it; `fedray list algorithms` has the names",
    "grid: {algorithm: {fedavg, fedsam}}": "grid.algorithm: expected a list, got {fedavg: null, fedsam: null}",
    "grid: {partition: [iid, {dirichlet: 0.1}]}": "partition.name is required: found partition.dirichlet without it; "
    "valid names: dirichlet,…",
    "grid: {algorithm: -fedavg -fedsam}": "grid.algorithm: expected a list, got '-fedavg -fedsam'",
    "grid: {seed: 0}": "grid.seed: expected a list, got 0",
    "grid: {algorithm: [fedavg, {fedprox: {mu: 0.01}}]}": "algorithm.name is required: found algorithm.fedprox without "
    "it; `fedray list algorithms` has the names",
    "grid: {seed: []}": "grid.seed: found []; at least one value is required",
    "grid: {seed: [0, 1, 0]}": "grid.seed: lists 0 more than once",
    "samples: 3": "samples: found 3; without `search` there is nothing to draw",
    "search: {algorithm.rho: {lognormal: [0, 1]}}": "search.algorithm.rho: unknown name 'lognormal'; did you mean "
    "'loguniform'? valid: choice, loguniform, randint, uniform",
    "search: {seed: {choice: [1], randint: [0, 3]}}": "search.seed: one distribution is required, found ['choice', "
    "'randint']",
    "search: {training.lr_decay: {uniform: [0.5, 2]}}": "training.lr_decay: found…",
    "scheduler: asha": "scheduler.metric: found validation_accuracy, but the cells have no `data.validation`; hold…",
    "scheduler: {name: median, metric: test_accuracy, factor: 2}": "scheduler.factor: belongs to asha; median has none",
    "stop: {validation_accuracy: 90}": "stop.validation_accuracy: the cells have no `data.validation`",
    "searcher: sobol": "searcher: without `search` there is nothing to draw",
    "tune: {seeds: [1]}, final: {seeds: [0]}": "tune: without `search` there is nothing to draw; `search: {KEY: "
    "{choice: [...]}}` draws among values",
    "search: {training.lr: {loguniform: [0.01, 1]}}, select: validation_acuracy": "select: unknown name "
    "'validation_acuracy'; did you mean…",
    "search: {training.lr: {loguniform: [0.01, 1]}}, tune: {seeds: [1]}": "final: is required with `tune`",
    "stop: {acuracy: 3}": "stop: unknown name 'acuracy'; did you mean 'test_accuracy'? valid: round, test_accuracy,…",
    "stop: {round: 0}": "stop.round: found 0; every cell would stop at once",
    "stop: {test_accuracy: 0.9}": "stop.test_accuracy: found 0.9, in percent; write 90",
    "stop: {test_accuracy: 950}": "stop.test_accuracy: found 950; at most 100 (percent) is reached",
    "grid: {algorithm.rho: [0.1], algorithm: [fedsam]}": "grid.algorithm: follows algorithm.rho, which it would…",
    "cases: [{algorithm: fedprox}, {algorithm.mu: 0.3, algorithm: fedprox}]": "cases.cases.1.algorithm: follows "
    "algorithm.mu, which it would…",
    "cases: [{algorithm.rho: 0.1}, {seed: 0}], grid: {seed: [0, 1]}": "grid.seed: seed also has a value in "
    "cases.cases.1; leave one out",
    "cases: [{seed: 0}, {training.lr: 0.3, training: {lr: 0.9}}]": "cases.cases.1.training: training.lr also has a "
    "value in cases.cases.1; leave one out",
    "search: {training.lr: {choice: [0.1, 0.2, 0.1]}}": "search.training.lr.choice: lists 0.1 more than once",
    "search: {seed: {choice: [0, 1]}}, grid: {seed: [2]}": "search.seed: seed also has a value in "
    "grid.seed; leave one out",
    "cases: [{seed: 0}, {seed: 1, search: {seed: {choice: [2]}}}]": "cases.cases.1.search.seed: seed also has a "
    "value in cases.cases.1; leave one out",
    "grid: {partition: [iid]}, search: {partition: {choice: [iid]}}": "search.partition: partition also has a value…",
    "grid: {training.lr: [1]}, search: {training: {choice: [{lr: 2}]}}": "search.training: training.lr also has a…",
    "grid: {algorithm.name: [fedavg]}": "grid.algorithm.name: write algorithm, which takes a name, or a name with…",
    "grid: {search: [1]}": "grid: found {'search': [1]}; `search` belongs next to `grid`, not in it; a case may have…",
    "grid: {algorithm: [fedavg, moon], model.hidden: [[]]}": "model.name: found mlp, all of it head; moon needs a…",
    "name: a b": "name: found 'a b'; letters, digits and _ - . are allowed, without spaces, in parts joined by /",
}
"""What a sweep's file has besides its base -> what is said about it."""

STAGED: dict[str, str] = {
    "tune: {seeds: [1, 2]}, final: {seeds: [2, 3]}": "final.seeds: 2 is also in tune.seeds; a seed that helped to…",
    "tune: {seeds: [1], blocks: true}, final: {seeds: [2, 3]}": "final.seeds: found 2; tune.blocks requires as many…",
    "tune: {seeds: [1, 1]}": "tune.seeds: found [1, 1]; each seed once",
    "grid: {seed: [0]}": "seed: belongs to `tune` and `final`, which say it for each stage",
    "stop: {round: 2}": "stop: found with `tune`, which cannot choose cells that `stop` ends; leave one out",
    "select: last10_personal_accuracy": "select: found last10_personal_accuracy, but the cells have no…",
}
"""The same of a sweep that tunes: its stages are STAGES, unless they are given."""
STAGES: dict[str, Any] = {"search": LR, "tune": {"seeds": [1]}, "final": FINAL}


def read(text: str) -> dict[str, Any]:
    return yaml.safe_load(f"{{{text}}}")  # type: ignore[no-any-return]


YAML: dict[str | bytes, str] = {
    "- 1\n": "expected a mapping, got list",
    "": "expected a mapping, got nothing",
    "a: [1\n": "line 2, column 1: is not YAML: expected ',' or ']', but got '<stream end>'",
    "a: [\n": "line 2, column 1: is not YAML: expected the node content, but found '<stream end>'",
    "a: {b: 1 c: 2}\n": "line 1, column 11: is not YAML: expected ',' or '}', but got ':'",
    "a: [1]]\n": "line 1, column 7: is not YAML: expected <block end>, but found ']'",
    "name: 'x\nb: 1\n": "line 3, column 1: is not YAML: found unexpected end of stream",
    "name x\nb: 1\n": "line 2, column 2: is not YAML: mapping values are not allowed here",
    "a: b: c\n": "line 1, column 5: is not YAML: mapping values are not allowed here",
    "a: @b\n": "line 1, column 4: is not YAML: found character '@' that cannot start any token",
    " a: 1\nb: 2\n": "line 2, column 1: is not YAML: expected '<document start>', but found '<block mapping start>'",
    "a:\n  b: 1\n   c: 2\n": "line 3, column 5: is not YAML: mapping values are not allowed here",
    "a:\n  b: 1\n  - c\n": "line 3, column 3: is not YAML: expected <block end>, but found '-'",
    "seed: 1\nseed: 2\n": "line 2: the key 'seed' is repeated",
    "a: !!python/object/apply:os.system ['true']\n": "line 1, column 4: is not YAML: could not determine a constructor "
    "for the tag 'tag:yaml.org,2002:python/object/apply:os.system'",
    "name: é".encode("latin-1"): "is not text in UTF-8; save it as such",
    "name:a\nseed: 0\n": "line 2, column 5: is not YAML: mapping values are not allowed here",
    "base:\n\tseed: 0\n": "line 2, column 1: is not YAML: found character '\\t' that cannot start any token",
    "1: 2\n": "line 1: keys must be strings; quote 1, or put several values in brackets",
    "x: {lr: 0,1}\n": "line 1: keys must be strings; quote 1, or put several values in brackets",
    "x: {rho: 0.05, 0.1, 0.2, mu: 1}\n": "line 1: keys must be strings; quote 0.1, or put several values in brackets",
    "a:\n  - fedavg\n  -fedsam\nb: 1\n": "line 4, column 1: is not YAML: could not find expected ':'",
    "rho: [0.1, 0,6]\n": "line 1: 0,6 is two values; write 0.6, or a space after the comma",
    "<<: [{a: 1}, b]\n": "line 1: `<<` merges mappings only",
    LAUGHS: "its aliases repeat more than 100000 values",
    "seed: &a [*a]\n": "line 1: the anchor contains itself",
    "a: " + "[" * 1200: "is not YAML: it is nested too deeply",
    "seed: 2001-99-99\n": "is not YAML: ValueError: month must be in 1..12",
    "{}": "data is required",
}
"""The content of a file -> what is said about it."""

OF_PLAN: dict[str, tuple[dict[str, Any], str]] = {
    "too many actors": (
        {"runtime": {"actors": 10**5}},
        "runtime.actors: 100000 actors of 1 CPU and 0 GPU each are asked for, 2 fit;…",
    ),
    "no space after a colon": (
        {"training": {"lr:0.1": None}},
        "sweep.yaml: training: unknown name 'lr:0.1'; did you mean 'lr'?",
    ),
    "a GPU that is not here": (
        {"runtime": {"gpus_per_actor": 0.25}},
        "runtime.gpus_per_actor: 0.25 GPU for each actor is asked for, and no node has one; "
        "`--set runtime.gpus_per_actor=0` trains on CPUs",
    ),
}
"""What is changed in the base, and the whole line about it."""

CASES: dict[str, Case] = {
    **{more[:60]: sweep(line, **read(more)) for more, line in WORDS.items()},
    **{f"stages, {more[:60]}": sweep(line, **STAGES | read(more)) for more, line in STAGED.items()},
    **{
        f"{kind} of {given}": sweep(
            f"search.seed: {kind} does not take {given}; {rule} is required", search={"seed": {kind: given}}
        )
        for kind, given, rule in DRAWS
    },
    "a name too long for a file": Case(["sweep", LONG], f"{LONG}: File name too long"),
    "one run's configuration": Case(
        ["sweep", "example"],
        f"{get_sweeps_folder()}/example.yaml: is the configuration of one run, which `fedray run` takes; a sweep has "
        "name and base",
    ),
    "a pipe": Case(
        ["run", "p.yaml"], "p.yaml: cannot be read: it is not a regular file", lambda here: os.mkfifo(here / "p.yaml")
    ),
    **{f"YAML {content[:40]!r}": text(f"file.yaml: {line}", content) for content, line in YAML.items()},
    "a file that is not there": Case(["run", "bas.yaml"], "bas.yaml: cannot be read: No such file or directory"),
    "an axis without its method, extending": Case(
        ["sweep", "own.yaml"],
        "own.yaml: algorithm.name is required: found algorithm.rho without it; `fedray list algorithms` has the names",
        lambda here: [
            put(f"{name}.yaml", yaml.safe_dump(content))(here)
            for name, content in (
                ("own", {"name": "own", "extends": "other.yaml", "grid": {"algorithm.rho": [0.1, 0.2]}}),
                ("other", {"name": "x", "base": {key: BASE[key] for key in BASE if key != "algorithm"}}),
            )
        ],
    ),
    "too many cells": sweep(
        "grid: the axes multiply to 160400 cells; at most 100000 are allowed",
        grid={"seed": list(range(400)), "training.rounds": list(range(1, 402))},
    ),
    "clients that hold nothing out": sweep(
        "select: found last10_validation_client_accuracy, but no samples of clients are held out (`from: clients`)",
        search=LR,
        select="last10_validation_client_accuracy",
        tune={"seeds": [1], "validation": {"from": "pool"}},
        final=FINAL,
    ),
    "set in the name": Case(
        ["sweep", "quickstart", "--set", "name.x=1", "--dry-run"], "name.x: name holds 'quickstart', which has no keys"
    ),
    "inline": sweep("runtime.backend: found inline; a sweep runs on Ray", base=RUN),
    "smoke value": Case(
        ["sweep", "sweep.yaml", "--smoke"],
        "sweep.yaml with --smoke: data digits: unknown name 'sed'; did you mean 'std'? valid: augment, channels, "
        "mean, preset, std, test, validation",
        put("sweep.yaml", f"{{name: x, base: {BASE}, smoke: {{base: {{data: {{name: digits, sed: 1}}}}}}}}"),
    ),
    "only, on a cluster": sweep("--only: '13' names no cell; give a number from 1 to…", "--nodes", "2", "--only", "13"),
    "no smoke": sweep("smoke: this sweep has no smoke section", "--smoke"),
    "smoke cases": sweep(
        "smoke.cases: unknown name 'b'; valid: a",
        "--smoke",
        cases={"a": [{"seed": 1}]},
        smoke={"cases": {"b": [{"seed": 1}]}},
    ),
    **{name: replace(sweep("", base=BASE | change), line=line) for name, (change, line) in OF_PLAN.items()},
}
