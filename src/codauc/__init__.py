"""Train deep networks for the largest AUC, with few communications."""

__version__ = "0.1.0"
