"""The vision transformer in its small sizes, with the parameter names of the published weights (timm's and DeiT's)."""

from collections import OrderedDict
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from fedray.common.errors import UserError
from fedray.models.base import ModelSpec, read_image_shape

BLOCKS = 12
EPSILON = 1e-6
"""Epsilon of every LayerNorm, as in the published weights."""


class Attention(nn.Module):
    """Self-attention of tokens `(b, t, dim)`."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, t, dim = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        output: Tensor = self.proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, dim))
        return output


class Block(nn.Module):
    """Attention and a perceptron four times as wide, each of the normalised tokens and added to them."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim, EPSILON), Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, EPSILON)
        self.mlp = nn.Sequential(
            OrderedDict(fc1=nn.Linear(dim, 4 * dim), act=nn.GELU(), fc2=nn.Linear(4 * dim, dim)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        output: Tensor = x + self.mlp(self.norm2(x))
        return output


class ViTNetwork(nn.Module):
    """Patches as tokens, a class token, learnt positions, pre-norm blocks, and the head on the normalised class token.

    Weights of linear layers and positions start at N(0, 0.02²), cut off at 2; biases and the class token at 0.
    """

    def __init__(self, channels: int, size: int, patch: int, classes: int, dim: int, heads: int) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.empty(1, (size // patch) ** 2 + 1, dim))
        self.patch_embed = nn.Sequential(OrderedDict(proj=nn.Conv2d(channels, dim, patch, stride=patch)))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(dim, EPSILON)
        self.head = nn.Linear(dim, classes)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], dim=1) + self.pos_embed
        output: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return output


class ViT(ModelSpec):
    """Base of the plain vision transformers, with 12 blocks."""

    dim: ClassVar[int]
    attention_heads: ClassVar[int]
    replaced_head = "head."
    patch: int = Field(16, gt=0, description="side of a patch")
    resize: int | None = Field(
        None, gt=0, description="side that images are resized to (224 for published weights); default as they are"
    )

    @property
    def side(self) -> int | None:
        return self.resize

    @property
    def taps(self) -> tuple[str, ...]:
        return tuple(f"blocks.{i}.mlp.act" for i in range(BLOCKS))

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        channels, height, width = read_image_shape(input_shape, self.name)
        if height != width or height % self.patch:
            raise UserError(
                f"model.patch: found {self.patch}; {self.name} takes square images that patches of this side fill, "
                f"the data have {height}x{width}"
            )
        return ViTNetwork(channels, height, self.patch, num_classes, self.dim, self.attention_heads)


class ViTTiny(ViT):
    """ViT of width 192, 12 blocks, 3 heads; feature size 192. `init` takes timm's and DeiT's weights."""

    name = "vit_tiny"
    paper = (
        "Touvron et al., Training data-efficient image transformers & distillation through attention, ICML 2021 "
        "(DeiT-Ti); Steiner et al., How to train your ViT? Data, augmentation, and regularization in vision "
        "transformers, TMLR 2022 (Ti/16)"
    )
    published = ((3, 224, 224), 1000, 5_717_416)
    dim = 192
    attention_heads = 3


class ViTSmall(ViT):
    """ViT of width 384, 12 blocks, 6 heads; feature size 384. `init` takes timm's and DeiT's weights."""

    name = "vit_small"
    paper = (
        "Touvron et al., Training data-efficient image transformers & distillation through attention, ICML 2021 "
        "(DeiT-S); Steiner et al., How to train your ViT? Data, augmentation, and regularization in vision "
        "transformers, TMLR 2022 (S/16)"
    )
    published = ((3, 224, 224), 1000, 22_050_664)
    dim = 384
    attention_heads = 6
