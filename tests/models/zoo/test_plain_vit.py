"""ViT-Tiny and ViT-Small: sizes, names and the forward pass, against PyTorch's own transformer layer."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedray.common.errors import UserError
from fedray.models import make_model_spec
from fedray.models.zoo.plain_vit import BLOCKS, Block


def test_a_block_is_pytorchs_pre_norm_layer() -> None:
    """The same weights under other names: in_proj is qkv, out_proj proj, linear1 and linear2 the perceptron."""
    torch.manual_seed(0)
    own = Block(24, 3)
    theirs = nn.TransformerEncoderLayer(
        24, 3, 96, dropout=0.0, activation="gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
    )
    names = {
        "attn.qkv.weight": "self_attn.in_proj_weight",
        "attn.qkv.bias": "self_attn.in_proj_bias",
        "attn.proj": "self_attn.out_proj",
        "mlp.fc1": "linear1",
        "mlp.fc2": "linear2",
    }
    state = dict[str, torch.Tensor]()
    for name, tensor in own.state_dict().items():
        layer, _, kind = name.rpartition(".")
        state[names.get(name) or f"{names.get(layer, layer)}.{kind}"] = tensor
    theirs.load_state_dict(state)
    x = torch.randn(2, 5, 24)
    torch.testing.assert_close(own(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_names_are_those_of_published_weights() -> None:
    """As timm's and DeiT's files have them: twelve blocks of twelve tensors, and eight outside of them."""
    state = make_model_spec("vit_tiny").build((3, 224, 224), 1000).state_dict()
    outside = {"cls_token", "pos_embed", "patch_embed.proj", "norm", "head"}
    assert {name.removesuffix(".weight").removesuffix(".bias") for name in state if "blocks" not in name} == outside
    layers = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
    inside = {f"blocks.{i}.{layer}.{kind}" for i in range(BLOCKS) for layer in layers for kind in ("weight", "bias")}
    assert {name for name in state if "blocks" in name} == inside
    assert state["pos_embed"].shape == (1, 14 * 14 + 1, 192)


def test_weights_for_other_classes(tmp_path: Path) -> None:
    """A file of 1,000 classes and 10 in the data: the head stays as initialised, the body is the file's."""
    pretrained = make_model_spec("vit_tiny").build((3, 32, 32), 1000).state_dict()
    save_file(pretrained, tmp_path / "vit.safetensors")
    spec = make_model_spec({"name": "vit_tiny", "init": str(tmp_path / "vit.safetensors")})
    module = spec.build((3, 32, 32), 10)
    head = module.state_dict()["head.weight"].clone()
    spec.load_init(module)
    found = module.state_dict()
    assert torch.equal(found["head.weight"], head)
    assert all(torch.equal(found[name], tensor) for name, tensor in pretrained.items() if "head" not in name)


def test_images_that_patches_do_not_fill() -> None:
    with pytest.raises(UserError) as found:
        make_model_spec({"name": "vit_tiny", "patch": 3}).build((1, 8, 8), 10)
    assert str(found.value) == (
        "model.patch: found 3; vit_tiny takes square images that patches of this side fill, the data have 8x8"
    )
