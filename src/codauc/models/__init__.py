"""Networks that return logits: small ones, ResNets, one for tables; by name, with weights."""

from codauc.models.pretrained import load_pretrained
from codauc.models.registry import build
from codauc.models.resnet import ResNet8, ResNet18, ResNet20, ResNet50
from codauc.models.small_networks import MLP, ConvNet, PatchNet
from codauc.models.tabular import TabularNet
from codauc.models.tabular_ensemble import TabularEnsemble

__all__ = [
    "MLP",
    "ConvNet",
    "PatchNet",
    "ResNet8",
    "ResNet18",
    "ResNet20",
    "ResNet50",
    "TabularEnsemble",
    "TabularNet",
    "build",
    "load_pretrained",
]
