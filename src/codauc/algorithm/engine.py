"""The engine: Algorithm 1 around the user's own loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from torch import nn

from codauc._internal.checks import choice, known_arguments, whole
from codauc.algorithm.compression import COMPRESSIONS
from codauc.algorithm.control_variates import CORRECTIONS
from codauc.algorithm.dual_estimate import DUALS, DualEstimate
from codauc.algorithm.loop_checks import BatchForward, Forward, check_ratio
from codauc.algorithm.outer_step import Nesterov
from codauc.algorithm.ppdsg import PPDSG
from codauc.algorithm.round_controls import RoundControls
from codauc.algorithm.round_schedule import RoundSchedule
from codauc.algorithm.rounds import Averager
from codauc.algorithm.saved_engine import SavedEngine
from codauc.algorithm.schedules import Stage
from codauc.algorithm.site_checks import (
    NORMS,
    check_periods,
    check_ways,
    checked_sites,
    decided_dual,
)
from codauc.algorithm.sites import Present
from codauc.algorithm.stage_loop import endless, local_steps
from codauc.algorithm.unknown_ratio import first_look
from codauc.workers.group import Group, LocalGroup

Batch = TypeVar("Batch")


class CoDA(SavedEngine, RoundControls):
    """Communication-efficient distributed AUC maximisation (Algorithm 1).

        v_s     = DSG(v_{s-1}, alpha_{s-1}, eta_s, T_s, I_s, gamma)
        alpha_s = (1/K) sum_k [mean h over m_s samples: of the negatives - of the positives]

    Each stage s is a loop over `stage(...)`; `opt.step()` inside is a local step, and every I_s-th
    one (`sync_every`) a communication round. When the loop ends, the model is the average of all
    iterates of all workers, with its BatchNorm statistics and alpha estimated anew.

    `group` is what `codauc.launch` gave to the function (default: a single worker, which makes this
    PPD-SG). `dual="pooled"` divides sums by counts over all workers instead of taking the mean of
    the workers' ratios: better where shards differ in labels. `forward(batch)` returns logits and
    labels for the estimate of alpha (default: the model of the first, and the second, of a pair),
    and weights as a third, if samples have some (default: the third of three).

    For slow links: `compress="int8"` sends a quarter of the bytes, `"int4"` an eighth, `"int2"` a
    fifteenth, `"bf16"` a half, with what is lost kept for the next round. `delay=D` lets the
    workers go on while a round is under way: a worker's own part of the mean, 1/K of its change,
    takes effect at once, the others' part exactly D steps later (D < I; 0 waits).
    `outer=codauc.Nesterov()` lets rounds take a step with momentum along the averaged change of the
    weights (a single worker takes none). `settings` are further values, such as the names of the
    data's columns, that must be equal on all workers.

    For data that differ from worker to worker: `correct="scaffold"` keeps each worker's steps in
    the direction of all workers' mean, by control variates that travel with the weights.
    `shards` are the samples and positives of each worker; with them `weight="samples"` lets each
    count by its samples, and `dual="auto"` takes "pooled" where labels differ. `present=0.7` draws
    for each period between two rounds which 70% of the workers take part
    (`codauc.Present(share, seed, gone)`); the others are `away`, stand still, and take over the
    next mean. A worker whose shard has no samples is always away. `norm="local"` leaves BatchNorm's
    statistics to each worker.

    >>> import torch
    >>> from torch import nn
    >>> from codauc import MinMaxAUCLoss, geometric
    >>> model, loss = nn.Linear(2, 1), MinMaxAUCLoss(pos_ratio=0.5)
    >>> opt = PPDSG(model, loss, lr=0.1, gamma=500.0)
    >>> coda = CoDA(opt)
    >>> data = [(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 0]))]
    >>> for stage in geometric(lr=0.1, steps=5, stages=2):
    ...     for x, y in coda.stage(stage, data):
    ...         opt.zero_grad()
    ...         loss(model(x), y).backward()
    ...         opt.step()
    >>> coda.stages_done, opt.steps
    (2, 15)
    """

    @known_arguments
    def __init__(
        self,
        opt: PPDSG,
        group: Group | None = None,
        *,
        dual: str = "mean",
        forward: Forward | None = None,
        compress: str | None = None,
        delay: int = 0,
        outer: Nesterov | None = None,
        correct: str | None = None,
        weight: str = "equal",
        present: Present | float | None = None,
        norm: str = "mean",
        shards: Sequence[tuple[int, int]] | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        _check_arguments(opt, group, settings, outer)
        self.opt = opt
        if compress is not None:
            compress = choice("compress", compress, COMPRESSIONS)
        self.delay = whole("delay", delay, least=0, remedy="use 0 to wait for every round")
        self.group = LocalGroup() if group is None else group
        self.forward = BatchForward(opt, forward)
        self.sites = checked_sites(self.group.rank, self.group.size, weight, present, shards)
        self.dual = decided_dual(choice("dual", dual, DUALS), self.sites.shards)
        opt.local_norm = choice("norm", norm, NORMS) == "local"
        if correct is not None:
            correct = choice("correct", correct, CORRECTIONS)
        check_ways(opt.loss, self.sites, correct=correct, delay=self.delay)
        self.dual_estimate = DualEstimate(opt, self.group, self.dual, self.forward, self.sites)
        if opt.local_norm:
            opt.begin_stage()  # which finds anew what rounds average
        self.averager = Averager(
            opt, self.group, compress, outer, self.sites, correcting=correct is not None
        )
        ways = {"compress": compress, "delay": self.delay, "outer": outer and asdict(outer)}
        ways |= {"correct": correct, "norm": norm, "sites": self.sites.settings()}
        self.averager.start(dual=dual, **ways, settings=settings)
        self.stages_done = 0
        self.current: Stage | None = None  # the stage that was begun and not yet finished
        self.closed = False  # whether its iterates are averaged, so that only alpha is missing
        self.schedule = RoundSchedule(self.averager, self.delay)
        self.loop: object | None = None  # which loop over a stage is running
        self._driven = False  # whether somebody else's loop takes the steps
        self._ending: Iterator[Any] | None = None  # batches for such a stage to end by itself
        self._modules: list[nn.Module] = []
        self._modes: list[bool] | None = None  # which submodules were training in the last step
        opt.engaged = True
        opt.register_step_pre_hook(self._before_step)
        opt.register_step_post_hook(self._after_step)

    def stage(self, stage: Stage, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of one stage; it ends by itself after `stage.steps` steps.

        The loop over them is `begin`, steps and `end` in one. Leaving it early (break, an
        exception) keeps the position: call `stage` again with the same stage to continue, in this
        process or after `load_state_dict` in another, or `end` to end
        it where it is. To repeat a run bit for bit, leave after `opt.step()`: the forward pass
        already counts labels and moves BatchNorm statistics. `batches` is an endless iterator, or
        anything that can be iterated again and again, such as a DataLoader.
        """
        source = endless(batches)
        self._begin(stage)
        return self._run(stage, source)

    def begin(self, stage: Stage, batches: Iterable[Any] | None = None) -> None:
        """Begin a stage whose steps a loop of somebody else takes, such as a framework's.

        From here on each `opt.step()` counts and every `stage.sync_every`-th one is a round, until
        the stage has had its steps. With `batches`, from which alpha is then estimated, it ends by
        itself in the last of them; without, `end(batches)` ends it. A stage that was begun and not
        ended continues where it is, for example after `load_state_dict`.

        >>> from codauc import MinMaxAUCLoss, PPDSG, Stage
        >>> import torch
        >>> model, loss = nn.Linear(2, 1), MinMaxAUCLoss(pos_ratio=0.5)
        >>> opt = PPDSG(model, loss)
        >>> coda = CoDA(opt)
        >>> data = [(torch.eye(2), torch.tensor([1, 0]))]
        >>> coda.begin(Stage(lr=0.1, steps=3), data)
        >>> for x, y in data * 3:
        ...     loss(model(x), y).backward()
        ...     opt.step()
        >>> coda.stages_done
        1
        """
        source = None if batches is None else endless(batches)
        self._begin(stage)
        self._driven, self._ending = True, source
        if source is not None and not self.closed:
            first_look(self.opt.loss, self.group, source, self.forward.labels)
        elif source is None and self.opt.loss.ratio_is_unseen:
            self.current = None
            raise ValueError(
                "begin(stage) with a pos_ratio that is not known: expected batches, whose labels "
                "are counted before the first step; call begin(stage, batches)."
            )
        self.make_up()

    def _begin(self, stage: Stage) -> None:
        _check_stage(stage, self.delay)
        check_periods(stage, self.sites)
        if self.current is not None and stage != self.current:
            raise ValueError(
                f"{stage} while {self.current} is at step {self.opt.steps}: expected the same "
                "stage, to continue it; call end(batches) first to end it where it is."
            )
        again = self.current is not None
        if not again:
            self.opt.begin_stage(stage.lr)
            self.current, self.closed = stage, False
            self.schedule.begin(stage, self.stages_done)
        self._compare(stage, again=again)
        if not again:
            self.averager.lay_out(measuring=stage.sync_every == "auto")
        self.averager.begin_stage(again=again)
        self.averager.inner = self.group.machine() if stage.local_every else LocalGroup()
        self._modules = list(self.opt.model.modules())  # a walk that is too long for every step
        self._driven, self._ending = False, None

    def estimate(self, batches: Iterable[Any], samples: int = 1024) -> None:
        """Give a, b and alpha their optimum for the weights as they are, as a stage's end does.

        All workers call it, between stages; before the first one it spares a fresh network the
        time in which a = b = 0 pushes all its scores alike to 0.
        """
        if self.current is not None:
            raise RuntimeError("estimate(...) within a stage: call it before a stage, or after.")
        samples = whole("samples", samples, least=1, remedy="a, b and alpha come from samples")
        self.dual_estimate.run(endless(batches), samples, self._modes, estimate_ab=True)

    def _run(self, stage: Stage, batches: Iterator[Batch]) -> Iterator[Batch]:
        if not self.closed:
            first_look(self.opt.loss, self.group, batches, self.forward.labels)
            self.make_up()  # a round that failed or was interrupted
            yield from local_steps(self, stage.steps, batches)
        if self.current is not None:  # it may have been ended inside the loop
            self._close(stage, batches)

    def _compare(self, stage: Stage, *, again: bool = True) -> None:
        # Steps since the last round may differ: each worker saves and goes on where it is.
        self.averager.compare(
            "checkpoint" if again else "start",  # who goes on has not sent more in order to train
            stage=asdict(stage),
            tensors={name: " ".join(rest) for name, *rest in self.opt.trained.layout()},
            step_sizes=[] if again else [float(group["lr"]) for group in self.opt.param_groups],
            last_round=self.schedule.synced_at,
            upcoming_round=self.schedule.periods.next_at,
            closed=self.closed,
        )

    def _close(self, stage: Stage, batches: Iterator[Any]) -> None:
        if not self.closed:
            self.schedule.close()
            self.closed = True
            check_ratio(self.opt.loss)
        self.dual_estimate.run(
            batches, stage.dual_samples, self._modes, estimate_ab=stage.estimate_ab
        )
        self.current = self._ending = None
        self.stages_done += 1
        if stage.estimate_ab:  # it had another objective
            self.averager.begin_variates_anew()

    def _before_step(self, *_: Any) -> None:
        inside = self._driven or self.loop is not None
        if not inside or self.current is None or self.opt.steps >= self.current.steps:
            raise RuntimeError(
                "opt.step() outside a stage: call it inside `for batch in coda.stage(...)`, or "
                "after coda.begin(stage), and no more often than the stage has steps; "
                "coda.end(batches) ends a stage."
            )
        _check_not_data_parallel(self.opt)
        self._modes = [module.training for module in self._modules]

    def _after_step(self, *_: Any) -> None:
        self.averager.advance()
        self.make_up()
        if self._ending is not None and self.current and self.opt.steps >= self.current.steps:
            self._close(self.current, self._ending)

    def end(self, batches: Iterable[Any]) -> None:
        """End a stage where it is, on all workers: the average of its iterates, and a new alpha.

        For example to stop early: all workers then have the same model.
        """
        if self.current is not None:
            self._compare(self.current)
            self._close(self.current, endless(batches))

    def make_up(self) -> None:
        """Have the round that is due at this step, or was interrupted, before the next batch."""
        if self.current is not None and not self.closed:
            self.schedule.sync(self.opt.steps, self.current)


