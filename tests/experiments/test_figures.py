"""Claims about the paper's figures: what is run for each, and what is made of the runs."""

import csv
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import fields, replace

import pytest

from codauc.reproduce import study_tables as tables
from codauc.reproduce.figure_definitions import catalogue, figures, points
from codauc.reproduce.findings import findings, harmless, harmless_range
from codauc.reproduce.kept_runs import KeptRun
from codauc.reproduce.measured_constants import StageConstants
from codauc.reproduce.overview import write_overview
from codauc.reproduce.reproduction import Reproduction
from codauc.reproduce.study import Study, StudyPoint, Tuned
from codauc.reproduce.study_output import Shown, write
from codauc.reproduce.study_reading import read_shown
from codauc.reproduce.study_results import (
    Link,
    Results,
    estimate,
    estimate_positive,
    modelled,
)
from codauc.runs.directory import Record
from codauc.training.recipe import Facts, plan, resolve

SMALL = Study("cifar10", 71, source="somewhere")
TUNED = Tuned(2048, 0.3)


def stages(study, point, tuned=TUNED):
    settings = study.settings(point, tuned, seed=0)
    recipe = resolve(settings.recipe, point.workers, Facts(35000, 25000, images=True))
    return plan(recipe, settings.communication).stages


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_every_scale_keeps_workers_periods_ratio_batch_and_stages(scale):
    study = Study("cifar10", 71, scale, source="somewhere")
    wanted = points(study, figures(71))
    assert {point.workers for point in wanted} == {1, 4, 16}
    for workers in (4, 16):
        fixed = {p.sync_every for p in wanted if p.workers == workers and not p.growing}
        assert fixed == {1, 8, 64, 512, 1024}
    for point in wanted:
        settings = study.settings(point, TUNED, seed=3)
        assert settings.seed == 3
        assert settings.recipe.batch_size == 32
        assert settings.data.keep_negatives == 0.4
        assert settings.data.positive == ("half",)
        assert settings.data.watch == "test"
        planned = stages(study, point)
        assert [s.steps for s in planned] == [2048 * 3**s for s in range(len(planned))]
        assert [s.lr for s in planned] == pytest.approx([0.3 / 3**s for s in range(len(planned))])


def test_the_share_of_positives_is_the_papers():
    for percent, ratio in ((71, 5 / 7), (50, 1 / 2)):
        settings = Study("imagenet", percent).settings(StudyPoint(1), TUNED, 0)
        assert 1 / (1 + settings.data.keep_negatives) == pytest.approx(ratio)


def test_the_first_stage_is_twice_the_largest_period():
    for study in (SMALL, Study("cifar10", 71, "tiny")):
        assert min(study.size.steps) >= 2 * max(study.size.periods)
        assert study.periods == study.size.periods


def test_a_period_is_not_longer_than_a_first_stage_that_is_said():
    short = Study("cifar10", 71, source="somewhere", steps=512)
    assert short.periods == (1, 8, 64, 512)
    assert {tuned.steps for tuned in short.grid} == {512}
    for steps, evaluations in ((512, 64), (256, 32), (1, 1)):
        recipe = replace(short, steps=steps).settings(StudyPoint(1), Tuned(steps, 0.3), 0).recipe
        assert recipe.evaluations == evaluations
    assert (short.folder, short.label) == (
        "cifar10-71-small-t512",
        "CIFAR-10 71%, patchnet, T_0 = 512",
    )
    assert {p.sync_every for p in points(short, ("period-k4",))} == {1, 8, 64, 512}
    found = findings(short, made_up())
    assert [f.holds for f in found if f.claim == "Too large an I costs AUC: K=16, I=512"] == [True]
    with pytest.raises(ValueError, match="steps=0"):
        Study("cifar10", 71, steps=0)


