"""Models of text: the recurrent one of LEAF's Shakespeare, and a convolutional one for classes of texts."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from fedray.common.errors import UserError
from fedray.models.base import MCMAHAN, ModelSpec

EMBEDDING = 8
"""Width of a token's embedding."""


class CharLSTMNetwork(nn.Module):
    """Map token ids `(b, length)` to the logits of the next token."""

    def __init__(self, vocabulary: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, hidden, num_layers=2, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embed(x.long()))
        output: Tensor = self.output(states[:, -1])
        return output


class CharLSTM(ModelSpec):
    """Embedding of 8, two LSTM layers of 256, a linear layer on the last state; feature size 256.

    2,048 parameters more than in TensorFlow: PyTorch's cells have two bias vectors.
    """

    name = "char_lstm"
    paper = f"{MCMAHAN}; LEAF's and FedGELA's (table 11) Shakespeare model"
    published = ((80,), 80, 819_920)
    takes_tokens = True
    hidden: int = Field(256, gt=0, description="width of each LSTM layer")

    def count_tokens(self, num_classes: int) -> int:
        return num_classes

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        if len(input_shape) != 1:
            raise UserError(f"model.name: {self.name} takes sequences of token ids, the data have {input_shape}")
        return CharLSTMNetwork(num_classes, self.hidden, num_classes)


class TextCNNNetwork(nn.Module):
    """Map token ids `(b, length)` to logits: convolutions over time, each followed by its maximum over time."""

    def __init__(
        self, vocabulary: int, embedding: int, widths: tuple[int, ...], filters: int, dropout: float, classes: int
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(embedding, filters, width) for width in widths)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(filters * len(widths), classes)

    def forward(self, x: Tensor) -> Tensor:
        embedded = self.embed(x.long()).transpose(1, 2)
        pooled = [convolution(embedded).max(2).values.relu() for convolution in self.convolutions]
        output: Tensor = self.output(self.dropout(torch.cat(pooled, dim=1)))
        return output


class TextCNN(ModelSpec):
    """Embedding of 32, 100 convolutions each of 3, 4 and 5 words, their maxima over time, dropout; feature size 300.

    Kim's CNN-rand with a smaller embedding (his has 300) and without his bound on the norms of the head's rows. Token 0
    is padding: its embedding is 0 and gets no gradient.
    """

    name = "text_cnn"
    paper = "Kim, Convolutional neural networks for sentence classification, EMNLP 2014"
    published = ((50,), 4, 10_000 * 32 + 12 * 32 * 100 + 300 + 301 * 4)
    takes_tokens = True
    vocabulary: int = Field(10_000, gt=1, description="number of different token ids, as in `data`")
    embedding: int = Field(32, gt=0, description="width of a token's embedding")
    widths: tuple[Annotated[int, Field(gt=0)], ...] = Field(
        (3, 4, 5), min_length=1, description="words that a convolution spans"
    )
    filters: int = Field(100, gt=0, description="convolutions of each width")
    dropout: float = Field(0.5, ge=0, lt=1, description="probability of dropping a feature")

    def count_tokens(self, num_classes: int) -> int:
        return self.vocabulary

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        if len(input_shape) != 1 or input_shape[0] < max(self.widths):
            raise UserError(
                f"model.name: {self.name} takes sequences of at least {max(self.widths)} token ids (model.widths), "
                f"the data have {input_shape}"
            )
        return TextCNNNetwork(self.vocabulary, self.embedding, self.widths, self.filters, self.dropout, num_classes)
