"""What a person gets wrong is answered with what to do, without a traceback."""

import pytest

T = ("--target", "fraud", "--positive", "yes")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["train"], "DATA is missing"),
        (["train", "{folder}/paymets.csv", *T], "did you mean '{folder}/payments.csv'?"),
        (["train", "nowhere/at/all.csv", *T], "does not exist"),
        (["train", "{table}"], "--target"),
        (["train", "{table}", "--target", "frad"], "did you mean 'fraud'"),
        (["train", "{table}", "--target", "country"], "say for example --positive"),
        (["train", "{table}", "--target", "fraud", "--positive", "yess"], "yess"),
        (["train", "{table}", *T, "--drop", "agee"], "agee"),
        (["train", "{table}", *T, "--lr", "-1"], "--lr -1.0: expected a number > 0"),
        (["train", "{table}", *T, "--lr", "fast"], "invalid float value: 'fast'"),
        (["train", "{table}", *T, "--stepps", "3"], "did you mean '--steps'?"),
        (["train", "{table}", *T, "--batch-size", "0"], "--batch-size 0"),
        (["train", "{table}", *T, "--model", "tabuler"], "did you mean 'tabular'?"),
        (["train", "{table}", *T, "--model", "resnet18"], "x of shape"),
        (["train", "{table}", *T, "--model-arguments", "widths"], "NAME=VALUE"),
        (["train", "{table}", *T, "--model-arguments", "width=3"], "did you mean 'widths'?"),
        (["train", "{table}", *T, "--recipe", "papre"], "did you mean 'paper'?"),
        (["train", "{table}", *T, "--sync-every", "often"], "theorem, growing, once"),
        (["train", "{table}", *T, "--sync-every", "growing:0"], "expected a number of steps"),
        (["train", "{table}", *T, "--watch", "test"], "must not choose the model"),
        (["train", "{table}", *T, "--workers", "0"], "--workers 0"),
        (["train", "{table}", *T, "--workers", "2", "--simulate", "2"], "one of them"),
        (["train", "{few}", *T, "--simulate", "12", "--quiet"], "at most 9 workers"),
        (["train", "{table}", *T, "--test-fraction", "1.2"], "--test-fraction 1.2"),
        (["train", "{table}", *T, "--test", "nope.csv"], "nope.csv"),
        (["train", "{table}", *T, "--device", "gpu"], "--device gpu cannot"),
        (["train", "{table}", *T, "--config", "nope.toml"], "nope.toml cannot be read"),
        (["train", "{table}", *T, "--config", "{bad}"], "is not TOML"),
        (["train", "{table}", *T, "--config", "{odd}"], "did you mean 'steps'?"),
        (["train", "{table}", *T, "--callback", "nope:Name"], "No module named 'nope'"),
        (["train", "{table}", *T, "--out", "{table}"], "is a file"),
        (["train", "{table}", *T, "--silo", "contry", "--simulate", "2"], "contry"),
        (["train", "{table}", *T, "--keep-negatives", "0"], "--keep-negatives 0.0"),
        (["train", "{table}", *T, "--pretrained", "nope.pt"], "nope.pt"),
        (["train", "fashion-tiny"], "--positive"),
        (["train", "fashion-tiny", "--positive", "11"], "11"),
        (["train", "{folder}"], "no folders"),
        (["trian", "{table}"], "invalid choice: 'trian'"),
        (["evaluate", "nowhere", "{table}"], "is not a directory"),
        (["evaluate", "{folder}", "{table}"], "has no config.toml"),
        (["evaluate", "{run}", "nope.csv"], "nope.csv"),
        (["evaluate", "{run}", "{plain}"], "has no labels"),
        (["evaluate", "{run}", "{other}"], "amount"),
        (["predict", "{run}", "{table}"], "--out"),
        (["predict", "{run}", "{table}", "--out", "scores.xlsx"], ".parquet"),
        (["predict", "{run}", "{table}", "--out", "{table}"], "exists"),
        (["compare", "{run}", "nowhere"], "is not a directory"),
        (["compare"], "RUN"),
        (["report", "{folder}"], "has no summary.json"),
        (["export", "{run}", "--onnx", "{table}"], "exists"),
        (["baselines", "{table}", *T, "--recipe", "bce"], "expected default or paper"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_a_mistake_is_answered(words, answer, table, run, codauc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("steps = = 3")
    (tmp_path / "odd.toml").write_text("[recipe]\nstepps = 3\n")
    (tmp_path / "plain.csv").write_text("age,amount,country\n1,2,DE\n3,4,FR\n")
    (tmp_path / "other.csv").write_text("age,fraud\n1,yes\n3,no\n")
    lines = [f"{i},{i},DE,{'yes' if i % 3 else 'no'}" for i in range(15)]
    (tmp_path / "few.csv").write_text("age,amount,country,fraud\n" + "\n".join(lines))
    names = {
        "table": table, "folder": table.parent, "run": run, "bad": tmp_path / "bad.toml",
        "odd": tmp_path / "odd.toml", "plain": tmp_path / "plain.csv",
        "other": tmp_path / "other.csv", "few": tmp_path / "few.csv",
    }  # fmt: skip
    before = {path.name for path in tmp_path.iterdir()}
    code, output, error = codauc(*(word.format(**names) for word in words))
    assert code == 2, (output, error)
    assert answer.format(**names) in error
    assert "Traceback" not in error
    left = {p.name for p in tmp_path.iterdir()} - before - {"runs"}
    assert not left