def test_the_papers_own_setting():
    study = Study("imagenet", 71, "paper", source="train", pretrained="resnet50.pth")
    settings = study.settings(StudyPoint(16, 64), Tuned(10000, 0.01), seed=0)
    assert (settings.model.name, settings.model.pretrained) == ("resnet50", "resnet50.pth")
    assert (settings.data.image_size, settings.data.test_fraction) == (224, 0.01)
    grid = study.grid
    assert {t.steps for t in grid} == {2000, 5000, 10000}
    assert {t.lr for t in grid} == {0.1, 0.01, 0.001}


def test_a_growing_period_is_three_times_longer_in_each_stage():
    assert [s.sync_every for s in stages(SMALL, StudyPoint(16, 64, growing=True))] == [64, 192]
    assert [s.sync_every for s in stages(SMALL, StudyPoint(16, 64))] == [64, 64]


def test_cross_entropy_sends_gradients_at_every_step():
    settings = SMALL.settings(StudyPoint(16, objective="bce"), TUNED, seed=0)
    assert settings.communication.averages == "gradients"
    assert settings.recipe.warm_start == 1.0


def test_every_figure_of_the_paper_has_a_name():
    names = catalogue()
    for data in ("cifar10", "cifar100", "imagenet"):
        for percent in (71, 50):
            assert f"{data}-{percent}-workers" in names
            assert f"{data}-{percent}-period" in names
        for more in ("period-k4", "growing", "headline", "table1", "tuning"):
            assert f"{data}-71-{more}" in names


def test_figures_of_one_study_share_their_runs(tmp_path):
    def names(*wanted):
        made = Reproduction(replace(SMALL, lr=TUNED.lr), wanted, tmp_path, seeds=1)
        return {job.name for job in made.jobs()}

    everything = names(*figures(71))
    assert names("table1") <= everything
    assert names("workers") & names("period") == {
        "k1-eta0.3-t2048-seed0",
        "k16-i8-eta0.3-t2048-seed0",
    }


def test_a_figure_without_a_finding_has_one_seed_unless_given(tmp_path):
    def seeds(**given):
        made = Reproduction(SMALL, figures(71), tmp_path, **given)
        jobs = made.jobs()
        return [sum(t.name.startswith(p) for t in jobs) for p in ("k16-i64-", "k16-i64x3-", "bce")]

    order = [job.settings.seed for job in Reproduction(SMALL, figures(71), tmp_path).jobs()]
    assert order == sorted(order)  # an interrupted study has whole panels
    assert seeds() == [3, 1, 1]
    assert seeds(seeds=2) == [2, 2, 2]


def grid(**aucs):
    return {Tuned(2048, float(name[1:].replace("_", "."))): auc for name, auc in aucs.items()}


def test_the_grid_is_extended_until_its_best_is_inside():
    found = grid(_0_1=0.72, _0_01=0.7, _0_001=0.6)
    assert SMALL.extension(found) == [Tuned(2048, 0.3)]
    found |= grid(_0_3=0.74)
    assert SMALL.extension(found) == [Tuned(2048, 0.9)]
    assert SMALL.extension(found | grid(_0_9=0.73)) == []
    assert SMALL.extension(found | grid(_0_9=0.75)) == []  # 2.7 would be refused
    low = grid(_0_1=0.5, _0_01=0.6, _0_001=0.7)
    assert SMALL.extension(low) == [Tuned(2048, 0.000333)]


def test_a_step_size_that_is_said_is_not_tuned(tmp_path):
    study = Study("cifar10", 71, source="somewhere", lr=1.5)
    assert study.grid == [Tuned(2048, 1.5)]
    made = Reproduction(study, ("workers",), tmp_path)
    assert made.folder.name == "cifar10-71-small-eta1.5"
    with pytest.raises(ValueError, match=r"at most 2\.45"):
        Study("cifar10", 71, lr=2.5)


def test_intervals_are_students():
    found = estimate([0.70, 0.72, 0.74])
    half = 4.303 * 0.02 / math.sqrt(3)
    ratios = estimate_positive([2.0, 4.0, 8.0])
    assert ratios.mean == pytest.approx(4.0)
    assert 0 < ratios.low < 2 < 8 < ratios.high
    assert found.mean == pytest.approx(0.72)
    assert (found.low, found.high) == pytest.approx((0.72 - half, 0.72 + half))


