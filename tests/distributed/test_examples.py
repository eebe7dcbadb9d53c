"""The example runs in every way that it says, with one outcome."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "shirts.py"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def run(*arguments):
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_simulated_workers_processes_and_torchrun_have_one_outcome():
    simulated = run(EXAMPLE, "--workers=2", "--simulate")
    processes = run(EXAMPLE, "--workers=2")
    torchrun = run(*TORCHRUN, EXAMPLE)
    assert simulated.stdout == processes.stdout == torchrun.stdout
    assert "2 workers: test AUC 0.8" in simulated.stdout
    assert processes.stderr == ""  # no warning of torch's, at the end or before
    assert "destroy_process_group" not in torchrun.stderr
