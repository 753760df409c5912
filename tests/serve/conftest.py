"""Small models with random weights of every kind, and services that run them, each a process of its own on a free port."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import torch

from albertkit import model as public
from albertkit.captioning.backbones import load_backbone
from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.layers import CaptionConfig
from albertkit.captioning.model import AlbertForImageCaptioning
from albertkit.captioning.video import FrameSampling
from albertkit.config import AlbertConfig
from albertkit.pipelines.load import load_pipeline
from albertkit.tokenizer import train_tokenizer

WORDS = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions near calm rivers".split()
SMALL = {
    **{"embedding_size": 16, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2},
    **{"intermediate_size": 128, "max_position_embeddings": 64, "initializer_range": 0.2},
}
MODELS = {  # class and changes of SMALL; the name says what the model does
    "pretrained": (public.AlbertForPreTraining, {}),
    "classify": (public.AlbertForSequenceClassification, {"num_labels": 3}),
    "score": (public.AlbertForSequenceClassification, {"num_labels": 1}),
    "tag": (public.AlbertForTokenClassification, {"num_labels": 5}),
    "answer": (public.AlbertForQuestionAnswering, {}),
    "choose": (public.AlbertForMultipleChoice, {}),
}
PATIENCE = 120  # seconds, for a machine that has much else to do


def _sentences(count, seed=0, longest=30):
    """Texts of 1 to `longest` of WORDS."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, longest + 1))) for _ in range(count)]


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Return the folder of each model by its name."""
    root = tmp_path_factory.mktemp("models")
    tokenizer = train_tokenizer(_sentences(400, 1, 12), root / "tokenizer", 56)
    config = AlbertConfig(vocab_size=tokenizer.vocab_size, **SMALL)
    torch.manual_seed(0)
    for name, (model_class, changes) in MODELS.items():
        model_class(config.with_changes(**changes)).eval().save_pretrained(root / name, tokenizer)
    _captioner(config, tokenizer).save_pretrained(root / "caption")
    return {name: root / name for name in (*MODELS, "caption")}


def _captioner(config, tokenizer):
    sampling = FrameSampling(num_frames=4, size=32)
    backbone = load_backbone("conv3d", {"width": 64})
    grid = backbone.grid(sampling.num_frames, sampling.size)
    model = AlbertForImageCaptioning(
        CaptionConfig(img_feature_dim=64, grid=grid).stored_in(config)
    ).eval()
    return VideoCaptioner(model, tokenizer, backbone, sampling, grid)


@dataclass
class Running:
    """A service that runs.

    Attributes:
        process: The front.
        key: The API key, which is sent with every request.
        url: Where it listens.
        lines: Its log so far.
    """

    process: "subprocess.Popen[str]"
    key: str | None = None
    url: str = ""
    lines: list[dict[str, Any]] = field(default_factory=list)

    def client(self, **options):
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return httpx.Client(
            base_url=self.url, timeout=PATIENCE, trust_env=False, headers=headers, **options
        )

    @property
    def address(self):
        """Host and port."""
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def get(self, path, **options):
        with self.client() as client:
            return client.get(path, **options)

    def post(self, path, body, **options):
        with self.client() as client:
            return client.post(
                path,
                **({"content": body} if isinstance(body, bytes) else {"json": body}),
                **options,
            )

    def upload(self, content, name="a.mp4", **options):
        with self.client() as client:
            return client.post("/caption", files={"file": (name, content)}, **options)

    def refusal(self, path, body, **options):
        """The status and the slug of the error that a request leads to."""
        answer = self.post(path, body, **options)
        return answer.status_code, answer.json()["error"]["slug"]

    def metric(self, name):
        """The sum of a metric over its labels."""
        rows = [
            row
            for row in self.get("/metrics").text.splitlines()
            if row.split("{")[0].split(" ")[0] == name
        ]
        return sum(float(row.rsplit(" ", 1)[1]) for row in rows)

    @property
    def worker(self):
        """The process that runs the models of text; captioners have one of their own, which is started after it."""
        return self.workers[0]

    @property
    def workers(self):
        """The processes that run models, the oldest first."""
        return sorted(psutil.Process(self.process.pid).children(), key=psutil.Process.create_time)

    def wait_until(self, holds):
        end = time.monotonic() + PATIENCE
        while not holds():
            assert self.process.poll() is None, self.lines
            assert time.monotonic() < end, self.lines[-5:]
            time.sleep(0.05)

    def wait_until_ready(self):
        self.wait_until(lambda: self.get("/ready").status_code == 200)

    def end(self, how=signal.SIGTERM):
        """The exit status."""
        self.process.send_signal(how)
        return self.process.wait(PATIENCE)


@contextmanager
def _running(*arguments, key=None):
    """`albertkit serve` with these arguments, ready."""
    environment = {name: value for name, value in os.environ.items() if name != "ALBERTKIT_API_KEY"}
    environment |= {"PYTHONWARNINGS": "ignore"} | (
        {} if key is None else {"ALBERTKIT_API_KEY": key}
    )
    options = "-W ignore -m albertkit serve --port 0 --precision fp32".split()
    command = [sys.executable, *options, *map(str, arguments)]
    streams = dict(stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    process = subprocess.Popen(command, text=True, env=environment, **streams)
    service = Running(process, key)
    reader = threading.Thread(target=_read_log, args=(process, service.lines), daemon=True)
    reader.start()
    try:
        service.wait_until(lambda: any("url" in line for line in service.lines))
        service.url = next(line["url"] for line in service.lines if "url" in line)
        service.wait_until_ready()
        yield service
    finally:
        process.kill()
        process.wait()
        reader.join(PATIENCE)


def _read_log(process, lines):
    assert process.stderr is not None
    for line in process.stderr:
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            lines.append({"not JSON": line})


@pytest.fixture(scope="session")
def services():
    """`services(*arguments, key=None)`: a service that all tests share, started once, and again after a test that ended it."""
    started = {}
    with ExitStack() as stack:

        def find(*arguments, key=None):
            service = started.get((arguments, key))
            if service is None or service.process.poll() is not None:
                service = started[arguments, key] = stack.enter_context(
                    _running(*arguments, key=key)
                )
            return service

        yield find


@pytest.fixture(scope="session")
def service(folders, services):
    """All models in one service."""
    return services(*folders.values())


@pytest.fixture(scope="session")
def pipeline_of(folders):
    """`pipeline_of(name, kind)`: the pipeline of a model in this process, in fp32."""
    return cache(lambda name, kind=None: load_pipeline(folders[name], kind, precision="fp32"))


@pytest.fixture(scope="session")
def texts():
    """200 of 1 to 10 words, at most 50 tokens."""
    return _sentences(200, longest=10)
