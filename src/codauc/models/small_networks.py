"""Small networks for images and for vectors."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import pixel_unshuffle

from codauc._internal.checks import known_arguments, shown, whole
from codauc.models.base import (
    MOST,
    Model,
    check_floats,
    check_images,
    check_size,
    checked_channels,
    checked_outputs,
    checked_widths,
    dense,
    one_or_more,
    products,
)
from codauc.models.resnet import Residual


class ConvNet(Model, name="convnet"):
    """A small convolutional network: images [N, in_channels, H, W] to logits.

    Each width adds a block conv 3x3, max-pool 2, BatchNorm, ReLU, which halves the sides; so H
    and W are at least `2 ** len(widths)`, 8 by default. With `residual` every block but the first,
    whose images are large, ends with relu(x + F(x)), where F is two further convolutions of its
    width. Then the mean over the image and a linear layer. Logits have shape [N] for one output and
    [N, outputs] for more.

    >>> import torch
    >>> ConvNet(residual=True)(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5])
    """

    @known_arguments
    def __init__(
        self,
        in_channels: int = 1,
        widths: Iterable[int] = (16, 32, 64),
        outputs: int = 1,
        residual: bool = False,
    ) -> None:
        in_channels, widths = checked_channels(in_channels), checked_widths(widths)
        outputs = checked_outputs(outputs)
        if not isinstance(residual, bool):
            raise ValueError(f"residual={shown(residual)}: expected True or False.")
        more = {"residual": True} if residual else {}  # a plain network is described as ever
        super().__init__(in_channels=in_channels, widths=widths, outputs=outputs, **more)
        sizes = (in_channels, *widths)
        weights = 9 * products(sizes) + sizes[-1] * outputs
        check_size(weights + (18 * sum(width**2 for width in widths[1:]) if residual else 0))
        self.blocks = nn.Sequential(*map(_block, sizes, sizes[1:]))
        if residual:
            for block, width in zip(list(self.blocks)[1:], widths[1:], strict=True):
                assert isinstance(block, nn.Sequential)
                block.append(Residual([_convolution(width, width) for _ in "12"], nn.Identity()))
        self.head = nn.Linear(sizes[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the images `x`."""
        least = 2 ** len(self.blocks)
        remedy = "use larger images or fewer widths"
        check_images(self, x, self.arguments["in_channels"], least, remedy)
        x = x.to(memory_format=torch.channels_last)  # a step takes half the time on a processor
        return one_or_more(self.head(self.blocks(x).mean(dim=(2, 3))))


class MLP(Model, name="mlp"):
    """A fully connected network: x of shape [N, ...] with `inputs` numbers per sample, to logits.

    Each width adds a linear layer and a ReLU; without widths the model is linear. Logits have
    shape [N] for one output and [N, outputs] for more.

    >>> import torch
    >>> MLP(inputs=784, outputs=3)(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 3])
    """

    @known_arguments
    def __init__(self, inputs: int, widths: Iterable[int] = (256, 256), outputs: int = 1) -> None:
        remedy = "it is the number of features"
        inputs = whole("inputs", inputs, least=1, most=MOST, remedy=remedy)
        widths, outputs = checked_widths(widths), checked_outputs(outputs)
        super().__init__(inputs=inputs, widths=widths, outputs=outputs)
        self.inputs = inputs
        sizes = (inputs, *widths)
        check_size(products((*sizes, outputs)))
        self.layers = dense(sizes)
        self.head = nn.Linear(sizes[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the samples `x`."""
        if x.dim() < 2 or x.shape[1:].numel() != self.inputs:
            raise ValueError(
                f"x of shape {list(x.shape)}: expected [N, ...] with {self.inputs} numbers "
                "per sample; make the model with as many inputs as the data has."
            )
        check_floats(self, x)
        return one_or_more(self.head(self.layers(x.flatten(1))))


class PatchNet(Model, name="patchnet"):
    """A small and fast convolutional network: images [N, in_channels, H, W] to logits.

    Its convolutions do not overlap, so that each is one product of matrices: the first takes
    patches of `patch` x `patch` pixels, every further one and the head 2 x 2 places of the one
    before. So H and W are multiples of `patch * 2 ** len(widths)`, 32 by default. Then the mean
    over the places that are left. Logits have shape [N] for one output and [N, outputs] for more.

    >>> import torch
    >>> PatchNet()(torch.zeros(5, 3, 32, 32)).shape
    torch.Size([5])
    """

    @known_arguments
    def __init__(
        self,
        in_channels: int = 3,
        widths: Iterable[int] = (32, 64, 128),
        outputs: int = 1,
        patch: int = 4,
    ) -> None:
        in_channels, widths = checked_channels(in_channels), checked_widths(widths)
        outputs = checked_outputs(outputs)
        remedy = "it is the side of a patch in pixels"
        patch = whole("patch", patch, least=1, most=10**6, remedy=remedy)
        super().__init__(in_channels=in_channels, widths=widths, outputs=outputs, patch=patch)
        self.patch = patch
        inputs = (in_channels * patch * patch, *(4 * width for width in widths))
        check_size(sum(map(operator.mul, inputs, (*widths, outputs))))
        self.layers = nn.ModuleList(map(nn.Linear, inputs, widths))
        self.head = nn.Linear(inputs[-1], outputs)
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the images `x`."""
        least = self.patch * 2 ** len(self.layers)
        check_images(self, x, self.arguments["in_channels"], least, "use larger images")
        if x.shape[2] % least or x.shape[3] % least:
            raise ValueError(
                f"x of shape {list(x.shape)}: expected sides that are multiples of {least}; use "
                "another size, another patch or other widths."
            )
        x = self.layers[0](patches_of(x, self.patch)).relu()
        for layer in self.layers[1:]:
            x = layer(joined_places(x)).relu()
        return one_or_more(self.head(joined_places(x)).mean(dim=(1, 2)))


def patches_of(x: Tensor, side: int) -> Tensor:
    """[N, C, H, W] to [N, H / side, W / side, C * side * side]."""
    return pixel_unshuffle(x, side).permute(0, 2, 3, 1).contiguous()


def joined_places(x: Tensor) -> Tensor:
    """[N, H, W, C] to [N, H / 2, W / 2, 4 C]."""
    n, h, w, c = x.shape
    blocks = x.reshape(n, h // 2, 2, w // 2, 2, c).transpose(2, 3)
    return blocks.reshape(n, h // 2, w // 2, 4 * c)


def _block(inputs: int, width: int) -> nn.Sequential:
    # Pooling first leaves BatchNorm and ReLU a quarter of the work.
    pooled = (_convolution(inputs, width), nn.MaxPool2d(2))
    return nn.Sequential(*pooled, nn.BatchNorm2d(width), nn.ReLU())


def _convolution(inputs: int, width: int) -> nn.Conv2d:
    # BatchNorm has its own shift, so a bias before it would do nothing.
    return nn.Conv2d(inputs, width, kernel_size=3, padding=1, bias=False)
