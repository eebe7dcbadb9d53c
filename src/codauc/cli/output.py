"""What a command prints as its result."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from codauc._internal.terminal import printable_lines


def say(text: str) -> None:
    """Print the result; the reader of a pipe may have enough."""
    try:
        print(printable_lines(text), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say_json(value: Any) -> None:
    """Print the result as JSON, in which only the delete character would still be raw."""
    say(json.dumps(value).replace("\x7f", "\\u007f"))
