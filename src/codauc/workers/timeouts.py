"""How long a worker waits for the others: by how long it took so far."""

from __future__ import annotations

import time

_TIMES = 10.0  # the longest time so far


class Patience:
    """Times from one collective to the end of the next, by the kinds of both.

    A round that follows a round takes about as long as the last one; one that follows an evaluation
    waits for the worker that writes files. So each pair of kinds has its own limit: ten times the
    longest seen, but at least `least` seconds. For a new pair it is ten times that of any other,
    and at least three times `least`. It is never more than `most`. `longest` can be given to a
    later group.

    >>> patience = Patience(least=10.0, most=300.0)
    >>> patience.took("round")
    >>> patience.limit("round")
    30.0
    >>> patience.took("round")
    >>> patience.limit("round")
    10.0
    """

    def __init__(self, least: float, most: float) -> None:
        self.least, self.most = least, most
        self.longest: dict[str, float] = {}
        self._last, self._since = "", time.monotonic()

    def limit(self, kind: str) -> float:
        """How long to wait in the next collective, of this kind."""
        pair, most = f"{self._last} {kind}", max(self.longest.values(), default=0.0)
        new = max(3 * self.least, _TIMES**2 * most)
        seen = max(self.least, _TIMES * self.longest.get(pair, 0.0))
        return min(self.most, seen if pair in self.longest else new)

    def took(self, kind: str) -> None:
        """A collective is over."""
        now, pair = time.monotonic(), f"{self._last} {kind}"
        self.longest[pair] = max(self.longest.get(pair, 0.0), now - self._since)
        self._last, self._since = kind, now
