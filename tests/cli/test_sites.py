"""Claims about `codauc train --silo`: what it chooses, says and shows, and a site left out."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib

import numpy as np
import pytest

import codauc
from codauc.runs.directory import RunFolder
from codauc.runs.settings import CommunicationSettings, RunSettings
from codauc.training.recipe import communication_for
from codauc.training.site_choice import site_lines, unlikeness, with_choices, with_workers
from codauc.training.site_results import SiteResult

SIZES = {"Bad Tölz": 90, "東京, north": 80, 'the "third"': 60, "all sick": 20, "one": 1}
QUICK = ("--target", "sick", "--steps", "8", "--sync-every", "4", "--evaluations", "2", "--quiet")
BY_SITE = (*QUICK, "--silo", "the site")


def write(path, sizes=SIZES):
    """Patients of sites with other shares of sick ones."""
    rng = np.random.default_rng(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "dose", "the site", "sick"])
        for place, (name, size) in enumerate(sizes.items()):
            for _ in range(size):
                sick = name == "all sick" or rng.random() < 0.2 + 0.2 * (place % 3)
                writer.writerow(
                    [f"{rng.normal(40 + 9 * sick, 9):.1f}", rng.integers(9), name, int(sick)]
                )
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "patients.csv")


@pytest.fixture(scope="module")
def ended(source, tmp_path_factory):
    """A run with a worker for each site."""
    out = tmp_path_factory.mktemp("runs") / "r"
    summary = codauc.train(
        source, out, target="sick", silo="the site", steps=8, sync_every=4, evaluations=2
    )
    return summary, RunFolder(out)


def test_each_site_gets_a_worker_and_the_config_says_so(ended):
    _, folder = ended
    ways = tomllib.loads((folder / "config.toml").read_text())["communication"]
    assert (ways["workers"], ways["simulate"], ways["dual"]) == (5, True, "pooled")
    assert (ways["correct"], ways["worker_weight"]) == ("scaffold", "samples")


def test_the_summary_has_every_site_with_its_rows_and_auc(ended):
    summary, folder = ended
    sites = {site["name"]: site for site in summary["sites"]}
    assert {name: site["samples"] for name, site in sites.items()} == SIZES
    assert sorted(site["worker"] for site in sites.values()) == [0, 1, 2, 3, 4]
    assert sum(site["test_samples"] for site in sites.values()) == summary["test_samples"]
    found, rows = folder.scores(), folder.test_rows()
    first = np.cumsum([0, *SIZES.values()])
    for place, name in enumerate(("Bad Tölz", "東京, north")):
        mine = (rows >= first[place]) & (rows < first[place + 1])
        auc = codauc.auc_interval(found.scores[mine], found.labels[mine])
        assert sites[name]["auc"] == pytest.approx(auc.value)
        assert sites[name]["auc_low"] == pytest.approx(auc.low)
        assert sites[name]["drift"] > 0
    assert sites["all sick"]["auc"] is None
    assert sites["one"]["test_samples"] == 0
    assert json.loads((folder / "summary.json").read_text())["sites"] == summary["sites"]


def test_the_table_and_the_report_say_why_a_site_has_no_auc(ended):
    summary, folder = ended
    text = repr(summary)
    assert re.search(r"all sick +\d +20 +100% +\d+ +all positive", text)
    assert re.search(r"one +\d +1 .* no test rows", text)
    assert "東京, north" in text
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<h2>Sites</h2>" in page
    assert "Test AUC of each site" in page
    assert "the &#34;third&#34;" in page
    assert "all positive" in page


def test_what_was_found_and_chosen_is_said_in_three_lines(source, codauc, tmp_path):
    typed = [word for word in BY_SITE if word != "--quiet"]
    code, _, error = codauc("train", source, *typed, "--simulate", "2", "--out", tmp_path / "r")
    assert code == 0
    said = [line for line in error.splitlines() if re.match("Sites|Workers|Shares", line)]
    assert said[0].startswith("Sites: 5 in 'the site': Bad Tölz (90 samples, ")
    assert "Of one class: 'all sick', 'one'. They take part" in error
    assert said[1] == "Workers: 2, for 5 sites, none of them divided, simulated in this process."
    assert said[2].startswith("Shares of positives differ (")
    assert "--dual pooled" in said[2]
    assert "workers average every 4 steps, count by their samples (--worker-weight" in said[2]
    assert "their steps are corrected (--correct scaffold)" in said[2]


def test_one_worker_holds_all_sites_and_still_tells_them_apart(source, codauc, tmp_path):
    code, out, _ = codauc("train", source, *BY_SITE, "--workers", "1", "--out", tmp_path / "r")
    assert code == 0
    assert re.search(r"Bad Tölz +0 +90", out)
    assert re.search(r"東京, north +0 +80", out)


def settings_of(source, **data):
    return RunSettings().with_changes("data", source=str(source), target="sick", **data)


def test_many_sites_get_sixteen_workers_and_a_number_that_was_given_stays(tmp_path):
    source = write(tmp_path / "many.csv", {f"s{i}": 9 for i in range(40)})
    asked = settings_of(source, silo="the site")
    found = with_workers(asked).communication
    assert (found.workers, found.simulate) == (16, True)
    three = asked.with_changes("communication", workers=3)
    assert with_workers(three) is three
    assert with_workers(settings_of(source)).communication == CommunicationSettings()


def test_a_site_left_out_has_no_worker(source):
    left_out = settings_of(source, silo="the site", test_site="Bad Tölz")
    assert with_workers(left_out).communication.workers == 4
    more = left_out.with_changes("communication", workers=5)
    assert with_workers(more).communication.workers == 4


def sites(*counts):
    return [SiteResult(f"s{i}", i, n, up, 0, 0) for i, (n, up) in enumerate(counts)]


def test_the_dual_follows_from_the_sites_unless_it_was_said():
    like, unlike = sites((500, 100), (500, 103)), sites((500, 100), (500, 300))
    asked = settings_of("t.csv", silo="the site")
    assert with_choices(asked, like).communication.dual == "mean"
    assert with_choices(asked, unlike).communication.dual == "pooled"
    said = asked.with_changes("communication", dual="mean")
    assert with_choices(said, unlike) is said


def test_where_labels_differ_workers_average_often_by_samples_and_corrected():
    def chosen(workers=4, unlike=0.2, recipe=None, **ways):
        asked = RunSettings().with_changes("communication", **ways)
        asked = asked.with_changes("recipe", name=recipe) if recipe else asked
        found = communication_for(asked, workers, unlike)
        return found.sync_every, found.correct, found.worker_weight

    assert chosen() == (8, "scaffold", "samples")
    assert chosen(unlike=0.01) == (32, "scaffold", "samples")
    plain = (32, "none", "equal")
    assert chosen(unlike=0.0) == chosen(recipe="paper") == chosen(delay=4) == plain
    assert chosen(averages="gradients") == plain
    assert chosen(workers=1) == (None, "none", "equal")
    assert chosen(sync_every=64, correct="none") == (64, "none", "samples")
    assert chosen(unlike=0.0, worker_weight="samples") == (32, "none", "samples")


def test_sites_are_as_unlike_as_their_labels_and_skewed_shards_wholly():
    like, unlike = sites((500, 100), (500, 103)), sites((500, 100), (500, 300))
    asked = settings_of("t.csv", silo="the site")
    assert unlikeness(asked, like) == 0
    assert unlikeness(asked, unlike) == pytest.approx(1 / 6)
    assert unlikeness(settings_of("t.csv", skew=0.1), []) == 1
    assert unlikeness(settings_of("t.csv"), []) == 0


def test_many_sites_are_said_by_their_ranges():
    many = sites(*((20 + i, 2 + i) for i in range(40)))
    line = site_lines(many, settings_of("t.csv", silo="the site"))[0]
    assert line == "Sites: 40 in 'the site': 20 to 59 samples, 10% to 69.5% positive."


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--test-site", "bad tölz"), "is no site in the column 'the site'"),
        (("--test-site", "all sick"), "expected both classes, which an AUC needs"),
        (("--simulate", "6"), "use at most 5 workers"),
        (("--test-site", "each", "--profile"), "--test-site each with --profile: expected one run"),
        (("--least-samples", "3"), "fewer than 3 of the training rows of 'one' have the label"),
        (
            ("--least-samples", "20"),
            "that would be fewer than 20 rows: expected both",
        ),
    ],
)
def test_what_cannot_be_is_said_in_the_words_of_the_command(
    more, message, source, codauc, tmp_path
):
    workers = () if "--simulate" in more else ("--simulate", "5" if "--least" in more[0] else "4")
    code, _, error = codauc("train", source, *BY_SITE, *workers, *more, "--out", tmp_path / "r")
    assert code == 2
    assert message in error
    assert "test_site=" not in error


def test_workers_with_files_of_their_own_are_sites(source, tmp_path):
    rows = source.read_text(encoding="utf-8").splitlines()
    for rank in (0, 1):
        lines = [rows[0], *rows[1 + 80 * rank : 81 + 80 * rank]]
        (tmp_path / f"d{rank}.csv").write_text("\n".join(lines), encoding="utf-8")
    summary = codauc.train(
        str(tmp_path / "d{rank}.csv"), tmp_path / "r", own=True, workers=2, simulate=True,
        target="sick", drop=["the site"], steps=4, evaluations=1,
    )  # fmt: skip
    assert [(site["name"], site["samples"]) for site in summary["sites"]] == [
        ("worker 0", 80),
        ("worker 1", 80),
    ]


def test_rows_of_a_test_file_are_of_their_site_or_it_is_said(source, tmp_path):
    text = source.read_text(encoding="utf-8").splitlines()
    (tmp_path / "t.csv").write_text("\n".join([text[0], *text[60:120]]), encoding="utf-8")
    (tmp_path / "u.csv").write_text(
        "\n".join(re.sub(r",(\".*\"|[^,]*),([^,]*)$", r",\2", line) for line in
                  [text[0], *text[60:90]]), encoding="utf-8",
    )  # fmt: skip
    how = {"target": "sick", "silo": "the site", "workers": 2, "simulate": True, "steps": 4}
    how |= {"evaluations": 1}
    found = codauc.train(source, tmp_path / "r", test=str(tmp_path / "t.csv"), **how)["sites"]
    tested = {site["name"]: site["test_samples"] for site in found}
    assert tested == {"Bad Tölz": 31, "東京, north": 29, 'the "third"': 0, "all sick": 0, "one": 0}
    summary = codauc.train(source, tmp_path / "s", test=str(tmp_path / "u.csv"), **how)
    assert {site["test_samples"] for site in summary["sites"]} == {0}
    assert any("has no column 'the site'" in note for note in summary["notes"])


def test_without_sites_there_is_no_section(source, tmp_path):
    summary = codauc.train(source, tmp_path / "r", target="sick", steps=4, evaluations=1)
    assert "sites" not in summary
    assert "<h2>Sites</h2>" not in (tmp_path / "r/report.html").read_text(encoding="utf-8")


EACH = (*BY_SITE, "--test-site", "each", "--simulate", "2")


def test_each_site_is_left_out_in_turn_also_after_a_kill(source, codauc, tmp_path):
    out = tmp_path / "runs"
    command = [sys.executable, "-m", "codauc", "train", source, *EACH, "--out", out]
    process = subprocess.Popen(
        [str(word) for word in command], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    deadline = time.monotonic() + 120
    while not (out / "site-1-Bad_Tölz/config.toml").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = (out / "all/summary.json").stat().st_mtime_ns
    code, table, _ = codauc("train", "--resume", "--out", out, "--quiet")
    assert code == 0
    assert (out / "all/summary.json").stat().st_mtime_ns == before
    assert re.search(r"Bad Tölz +90 +\d+ +0\.\d+ +0\.\d+ +[-+]0\.\d+ \(", table)
    assert re.search(r"all sick +20 .*all rows are positive", table)
    assert re.search(r"one +1 .*all rows are", table)
    found = json.loads((out / "left_out.json").read_text())["sites"]
    first = next(site for site in found if site["site"] == "Bad Tölz")
    assert first["cost"] == pytest.approx(first["took_part"] - first["left_out"])
    assert first["cost_low"] <= first["cost"] <= first["cost_high"]
    alone = RunFolder(out / "site-1-Bad_Tölz")
    assert alone.summary()["test_samples"] == 90
    assert "What leaving a site out costs" in (out / "all/report.html").read_text(encoding="utf-8")
    code, _, error = codauc("train", source, *EACH, "--out", out)
    assert code == 2
    assert "already holds runs" in error
    config = (out / "config.toml").read_bytes()
    for more, message in (
        (("--steps", "9"), "--steps is 8 in the run that was saved, 9 here"),
        (("--test-site", "Bad Tölz"), "holds the runs of --test-site each"),
    ):
        code, _, error = codauc("train", "--resume", "--out", out, "--quiet", *more)
        assert code == 2
        assert message in error
        assert (out / "config.toml").read_bytes() == config
    code, _, error = codauc("train", source, *BY_SITE, "--out", out)
    assert code == 2
    assert "already holds a run" in error


def test_the_directory_of_one_run_is_not_taken_for_each_site(source, codauc, ended):
    out = ended[1].path
    config = (out / "config.toml").read_bytes()
    code, _, error = codauc("train", "--resume", "--out", out, "--test-site", "each")
    assert code == 2
    assert "holds one run, not those of --test-site each" in error
    assert (out / "config.toml").read_bytes() == config


def test_a_group_is_not_both_at_the_test_site_and_trained_on(source, codauc, tmp_path):
    more = ("--test-site", "Bad Tölz", "--group", "dose", "--out", tmp_path / "r")
    code, _, error = codauc("train", source, *BY_SITE, *more)
    assert code == 2
    assert "9 groups have rows of the site and of others" in error


def test_a_site_that_is_left_out_has_no_drift(source, tmp_path):
    how = {"target": "sick", "silo": "the site", "steps": 8, "sync_every": 4, "evaluations": 2}
    summary = codauc.train(source, tmp_path / "r", test_site="Bad Tölz", **how)
    without = {site["name"] for site in summary["sites"] if site.get("drift") is None}
    assert without == {"Bad Tölz"}


def test_each_site_is_refused_where_a_site_is_called_each(codauc, tmp_path):
    source = write(tmp_path / "s.csv", {"each": 40, "other": 40})
    code, _, error = codauc("train", source, *EACH, "--out", tmp_path / "r")
    assert code == 2
    assert "a site in 'the site' has that name" in error
    assert "left_out" not in error


def elsewhere(path, names, off):
    """Patients of sites whose instruments have another zero and another unit."""
    rng = np.random.default_rng(1)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "dose", "site", "sick"])
        for row in range(400):
            place, sick = row % len(names), int(rng.random() < 0.4)
            age = rng.normal(3 * sick) * (place + 1) + off * place
            writer.writerow([f"{age:.4f}", rng.integers(9), names[place], sick])
    return path


def test_scaled_by_their_own_rows_sites_measure_as_they_like_and_have_their_own_models(tmp_path):
    source = elsewhere(tmp_path / "p.csv", "ab", 1000)
    how = {"target": "sick", "silo": "site", "steps": 60, "evaluations": 2}
    found = codauc.train(source, tmp_path / "own", scale="own", **how)
    config = tomllib.loads((tmp_path / "own/config.toml").read_text())
    assert config["data"]["scale"] == "own"
    assert min(site["auc"] for site in found["sites"]) > 0.85
    encoders = [
        codauc.load_model(tmp_path / "own" / name).encoder.numbers[0]
        for name in ("model.safetensors", "model-worker-1.safetensors")
    ]
    assert [round(age.mean / 100) for age in encoders] == [0, 10]
    assert encoders[0].std < 0.8 * encoders[1].std
    codauc.train(source, tmp_path / "own", overwrite=True, **how)
    assert not (tmp_path / "own/model-worker-1.safetensors").exists()


def test_ranges_are_those_of_all_sites_where_rows_are_not_dealt_out(tmp_path):
    source = elsewhere(tmp_path / "p.csv", "abc", 5)
    how = {"target": "sick", "steps": 8, "sync_every": 4, "evaluations": 2}
    edges = []
    for name, ways in (("one", {}), ("three", {"silo": "site"})):
        codauc.train(source, tmp_path / name, drop=["site"] * (not ways), **how, **ways)
        model = codauc.load_model(tmp_path / name / "model.safetensors").model
        edges.append(model.pieces.starts[0])
    spread = edges[0].max() - edges[0].min()
    assert (edges[0] - edges[1]).abs().max() < 0.1 * spread


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--scale", "own"), "--scale own without sites: expected --silo COLUMN"),
        (("--silo", "the site", "--scale", "own", "--test-site", "one"), "--test-site one"),
        (("--silo", "the site", "--norm", "local"), "a network without running statistics"),
        (("--silo", "the site", "--scale", "site"), "expected one of"),
        (("--silo", "sick"), "--silo sick is the column of labels: expected that of"),
        (("--skew", "-1", "--simulate", "2"), "--skew -1"),
    ],
)
def test_what_a_site_cannot_have_of_its_own_is_refused(source, codauc, options, message, tmp_path):
    code, _, error = codauc("train", source, *QUICK, *options, "--out", tmp_path / "r")
    assert code == 2
    assert message in error
    assert not (tmp_path / "r").exists()


def test_statistics_of_their_own_are_in_the_config_and_in_each_workers_model(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 1, 8, 8)).astype(np.float32)
    y = np.arange(120) % 3 == 0
    x[y, :, :4] += 1
    np.savez(tmp_path / "x.npz", x=x, y=y)
    how = {"target": "y", "workers": 2, "simulate": True, "steps": 8, "sync_every": 4}
    how |= {"model": "convnet", "warm_start": 0.0, "evaluations": 2}
    codauc.train(tmp_path / "x.npz", tmp_path / "r", norm="local", **how)
    config = tomllib.loads((tmp_path / "r/config.toml").read_text())
    assert config["communication"]["norm"] == "local"
    one, two = (
        codauc.load_model(tmp_path / "r" / name).model.state_dict()
        for name in ("model.safetensors", "model-worker-1.safetensors")
    )
    for name, tensor in one.items():
        same = "running" not in name
        assert bool((tensor == two[name]).all()) == same, name
