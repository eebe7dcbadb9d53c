"""Where batches come from: sources, people's files, binary labels, shards, seeded batches."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codauc.data.augment import Augment, CenterCrop, Crop, Flip
    from codauc.data.batches import Batches
    from codauc.data.binary_labels import binarise, thin_negatives
    from codauc.data.image_files import ImageFiles
    from codauc.data.image_folders import (
        ImageFolder,
        ImageSplit,
        image_folder,
        image_table,
        imagenet,
    )
    from codauc.data.rows import Rows
    from codauc.data.shards import (
        ShardCount,
        even_shards,
        shard_counts,
        silo_shards,
        skewed_shards,
    )
    from codauc.data.splits import Split
    from codauc.data.standard_images import (
        Images,
        Task,
        binary_task,
        cifar10,
        cifar100,
        fashion_mnist,
        fashion_tiny,
        mnist,
    )
    from codauc.data.stream import Stream
    from codauc.data.tables import Encoder, Table, read_table

__all__ = [
    "Augment",
    "Batches",
    "CenterCrop",
    "Crop",
    "Encoder",
    "Flip",
    "ImageFiles",
    "ImageFolder",
    "ImageSplit",
    "Images",
    "Rows",
    "ShardCount",
    "Split",
    "Stream",
    "Table",
    "Task",
    "binarise",
    "binary_task",
    "cifar10",
    "cifar100",
    "even_shards",
    "fashion_mnist",
    "fashion_tiny",
    "image_folder",
    "image_table",
    "imagenet",
    "mnist",
    "read_table",
    "shard_counts",
    "silo_shards",
    "skewed_shards",
    "thin_negatives",
]

# Searched when a name is first used: the settings of this package are read without torch.
_HOMES = (
    *("rows", "batches", "shards", "splits", "stream", "augment", "binary_labels", "image_files"),
    *("image_folders", "standard_images", "tables"),
)


def __getattr__(name: str) -> Any:
    for home in _HOMES if name in __all__ else ():
        module = import_module(f"codauc.data.{home}")
        if hasattr(module, name):
            globals()[name] = value = getattr(module, name)
            return value
    raise AttributeError(f"module 'codauc.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
