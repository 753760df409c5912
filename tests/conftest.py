"""Fixtures of all tests: tiny things made once a session, commands run in process, folders of reference numbers and real text.

Reference numbers and real text are given by the environment; tests that need one are skipped by
name without it.
"""

import gc
import json
import logging
import os
import shutil
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

# An example may take as long as a busy machine needs for it.
hypothesis.settings.register_profile(
    "default", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("default")

# Before torch is imported: one thread a process, because threads of several processes wait for each
# other, spinning.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Engines compute from the first batch on, whether or not the machine has compiled their loops before.
os.environ.setdefault("ALBERTKIT_WAIT_FOR_LOOPS", "1")

# Tests write a hundred thousand small files and flush most of them: 20 ms each on a busy disk, 0.1
# ms in memory. Where all of a run fits (at most 1.5 GB), and programs that a test writes can be
# executed.
MEMORY = Path("/dev/shm")
has_room = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2 << 30
if has_room and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
    tempfile.tempdir = os.environ.setdefault("TMPDIR", str(MEMORY))

# torch, transformers and the rest are millions of objects that each full collection walks through:
# a tenth of the suite.
gc.set_threshold(200_000, 20, 100)

# A shell's background job ignores SIGINT, one of `nohup` SIGHUP; tests send both, also to processes
# that inherit this.
for number, default in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, default)

WORDS = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions near calm rivers".split()
KOREAN = "서울 에서 온 마법사 가 강 을 건너 숲 으로 갔다 그 리고 다시".split()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give a worker the files of a folder that it has begun: what tests of a folder share, such as a service, is made once."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class FolderScheduling(LoadFileScheduling):
        def _assign_work_unit(self, node):
            begun = {
                worker: {Path(file).parent for file in files}
                for worker, files in self.assigned_work.items()
            }
            own_folders = begun.pop(node, set())

            def distance(file):
                folder = Path(file).parent
                return (
                    0
                    if folder in own_folders
                    else 1 + any(folder in folders for folders in begun.values())
                )

            self.workqueue.move_to_end(min(self.workqueue, key=distance), last=False)
            super()._assign_work_unit(node)

    return FolderScheduling(config, log)


