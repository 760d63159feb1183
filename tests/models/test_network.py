"""Frozen parameters: which they are, that they stay, and that a node holds them once; flat vectors, split and joined;
BatchNorm's statistics, averaged as the update; adapters of linear layers, and `sweeps/lora.yaml`."""

import os
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedray
from fedray.common.errors import UserError
from fedray.common.vectors import digest_tensors
from fedray.config import RunConfig
from fedray.datasets.dataset import Dataset
from fedray.models import frozen_weights, make_model_spec
from fedray.models.base import count_parameters
from fedray.models.frozen_weights import share_frozen
from fedray.models.lora import LoRALinear
from fedray.models.network import Network
from fedray.models.parts import freeze
from fedray.sweep.document import get_sweeps_folder
from fedray.sweep.draws import iter_points
from fedray.sweep.points import with_key
from fedray.sweep.sweep import Sweep
from tests import small
from tests.conftest import each

LENET = ["0.weight", "0.bias", "3.weight", "3.bias", "7.weight", "7.bias", "9.weight", "9.bias", "11.weight", "11.bias"]


def lenet() -> nn.Module:
    return make_model_spec("lenet").build((3, 32, 32), 10)


@each(
    (["body"], LENET[8:]), (["0", "3.bias"], ["3.weight", *LENET[4:]]), (["*.bias"], LENET[::2]),
    (["[03]", "head"], LENET[4:8]),
)  # fmt: skip
def test_patterns(patterns: list[str], trained: list[str]) -> None:
    module = lenet()
    freeze(module, patterns)
    assert [name for name, p in module.named_parameters() if p.requires_grad] == trained
    network = Network(module)
    assert (list(network.layout.names), network.frozen.keys()) == (trained, set(LENET) - set(trained))
    with pytest.raises(UserError, match=r"^model\.freeze: '12' names no parameter; there are: body, head, 0, 3, 7, 9,"):
        freeze(lenet(), [*patterns, "12"])
    with pytest.raises(UserError, match=r"^model\.freeze: found body, .*; nothing is left to train"):
        freeze(lenet(), ["body", *patterns, "1*"])


def test_a_tied_parameter_is_frozen_by_either_name() -> None:
    """The second name of the embedding's weight, which `named_parameters()` does not list."""
    module = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5), nn.Linear(5, 2))
    module[1].weight = module[0].weight
    freeze(module, ["1.weight"])
    assert Network(module).layout.names == ("1.bias", "2.weight", "2.bias")


def normalised() -> nn.Sequential:
    """Statistics of a frozen layer, of a layer without parameters in a frozen module, and of two that are trained."""
    inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False))
    return nn.Sequential(nn.BatchNorm1d(4), inner, nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 2))


def test_frozen_layers_stay_in_evaluation_mode() -> None:
    """The first norm and the inner one are frozen: 16 of the 32 numbers move, in training mode, and are exchanged."""
    module = normalised()
    freeze(module, ["0", "1"])
    network = Network(module)
    assert network.buffers.shape == (16,)
    for mode in (True, False, True):
        network.train(mode)
        modes = [layer.training for layer in (module[0], module[1][1], module[2], module[3])]
        assert modes == [False, False, mode, mode]
    still, before = {name: tensor.clone() for name, tensor in network.frozen.items()}, network.buffers.clone()
    network(torch.randn(8, 4) + 3)
    assert (network.buffers[[0, 1, 8, 9]] != before[[0, 1, 8, 9]]).all()
    assert len(still) == 2 + 2 + 4, "weights and biases, means and variances"
    assert all(torch.equal(tensor, still[name]) for name, tensor in network.frozen.items())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"fedray-frozen-{os.getuid()}"


def weights(value: float = 1.0) -> dict[str, Tensor]:
    """1.2 MB in two tensors, and one that is no float32."""
    return {"w": torch.full((500, 500), value), "b": torch.arange(50_000.0), "n": torch.ones(3, dtype=torch.float64)}


def test_one_file_for_all_processes(folder: Path) -> None:
    """Both copies are the file's pages: what it holds later is seen by whoever has not written there."""
    first, second = weights(), weights()
    for tensors in (first, second):
        share_frozen(tensors, digest_tensors(tensors))
    (file,) = folder.iterdir()
    assert (file.stat().st_size, file.name) == (4 * 300_000, digest_tensors(weights()))
    assert all(torch.equal(first[name], tensor) for name, tensor in weights().items())
    with file.open("r+b") as opened:
        opened.write(torch.tensor([7.0]).numpy().tobytes())
    assert float(first["b"][0]) == float(second["b"][0]) == 7
    first["w"][0, 0] = 5.0
    assert float(second["w"][0, 0]) == 1, "a write stays with its process"