def evaluations(final, speed, rounds=0, bytes_=0, steps=100):
    """A curve that rises to `final`, `speed` times as fast as to do so at the end."""
    found = []
    for step in range(1, steps + 1):
        auc = 0.5 + (final - 0.5) * min(1.0, speed * step / steps)
        found.append(evaluation(step, rounds * step, bytes_ * step, auc, float(step)))
    return found


def evaluation(step, rounds, bytes_, auc=0.9, seconds=0.0):
    nothing = dict.fromkeys((field.name for field in fields(Record)), 0)
    values = {"auc": auc, "auc_low": auc, "auc_high": auc, "seconds": seconds}
    return Record(**nothing | {"step": step, "rounds": rounds, "bytes": bytes_} | values)


def test_time_is_computing_and_latencies_and_sending():
    at = evaluation(100, rounds=10, bytes_=1000)
    assert modelled(at, 2, 0.01, Link(latency=0.5, bandwidth=1000.0)) == 1 + 10 + 1


def made_up(**changes):
    """Results as the paper's: K=4 and K=16 are faster, a large I loses."""
    values = {
        StudyPoint(1): (0.80, 1.0),
        **{StudyPoint(4, i): (0.82 - loss, 3.0) for i, loss in _LOSSES(512)},
        **{StudyPoint(16, i): (0.83 - loss, 9.0) for i, loss in _LOSSES(64)},
        StudyPoint(16, objective="bce"): (0.82, 5.0),
        **changes.pop("points", {}),
    }
    return Results(
        {
            point: {
                seed: evaluations(final + 0.001 * seed, speed, 64 // point.sync_every, 1000)
                for seed in range(3)
            }
            for point, (final, speed) in values.items()
        }
    )


def _LOSSES(harmless):  # noqa: N802
    return [(i, 0.002 if i <= harmless else 0.03) for i in (1, 8, 64, 512, 1024)]


def test_findings_hold_where_the_numbers_do():
    found = findings(SMALL, made_up())
    assert len(found) == 15
    assert [each.verdict for each in found] == ["holds"] * 15
    assert harmless(SMALL, made_up(), 16) == 64
    assert harmless(SMALL, made_up(), 4) == 512


@pytest.mark.parametrize(
    ("points", "claim"),
    [
        ({StudyPoint(16, 8): (0.83, 3.0)}, "K=16, I=8 against K=1"),
        ({StudyPoint(4, 8): (0.82, 1.5)}, "K=4, I=8 against K=1"),
        ({StudyPoint(16, 64): (0.81, 9.0)}, "nothing: K=16, I=64 against I=1"),
        ({StudyPoint(16, 1024): (0.83, 9.0)}, "Too large an I"),
        ({StudyPoint(4, 8): (0.80, 9.0)}, "at a loss of 0.01: K=4"),
        ({StudyPoint(16, 8): (0.7, 9.0)}, "K=16, I=8 against K=1"),  # does not reach the target
        ({StudyPoint(16, 8): (0.83, 2.0)}, "most time-efficient"),
    ],
)
def test_findings_do_not_hold_where_the_numbers_do_not(points, claim):
    verdicts = {f.claim: f.holds for f in findings(SMALL, made_up(points=points))}
    (name,) = [each for each in verdicts if claim in each]
    assert verdicts[name] is False


@pytest.mark.parametrize("percent", [71, 50])
@pytest.mark.parametrize("data", ["cifar10", "cifar100", "imagenet"])
def test_every_finding_is_of_runs_that_the_study_has(data, percent):
    study = Study(data, percent)
    run = {point: {0: evaluations(0.8, 4.0, 64, 1000)} for point in points(study, figures(percent))}
    found = findings(study, Results(run))
    assert None not in [each.holds for each in found]
    assert any("Too large" in each.claim for each in found) == (data != "imagenet")


def test_what_was_not_run_is_not_said_to_fail():
    found = findings(SMALL, Results({StudyPoint(1): {0: evaluations(0.8, 1.0)}}))
    assert {each.holds for each in found} == {None}


def test_the_target_is_one_workers_final_auc_of_the_same_seed():
    results = made_up()
    assert results.target(2) == pytest.approx(0.802 - 0.01)
    assert results.reached(StudyPoint(1), 0).step == 97
    assert results.needed(StudyPoint(16, objective="bce"), "rounds").mean == pytest.approx(
        19 * 64, rel=0.1
    )


def shown(results, **changes):
    values = {
        "study": SMALL,
        "results": results,
        "tried": {"auc": grid(_0_1=0.7, _0_3=0.75, _0_9=0.74)},
        "chosen": {"auc": TUNED},
        "link": Link(),
        "step_seconds": 0.003,
        "commits": ["abc1234"],
        "command": "codauc reproduce cifar10-71",
    }
    return Shown(**{**values, **changes})


def test_everything_that_is_shown_is_written(tmp_path):
    folder = tmp_path / "study"
    write(shown(made_up()), folder)
    assert len(ElementTree.parse(folder / "tuning.svg").getroot().findall("{*}svg")) == 1
    for name in ("workers", "period", "period-k4", "headline"):
        root = ElementTree.parse(folder / f"{name}.svg").getroot()
        assert len(root.findall("{*}svg")) == 2  # iterations and time; rounds and bytes
    assert len(ElementTree.parse(folder / "figure.svg").getroot().findall("{*}svg")) == 4
    with (folder / "ends.csv").open() as file:
        ends = list(csv.DictReader(file))
    assert len(ends) == 12 * 3
    (one,) = [r for r in ends if r["point"] == "k1" and r["seed"] == "0"]
    assert float(one["final_auc"]) == pytest.approx(0.8)
    assert int(one["iterations_to_target"]) == 97
    page = write_overview(tmp_path).read_text()
    assert "abc1234" in page
    assert "modelled" in page
    assert page.count("<svg") == 2 * 4 + 1  # each of the five pictures once
    assert not (folder / "index.html").exists()
    text = (folder / "README.md").read_text()
    assert text.count("| holds |") == 15
    for name in ("workers", "headline"):
        assert f"({name}.svg)" in text


def test_a_study_is_read_again_from_its_tables_and_shown_with_others(tmp_path):
    constants = [StageConstants(16, 8, 1, 0.9, 0.1, 0.02, 0.001, 0.5, 0.3, 5 / 7)]
    kept = [
        KeptRun("k1-eta0.3-t2048-seed0", 0.7, 2.5, 2.25, "abc1234"),
        KeptRun("x", diverged=True),
    ]
    first = shown(made_up(), constants=constants, cpu_seconds=3600.0, runs=kept)
    slow = made_up(points={StudyPoint(16, 8): (0.83, 3.0)})
    second = shown(slow, study=replace(SMALL, model="resnet8", start="estimate"))
    zeros = shown(made_up(), study=replace(SMALL, model="resnet8"))
    for number, each in enumerate((first, second, zeros)):
        write(each, tmp_path / str(number))
    (tmp_path / "1" / "why.md").write_text("It was made up so.")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    write_overview(tmp_path)
    assert {path: path.read_bytes() for path in before} == before
    again = read_shown(tmp_path / "0")
    assert again.results.evaluations == first.results.evaluations
    assert again.constants == constants
    assert again.runs == kept
    assert again.command == first.command
    page = (tmp_path / "index.html").read_text()
    text = (tmp_path / "README.md").read_text()
    for part in (page, text):
        assert "It was made up so." in part
        assert "CIFAR-10 71%, resnet8, estimated start" in part
        assert "K=16, I=8 against K=1: 3.23" in part  # what does not hold, in the first table
        assert "1 h 0 min" in part
    (row,) = [line for line in text.splitlines() if line.endswith("| yes |")]  # of the starts
    assert "K=16, I=8 against K=1" in row
    assert "CIFAR-100 with 71% positives" in text  # which is missing
    assert "A pretrained network" in text
    assert "A network with BatchNorm" not in text
    for file in re.findall(r"\]\(([^)]+\.svg)\)", text):
        assert (tmp_path / file).exists()


def test_the_harmless_periods_of_two_data_sets_are_compared(tmp_path):
    tolerant = {StudyPoint(16, i): (0.83, 9.0) for i in (64, 512, 1024)}
    write(shown(made_up()), tmp_path / "cifar10")
    write(shown(made_up(points=tolerant), study=replace(SMALL, data="imagenet")), tmp_path / "i")
    write_overview(tmp_path)
    text = (tmp_path / "README.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| ImageNet tolerates")]
    assert "Holds in part: 1 of 2 comparisons; K=16: 1024 on ImageNet, 64 on CIFAR-10 71%" in row
    assert "K=4: 512 on ImageNet, 512 on CIFAR-10" in row


