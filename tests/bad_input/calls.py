"""Calls, the store's address, tables and figures."""

from dataclasses import replace

from tests.bad_input.case import Case, put, run, stored, sweep


def saved(line: str, path: str, *changes: str) -> Case:
    """`fedray run run.yaml --save PATH`."""
    case = run(line, *changes)
    return replace(case, arguments=[*case.arguments, "--save", path])


COMMANDS: dict[str, str] = {
    "sweep": "Missing argument 'file': a sweep's YAML file, or a name of `fedray list sweeps`",
    "list algoritms": "list: unknown name 'algoritms'; did you mean 'algorithms'? valid: algorithms, clusters,…",
    "sweep x.yaml --max-concurrent 0": "Invalid value for '--max-concurrent': Input should be greater than or equal "
    "to 1",
    "ui": "there is no store at {here}/mlflow.db; the first sweep makes it, some seconds after its start, unless…",
    "data check sweep.yaml": "data.name: found 'sweep.yaml', a file; the `name` in its section `data` is required,…",
    "run run.yaml --dry-run": "No such option: --dry-run",
    "data show digits --out a.exe": "--out: found a.exe; a file that ends in .png, .svg or .pdf is required",
    "data show digits --set alpha=1": "--set: found 'alpha=1'; data.KEY=VALUE or partition.KEY=VALUE is required",
    "data show digits --set partition.alpha=1 --set partition.shards=2": "partition dirichlet: unknown name 'shards'; "
    "valid: alpha, min_size, seed; 'shards' belongs to sharding",
    "data fetch npz": "data.name: npz is your own; give it as data.path",
    "data fetch cinic10": "data.name: cinic10 cannot be downloaded by fedray; put "
    "cinic-10/{train,valid,test}/{airplane,...,truck}/*.png in {here}/data",
    "run example --log-model --no-track": "--log-model: --no-track writes nothing to MLflow; leave one out",
    "sweep quickstart --nodes 2": "--nodes: goes with --dry-run",
    "sweep quickstart --dry-run --gpus-per-node 2": "--gpus-per-node: goes with --nodes, the number of such machines",
    "sweep quickstart --dry-run --seconds-per-round 2": "--seconds-per-round: goes with --nodes, the number of such m…",
    "sweep quickstart --dry-run --nodes 2 --seconds-per-round nan": "--seconds-per-round: found nan; a number above 0 "
    "is required",
    "sweep quickstart --dry-run --estimate --json": "--json: --estimate and --nodes print no JSON; --dry-run --json a…",
    "sweep quickstart --dry-run --nodes 2 --force": "--force: --estimate and --nodes look nothing up; leave it out",
    "figures sweep --y alpha": "--y: figures without --kind do not use it; --kind heatmap does",
    "figures sweep --kind methods --x rho": "--x: --kind methods does not use it; --kind curves, sensitivity or heatm…",
    "figures sweep --kind heatmap --metric test_loss --round 3": "--round: --kind heatmap does not use it; --kind bar…",
    "figures sweep --smooth 2 --reference fedavg": "--reference: figures without --kind do not use it; --kind differe…",
    "figures sweep --kind methods --metric a+b": "--metric: found 'a+b'; --kind methods takes one metric",
    "figures sweep --kind sensitivity --metric a,b": "--metric: found 'a,b'; --kind sensitivity takes one metric",
    "table x": "No such command 'table'. Did you mean 'tables'?",
    "list": "list: one of these is required: algorithms, models, datasets, partitions, metrics, sweeps, clusters",
}
"""What is called in an empty folder -> what is said about it."""

