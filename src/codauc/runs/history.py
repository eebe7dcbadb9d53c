"""The history of a run, written line by line while it trains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from codauc._internal.files import whole_file
from codauc.runs.directory import METRICS, Record, RunFolder


class History:
    """Appends records to metrics.jsonl, each at once on the disk; `records` are already made.

    What cannot be written now is written with the next record: no line is lost, twice or half.
    """

    def __init__(self, folder: RunFolder, records: Sequence[Record] = ()) -> None:
        self._path, self._end, self._waiting = folder / METRICS, 0, b""
        with whole_file(self._path, "the history") as partial:
            partial.write_bytes(b"")
        self.write(*records)

    def write(self, *records: Record) -> None:
        """Append a line for each, after those that could not be written before."""
        for record in records:
            self._waiting += json.dumps(asdict(record), allow_nan=False).encode() + b"\n"
        with self._path.open("r+b" if self._path.exists() else "w+b") as file:
            file.truncate(self._end)  # an incomplete line
            file.seek(self._end)
            file.write(self._waiting)
            file.flush()
            self._end = file.tell()
        self._waiting = b""
