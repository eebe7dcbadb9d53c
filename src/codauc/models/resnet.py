"""Residual networks; names and shapes of their weights are torchvision's, so its files load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from codauc._internal.checks import known_arguments
from codauc.models.base import Model, check_images, checked_channels, checked_outputs, one_or_more


class Residual(nn.Module):
    """relu(shortcut(x) + F(x)), where F is convolutions, each with BatchNorm, and ReLUs between."""

    def __init__(self, convolutions: Sequence[nn.Conv2d], shortcut: nn.Module) -> None:
        super().__init__()
        self.depth = len(convolutions)
        for index, convolution in enumerate(convolutions, start=1):
            self.add_module(f"conv{index}", convolution)
            self.add_module(f"bn{index}", nn.BatchNorm2d(convolution.out_channels))
        self.downsample = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, of the shape of its shortcut's."""
        y = x
        for index in range(1, self.depth + 1):
            y = getattr(self, f"bn{index}")(getattr(self, f"conv{index}")(y))
            if index < self.depth:
                # In place: BatchNorm's backward needs its input, not what it returned.
                y = relu(y, inplace=True)
        return relu(y + self.downsample(x), inplace=True)


class PadChannels(nn.Module):
    """The shortcut without parameters: every stride-th pixel, and zeros as further channels."""

    def __init__(self, outputs: int, stride: int) -> None:
        super().__init__()
        self.outputs, self.stride = outputs, stride

    def forward(self, x: Tensor) -> Tensor:
        """Images [N, outputs, H / stride, W / stride], rounded up."""
        kept = x[:, :, :: self.stride, :: self.stride]
        return pad(kept, (0, 0, 0, 0, 0, self.outputs - x.shape[1]))


Block: TypeAlias = Callable[[int, int, int], list[nn.Conv2d]]  # of inputs, width and stride
Stages: TypeAlias = Sequence[tuple[int, int]]  # the width and the number of blocks of each


class _ResNet(Model):
    """A stem, stages of blocks (all but the first halve the sides), the mean, a linear layer."""

    stem = (7, 2)  # kernel and stride of the first convolution

    def __init__(
        self, in_channels: int, outputs: int, block: Block, stages: Stages, *, small: bool = False
    ) -> None:
        in_channels, outputs = checked_channels(in_channels), checked_outputs(outputs)
        super().__init__(outputs=outputs, in_channels=in_channels)
        channels = stages[0][0]
        self.conv1 = _conv(in_channels, channels, *self.stem)
        self.bn1 = nn.BatchNorm2d(channels)
        self.pool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        self.depth = len(stages)
        for index, (width, blocks) in enumerate(stages, start=1):
            stage = nn.Sequential()
            for place in range(blocks):
                stride = 2 if index > 1 and place == 0 else 1
                convolutions = block(channels, width, stride)
                outer = convolutions[-1].out_channels
                shortcut = _shortcut(channels, outer, stride, padded=small)
                stage.append(Residual(convolutions, shortcut))
                channels = outer
            self.add_module(f"layer{index}", stage)
        self.fc = nn.Linear(channels, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the images `x`."""
        check_images(self, x, self.conv1.in_channels, 1, "give images that have pixels")
        x = self.pool(relu(self.bn1(self.conv1(x)), inplace=True))
        for index in range(1, self.depth + 1):
            x = getattr(self, f"layer{index}")(x)
        return one_or_more(self.fc(x.mean(dim=(2, 3))))


class ResNet18(_ResNet, name="resnet18"):
    """The ResNet-18 of He et al. (2016): images [N, in_channels, H, W] to logits.

    Made for images of about 224 x 224; five halvings leave small ones little. Names, shapes and
    order of the weights are those of torchvision's `resnet18(num_classes=outputs)`, and so are the
    logits, of shape [N] for one output and [N, outputs] for more.

    >>> import torch
    >>> ResNet18()(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2])
    """

    @known_arguments
    def __init__(self, outputs: int = 1, in_channels: int = 3) -> None:
        super().__init__(in_channels, outputs, _pair, [(64, 2), (128, 2), (256, 2), (512, 2)])


class ResNet50(_ResNet, name="resnet50"):
    """The ResNet-50 of He et al. (2016): images [N, in_channels, H, W] to logits.

    As `ResNet18`, with bottlenecks; the stride is in their 3x3 convolution ("v1.5"), as in
    torchvision's `resnet50(num_classes=outputs)`.

    >>> sum(p.numel() for p in ResNet50(outputs=1000).parameters())
    25557032
    """

    @known_arguments
    def __init__(self, outputs: int = 1, in_channels: int = 3) -> None:
        super().__init__(in_channels, outputs, _bottleneck, [(64, 3), (128, 4), (256, 6), (512, 3)])


class ResNet20(_ResNet, name="resnet20"):
    """The ResNet-20 for CIFAR of He et al. (2016), section 4.2: images of about 32 x 32 to logits.

    A 3x3 stem and three stages of three blocks with 16, 32 and 64 channels. Shortcuts have no
    parameters ("option A"): where a stage begins they take every second pixel and add channels of
    zeros. Logits have shape [N] for one output and [N, outputs] for more.

    >>> sum(p.numel() for p in ResNet20(outputs=10).parameters())
    269722
    """

    stem = (3, 1)

    @known_arguments
    def __init__(self, outputs: int = 1, in_channels: int = 3) -> None:
        super().__init__(in_channels, outputs, _pair, [(16, 3), (32, 3), (64, 3)], small=True)


class ResNet8(_ResNet, name="resnet8"):
    """The smallest of this family, for many short runs: images of about 32 x 32 to logits.

    As `ResNet20` with one block in each of its three stages, of 8, 16 and 32 channels, and a stem
    of stride 2, which leaves the blocks a quarter of the pixels: a step of 32 images takes a
    fifteenth of ResNet-20's time.

    >>> sum(p.numel() for p in ResNet8().parameters())
    18921
    """

    stem = (3, 2)

    @known_arguments
    def __init__(self, outputs: int = 1, in_channels: int = 3) -> None:
        super().__init__(in_channels, outputs, _pair, [(8, 1), (16, 1), (32, 1)], small=True)


def _pair(inputs: int, width: int, stride: int) -> list[nn.Conv2d]:
    return [_conv(inputs, width, 3, stride), _conv(width, width, 3)]


def _bottleneck(inputs: int, width: int, stride: int) -> list[nn.Conv2d]:
    reduce, expand = _conv(inputs, width, 1), _conv(width, 4 * width, 1)
    return [reduce, _conv(width, width, 3, stride), expand]


def _shortcut(inputs: int, outputs: int, stride: int, *, padded: bool) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    if padded:
        return PadChannels(outputs, stride)
    return nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution
