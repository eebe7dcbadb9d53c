"""Where samples come from and how they are split, as frozen data; known without torch."""

from __future__ import annotations

from dataclasses import dataclass

from codauc._internal.setting_types import as_tuples, check, check_text, setting

WATCHES = ("validation", "test")


@dataclass(frozen=True)
class DataSettings:
    """Where the samples come from, which are positive, and how they are split.

    `negative` is written by a run on images: the other classes it found. With `own` the source
    may hold {rank}, the worker's number. With `watch="test"` nothing is held out for validation,
    and the last model is kept instead of one that is chosen.
    """

    # fmt: off
    source: str = setting(
        "",
        "a table (.csv, .parquet, .arrow), arrays (.npy, .npz), a directory of images, an archive"
        " of CIFAR or MNIST, ImageNet's folders, or fashion-tiny", option="DATA", common=True)
    target: str | None = setting(
        None, "column of labels; for X.npy the file of labels, for .npz the array",
        metavar="COLUMN", common=True)
    positive: tuple[str, ...] = setting(
        (),
        "labels of the positive class; half: the first half of an archive's classes; not needed "
        "for labels 0 and 1", metavar="LABEL[,...]", common=True)
    negative: tuple[str, ...] = ()
    keep_negatives: float = setting(
        1.0, "share of the training negatives to keep ({default})", metavar="SHARE", above=0,
        remedy="use 1 to keep all")
    test: str | None = setting(
        None, "test set in a file of its own; else rows are held out", metavar="FILE", common=True)
    test_fraction: float = setting(
        0.2, "share of the rows to hold out for the test ({default})", metavar="SHARE", least=0,
        below=1, remedy="it is the share of samples, such as 0.2")
    validation_fraction: float = setting(
        0.15, "share of the rows to hold out to choose the model ({default})", metavar="SHARE",
        least=0, below=1, remedy="it is the share of samples, such as 0.2")
    group: str | None = setting(
        None,
        "column such as the patient, whose rows stay together: all for training, for validation or "
        "for the test; it is no input", metavar="COLUMN")
    time: str | None = setting(
        None,
        "column of dates or numbers: the oldest rows are for training, the newest for the test",
        metavar="COLUMN")
    weight: str | None = setting(
        None,
        "column of weights >= 0: how often a row counts, in training and in the AUC; no input",
        metavar="COLUMN")
    watch: str = setting(
        "validation",
        "set that is evaluated during training; test, as in papers, holds out no validation set "
        "and needs select=last ({default})", choices=WATCHES)
    drop: tuple[str, ...] = setting((), "columns to leave out", metavar="COLUMN[,...]")
    categories: tuple[str, ...] = setting(
        (), "columns of numbers to treat as categories", metavar="COLUMN[,...]")
    nan: str = setting(
        "error", "whether NaN is an error or a missing value ({default})",
        choices=("error", "missing"))
    unlabelled: str = setting(
        "error", "whether a row without a label is an error or left out ({default})",
        choices=("error", "drop"))
    decimal: str | None = setting(
        None, "decimal mark of a CSV, where its numbers do not show it", metavar=".|,")
    dayfirst: bool | None = setting(
        None, "dates such as 01/02/2024 have the day first, or with --no-dayfirst the month")
    na_values: tuple[str, ...] = setting(
        (), "further texts of a CSV that are missing values", metavar="TEXT[,...]")
    encoding: str | None = setting(
        None, "encoding of a CSV that is not UTF-8, such as latin-1", metavar="NAME")
    silo: str | None = setting(
        None,
        "column such as the hospital: the sites, of which none is split between workers; one worker"
        " for each if no number is given", metavar="COLUMN")
    test_site: str | None = setting(
        None, "the site whose rows are the test set, none of them for training; each: every site "
        "in turn, and what leaving it out costs", metavar="NAME|each")
    least_samples: int | None = setting(
        None, "no statistic of fewer samples of a worker leaves it (no limit); scores then leave "
        "as counts", metavar="N", least=2, remedy="use for example 10, or leave it out")
    scores: str | None = setting(
        None, "what leaves a worker of its scores of validation and test rows: rows, each of them; "
        "counts, how many are in each of 4,096 bins (rows)", choices=("rows", "counts"))
    skew: float | None = setting(
        None, "split rows unevenly by label (Dirichlet), to study workers that differ",
        metavar="ALPHA", above=0, below=None,
        remedy="use 0.1 for very different workers, 100 for nearly equal ones")
    own: bool = setting(
        False,
        "each worker reads a file of its own and keeps all of it; {{rank}} in DATA is its number")
    scale: str = setting(
        "all", "whose rows standardise the columns of numbers: those of all workers, or each "
        "worker's own, for sites that measure differently ({default})", choices=("all", "own"))
    images: str | None = setting(None, "directory of the images that a CSV names", metavar="DIR")
    file_column: str | None = setting(
        None, "column of a CSV that holds the names of image files", metavar="COLUMN")
    image_size: int | None = setting(
        None, "height and width of images read from files (64)", metavar="PIXELS", least=1,
        remedy="leave it out for the default")
    channels: int | None = setting(
        None, "channels of images read from files: 3 (RGB) or 1 (grey)", metavar="N", least=1,
        remedy="leave it out for the default")
    # fmt: on

    def __post_init__(self) -> None:
        check(self)
        as_tuples(self, "positive", "negative", "drop", "categories", "na_values")
        check_text("source", self.source)
        if self.group is not None and self.time is not None:
            raise ValueError(
                f"group={self.group} and time={self.time}: expected at most one way to split; "
                "leave one out."
            )
        if self.silo is not None and self.silo == self.target:
            raise ValueError(
                f"silo={self.silo!r} is the column of labels: expected that of the sites; leave "
                "silo out if there are none."
            )
        if self.test_site is not None:
            self._check_test_site()
        if self.counted_scores or self.least_samples is not None:
            self._check_counts()
        if self.scale == "own":
            self._check_scale()
        if self.keep_negatives > 1:
            raise ValueError(
                f"keep_negatives={self.keep_negatives:g}: expected at most 1, which keeps all."
            )

    @property
    def counted_scores(self) -> bool:
        """Whether scores leave a worker as counts alone."""
        left_open = "rows" if self.least_samples is None else "counts"
        return (self.scores or left_open) == "counts"

    def _check_counts(self) -> None:
        """Refuse what needs more than counts of scores."""
        if not self.counted_scores:
            raise ValueError(
                f"scores='rows' with least_samples={self.least_samples}: expected scores='counts', "
                "as the score of a row is of one sample; leave scores out."
            )
        for name, what in (("group", "intervals of groups"), ("weight", "weighted AUCs")):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}={getattr(self, name)} where scores leave a worker as counts: expected "
                    f"none, as {what} need the score of each row; leave one out."
                )

    def _check_scale(self) -> None:
        """Refuse what has no rows of its own to standardise by."""
        if self.silo is None and not self.own:
            raise ValueError(
                "scale='own' without sites: expected silo=COLUMN, or own=True, each worker with a "
                "file of its own; leave scale out."
            )
        for name in ("test", "test_site"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"scale='own' and {name}={getattr(self, name)!r}: expected test rows of the "
                    "sites that are trained on, as others have no scaling of their own; leave one "
                    "of them out."
                )

    def _check_test_site(self) -> None:
        for name, remedy in (("test", "leave one out"), ("time", "leave time out")):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"test_site={self.test_site!r} and {name}={getattr(self, name)}: expected one "
                    f"way to choose the test set; {remedy}."
                )
        if self.silo is None:
            raise ValueError(
                f"test_site={self.test_site!r} without a column of sites: expected its name; say "
                "silo=COLUMN."
            )

    @property
    def validation(self) -> float:
        """The share that is held out for validation."""
        return 0.0 if self.watch == "test" else self.validation_fraction
