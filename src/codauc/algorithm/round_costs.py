"""How many bytes and seconds communication takes, known before anything runs.

The lengths here are those that `RoundMessage` and `Compressed` lay out, and the bytes those that
the ledger of a run counts: of a ring for a sum, and straight to each worker for an exchange.
"""

from __future__ import annotations

from dataclasses import dataclass

REQUESTS = ("stop", "leave", "save")  # what a worker can ask of all
NUMBER = 4  # bytes of a float32
HASH = 8  # bytes of a hash, which workers compare at the start
BITS = {"bf16": 16, "int8": 8, "int4": 4, "int2": 2}  # of a compressed weight
BLOCK = 256  # weights that share a scale, where integers are sent


def tail_lengths(tasks: int, workers: int, measuring: bool = False) -> list[int]:
    """Label counts as two digits each, seconds of each worker, requests, a mark of bad numbers.

    While `measuring` also seconds per step and drift.
    """
    return [4 * tasks, workers, len(REQUESTS), 1, 2 * measuring]


def coded_bytes(numbers: int, workers: int, compress: str) -> tuple[int, int]:
    """Of one worker's part of so many numbers: bytes of their scales, and of their codes."""
    if compress == "bf16":
        return 0, 2 * -(-numbers // workers)
    blocks = -(-numbers // (workers * BLOCK))
    return 4 * blocks, blocks * BLOCK * BITS[compress] // 8


def row_bytes(exact: int, *coded: tuple[int, int], itemsize: int = NUMBER) -> int:
    """Of one worker's part of a message, a multiple of eight: exact numbers, and coded ones."""
    return -(-(exact * itemsize + sum(map(sum, coded))) // 8) * 8


@dataclass(frozen=True)
class Network:
    """Workers that are joined by links of one kind; bandwidth in bytes per second and direction."""

    workers: int
    bandwidth: float
    latency: float

    def sum_bytes(self, numbers: int) -> int:
        """What one worker sends for a sum of so many float32."""
        return 2 * (self.workers - 1) * numbers * NUMBER // self.workers

    def sum_seconds(self, numbers: int) -> float:
        """A ring: every worker sends its share in 2 (K - 1) steps."""
        steps = 2 * (self.workers - 1)
        return steps * self.latency + self.sum_bytes(numbers) / self.bandwidth


@dataclass(frozen=True)
class RoundCost:
    """Bytes that one worker sends in collectives, and the seconds these take."""

    bytes: int
    seconds: float


@dataclass(frozen=True)
class MessageSizes:
    """What a round's message holds.

    A network's `parameters` and BatchNorm `statistics`; second `moments` of `PPDAdam` and control
    `variates`, as many as there are parameters (variates also of a, b and alpha); seconds and
    drift for the period "auto", while `measuring`.
    """

    parameters: int
    statistics: int = 0
    moments: bool = False
    variates: bool = False
    measuring: bool = False
    tasks: int = 1

    def coded(self) -> tuple[int, int, int]:
        """Numbers that compression codes: weights, moments, variates."""
        n = self.parameters
        return n, n * self.moments, n * self.variates

    def exact(self, workers: int) -> int:
        """All other numbers."""
        own = 3 * self.tasks * (1 + self.variates)
        return self.statistics + own + sum(tail_lengths(self.tasks, workers, self.measuring))


def round_cost(network: Network, sizes: MessageSizes, compress: str | None = None) -> RoundCost:
    """Of a round with such a message.

    >>> cost = round_cost(Network(4, 12.5e6, 0.001), MessageSizes(1_000_000))
    >>> cost.bytes, round(cost.seconds, 3)
    (6000090, 0.486)
    """
    k, exact = network.workers, sizes.exact(network.workers)
    if compress is None:
        numbers = sum(sizes.coded()) + exact
        return RoundCost(network.sum_bytes(numbers), network.sum_seconds(numbers))
    coded = [coded_bytes(numbers, k, compress) for numbers in sizes.coded()]
    sent = 2 * (k - 1) * row_bytes(-(-exact // k), *coded)
    return RoundCost(sent, k * network.latency + sent / network.bandwidth)


def start_cost(network: Network, stages: int = 1, outside: int = 0) -> RoundCost:
    """Of the start: hashes of settings and weights, and of the settings of each stage.

    All workers made the network with the same seed, so that its weights are not sent, and know the
    share of positives. Tensors `outside` rounds (frozen weights, counters of BatchNorm) have a hash
    for each dtype.

    >>> start_cost(Network(4, 12.5e6, 0.001), stages=3)
    RoundCost(bytes=120, seconds=0.0150096)
    """
    hashes = 2 + outside + stages
    others = network.workers - 1
    sent = hashes * others * HASH
    return RoundCost(sent, hashes * others * network.latency + sent / network.bandwidth)


def estimate_cost(network: Network, statistics: int = 0, tasks: int = 1) -> RoundCost:
    """Of an estimate of alpha, which also averages BatchNorm statistics."""
    numbers = 4 * tasks + statistics
    return RoundCost(network.sum_bytes(numbers), network.sum_seconds(numbers))
