"""SL-ViT: a vision transformer for small data sets (Lee, Lee, Song, arXiv 2112.13492), FedSOL's size."""

import math

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention, unfold

from fedray.common.errors import UserError
from fedray.models.base import ModelSpec, read_image_shape

SHIFTS = ((1, -1, 0, 0), (-1, 1, 0, 0), (0, 0, 1, -1), (0, 0, -1, 1))
"""One pixel to the right, left, down and up, as paddings (left, right, top, bottom)."""


class ShiftedPatches(nn.Module):
    """Tokens `(b, t, dim)` of the image and its four shifted copies, `(b, 5c, h, w)`, patch by patch."""

    def __init__(self, channels: int, patch: int, dim: int) -> None:
        super().__init__()
        self.patch = patch
        width = 5 * channels * patch**2
        self.project = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, *(pad(x, shift) for shift in SHIFTS)], dim=1)
        output: Tensor = self.project(unfold(x, self.patch, stride=self.patch).transpose(1, 2))
        return output


class LocalitySelfAttention(nn.Module):
    """Self-attention with a learnt temperature in which no token attends to itself; normalised before."""

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.temperature = nn.Parameter(torch.tensor(math.log(head_dim**-0.5)))
        self.qkv = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        others = ~torch.eye(t, dtype=torch.bool, device=x.device)
        mixed = scaled_dot_product_attention(q * self.temperature.exp(), k, v, attn_mask=others, scale=1.0)
        output: Tensor = self.out(mixed.transpose(1, 2).reshape(b, t, -1))
        return output


class Block(nn.Module):
    """Attention and a two-layer perceptron, each added to its input."""

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.attention = LocalitySelfAttention(dim, heads, head_dim)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        output: Tensor = x + self.mlp(x)
        return output


class SLViTNetwork(nn.Module):
    """Tokens, a class token, `depth` pre-norm blocks, and the head (LayerNorm and Linear) on the class token."""

    head = "mlp_head"

    def __init__(self, channels: int, size: int, patch: int, classes: int, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.tokens = ShiftedPatches(channels, patch, dim)
        self.class_token = nn.Parameter(torch.randn(1, 1, dim))
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads, 64) for _ in range(depth)))
        self.mlp_head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.tokens(x)
        x = torch.cat([self.class_token.expand(tokens.shape[0], -1, -1), tokens], dim=1) + self.positions
        output: Tensor = self.mlp_head(self.blocks(x)[:, 0])
        return output


class SLViT(ModelSpec):
    """SL-ViT of width 192, 9 blocks, 12 heads of 64, 16 patches (a quarter of the image wide); feature size 192."""

    name = "sl_vit"
    paper = (
        "Lee, Lee and Song, Vision transformer for small-size datasets, 2021, arXiv 2112.13492; as in FedSOL table 3"
    )
    published = ((3, 32, 32), 10, 6_176_275)
    dim: int = Field(192, gt=0, description="width of the tokens")
    depth: int = Field(9, gt=0, description="blocks")
    heads: int = Field(12, gt=0, description="attention heads, of 64 each")
    resize: int | None = Field(
        None,
        gt=0,
        le=4096,
        multiple_of=4,
        description="side that images are resized to (FedSOL: 32, D-36); default as they are",
    )

    @property
    def side(self) -> int | None:
        return self.resize

    @property
    def taps(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"blocks.{i}.mlp.2" for i in range(self.depth))

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        channels, height, width = read_image_shape(input_shape, self.name)
        if height != width or height % 4:
            raise UserError(
                f"model.name: {self.name} takes square images with a side divisible by 4, the data have "
                f"{height}x{width}"
            )
        return SLViTNetwork(channels, height, height // 4, num_classes, self.dim, self.depth, self.heads)
