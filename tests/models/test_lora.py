"""Adapters of linear layers: where they go, how they begin, which layers cannot have them; and `sweeps/lora.yaml`."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.models import make_model_spec
from fedray.models.base import count_parameters
from fedray.models.lora import LoRALinear
from fedray.models.network import Network
from fedray.sweep.document import get_sweeps_folder
from fedray.sweep.draws import iter_points
from fedray.sweep.points import with_key
from fedray.sweep.sweep import Sweep
from tests import small


def adapted(**options: Any) -> Network:
    """LeNet, whose linear layers are 7 (384 x 1600), 9 (192 x 384) and 11, the head."""
    spec = make_model_spec({"name": "lenet", "lora": {"rank": 4, **options}})
    module = spec.build((3, 32, 32), 10)
    spec.adapt(module)
    return Network(module)


@pytest.mark.parametrize(
    ("options", "trained"),
    [
        ({}, "7.lora_A 7.lora_B 9.lora_A 9.lora_B 11.weight 11.bias"),
        ({"targets": ["9"]}, "9.lora_A 9.lora_B 11.weight 11.bias"),
        ({"targets": ["7", "9"], "train": "B"}, "7.lora_B 9.lora_B 11.weight 11.bias"),
    ],
)
def test_what_is_trained(options: dict[str, Any], trained: str) -> None:
    """The matrices and the head; all other weights keep their names, and convolutions have no adapters."""
    network = adapted(**options)
    assert list(network.layout.names) == trained.split()
    assert {"0.weight", "3.bias", "7.weight", "7.bias", "9.weight"} <= network.frozen.keys()
    assert network.layout.heads == {"11.weight", "11.bias"}


def test_it_begins_as_the_model_itself() -> None:
    """B is 0, A is within the bound of a linear layer's weight, 1/√d_in, and not 0."""
    torch.manual_seed(0)
    network = adapted(dropout=0.5)
    torch.manual_seed(0)
    plain = Network(make_model_spec("lenet").build((3, 32, 32), 10))
    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(network(x).logits, plain(x).logits)
    views = network.layout.views(network.theta)
    assert not views["7.lora_B"].any()
    assert 0.5 / 40 < views["7.lora_A"].abs().max() <= 1 / 40


def test_the_update_of_a_layer() -> None:
    """W x + b + (alpha / r) B A x with r = 1, alpha = 3: 1 + 2 + 3 · 5 · (1 · 1 + 2 · 2)."""
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.5]]))
        layer.bias.fill_(1)
        found = LoRALinear(layer, rank=1, scale=3.0)
        found.lora_A.copy_(torch.tensor([[1.0, 2.0]]))
        found.lora_B.fill_(5)
        assert float(found(torch.tensor([1.0, 2.0]))) == 1 + 2 + 3 * 5 * 5


def test_dropout_is_of_the_adapters_input_in_training() -> None:
    """With A = B = I and W = 0 the output is the dropped input: 0 or doubled at 1/2; in evaluation all of it."""
    layer = nn.Linear(4, 4, bias=False)
    found = LoRALinear(layer, rank=4, scale=1.0, share_dropped=0.5)
    with torch.no_grad():
        layer.weight.zero_()
        found.lora_A.copy_(torch.eye(4))
        found.lora_B.copy_(torch.eye(4))
        output = found(torch.ones(1000, 4))
        assert set(output.unique().tolist()) == {0.0, 2.0}
        assert float(output.mean()) == pytest.approx(1, abs=0.1)
        assert (found.eval()(torch.ones(1000, 4)) == 1).all()


class Attentive(nn.Module):
    """PyTorch's own attention, which reads the weights of its projection, and its fused block, which does not call its
    linear layers in evaluation mode, so that an adapter would count in training alone.
    """

    def __init__(self, input_shape: Sequence[int], num_classes: int) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.last = nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(x.view(len(x), 8, 8)).mean(1))


SMALL = {"name": "mlp", "hidden": [8]}
ATTENTIVE = {"name": "tests.models.test_lora:Attentive"}


@pytest.mark.parametrize(
    ("model", "lora", "line"),
    [
        (SMALL, {"share": "A", "train": "B"}, "share: found A with train: B; A does not move, so share: both"),
        ({"name": "mlp", "hidden": []}, {}, "model.lora: the model has no linear layer besides its head"),
        (SMALL, {"targets": ["3"]}, "targets: '3' names no linear layer of the body; valid: 1"),
        (ATTENTIVE, {"targets": ["*"]}, "targets: block.self_attn.out_proj is a NonDynamicallyQuantizableLinear; only"),
        (ATTENTIVE, {"targets": ["block.linear1"]}, "targets: forward() does not call block.linear1, so an adapter"),
    ],
)
def test_layers_that_cannot_have_adapters_are_refused(model: dict[str, Any], lora: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=re.escape(line)):
        small.problem(model=model | {"lora": lora}).build_network("cpu")


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
    outputs of 576, 192, 768 and 192 (B); the head 193 x 100; all of ViT-Tiny, 100 classes instead of 1,000.
    """
    a, b, head = 12 * 8 * 1344, 12 * 8 * 1728, 193 * 100
    trained = {
        form: count_parameters(RunConfig.parse(with_key(point, "model.init", None)).model, (3, 224, 224), 100)[0]
        for form, point in forms(smoke=False).items()
    }
    assert trained == {
        "LoRA": a + b + head,
        "FFA-LoRA": b + head,
        "FedSA-LoRA": a + b + head,
        "all": 5_717_416 - 193_000 + head,
        "head": head,
    }
