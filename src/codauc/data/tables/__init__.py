"""People's files: from the columns of a table, or an array, to a worker's inputs and labels."""

from codauc.data.dataset import Part as Table
from codauc.data.tables.encoder import Encoder
from codauc.data.tables.reader import read_table

__all__ = ["Encoder", "Table", "read_table"]