@pytest.fixture(scope="module", autouse=True)
def frozen_objects():
    """Take what earlier modules imported and built out of the collector's walks: accelerate and others collect all, often."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def drawn_pictures():
    """Pictures by their size and the function that draws them."""
    return {}


@pytest.fixture(scope="module", autouse=True)
def copied_pictures(drawn_pictures):
    """Draw the first picture of a kind and size, and copy it for other runs: drawing takes a third of a tiny training.

    In each further file the first is laid out, not rendered.
    """
    from albertkit.files import atomic_file
    from albertkit.output import plots
    from albertkit.training import monitor

    draw_picture = plots.save_png
    drawn_kinds = set()

    def save_png(look, draw, out):
        kind = (look, draw.__code__)
        if kind not in drawn_pictures:
            drawn_pictures[kind] = draw_picture(look, draw, out).read_bytes()
        elif kind not in drawn_kinds:  # what cannot be drawn fails; rendering it is what takes long
            with plots.new_figure(look, draw):
                pass
        drawn_kinds.add(kind)
        with atomic_file(out) as stream:
            stream.write(drawn_pictures[kind])
        return Path(out)

    with pytest.MonkeyPatch.context() as patch:
        for module in (plots, monitor):
            patch.setattr(module, "save_png", save_png)
        yield


def _folder(variable):
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set")
    return Path(value)


def _loggers():
    return [
        logger
        for logger in logging.Logger.manager.loggerDict.values()
        if isinstance(logger, logging.Logger)
    ]


@pytest.fixture(autouse=True)
def loggers_restored():
    """Restore the levels and handlers of all loggers: a handler that a test leaves writes to a closed stream."""
    before = {
        logger: (logger.level, list(logger.handlers), logger.propagate) for logger in _loggers()
    }
    yield
    # Else the next test's call changes nothing: pytest has replaced `showwarning` since
    logging.captureWarnings(False)
    for logger in _loggers():
        if logger in before or logger.name.startswith("albertkit"):
            level, logger.handlers, logger.propagate = before.get(
                logger, (logging.NOTSET, [], True)
            )
            # Setting it empties the caches of all 600 loggers: a sixth of the suite
            if logger.level != level:
                logger.setLevel(level)


@pytest.fixture(scope="session")
def golden():
    """Numbers printed by the original implementations (ALBERTKIT_GOLDEN)."""
    return _folder("ALBERTKIT_GOLDEN")


@pytest.fixture(scope="session")
def data():
    """Real text and tasks (ALBERTKIT_DATA)."""
    return _folder("ALBERTKIT_DATA")


@pytest.fixture(scope="session")
def tiny_texts():
    """400 sentences of nine English and Korean words."""
    import numpy as np

    rng = np.random.default_rng(1)
    return [
        " ".join(rng.choice([*WORDS, *KOREAN], 9)) + rng.choice([".", ",", "!", "?", "'s"])
        for _ in range(400)
    ]


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_texts, tmp_path_factory):
    """An `AlbertTokenizer` of 96 tokens that knows `tiny_texts`."""
    from albertkit.tokenizer import train_tokenizer

    return train_tokenizer(tiny_texts, tmp_path_factory.mktemp("tokenizer"), 96)


@pytest.fixture(scope="session")
def tiny_model(tiny_tokenizer):
    """`tiny_model(class, **configuration changes)`: every parameter random, so that none can be left out unnoticed."""
    import torch

    from albertkit.config import AlbertConfig

    def make(model_class, **changes):
        config = AlbertConfig(
            vocab_size=tiny_tokenizer.vocab_size,
            embedding_size=16,
            hidden_size=64,
            num_hidden_layers=3,
            num_attention_heads=2,
            intermediate_size=96,
            max_position_embeddings=64,
            initializer_range=0.2,
        )
        torch.manual_seed(3)
        model = model_class(config.with_changes(**changes))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        return model.eval()

    return make


@pytest.fixture
def tiny_model_folder(tmp_path, tiny_tokenizer, tiny_model):
    """`tiny_model_folder(class, **configuration changes)`: such a model as a checkpoint folder."""

    def save(model_class, **changes):
        path = tmp_path / model_class.__name__
        tiny_model(model_class, **changes).save_pretrained(path, tiny_tokenizer)
        return path

    return save


@pytest.fixture(scope="session")
def tiny_store(tiny_texts, tiny_tokenizer, tmp_path_factory):
    """The folder of a token store: 80 documents of five sentences; not to be written to."""
    from albertkit.corpus import build_store

    folder = tmp_path_factory.mktemp("store")
    documents = ("\n".join(tiny_texts[start : start + 5]) for start in range(0, len(tiny_texts), 5))
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    tiny_tokenizer.save_pretrained(folder / "tokenizer")
    build_store([str(folder / "text.txt")], folder / "store", folder / "tokenizer")
    return folder / "store"


@dataclass(frozen=True)
class Ran:
    """What a command did: its exit status and what it printed."""

    status: int
    out: str
    err: str

    @property
    def json(self):
        """The JSON object it printed."""
        return json.loads(self.out)


@pytest.fixture
def run_command(capfd):
    """`run_command("predict", folder, "--text", "hello")`: run a command in this process."""
    from albertkit.cli import main

    def run(*arguments):
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        printed = capfd.readouterr()
        return Ran(int(ended.value.code or 0), printed.out, printed.err)

    return run


@pytest.fixture(scope="session")
def error_of():
    """`error_of(function, *arguments, **options)`: the error of albertkit that a call raises."""
    from albertkit.errors import AlbertKitError

    def error(call, *arguments, **options):
        with pytest.raises(AlbertKitError) as raised:
            call(*arguments, **options)
        return raised.value

    return error


@pytest.fixture(scope="session")
def slug_of(error_of):
    """`slug_of(function, *arguments, **options)`: the slug of the error that a call raises."""
    return lambda *arguments, **options: error_of(*arguments, **options).slug


@pytest.fixture(scope="module")
def browser():
    """Chromium, driven by playwright; skips where either is missing."""
    sync_api = pytest.importorskip("playwright.sync_api")
    executable = shutil.which("chromium")
    if executable is None:
        pytest.skip("there is no chromium")
    flags = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, args=[f"--{f}" for f in (*flags.split(), "disable-sync")]
        )
        yield browser
        browser.close()


@pytest.fixture
def memory():
    """Files at `memory://…`."""
    system = pytest.importorskip("fsspec").filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]
