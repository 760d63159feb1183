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

CASES: dict[str, Case] = {
    **{call: Case(call.split(), line) for call, line in COMMANDS.items()},
    **{f"{call}, stored": Case(call.split(), line, stored) for call, line in OF_STORED.items()},
    **{f"store {uri}": run(f"MLFLOW_TRACKING_URI: {line}", MLFLOW_TRACKING_URI=uri) for uri, line in ADDRESSES.items()},
    # Calls and stores
    "save to nowhere": saved(
        "--save: /dev/null/m.safetensors cannot be written: Not a directory", "/dev/null/m.safetensors"
    ),
    "save what there is not": saved(
        "model: local-only has no global model; each client keeps parameters of its own", "m", "algorithm=local-only"
    ),
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
