"""`fedray data fetch | check | show`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedray.cli.listing import complete
from fedray.cli.run import parse_assignments, refuse_missing_value
from fedray.common.entry import Overwrite
from fedray.common.errors import UserError, truncate_repr, unknown
from fedray.common.yaml_files import is_yaml

if TYPE_CHECKING:  # imported where they are used: PyTorch takes two seconds, and `--help` does not need it
    from fedray.datasets.base import DataSource
    from fedray.datasets.dataset import Dataset

data_app = typer.Typer(no_args_is_help=True, help="Data sets: fetch their files, check them, look at partitions.")

Name = Annotated[
    str,
    typer.Argument(
        help="a name of `fedray list datasets`", autocompletion=lambda incomplete: complete("datasets", incomplete)
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        callback=refuse_missing_value,
        help="data.KEY or partition.KEY, e.g. data.path=my.npz",
    ),
]


@data_app.command()
def fetch(name: Name) -> None:
    """Download a data set, or explain where to put its files.

    FEDRAY_DATA names the folder; default ~/.cache/fedray.
    """
    from fedray.datasets import DATASETS
    from fedray.datasets.base import get_data_dir

    if name not in DATASETS:
        raise unknown("data.name", name, DATASETS, "`fedray list datasets`")
    if name in ("npz", "folder", "domains", "csv"):
        raise UserError(f"data.name: {name} is your own; give it as data.path")
    _make_source(name, {}).fetch()
    print(f"{name}: in {get_data_dir()}; `fedray data check {name}` verifies it")


@data_app.command()
def check(name: Name, set_: Settings = None) -> None:
    """Read a data set and compare it with the published one.

    Counts, classes and shapes are compared.
    """
    import numpy as np

    from fedray.datasets.base import load_data

    source = _make_source(name, _parse_settings(set_)["data"])
    data = load_data(source)
    wrong = find_differences(source, data)
    labels = np.bincount(data.y_train, minlength=data.num_classes)
    natural = ""
    if data.client_train is not None:
        clients = np.unique(data.client_train)
        natural = f", {len(clients)} natural clients"
        if data.client_test is not None:
            natural += f", {len(np.intersect1d(clients, data.client_test))} with test samples"
    print(
        f"{name}: {len(data.y_train)} training and {len(data.y_test)} test samples of shape {data.input_shape}, "
        f"{data.num_classes} classes with {labels.min()} to {labels.max()} training samples" + natural
    )
    for doubt in list_doubts(source, data):
        print(f"warning: {doubt}")
    if wrong:
        raise UserError(f"data.name: {name} is not as published: {'; '.join(wrong)}")
    print("as published" if source.get_expected() else "nothing published to compare with")


def list_doubts(source: "DataSource", data: "Dataset") -> Iterator[str]:
    """Warn of what is allowed in your own arrays but often a mistake."""
    import numpy as np

    from fedray.datasets.arrays import Npz

    if isinstance(source, Npz) and (unread := source.list_unread()):
        yield f"nothing reads the arrays {', '.join(map(truncate_repr, unread))} of {source.path}"

    sizes = [float(np.abs(x).mean()) for x in (data.x_train, data.x_test) if len(x)]
    if (least := min(x.min(initial=0) for x in (data.x_train, data.x_test))) < 0 and data.tokens:
        yield f"there are token ids from {least}; the models of fedray with embeddings take ids from 0"
    if data.x_train.dtype != np.int64 and max(sizes) > 10 * min(sizes):
        yield f"mean absolute values are {sizes[0]:.3g} in x_train and {sizes[1]:.3g} in x_test: one scale is required"
    *others, last = data.input_shape
    if len(others) == 2 and data.x_train.dtype == np.float32 and last in (1, 3, 4) and others[0] not in (1, 3, 4):
        yield f"samples have shape {data.input_shape}: channels come last; float32 images are (n, channels, h, w)"
    if (x := data.x_train).dtype == np.float32 and x.min() >= 0:
        # Pixels of images (three axes and more) end between 2 and 255, of vectors at 255, and are whole numbers.
        largest = float(x.max())
        if 2 <= largest <= 255 if x.ndim > 2 else largest == 255 and (x == x.round()).all():
            told = f"values are those of pixels, 0 to {int(largest)}"
            yield f"{told}: float32 is used as it is; save uint8, or divide by 255"


def find_differences(source: "DataSource", data: "Dataset") -> list[str]:
    """Return the differences from the published facts, each as `what: found, published`."""
    import numpy as np

    facts = source.get_expected()
    if facts is None:
        return []
    # The channel axis may have been repeated from grey by an option.
    shape = (facts.shape[0], *data.input_shape[1:]) if len(facts.shape) == 3 else data.input_shape
    clients = None if data.client_train is None else len(np.unique(data.client_train))
    classes = None if facts.train is None else facts.classes  # a part of LEAF's samples need not have all
    pairs = [
        ("training samples", len(data.y_train), facts.train),
        ("test samples", len(data.y_test), facts.test),
        ("classes", len(np.unique(np.concatenate([data.y_train, data.y_test]))), classes),
        ("shape", shape, facts.shape),
        ("natural clients", clients, facts.clients),
    ]
    return [
        f"{what}: found {found}, published {known}"
        for what, found, known in pairs
        if known is not None and found != known
    ]


@data_app.command()
def show(
    name: Name,
    kind: Annotated[str, typer.Option("--partition", help="a name of `fedray list partitions`")] = "dirichlet",
    clients: Annotated[int, typer.Option(min=1, help="number of clients")] = 100,
    unseen: Annotated[int, typer.Option(min=0, help="further clients, which never train")] = 0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="the file to write; default NAME_PARTITION_CLIENTS.png")] = None,
    set_: Settings = None,
    overwrite: Overwrite = False,
) -> None:
    """Draw a split as a heatmap and measure its heterogeneity.

    The heatmap has the samples of each client and class.
    """
    from fedray.common.output import PICTURES, OutputFile
    from fedray.components.identity import list_paths
    from fedray.datasets.base import load_data
    from fedray.partitions import make_partition
    from fedray.partitions.held_out import split_samples
    from fedray.partitions.heterogeneity import draw_heatmap, measure_heterogeneity

    settings = _parse_settings(set_)
    path = out or Path(f"{name}_{kind}_{clients}.png".replace(":", "_"))
    if path.suffix not in PICTURES:
        raise UserError(f"--out: found {path}; a file that ends in .png, .svg or .pdf is required")
    source = _make_source(name, settings["data"])
    chosen = make_partition({"name": kind, **settings["partition"]})
    file = OutputFile("--out", path, PICTURES, overwrite, [*list_paths(source), *list_paths(chosen)])
    data = load_data(source) if source.test is None else load_data(source).merge()
    split = split_samples(source, chosen, data, clients, seed, unseen)
    if not split.train.sizes.any():
        raise UserError("partition: every client is empty")
    counts = split.dealt.count_labels(data.y_train, data.num_classes)
    figure = draw_heatmap(counts, f"{name}: {chosen.make_label()}, {clients} clients, seed {seed}", unseen)
    file.draw(figure, dpi=120)
    numbers = measure_heterogeneity(counts[:clients])
    tests = [split.test, None if split.unseen is None else split.unseen.test]
    for what, parts in (("testing", tests), ("validation", [split.validation])):
        if held := [part for part in parts if part is not None]:
            count = sum(len(part.indices) for part in held)
            print(f"{count} samples held out for {what}; the rest is for training")
    print(
        f"{numbers['samples']} samples, {numbers['clients']} clients ({numbers['empty_clients']} empty), "
        f"{numbers['mean_classes']:.2f} of {data.num_classes} classes per client"
    )
    words = {"min": "smallest", "q25": "lower quartile", "median": "median", "q75": "upper quartile", "max": "largest"}
    sizes = ", ".join(f"{word} {numbers[f'size_{key}']:g}" for key, word in words.items())
    print(f"samples per client: {sizes}")
    if split.unseen is not None:
        more = split.unseen.train.sizes
        print(f"{unseen} more clients never train: {more.sum()} samples, {more.min()} to {more.max()} per client")
    print(f"mean pairwise total-variation distance {numbers['mean_tv']:.3f}")
    print(path)


def _make_source(name: str, options: dict[str, Any]) -> "DataSource":
    from fedray.datasets import make_data_source

    if is_yaml(name):
        raise UserError(
            f"data.name: found {truncate_repr(name)}, a file; the `name` in its section `data` is required, and the "
            "section's other keys by `--set data.KEY=VALUE`"
        )
    return make_data_source({"name": name, **options})


def _parse_settings(assignments: list[str] | None) -> dict[str, dict[str, Any]]:
    settings: dict[str, dict[str, Any]] = {"data": {}, "partition": {}}
    for key, value in parse_assignments(assignments).items():
        section, _, option = key.partition(".")
        if section not in settings or not option:
            given = truncate_repr(f"{key}={value}")
            raise UserError(f"--set: found {given}; data.KEY=VALUE or partition.KEY=VALUE is required")
        settings[section][option] = value
    return settings
