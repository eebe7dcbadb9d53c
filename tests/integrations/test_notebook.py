"""A real notebook, executed by a real kernel."""

import os
import sys

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")
nbformat = pytest.importorskip("nbformat", reason="nbformat comes with nbclient")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

DATA = """
import numpy as np, pandas as pd, codauc
rng = np.random.default_rng(0)
x = rng.normal(size=(600, 3))
frame = pd.DataFrame(x, columns=list("abc")).assign(y=x[:, 0] + rng.normal(size=600) > 1.2)
"""
TRAIN = 'codauc.train(frame, target="y", steps=40)'
SIMULATED = 'codauc.train(frame, target="y", steps=40, workers=2, simulate=True)["test_auc"]'
TWO = f"{TRAIN}; {TRAIN}; None"
ESTIMATOR = 'codauc.AUCClassifier(steps=40, verbose=1).fit(frame[["a", "b"]], frame["y"]); None'
INTERRUPTED = """
import os, signal
class Press(codauc.Callback):  # the stop button
    def on_step(self, step, stage, rounds):
        if step == 30:
            os.kill(os.getpid(), signal.SIGINT)
summary = codauc.train(frame, target="y", steps=100_000, callbacks=[Press()])
summary["interrupted"], summary["steps"] < 1000, summary["test_auc"] is not None
"""
QUIET = 'codauc.train(frame, target="y", steps=40, quiet=True)["steps"]'


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The outputs of each cell."""
    folder = tmp_path_factory.mktemp("notebook")
    sources = [DATA, TRAIN, SIMULATED, TWO, ESTIMATOR, INTERRUPTED, QUIET]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    spec = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=spec)
    client.execute(env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    return dict(zip(sources, (cell.outputs for cell in notebook.cells), strict=True))


def shown(outputs):
    """Kinds of outputs, and what displays show as text."""
    return [output.output_type for output in outputs]


def test_training_shows_one_bar_and_the_summary(cells):
    outputs = cells[TRAIN]
    assert shown(outputs) == ["display_data", "execute_result"]
    bar, summary = (output.data for output in outputs)
    assert '<progress value="1.000"' in bar["text/html"]
    assert "train 100%" in bar["text/plain"]
    assert "\n" not in bar["text/plain"]
    assert "<svg" in summary["text/html"]
    assert "Test AUC 0." in summary["text/html"]
    assert "\nTest AUC 0." in summary["text/plain"]
    assert "\nReport: runs/memory-1/report.html" in summary["text/plain"]


def test_simulated_workers_show_one_bar(cells):
    assert shown(cells[SIMULATED]) == ["display_data", "execute_result"]
    assert "round" in cells[SIMULATED][0].data["text/plain"]


def test_two_runs_of_a_cell_share_the_bar(cells):
    assert shown(cells[TWO]) == ["display_data"]


def test_the_estimator_shows_the_same_bar(cells):
    assert shown(cells[ESTIMATOR]) == ["display_data"]
    assert "train 100%" in cells[ESTIMATOR][0].data["text/plain"]


def test_the_stop_button_keeps_the_model(cells):
    assert shown(cells[INTERRUPTED]) == ["display_data", "execute_result"]
    assert cells[INTERRUPTED][1].data["text/plain"] == "(True, True, True)"


def test_quiet_shows_nothing(cells):
    assert shown(cells[QUIET]) == ["execute_result"]
