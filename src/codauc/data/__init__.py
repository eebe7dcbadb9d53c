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
    from codauc.data.paper_task import Task, binary_task
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

# Loaded when first used: the settings of this package are read without torch.
_HOMES = {
    "augment": "Augment CenterCrop Crop Flip",
    "batches": "Batches",
    "binary_labels": "binarise thin_negatives",
    "image_files": "ImageFiles",
    "image_folders": "ImageFolder ImageSplit image_folder image_table imagenet",
    "paper_task": "Task binary_task",
    "rows": "Rows",
    "shards": "ShardCount even_shards shard_counts silo_shards skewed_shards",
    "splits": "Split",
    "standard_images": "Images cifar10 cifar100 fashion_mnist fashion_tiny mnist",
    "stream": "Stream",
    "tables": "Encoder Table read_table",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'codauc.data' has no attribute {name!r}")
    value = getattr(import_module(f"codauc.data.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
