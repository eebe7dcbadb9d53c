"""What another host reaches of a run on one machine: nothing. Hosts are network namespaces."""

import ipaddress
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import codauc

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

from hosts import Hosts

HERE = Path(__file__).parent
PACKAGE = Path(codauc.__file__).parents[1]
REASON = Hosts.reason()
needs_hosts = pytest.mark.skipif(REASON is not None, reason=f"no hosts can be made here: {REASON}")

WAITING = """
import functools, pathlib, sys, codauc, workers
if __name__ == "__main__":
    work = functools.partial(workers.writes_pid_and_waits, directory=pathlib.Path(sys.argv[1]))
    codauc.launch(work, workers=2)
"""

# A host that only knows the address: it tries the ports, and where a store of torch answers it puts
# a pickle that makes a file under every name by which a launcher could keep its state.
STRANGER = """
import base64, os, pickle, socket, sys, threading, time
host, marker, *ports = sys.argv[1:]
reached = []
for port in map(int, ports):
    try:
        socket.create_connection((host, port), timeout=5).close()
        reached.append(port)
    except OSError:
        pass
print("reached", *reached, flush=True)

class Payload:
    def __reduce__(self):
        return os.system, (f"touch {marker}",)

def attack(port):
    from torch.distributed import TCPStore
    store = TCPStore(host, port, is_master=False, wait_for_workers=False)
    text = base64.b64encode(pickle.dumps(Payload()))
    while True:
        for key in store.list_keys():
            if "torch.rendezvous" in key:
                store.set(key.removeprefix("/"), text)
        time.sleep(0.05)

for port in reached:  # where something else listens, torch waits for ever
    threading.Thread(target=attack, args=(port,), daemon=True).start()
deadline = time.monotonic() + 30 * bool(reached)
while time.monotonic() < deadline and not os.path.exists(marker):
    time.sleep(0.1)
os._exit(0)
"""


def listening(pid):
    """The address and the port of every socket that listens in the network of a process."""
    found = []
    if os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        return found  # it has not yet entered its host
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A":
                address, port = local.split(":")
                words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
                found.append((ipaddress.ip_address(b"".join(words)), int(port, 16)))
    return found


def start_launch(hosts, directory):
    script, pids = directory / "script.py", directory / "pids"
    script.write_text(WAITING)
    pids.mkdir()
    return hosts.start(
        0,
        [sys.executable, str(script), str(pids)],
        env={"PYTHONPATH": os.pathsep.join([str(PACKAGE), str(HERE)])},
    )


def start_train(hosts, directory):
    table = directory / "table.csv"
    table.write_text("x,y\n" + "".join(f"{i % 7},{i % 3 // 2}\n" for i in range(600)))
    out = directory / "run"
    options = ["--target", "y", "--workers", "2", "--steps", "1000000", "--quiet"]
    return hosts.start(
        0,
        [sys.executable, "-m", "codauc", "train", str(table), *options, "--out", str(out)],
        env={"PYTHONPATH": str(PACKAGE)},
    )


@needs_hosts
@pytest.mark.parametrize("start", [start_launch, start_train])
def test_another_host_reaches_nothing_of_a_run_and_cannot_run_code(start, tmp_path):
    marker = tmp_path / "code-of-a-stranger-was-run"
    with Hosts(2, "none") as hosts:
        # an address that some set-ups give the loopback interface, which others can reach
        named = ["ip", "-n", hosts.names[0], "addr", "add", "10.77.9.9/32", "dev", "lo"]
        subprocess.run(named, check=True)
        process = start(hosts, tmp_path)
        while len(sockets := listening(process.pid)) < 2:  # gloo's, one in each worker at least
            assert process.poll() is None
            time.sleep(0.1)
        ports = [str(port) for _, port in sockets]
        attack = [sys.executable, "-c", STRANGER, hosts.addresses[0], str(marker), *ports]
        stranger = hosts.start(1, attack, output=subprocess.PIPE)
        said = stranger.communicate(timeout=200)[0].decode().split()
        assert process.poll() is None  # it ran all the while
    assert not marker.exists()
    assert [f"{a}:{p}" for a, p in sockets if not a.is_loopback] == []
    assert said == ["reached"]


def test_only_the_user_can_enter_a_launchs_directory(monkeypatch, tmp_path):
    from codauc.workers.processes import _own_directory

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    victim = tmp_path / "victim"
    victim.mkdir()
    link = tmp_path / "codauc-launch-link"  # as another user could make it
    link.symlink_to(victim)
    os.utime(victim, (0, 0))
    os.utime(link, (0, 0), follow_symlinks=False)
    with _own_directory() as directory:
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
    assert victim.is_dir()
    assert link.is_symlink()
