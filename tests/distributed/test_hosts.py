"""Claims about hosts in network namespaces; skipped where they cannot be made."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))
import hosts as hosts_module  # noqa: E402
from hosts import Hosts, HostsError  # noqa: E402

REASON = Hosts.reason()
needs_hosts = pytest.mark.skipif(REASON is not None, reason=f"no hosts here: {REASON}")
MEGABYTE = 1_000_000

SERVER = """
import socket
server = socket.create_server(("0.0.0.0", 7000))
print("ready", flush=True)
connection = server.accept()[0]
count = 0
while data := connection.recv(1 << 20):
    count += len(data)
connection.sendall(str(count).encode())
"""
CLIENT = """
import os, socket, sys, time
connection = socket.create_connection((os.environ["HEAD"], 7000), timeout=20)
start = time.perf_counter()
connection.sendall(bytes(int(sys.argv[1])))
connection.shutdown(socket.SHUT_WR)
print(int(connection.recv(100)), time.perf_counter() - start)
"""


def namespaces():
    path = Path("/run/netns")
    return {entry.name for entry in path.iterdir()} if path.is_dir() else set()


def transfer(hosts, count):
    """Send `count` bytes from host 1 to host 0: how many arrived, and in how many seconds."""
    server = hosts.start(0, [sys.executable, "-c", SERVER], output=subprocess.PIPE)
    assert server.stdout.readline() == b"ready\n"
    client = hosts.start(1, [sys.executable, "-c", CLIENT, str(count)], output=subprocess.PIPE)
    told = client.communicate(timeout=60)[0].split()
    server.communicate(timeout=60)
    return int(told[0]), float(told[1])


def alive(pid):
    """Whether the process runs; one that ended and that nobody asked about yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(name, pids):
    """No namespace of that name, and none of the processes."""
    return name not in namespaces() and not any(map(alive, pids))


@needs_hosts
def test_a_link_carries_what_was_asked_and_its_counters_count_it():
    count, rate = 5 * MEGABYTE, 100e6 / 8
    with Hosts(2, "100mbit") as hosts:
        before = [hosts.counters(i) for i in range(2)]
        arrived, seconds = transfer(hosts, count)
        after = [hosts.counters(i) for i in range(2)]
    assert arrived == count
    assert 0.8 * count / rate < seconds < 5 * count / rate
    assert count <= after[1].sent - before[1].sent < 1.1 * count
    assert count <= after[0].received - before[0].received < 1.1 * count
    assert after[0].sent - before[0].sent < 0.1 * count


@needs_hosts
def test_two_sets_of_hosts_at_once_do_not_meet():
    with Hosts(2, "none") as one, Hosts(2, "none") as other:
        assert not set(one.names) & set(other.names)
        assert transfer(one, MEGABYTE)[0] == MEGABYTE
        assert other.counters(0).received < MEGABYTE / 10


@needs_hosts
def test_a_process_reads_the_counters_of_its_host():
    told = "import hosts; print(*hosts.my_counters())"
    with Hosts(1) as hosts:
        env = {"PYTHONPATH": str(EXPERIMENTS)}
        process = hosts.start(0, [sys.executable, "-c", told], env=env, output=subprocess.PIPE)
        sent, received = map(int, process.communicate(timeout=60)[0].split())
    assert 0 <= sent < 10_000
    assert 0 <= received < 10_000


@needs_hosts
def test_a_process_knows_where_it_is(tmp_path):
    command = ["sh", "-c", f'echo "$NODE $NODES $HEAD $ADDR $TORCHRUN_NODE" > {tmp_path}/$NODE']
    with Hosts(3) as hosts:
        assert hosts.run(lambda _: command) == [0, 0, 0]
        flags = [hosts.torchrun(i) for i in range(3)]
    assert "--rdzv-conf=is_host=1,timeout=120" in flags[0]
    assert "--rdzv-conf=is_host=0,timeout=120" in flags[2]
    for i in range(3):
        told = (tmp_path / str(i)).read_text().split()
        assert told == [str(i), "3", "10.77.0.1", f"10.77.0.{i + 1}", *flags[i]]


