"""Data: sources, people's files, binary labels, shards, and endless seeded batches."""

from codauc.data.augment import Augment, CenterCrop, Crop, Flip
from codauc.data.batches import Batches
from codauc.data.binary import binarise, thin_negatives
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
from codauc.data.sources import Images, cifar10, cifar100, fashion_mnist, fashion_tiny, mnist
from codauc.data.splits import Split
from codauc.data.stream import Stream
from codauc.data.tables import Encoder, Table, read_table
from codauc.data.task import Task, binary_task

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