def test_tables_that_cannot_be_read_are_named(tmp_path):
    write(shown(made_up()), tmp_path / "study")
    (tmp_path / "study" / "curves.csv").write_text("point\nk1\n")
    with pytest.raises(ValueError, match="study holds tables that cannot be read"):
        write_overview(tmp_path)


def test_an_interval_of_the_largest_harmless_period_is_of_its_losses_intervals():
    assert harmless_range(SMALL, made_up(), 16) == (64, 64, 64)
    doubtful = made_up()
    run = list(doubtful.evaluations[StudyPoint(16, 64)][0])
    run[-1] = replace(run[-1], auc=run[-1].auc - 0.02)
    doubtful.evaluations[StudyPoint(16, 64)][0] = run
    assert harmless_range(SMALL, doubtful, 16) == (64, 8, 64)


def test_without_the_time_of_a_step_nothing_is_said_of_time():
    points = {
        p: {0: [replace(s, seconds=math.nan) for s in runs[0]]}
        for p, runs in made_up().evaluations.items()
    }
    (found,) = [f for f in findings(SMALL, Results(points)) if "time" in f.claim]
    assert (found.holds, found.measured) == (None, "-")


def test_a_study_of_which_nothing_has_run_can_be_shown(tmp_path):
    one = {point: runs for point, runs in made_up().evaluations.items() if point == StudyPoint(1)}
    for number, some in enumerate(({}, one)):  # nor is there a picture in which nothing varies
        write(shown(Results(some), step_seconds=math.nan, tried={}), tmp_path / str(number))
        assert not list(tmp_path.rglob("*.svg"))
    write(shown(Results({}), step_seconds=math.nan, tried={}), tmp_path / "study")
    assert "not measured" in (tmp_path / "study" / "README.md").read_text()
    assert "not measured" in write_overview(tmp_path).read_text()


