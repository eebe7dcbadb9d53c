"""A claim about hosts of their own, each with a disk of its own: one is lost, the other goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from runs import checkpoints, history, looks, wait_for

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
from hosts import Hosts

REASON = Hosts.reason()
CONF = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=4,read_timeout=10"


def agent(hosts, host, table, out):
    """torchrun in a host, as docs/faults.md says."""
    flags = [
        *("--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=9", "--monitor-interval=0.2"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={hosts.addresses[0]}:29400", "--rdzv-id=test"),
        *(f"--rdzv-conf=is_host={int(host == 0)},{CONF}", f"--local-addr={hosts.addresses[host]}"),
    ]
    options = [
        *(str(table), "--target", "y", "--steps", "1000", "--sync-every", "8", "--resume"),
        *("--checkpoint-rounds", "2", "--out", str(out / str(host)), "--quiet"),
        *("--model", "tabular", "--select", "best"),
    ]
    command = [str(Path(sys.executable).with_name("torchrun")), *flags, "-m", "codauc", "train"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with (out / f"{host}.log").open("wb") as log:
        return hosts.start(
            host, [*command, *options], env=env, output=log, errors=subprocess.STDOUT
        )


@pytest.mark.skipif(REASON is not None, reason=f"no hosts here: {REASON}")
def test_a_cut_link_costs_its_worker_not_the_run(table, tmp_path):
    with Hosts(2, "none") as hosts:
        agents = [agent(hosts, host, table, tmp_path) for host in range(2)]
        wait_for(lambda: looks(tmp_path / "0"))
        last = checkpoints(tmp_path / "0")[-1]
        wait_for(lambda: last not in checkpoints(tmp_path / "0"))  # those that are kept are newer
        hosts.link(1, up=False)
        faults = tmp_path / "0" / "faults.jsonl"
        # not torch's half hour
        wait_for(lambda: faults.exists() and "resumed" in faults.read_text())
        code = agents[0].wait(300)
    assert code == 0, (tmp_path / "0.log").read_text()[-3000:]
    resumed = [json.loads(line) for line in faults.read_text().splitlines() if "resumed" in line]
    assert [(event["workers"], event["exact"]) for event in resumed] == [(1, False)]
    assert {record["workers"] for record in history(tmp_path / "0")} == {1, 2}
    assert json.loads((tmp_path / "0" / "summary.json").read_text())["finished"]