def test_a_damaged_file_is_written_again(folder: Path) -> None:
    tensors = weights()
    folder.mkdir(mode=0o700)
    (folder / digest_tensors(tensors)).write_bytes(b"x" * 4 * 300_000)
    share_frozen(tensors, digest_tensors(tensors))
    assert all(torch.equal(tensors[name], tensor) for name, tensor in weights().items())
    share_frozen({"w": torch.zeros(100, 100)}, "few")
    assert [path.name for path in folder.iterdir()] == [digest_tensors(tensors)], "little is not shared"


def test_unused_files_are_removed(folder: Path) -> None:
    """After a day; a file in use is as new as its last process."""
    old, used, new = weights(1.0), weights(2.0), weights(3.0)
    share_frozen(old, "old")
    share_frozen(used, "used")
    for name in ("old", "used"):
        os.utime(folder / name, times=(0, time.time() - frozen_weights.UNUSED - 1))
    share_frozen(used, "used")  # removes old, and finds its own file gone
    share_frozen(new, "new")
    assert {path.name for path in folder.iterdir()} == {"used", "new"}
    assert torch.equal(old["w"], weights(1.0)["w"]), "it is mapped"


def test_a_folder_that_cannot_be_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write_text("a file")
    said = f"model: the frozen weights cannot be shared in {folder}: File exists; set TMPDIR to another folder"
    with pytest.raises(UserError, match=rf"\A{re.escape(said)}\Z"):
        share_frozen(weights(), "x")
    monkeypatch.setattr(os, "getuid", lambda own=os.getuid(): own + 1)
    with pytest.raises(UserError, match="it belongs to another user"):
        share_frozen(weights(), "x")


class TinyBatchNorm(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.BatchNorm1d(1), nn.Linear(1, 2))


@pytest.mark.parametrize(
    ("aggregation", "mean", "variance"),
    [
        ("samples", 0.1 * (2 / 6 * 1 + 4 / 6 * 7), 0.9 + 0.1 * (2 / 6 * 2 + 4 / 6 * 4 / 3)),
        ("uniform", 0.1 * (1 / 2 * 1 + 1 / 2 * 7), 0.9 + 0.1 * (1 / 2 * 2 + 1 / 2 * 4 / 3)),
    ],
)
@pytest.mark.parametrize("algorithm", ["fedavg", {"name": "fedsam", "rho": 0.1}])
def test_buffers_are_averaged_as_the_update(algorithm: object, aggregation: str, mean: float, variance: float) -> None:
    """One full-batch step. Client 0 holds (0, 2): mean 1, unbiased variance 2; client 1 (6, 6, 8, 8): 7 and 4/3.

    BatchNorm starts at mean 0, variance 1 and moves by its momentum 0.1: means 0.1 · 1 and 0.1 · 7, variances
    0.9 + 0.1 · 2 and 0.9 + 0.1 · 4/3. The server takes their average with weights 2/6 and 4/6 (samples) or 1/2 each
    (uniform). FedSAM's second forward pass of the step moves nothing: the result is the same."""
    x, y = np.array([[0], [2], [6], [6], [8], [8]], dtype=np.float32), np.array([0, 1, 0, 1, 0, 1])
    data = Dataset("d", x, y, x, y, 2, client_train=np.array([0, 0, 1, 1, 1, 1]))
    training = {"rounds": 1, "local_steps": 1, "batch_size": "full", "aggregation": aggregation}
    model = "tests.models.test_network:TinyBatchNorm"
    simulation = small.simulation(algorithm, (2, 2), model, "natural", arrays=data, training=training)
    simulation.step()
    torch.testing.assert_close(simulation.state.buffers, torch.tensor([mean, variance]))


def adapted(**options: Any) -> Network:
    """LeNet, whose linear layers are 7 (384 x 1600), 9 (192 x 384) and 11, the head."""
    spec = make_model_spec({"name": "lenet", "lora": {"rank": 4, **options}})
    module = spec.build((3, 32, 32), 10)
    spec.adapt(module)
    return Network(module)


@each(
    ({}, "7.lora_A 7.lora_B 9.lora_A 9.lora_B 11.weight 11.bias"),
    ({"targets": ["9"]}, "9.lora_A 9.lora_B 11.weight 11.bias"),
    ({"targets": ["7", "9"], "train": "B"}, "7.lora_B 9.lora_B 11.weight 11.bias"),
)
def test_what_is_trained(options: dict[str, Any], trained: str) -> None:
    """The matrices and the head; all other weights keep their names, and convolutions have no adapters."""
    network = adapted(**options)
    assert list(network.layout.names) == trained.split()
    assert {"0.weight", "3.bias", "7.weight", "7.bias", "9.weight"} <= network.frozen.keys()
    assert network.layout.heads == {"11.weight", "11.bias"}