OF_STORED: dict[str, str] = {
    "ui --host nosuch.invalid": "--host: nosuch.invalid:5000 cannot be listened at: …",
    "tables swep": "sweep: unknown name 'swep'; did you mean 'sweep'? valid: sweep",
    "tables sweep --format html": "--format: unknown name 'html'; valid: clients, csv, json, latex, markdown, seeds",
    "tables sweep --metric acuracy": "--metric: unknown name 'acuracy'; did you mean 'test_accuracy'?…",
    "tables sweep --rows algoritm": "--rows/--cols: unknown name 'algoritm'; did you mean 'algorithm'?…",
    "tables sweep --reference fedavgg": "--reference: unknown name 'fedavgg'; did you mean 'fedavg'? valid: fedavg,…",
    "tables sweep --published": "--published: 'sweep' does not belong to a paper; name the printed table with…",
    "tables sweep --paper fedsol/table99": "published table of fedsol: unknown name 'table99'; did you mean 'table9'? "
    "valid: table1, table10, table2, table3, table4, table5, table9, v1_table1",
    "tables sweep --paper fedsoll/table2": "published paper: unknown name 'fedsoll'; did you mean 'fedsol'?…",
    "figures sweep --kind sensitivity": "--x: no finished runs of this sweep differ by a number of the configuration…",
    "figures sweep --kind bars": "--metric is required for bars: the prefix of its parts, such as lambda of lambda_fc1",
    "figures sweep --kind class-accuracy": "--kind: class-accuracy needs runs with the probe: evaluation.probes: "
    "[classes]",
    "figures sweep --kind sensitivity --x algorithm.rho": "--x: algorithm.rho has one value in this sweep, not counti…",
    "figures sweep --kind sensitivity --x roh": "--x: unknown name 'roh'; did you mean 'algorithm.rho'? valid: algori…",
    "figures sweep --kind sensitivity --x seed": "--x: unknown name 'seed'; valid: algorithm.name, algorithm.rho, fed…",
    "figures sweep --kind sensitivity --x algorithm.name": "--x: the values of algorithm.name are not numbers: "
    "fedavg, fedsam",
    "compare sweep --confidence 95": "--confidence: expected a number between 0 and 1, got 95.0",
    "compare sweep --metric speedup:80/fedavg": "--metric: found 'speedup:80/fedavg', which compares runs already; ro…",
    "tables sweep --format latex --label a}b --out t.tex": "--label: found 'a}b'; letters, digits and : . / + * - _ a…",
    "tables sweep --format markdown --label tab:x --out t.tex": "--label: only LaTeX has labels; --format is markdown",
    "tables sweep --out t.txt": "--out: found t.txt; a file that ends in .md or .tex or .csv or .json is required, or…",
    "figures sweep --kind pie": "--kind: unknown name 'pie'; valid: bars, …",
    "figures sweep --kind curves --x alpha": "--x: unknown name 'alpha'; did you mean --kind sensitivity --x "
    "partition.alpha?…",
}
"""The same in a folder whose store holds `sweep`."""

ADDRESSES: dict[str, str] = {
    "nonsense": "found 'nonsense'; sqlite:///FILE, http://HOST:PORT or a database's address is required",
    "sqlite:////nosuch/mlflow.db": "found /nosuch/mlflow.db, but there is no folder /nosuch; create it, or set…",
    "http://me:pa55word@127.0.0.1:1/?token=t0ken": "cannot connect to http://***@127.0.0.1:1/?token=***: [Errno 111] "
    "Connection refused",
    "mssql+nope://me:pa55word@host/db": "the store cannot be used: NoSuchModuleError: Can't load plugin: "
    "sqlalchemy.dialects:mssql.nope",
}
"""MLFLOW_TRACKING_URI -> what is said about it."""
STORAGES: dict[str, str] = {
    "a.csv": "FEDRAY_STORAGE: cannot write {here}/a.csv: Not a directory; set it to a directory that can be written",
    "https://me:secret@host/x": "FEDRAY_STORAGE: found 'https://***@host/x'; expected a directory, got an address",
    "~nobodyatall/x": "FEDRAY_STORAGE: found '~nobodyatall/x': …",
}
"""The same of FEDRAY_STORAGE, in a folder with a file a.csv."""

CASES: dict[str, Case] = {
    **{call: Case(call.split(), line) for call, line in COMMANDS.items()},
    **{f"{call}, stored": Case(call.split(), line, stored) for call, line in OF_STORED.items()},
    **{f"store {uri}": run(f"MLFLOW_TRACKING_URI: {line}", MLFLOW_TRACKING_URI=uri) for uri, line in ADDRESSES.items()},
    **{
        f"storage {path}": Case(["sweep", "quickstart"], line, put("a.csv", ""), {"FEDRAY_STORAGE": path})
        for path, line in STORAGES.items()
    },
    # Calls and stores
    "save to nowhere": saved("--save: /dev/null/m cannot be written: Not a directory", "/dev/null/m"),
    "save what there is not": saved("model: local-only has no global model; each client…", "m", "algorithm=local-only"),
    **{
        f"address {address}": Case(
            ["sweep", "sweep.yaml", "--address", address],
            f"--address: found '{address}'; auto or HOST:PORT is required, as 10.0.0.1:6379{line}",
            sweep("").prepare,
        )
        for address, line in (
            ("host:port", ""),
            (
                "ray://127.0.0.1:1",
                "; a sweep's driver is on a node of the cluster: `ray job submit --address http://HOST:8265 "
                "--working-dir . -- fedray sweep FILE --address auto`",
            ),
        )
    },
    "ui of a server": Case(
        ["ui", "--port", "5001"],
        "--port: https://***@host/?token=*** is a server, which is already listening",
        environment={"MLFLOW_TRACKING_URI": "https://me:pa55word@host/?token=t0ken"},
    ),
    "store no database": run(
        "MLFLOW_TRACKING_URI: {here}/mlflow.db is not a SQLite database", prepare=put("mlflow.db", "hello")
    ),
    "store a folder": run(
        "MLFLOW_TRACKING_URI: cannot read {here}/mlflow.db: Is a directory",
        prepare=lambda here: (here / "mlflow.db").mkdir(),
    ),
}
