"""The recurrent model of LEAF's Shakespeare."""

from pydantic import Field
from torch import Tensor, nn

from fedray.common.errors import UserError
from fedray.models.base import ModelSpec

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
    paper = "McMahan et al., FedAvg, AISTATS 2017; LEAF's and FedGELA's (table 11) Shakespeare model"
    published = ((80,), 80, 819_920)
    hidden: int = Field(256, gt=0, description="width of each LSTM layer")

    @property
    def takes_tokens(self) -> bool:
        return True

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        if len(input_shape) != 1:
            raise UserError(f"model.name: {self.name} takes sequences of token ids, the data have {input_shape}")
        return CharLSTMNetwork(num_classes, self.hidden, num_classes)
