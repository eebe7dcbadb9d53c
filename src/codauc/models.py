"""Small networks that return logits."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from codauc.checks import known_arguments, whole


class ConvNet(nn.Module):
    """A small convolutional network: images [N, in_channels, H, W] to logits.

    Each width adds a block conv 3x3, max-pool 2, BatchNorm, ReLU, which halves the sides; so H
    and W are at least `2 ** len(widths)`, 8 by default. Then the mean over the image and a linear
    layer. Logits have shape [N] for one output and [N, outputs] for more.

    >>> import torch
    >>> ConvNet()(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5])
    """

    @known_arguments
    def __init__(
        self, in_channels: int = 1, widths: Sequence[int] = (16, 32, 64), outputs: int = 1
    ) -> None:
        super().__init__()
        in_channels = whole("in_channels", in_channels, least=1, remedy="use 3 for colour images")
        sizes = (in_channels, *_widths(widths))
        self.blocks = nn.Sequential(*map(_block, sizes, sizes[1:]))
        self.head = nn.Linear(sizes[-1], _outputs(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the images `x`."""
        least = 2 ** len(self.blocks)
        if x.dim() != 4 or min(x.shape[2:]) < least:
            raise ValueError(
                f"x of shape {list(x.shape)}: expected [N, channels, H, W] with H, W >= {least}; "
                "use larger images or fewer widths."
            )
        return _logits(self.head(self.blocks(x).mean(dim=(2, 3))))


class MLP(nn.Module):
    """A fully connected network: x of shape [N, ...] with `inputs` numbers a sample, to logits.

    Each width adds a linear layer and a ReLU; without widths the model is linear. Logits have
    shape [N] for one output and [N, outputs] for more.

    >>> import torch
    >>> MLP(inputs=784, outputs=3)(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 3])
    """

    @known_arguments
    def __init__(self, inputs: int, widths: Sequence[int] = (256, 256), outputs: int = 1) -> None:
        super().__init__()
        self.inputs = whole("inputs", inputs, least=1, remedy="it is the number of features")
        sizes = (self.inputs, *_widths(widths))
        self.layers = nn.Sequential(*map(_layer, sizes, sizes[1:]))
        self.head = nn.Linear(sizes[-1], _outputs(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the samples `x`."""
        if x.dim() < 2 or x.shape[1:].numel() != self.inputs:
            raise ValueError(
                f"x of shape {list(x.shape)}: expected [N, ...] with {self.inputs} numbers "
                "a sample; make the model with as many inputs as the data has."
            )
        return _logits(self.head(self.layers(x.flatten(1))))


def _block(inputs: int, width: int) -> nn.Sequential:
    # BatchNorm has its own shift, so a bias before it would do nothing.
    convolution = nn.Conv2d(inputs, width, kernel_size=3, padding=1, bias=False)
    # Pooling first leaves BatchNorm and ReLU a quarter of the work.
    return nn.Sequential(convolution, nn.MaxPool2d(2), nn.BatchNorm2d(width), nn.ReLU())


def _layer(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU())


def _logits(x: Tensor) -> Tensor:
    return x.squeeze(1) if x.shape[1] == 1 else x


def _widths(widths: Sequence[int]) -> list[int]:
    if not isinstance(widths, Sequence):
        raise ValueError(f"widths={widths!r}: expected a sequence of integers; write [{widths!r}].")
    return [
        whole("width", width, least=1, remedy="give one such number per layer") for width in widths
    ]


def _outputs(outputs: int) -> int:
    return whole("outputs", outputs, least=1, remedy="use 1 for one binary task")
