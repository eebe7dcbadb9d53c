"""Data in memory: sources, binary labels, shards, and endless seeded batches."""

from codauc.data.batches import Batches
from codauc.data.binary import binarise, thin_negatives
from codauc.data.shards import even_shards
from codauc.data.sources import Images, cifar10, fashion_tiny

__all__ = [
    "Batches",
    "Images",
    "binarise",
    "cifar10",
    "even_shards",
    "fashion_tiny",
    "thin_negatives",
]