def test_table_1_has_the_theorys_speedup_beside_the_measured():
    table = tables.counts(SMALL, made_up())
    rows = {(row[0], row[1], row[2]): row for row in table.rows}
    place = table.header.index("theory: times fewer")
    assert rows["PPD-SG", 1, "-"][place] == "1"
    assert rows["NP-PPD-SG", 16, 1][place] == "16"
    assert rows["CoDA", 4, 8][place] == "4"


def test_the_slower_the_link_the_more_a_large_period_is_worth():
    table = tables.links(made_up(), 0.003)
    naive, coda = (table.header.index(name) for name in ("NP-PPD-SG (I=1)", "CoDA (I=64)"))
    ratios = [
        float(r[naive].replace(",", "")) / float(r[coda].replace(",", "")) for r in table.rows
    ]
    assert ratios == sorted(ratios)
    assert ratios[-1] > 5


def test_the_soonest_is_sure_only_with_an_interval():
    def soonest(results):
        (found,) = [f for f in findings(SMALL, results) if "most time-efficient" in f.claim]
        return found.holds, found.sure

    doubtful = made_up()
    assert soonest(doubtful) == (True, True)
    runs = doubtful.evaluations[StudyPoint(16, 8)]
    runs[0] = [replace(record, seconds=100 * record.seconds) for record in runs[0]]
    assert not soonest(doubtful)[1]
