"""Two hosts, as network namespaces: the command of docs/scale.md as it stands there; a host is lost, or the cable is out."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from all_trainings import make_data, pretraining
from safetensors.torch import load_file

from albertkit.pretraining.run import pretrain
from albertkit.pretraining.settings import PretrainSettings

pytestmark = [
    pytest.mark.net,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None,
        reason="needs root on Linux, with `ip`",
    ),
]
PAGE = (Path(__file__).parents[2] / "docs/scale.md").read_text(encoding="utf-8")
ADDRESSES = {"alpha": "10.99.77.1", "beta": "10.99.77.2"}


def ip(*words):
    subprocess.run(["ip", *words], check=True)


class Host:
    """A network namespace with a name and a table of hosts of its own, on which commands can be started and lost."""

    def __init__(self, name, hosts, log):
        self.name = name
        self.namespace = f"albertkit-{os.getpid()}-{name}"
        self.hosts = hosts
        self.log = log
        self.process = None
        ip("netns", "add", self.namespace)
        ip("-n", self.namespace, "link", "set", "lo", "up")

    def start(self, script):
        named_script = f'hostname {self.name} && mount --bind "{self.hosts}" /etc/hosts && {script}'
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [
                    "ip",
                    "netns",
                    "exec",
                    self.namespace,
                    "unshare",
                    "--uts",
                    "--mount",
                    "bash",
                    "-ec",
                    named_script,
                ],
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                },
            )

    def lose(self):
        """End all that runs on the host, as a loss of power does."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=True
        )
        for number in listed.stdout.split():
            os.kill(int(number), signal.SIGKILL)
        if self.process:
            self.process.wait()

    def connect(self, state):
        """Set the host's end of the cable "up" or "down"."""
        ip("-n", self.namespace, "link", "set", "eth0", state)

    def remove(self):
        self.lose()
        ip("netns", "del", self.namespace)


@pytest.fixture
def hosts(tmp_path):
    """Two hosts that reach each other by name over one cable."""
    table = tmp_path / "hosts"
    table.write_text(
        "127.0.0.1 localhost\n"
        + "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
    )
    started = []
    try:
        for name in ADDRESSES:
            started.append(Host(name, table, tmp_path / f"{name}.log"))
        first, second = started
        ip(
            "-n",
            first.namespace,
            "link",
            "add",
            "eth0",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            second.namespace,
        )
        for host in started:
            ip("-n", host.namespace, "address", "add", f"{ADDRESSES[host.name]}/24", "dev", "eth0")
            ip("-n", host.namespace, "link", "set", "eth0", "up")
        yield first, second
    finally:
        for host in started:
            host.remove()


def documented(store, run):
    """The command of the page for several machines, with what a reader has to put in."""
    (block,) = [
        block
        for block in re.findall("```bash\n(.*?)```", PAGE, re.DOTALL)
        if "--rdzv-endpoint" in block
    ][:1]
    for word, value in (("--nnodes 8", "--nnodes 2"), ("--nproc-per-node 8", "--nproc-per-node 1"), (" JOB", " test"),
                        ("HOST", "alpha"), ("STORE", str(store)), ("RUN", str(run))):  # fmt: skip
        assert re.search(rf"{word}\b", block), word
        block = re.sub(rf"(?<![A-Z_]){word}(?![A-Z_])", value, block)
    return block.strip()


@pytest.fixture
def command(hosts, tmp_path):
    """The documented command, with data and settings to run it."""
    make_data(tmp_path)
    settings = PretrainSettings(
        **{**pretraining(tmp_path), "steps": 1200, "save_every": 100, "eval_every": 0}
    )
    settings.save(tmp_path / "settings.toml")
    return f"{documented(tmp_path / 'store', tmp_path / 'run')} --config-file {tmp_path / 'settings.toml'}"


def start(command, hosts, run):
    for host in hosts:
        host.start(command)
    wait_for((run / "checkpoints/step-000100").exists, hosts)
    assert not (run / "final").exists()


def test_a_host_is_lost_and_brought_back(command, hosts, tmp_path):
    """The run goes on when the host is there again, and ends with the bits of an undisturbed one."""
    start(command, hosts, tmp_path / "run")
    first, second = hosts
    second.lose()
    time.sleep(5)  # the first host has met the loss, and waits for the second
    second.start(command)
    check_finished(hosts, tmp_path)
    assert "resumed at step" in first.log.read_text() + second.log.read_text()


def test_a_cable_that_is_out_for_a_while_delays_a_run(command, hosts, tmp_path):
    start(command, hosts, tmp_path / "run")
    hosts[1].connect("down")
    time.sleep(10)
    hosts[1].connect("up")
    check_finished(hosts, tmp_path)
    assert "resumed at step" not in hosts[0].log.read_text()


def test_a_cable_that_stays_out_ends_a_run_that_can_be_resumed(command, hosts, tmp_path):
    """Both hosts say so once the processes have waited for `TIMEOUT`, which is 15 s here; torchrun itself waits on."""
    impatient = "from datetime import timedelta; from albertkit.training import processes; from albertkit.cli import main; "
    impatient += "processes.TIMEOUT = timedelta(seconds=15); main()"
    (tmp_path / "impatient.py").write_text(impatient)
    start(
        command.replace("-m albertkit.cli", str(tmp_path / "impatient.py")), hosts, tmp_path / "run"
    )
    hosts[1].connect("down")
    for host in hosts:
        wait_for(lambda log=host.log: "error[worker-died]" in log.read_text(), hosts)
        assert "a network that is down" in host.log.read_text()
    for host in hosts:
        host.lose()
    hosts[1].connect("up")
    for host in hosts:
        host.start(command)
    check_finished(hosts, tmp_path)
    assert "resumed at step" in hosts[0].log.read_text()


def check_finished(hosts, folder):
    """Make sure that the run ends with the bits of an undisturbed one."""
    for host in hosts:
        assert host.process
        assert host.process.wait(timeout=300) == 0, host.log.read_text()
    settings = PretrainSettings(**PretrainSettings.read(folder / "settings.toml"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        pretrain(folder / "store", folder / "undisturbed", replace(settings, processes=2))
    finally:
        torch.set_num_threads(threads)
    expected, weights = (
        load_file(folder / name / "final/model.safetensors") for name in ("undisturbed", "run")
    )
    assert expected.keys() == weights.keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in expected.items())


def wait_for(is_there, hosts):
    deadline = time.monotonic() + 240
    while not is_there():  # type: ignore[operator]
        assert all(host.process and host.process.poll() is None for host in hosts), [
            h.log.read_text() for h in hosts
        ]
        assert time.monotonic() < deadline, [host.log.read_text() for host in hosts]
        time.sleep(0.05)
