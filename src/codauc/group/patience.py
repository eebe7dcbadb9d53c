"""How long a worker waits for the others: by how long it took so far."""

from __future__ import annotations

import time

_TIMES = 10.0  # the longest time so far
_SEEN = 3  # times, before that says anything


class Patience:
    """Times from one collective to the end of the next, by the kinds of both.

    A round that follows a round takes as long as the last one did, more or less; one that follows a
    look at the validation set waits for the worker who writes files. So each pair of kinds has its
    own limit: ten times the longest seen, but at least `least` seconds; and `most` until it was
    seen three times.

    >>> patience = Patience(least=10.0, most=1800.0)
    >>> patience.limit("round")
    1800.0
    >>> for _ in range(4):
    ...     patience.took("round")
    >>> patience.limit("round")
    10.0
    """

    def __init__(self, least: float, most: float) -> None:
        self.least, self.most = least, most
        self._longest: dict[tuple[str, str], tuple[int, float]] = {}
        self._last, self._since = "", time.monotonic()

    def limit(self, kind: str) -> float:
        """How long to wait in the next collective, of this kind."""
        count, longest = self._longest.get((self._last, kind), (0, 0.0))
        if count < _SEEN:
            return self.most
        return min(self.most, max(self.least, _TIMES * longest))

    def took(self, kind: str) -> None:
        """A collective is over."""
        now = time.monotonic()
        count, longest = self._longest.get((self._last, kind), (0, 0.0))
        self._longest[self._last, kind] = (count + 1, max(longest, now - self._since))
        self._last, self._since = kind, now
