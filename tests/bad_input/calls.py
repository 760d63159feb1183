"""Calls, the store's address, tables and figures."""

from dataclasses import replace

from tests.bad_input.case import Case, put, run, stored, sweep

LONG = "x" * 300


def saved(line: str, path: str, *changes: str) -> Case:
    """`fedray run run.yaml --save PATH`."""
    case = run(line, *changes)
    return replace(case, arguments=[*case.arguments, "--save", path])


CASES: dict[str, Case] = {
    # Calls and stores
    "no file": Case(["sweep"], "Missing argument 'file'."),
    "list what": Case(
        ["list", "algoritms"],
        "list: unknown name 'algoritms'; did you mean 'algorithms'? valid: algorithms, clusters, datasets, "
        "metrics, models, partitions, sweeps",
    ),
    "save to nowhere": saved(
        "--save: /dev/null/m.safetensors cannot be written: Not a directory", "/dev/null/m.safetensors"
    ),
    "save what there is not": saved(
        "model: local-only has no global model; each client keeps parameters of its own", "m", "algorithm=local-only"
    ),
    "store of a name too long": Case(
        ["sweep", "sweep.yaml", "--dry-run"],
        f"/{LONG}: File name too long",
        sweep("").prepare,
        {"MLFLOW_TRACKING_URI": f"sqlite:////{LONG}"},
    ),
    "concurrent": Case(
        ["sweep", "x.yaml", "--max-concurrent", "0"],
        "Invalid value for '--max-concurrent': Input should be greater than or equal to 1",
    ),
    "address": Case(
        ["sweep", "sweep.yaml", "--address", "host:port"],
        "--address: found 'host:port'; expected auto or HOST:PORT",
        sweep("").prepare,
    ),
    "ray client alone": Case(
        ["sweep", "sweep.yaml", "--address", "ray://127.0.0.1:1"],
        "--address: found 'ray://127.0.0.1:1', a Ray Client; submit the command as a Ray Job, "
        "`ray job submit --address http://HOST:8265 --working-dir . -- fedray sweep FILE --address auto`",
        sweep("").prepare,
    ),
    "ui without store": Case(
        ["ui"],
        "there is no store at {here}/mlflow.db; a sweep makes it once Ray has started, and MLFLOW_TRACKING_URI names "
        "another",
    ),
    "ui of a store that is being made": Case(
        ["ui"],
        "MLFLOW_TRACKING_URI: the store {here}/mlflow.db is being made (mlflow.db.new); ask again in a minute, or "
        "run the sweep again if it was killed",
        put("mlflow.db.new", ""),
    ),
    "data of a file": Case(
        ["data", "check", "sweep.yaml"],
        "data.name: found 'sweep.yaml', a file; the `name` in its section `data` is required, and the section's other "
        "keys by `--set data.KEY=VALUE`",
    ),
    "option of another command": Case(
        ["run", "run.yaml", "--dry-run"], "No such option: --dry-run; `fedray sweep` has it"
    ),
    "ui of a host": Case(
        ["ui", "--host", "nosuch.invalid"], "--host: nosuch.invalid:5000 cannot be listened at: …", stored
    ),
    "ui of a server": Case(
        ["ui"],
        "MLFLOW_TRACKING_URI: https://***@host/?token=*** is a server, which shows its own UI in a browser",
        environment={"MLFLOW_TRACKING_URI": "https://me:pa55word@host/?token=t0ken"},
    ),
    "store no database": run(
        "MLFLOW_TRACKING_URI: {here}/mlflow.db is not a SQLite database", prepare=put("mlflow.db", "hello")
    ),
    "store a folder": run(
        "MLFLOW_TRACKING_URI: cannot read {here}/mlflow.db: Is a directory",
        prepare=lambda here: (here / "mlflow.db").mkdir(),
    ),
    "store nonsense": run(
        "MLFLOW_TRACKING_URI: found 'nonsense'; sqlite:///FILE, http://HOST:PORT or a database's address is required",
        MLFLOW_TRACKING_URI="nonsense",
    ),
    "store in no folder": run(
        "MLFLOW_TRACKING_URI: found /nosuch/mlflow.db, but there is no folder /nosuch; create it, or set sqlite:///FILE",
        MLFLOW_TRACKING_URI="sqlite:////nosuch/mlflow.db",
    ),
    "store away": run(
        "MLFLOW_TRACKING_URI: cannot connect to http://***@127.0.0.1:1/?token=***: [Errno 111] Connection refused",
        MLFLOW_TRACKING_URI="http://me:pa55word@127.0.0.1:1/?token=t0ken",
    ),
    "store's port": run(
        "MLFLOW_TRACKING_URI: found 'http://127.0.0.1:99999', whose host or port cannot be read; write / ? # "
        "of a password as %2F %3F %23; sqlite:///FILE, http://HOST:PORT or a database's address is required",
        MLFLOW_TRACKING_URI="http://127.0.0.1:99999",
    ),
    "store's driver": run(
        "MLFLOW_TRACKING_URI: the store cannot be used: NoSuchModuleError: Can't load plugin: "
        "sqlalchemy.dialects:mssql.nope",
        MLFLOW_TRACKING_URI="mssql+nope://me:pa55word@host/db",
    ),
    "show to no picture": Case(
        ["data", "show", "digits", "--alpha", "1", "--out", "a.exe"],
        "--out: found a.exe; a file that ends in .png, .svg or .pdf is required",
    ),
    "show set": Case(
        ["data", "show", "digits", "--set", "alpha=1"],
        "--set: found 'alpha=1'; data.KEY=VALUE or partition.KEY=VALUE is required",
    ),
    "show two options": Case(
        ["data", "show", "digits", "--alpha", "1", "--shards", "2"],
        "partition dirichlet: unknown name 'shards'; valid: alpha, min_size, seed; 'shards' belongs to sharding",
    ),
    "check a folder of a name too long": Case(
        ["data", "check", "mnist"], f"/{LONG}/mnist.npz: File name too long", environment={"FEDRAY_DATA": f"/{LONG}"}
    ),
    "fetch npz": Case(["data", "fetch", "npz"], "data.name: npz is your own; give it as data.path"),
    "fetch by hand": Case(
        ["data", "fetch", "cinic10"],
        "data.name: cinic10 cannot be downloaded by fedray; put "
        "cinic-10/{train,valid,test}/{airplane,...,truck}/*.png in {here}/data",
    ),
    "command with a typo": Case(["table", "x"], "No such command 'table'. Did you mean 'tables'?"),
    "list of nothing": Case(
        ["list"], "list: one of these is required: algorithms, models, datasets, partitions, metrics, sweeps, clusters"
    ),
    # Tables and figures
    "no store": Case(
        ["tables", "x"],
        "there is no store at {here}/mlflow.db; a sweep makes it once Ray has started, and MLFLOW_TRACKING_URI names "
        "another",
    ),
    "sweep": Case(["tables", "swep"], "sweep: unknown name 'swep'; did you mean 'sweep'? valid: sweep", stored),
    "format": Case(
        ["tables", "sweep", "--format", "html"],
        "--format: unknown name 'html'; valid: clients, csv, json, latex, markdown, seeds",
        stored,
    ),
    "metric": Case(
        ["tables", "sweep", "--metric", "acuracy"],
        "--metric: unknown name 'acuracy'; did you mean 'test_accuracy'?…",
        stored,
    ),
    "target": Case(
        ["tables", "sweep", "--metric", "rounds_to:many"],
        "--metric: unknown name 'rounds_to:many'; did you mean 'rounds_to:fedsam'? "
        "valid: rounds_to:fedavg, rounds_to:fedsam",
        stored,
    ),
    "target above 100": Case(
        ["tables", "sweep", "--metric", "rounds_to:101"],
        "--metric: found 'rounds_to:101'; rounds_to:PERCENT with a test accuracy from 1 to 100 is required, or "
        "rounds_to:METHOD",
        stored,
    ),
    "rows": Case(
        ["tables", "sweep", "--rows", "algoritm"],
        "--rows/--cols: unknown name 'algoritm'; did you mean 'algorithm'?…",
        stored,
    ),
    "reference": Case(
        ["tables", "sweep", "--reference", "fedavgg"],
        "--reference: unknown name 'fedavgg'; did you mean 'fedavg'? valid: fedavg, fedsam",
        stored,
    ),
    "published, but not a paper's": Case(
        ["tables", "sweep", "--published"],
        "--published: 'sweep' does not belong to a paper; name the printed table with --paper, such as fedsam/table2",
        stored,
    ),
    "paper's table": Case(
        ["tables", "sweep", "--paper", "fedsol/table99"],
        "published table of fedsol: unknown name 'table99'; did you mean 'table9'? valid: table1, table10, "
        "table2, table3, table4, table5, table9, v1_table1",
        stored,
    ),
    "kind": Case(["figures", "sweep", "--kind", "pie"], "--kind: unknown name 'pie'; valid: bars, …", stored),
    "compare with nothing": Case(
        ["compare", "sweep", "--rows", "partition.alpha"],
        "--reference: fedavg is not a row; one of these is required: 0.1",
        stored,
    ),
    "curves by a hyper-parameter": Case(
        ["figures", "sweep", "--kind", "curves", "--x", "alpha"],
        "--x: unknown name 'alpha'; did you mean --kind sensitivity --x partition.alpha?…",
        stored,
    ),
}