def _check_arguments(opt: Any, group: Any, settings: Any, outer: Any) -> None:
    """Raise where one is not what `CoDA` takes."""
    if not isinstance(opt, PPDSG):
        raise ValueError(f"opt: got {type(opt).__name__}, expected a codauc.PPDSG.")
    if group is not None and not isinstance(group, Group):
        raise ValueError(
            f"group: got {type(group).__name__}, expected what codauc.launch gives to the "
            "function, or codauc.distributed()."
        )
    if opt.engaged:
        raise ValueError("opt already belongs to a CoDA: make a new PPDSG for a new CoDA.")
    _check_not_data_parallel(opt)
    if outer is not None and not isinstance(outer, Nesterov):
        raise ValueError(
            f"outer: got {type(outer).__name__}, expected codauc.Nesterov(lr=0.7, momentum=0.9), "
            "or None for plain averaging."
        )
    if settings is not None and not isinstance(settings, dict):
        raise ValueError(
            f"settings: got {type(settings).__name__}, expected a dict of names and values."
        )


def _check_not_data_parallel(opt: PPDSG) -> None:
    if opt.data_parallel.found is not None:
        raise RuntimeError(
            "the model is in DistributedDataParallel, which averages gradients at every step; CoDA "
            "averages weights every sync_every steps: use one of them."
        )


def _check_stage(stage: Any, delay: int) -> None:
    """Raise if it is no stage, or one whose rounds would overlap."""
    if not isinstance(stage, Stage):
        raise ValueError(
            f"stage: got {type(stage).__name__}, expected a codauc.Stage; "
            "use codauc.geometric(...) or codauc.Stage(lr=..., steps=...)."
        )
    if delay >= stage.least_period and delay and stage.sync_every != "auto":
        raise ValueError(
            f"delay={delay} with sync_every={stage.sync_every}: expected a smaller delay; "
            "a round must have taken effect before the next begins."
        )