@needs_hosts
def test_a_cut_link_carries_nothing_until_it_is_mended():
    with Hosts(2, "none") as hosts:
        hosts.link(1, up=False)
        received = hosts.counters(0).received
        client = hosts.start(1, [sys.executable, "-c", CLIENT, "10"])
        time.sleep(0.5)
        assert client.poll() is None
        assert hosts.counters(0).received < received + 2000  # the switch's own few packets
        hosts.kill(1)
        hosts.link(1, up=True)
        assert transfer(hosts, 10)[0] == 10


@needs_hosts
def test_when_one_fails_the_others_are_not_waited_for_without_end():
    start = time.monotonic()
    with Hosts(2) as hosts:
        commands = [["sleep", "1000"], ["sh", "-c", "exit 3"]]
        codes = hosts.run(lambda i: commands[i], patience=0.2)
    assert codes == [-signal.SIGKILL, 3]
    assert time.monotonic() - start < 500


@needs_hosts
def test_nothing_is_left_after_an_exception():
    hosts = Hosts(2)

    def body():
        with hosts:
            # A session of its own, as torchrun's workers have: killing a group would miss it.
            first = hosts.start(0, ["setsid", "--fork", "sleep", "100"])
            assert first.wait(timeout=60) == 0
            pids.extend(hosts_module._pids(hosts.names[0]))
            assert len(pids) == 1
            raise ZeroDivisionError

    pids = []
    with pytest.raises(ZeroDivisionError):
        body()
    assert gone(hosts.names[0], pids)
    assert gone(hosts.switch, [])
    hosts.close()


@needs_hosts
def test_nothing_is_left_when_making_them_fails(monkeypatch):
    hosts = Hosts(2, "100mbit")
    monkeypatch.setattr(hosts, "_limit", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        hosts.__enter__()
    assert not set(hosts.names) & namespaces()
    assert hosts.switch not in namespaces()


def runs(program, pid):
    """Whether process `pid` runs `program` now."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == program
    except OSError:  # it has ended
        return False


@needs_hosts
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("times", [1, 5])
def test_nothing_is_left_after_a_signal(number, times):
    command = [sys.executable, EXPERIMENTS / "hosts.py", "2", "1mbit", "sleep", "100"]
    # A shell's background jobs ignore SIGINT, and so would this one if the tests run in one.
    process = subprocess.Popen(
        command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    )
    prefix, pids = f"codauc{process.pid}-", []
    deadline = time.monotonic() + 60
    # While the hosts are made, a namespace may also show an `ip` of short life.
    while len(pids) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        mine = [name for name in namespaces() if name.startswith(prefix)]
        found = [pid for name in mine for pid in hosts_module._pids(name)] if len(mine) == 3 else []
        pids = [pid for pid in found if runs("sleep", pid)]
    if len(pids) < 2:
        process.kill()
        process.wait()
    assert len(pids) == 2
    for _ in range(times):
        os.kill(process.pid, number)
        time.sleep(0.005)
    assert process.wait(timeout=60) == 128 + number
    assert not [name for name in namespaces() if name.startswith(prefix)]
    assert gone("", pids)


@needs_hosts
def test_hosts_may_be_made_outside_the_main_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(Hosts.reason()))
    thread.start()
    thread.join(timeout=60)
    assert found == [None]


@needs_hosts
def test_the_command_line_tells_of_failure():
    command = [sys.executable, EXPERIMENTS / "hosts.py", "2", "none", "sh", "-c"]
    assert subprocess.run([*command, "exit 0"], timeout=60, check=False).returncode == 0
    assert subprocess.run([*command, "exit $((NODE * 4))"], timeout=60, check=False).returncode == 4


@pytest.mark.parametrize("count", [0, 251, 2.0])
def test_a_wrong_count_is_refused(count):
    with pytest.raises(ValueError, match="expected an integer from 1 to 250"):
        Hosts(count)


@pytest.mark.parametrize("rate", ["100", "fast", "100mb", "100mbit; reboot"])
def test_a_wrong_rate_is_refused(rate):
    with pytest.raises(ValueError, match="expected a number with bit, kbit, mbit or gbit"):
        Hosts(2, rate)


def test_a_missing_tool_is_named_with_its_package(monkeypatch):
    monkeypatch.setattr(hosts_module, "_PATH", "")
    if sys.platform == "linux":
        with pytest.raises(HostsError, match="no command ip: install iproute2"):
            Hosts(2).__enter__()
    assert Hosts.reason() is not None