def test_it_begins_as_the_model_itself() -> None:
    """B is 0, A is within the bound of a linear layer's weight, 1/√d_in, and not 0."""
    network = adapted(dropout=0.5)
    torch.manual_seed(0)
    plain, x = Network(lenet()), torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(network(x).logits, plain(x).logits)
    views = network.layout.views(network.theta)
    assert not views["7.lora_B"].any()
    assert 0.5 / 40 < views["7.lora_A"].abs().max() <= 1 / 40


def test_the_update_of_a_layer_and_dropout_of_its_input() -> None:
    """W x + b + (alpha / r) B A x with r = 1, alpha = 3: 1 + 2 + 3 · 5 · (1 · 1 + 2 · 2)."""
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.5]]))
        layer.bias.fill_(1)
        found = LoRALinear(layer, rank=1, scale=3.0)
        found.lora_A.copy_(torch.tensor([[1.0, 2.0]]))
        found.lora_B.fill_(5)
        assert float(found(torch.tensor([1.0, 2.0]))) == 1 + 2 + 3 * 5 * 5
    # With A = B = I and W = 0 the output is the dropped input: 0 or doubled at 1/2; in evaluation all of it.
    layer = nn.Linear(4, 4, bias=False)
    found = LoRALinear(layer, rank=4, scale=1.0, share_dropped=0.5)
    with torch.no_grad():
        layer.weight.zero_()
        found.lora_A.copy_(torch.eye(4))
        found.lora_B.copy_(torch.eye(4))
        output = found(torch.ones(1000, 4))
        assert (set(output.unique().tolist()), float(output.mean())) == ({0.0, 2.0}, pytest.approx(1, abs=0.1))
        assert (found.eval()(torch.ones(1000, 4)) == 1).all()


class Attentive(nn.Module):
    """PyTorch's own attention, which reads the weights of its projection, and its fused block, which does not call its
    linear layers in evaluation mode, so that an adapter would count in training alone."""

    def __init__(self, input_shape: Sequence[int], num_classes: int) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.last = nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(x.view(len(x), 8, 8)).mean(1))


SMALL, ATTENTIVE = {"name": "mlp", "hidden": [8]}, {"name": "tests.models.test_network:Attentive"}


@each(
    (SMALL, {"share": "A", "train": "B"}, "share: found A with train: B; A does not move, so share: both"),
    ({"name": "mlp", "hidden": []}, {}, "model.lora: the model has no linear layer besides its head"),
    (SMALL, {"targets": ["3"]}, "targets: '3' names no linear layer of the body; valid: 1"),
    (ATTENTIVE, {"targets": ["*"]}, "targets: block.self_attn.out_proj is a NonDynamicallyQuantizableLinear; only"),
    (ATTENTIVE, {"targets": ["block.linear1"]}, "forward() does not call block.linear1 when it is tested, so an"),
)
def test_layers_that_cannot_have_adapters_are_refused(model: dict[str, Any], lora: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=re.escape(line)):
        small.problem(model=model | {"lora": lora}).build_network("cpu")


def test_a_saved_model_with_adapters_begins_a_run_with_the_same(tmp_path: Path) -> None:
    first = fedray.simulate(small.sections(model=SMALL | {"lora": {"rank": 2}}, training={"rounds": 1}))
    first.save(tmp_path / "w.safetensors")
    model = SMALL | {"init": str(tmp_path / "w.safetensors")}
    assert torch.equal(small.problem(model=model | {"lora": {"rank": 2}}).build_network("cpu").theta, first.theta)
    with small.refused("size mismatch for 1.lora_A"):
        small.problem(model=model | {"lora": {"rank": 3}}).build_network("cpu")


def forms(smoke: bool) -> dict[str, dict[str, Any]]:
    """Form -> a point of the sweep with it."""
    found = {}
    for point in iter_points(Sweep.load(get_sweeps_folder() / "lora.yaml", smoke=smoke)):
        lora = point["model"].get("lora", {})
        kept = "FedSA-LoRA" if "share" in lora else "FFA-LoRA" if "train" in lora else "LoRA"
        found[kept if lora else "head" if "freeze" in point["model"] else "all"] = point
    return found


def test_the_forms_and_what_they_train() -> None:
    """Rank 8 on the four linear layers of 12 blocks of width 192, with inputs of 192, 192, 192 and 768 numbers (A) and
    outputs of 576, 192, 768 and 192 (B); the head 193 x 100; all of ViT-Tiny, 100 classes instead of 1,000."""
    a, b, head = 12 * 8 * 1344, 12 * 8 * 1728, 193 * 100
    trained = {
        form: count_parameters(RunConfig.parse(with_key(point, "model.init", None)).model, (3, 224, 224), 100)[0]
        for form, point in forms(smoke=False).items()
    }
    expected = {"LoRA": a + b + head, "FFA-LoRA": b + head, "FedSA-LoRA": a + b + head, "head": head}
    assert trained == expected | {"all": 5_717_416 - 193_000 + head}
