"""The Python of README and guides runs as it stands there, on small folders of the names that it uses; links lead somewhere."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import successors
import torch

import albertkit
from albertkit import first_run
from albertkit.report.options import QuickstartOptions

ROOT = Path(__file__).parent.parent
WORDS = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions near calm rivers".split()
BLOCK = re.compile(r"^```python\n(.+?)^```$", re.MULTILINE | re.DOTALL)
RUN_ELSEWHERE = {
    "docs/checkpoints.md": "tests/conversion/test_documented_commands.py",
    "CONTRIBUTING.md": "tests/test_contributing.py",
}
SERVICE = "import openai\n"  # needs a running service: tests/serve/test_openai.py


def pages():
    return [
        "README.md",
        "CONTRIBUTING.md",
        *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md"))),
    ]


def blocks(page):
    return [
        code
        for code in BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
        if not code.startswith(SERVICE)
    ]


def sentences(number, seed):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(5, 12))) + "." for _ in range(number)]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A pretraining checkpoint with random weights."""
    folder = tmp_path_factory.mktemp("start")
    tokenizer = albertkit.train_tokenizer(sentences(300, 1), folder / "tokenizer", vocab_size=44)
    config = albertkit.AlbertConfig(
        vocab_size=44,
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=1,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    torch.manual_seed(1)
    albertkit.AlbertForPreTraining(config).save_pretrained(folder / "model", tokenizer)
    return folder / "model"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def readme(folder, monkeypatch):
    """Text of one's own, and a quickstart of a few updates."""
    (folder / "my-text").mkdir()
    for number in range(3):
        documents = [sentences(6, 100 * number + i) for i in range(60)]
        text = "\n\n".join("\n".join(document) for document in documents)
        (folder / "my-text" / f"{number}.txt").write_text(text, encoding="utf-8")
    small = {
        "embedding_size": 16,
        "hidden_size": 32,
        "num_attention_heads": 1,
        "intermediate_size": 64,
    }
    monkeypatch.setattr(first_run, "SHAPE", {**first_run.SHAPE, **small})
    monkeypatch.setattr(
        first_run,
        "SETTINGS",
        albertkit.PretrainSettings(**{**vars(first_run.SETTINGS), "steps": 20}),
    )
    make = QuickstartOptions.__init__
    monkeypatch.setattr(make, "__kwdefaults__", {**make.__kwdefaults__, "vocab_size": 44})
    albertkit.quickstart("quickstart", corpus=["my-text/*.txt"])


@pytest.fixture
def architecture(folder):
    """A text to count."""
    (folder / "notes.txt").write_text("one\n\ntwo\n", encoding="utf-8")


@pytest.fixture
def finetuning(folder, start):
    """The folders that the guide names: a model under a hub's name, and MRPC."""
    (folder / "albert").mkdir()
    (folder / "albert/albert-base-v2").symlink_to(start)
    folder = folder / "glue/MRPC"
    folder.mkdir(parents=True)
    a, b = sentences(40, 1), sentences(40, 2)
    for name, rows in (("train", 40), ("dev", 12), ("test", 5)):
        lines = (
            ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
            if name != "test"
            else ["index\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        )
        lines += [
            f"{i if name == 'test' else i % 2}\t{i}\t{i}\t{a[i]}\t{b[i]}" for i in range(rows)
        ]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def inference(folder, start):
    """A classifier as RUN, its export as ONNX, a sentence encoder as ENCODER."""
    albertkit.SentenceEncoder.from_pretrained(start).save_pretrained(folder / "ENCODER")
    rows = [f'"{text}",{i % 2}' for i, text in enumerate(sentences(40, 3))]
    (folder / "table.csv").write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    settings = albertkit.FinetuneSettings(steps=2, batch_size=8, length=32)
    columns = albertkit.Columns(text="text", label="label")
    albertkit.finetune(
        "classify", start, folder / "table.csv", folder / "RUN", settings, columns=columns
    )
    albertkit.export_onnx(folder / "RUN", folder / "ONNX")


@pytest.fixture
def engines(folder, start):
    shutil.copytree(start, folder / "ENCODER")


@pytest.fixture
def embeddings(folder, start):
    albertkit.SentenceEncoder.from_pretrained(start).save_pretrained(folder / "RUN")


@pytest.fixture
def from_a_bert(folder, start):
    """A model as GENERAL and as ENCODER, and texts; each is paired with six others, and its copies with each other."""
    shutil.copytree(start, folder / "GENERAL")
    albertkit.SentenceEncoder.from_pretrained(start).save_pretrained(folder / "ENCODER")
    texts = dict.fromkeys(sentences(40, 4))
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    yield
    _, *rows = (folder / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    pairs = [row.split("\t") for row in rows]
    assert len(pairs) == 6 * len(texts)
    assert all(first != second for first, second in pairs)
    assert {text for pair in pairs for text in pair} <= texts.keys()
    _, *rows = (folder / "edited-pairs.tsv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == len(texts)
    assert all(row.count("\t") == 1 for row in rows)


@pytest.fixture
def captioning(folder, start):
    """An untrained captioner as RUN, and a video."""
    from albertkit.captioning.backbones import load_backbone
    from albertkit.captioning.layers import CaptionConfig
    from benchmarks.learn_shapes import SAMPLING
    from benchmarks.moving_shapes import make_clips

    backbone = load_backbone("conv3d", {"width": 64})
    grid = backbone.grid(SAMPLING.num_frames, SAMPLING.size)
    config = CaptionConfig(img_feature_dim=64, grid=grid).stored_in(
        albertkit.AlbertConfig.from_pretrained(start)
    )
    model = albertkit.AlbertForImageCaptioning(config)
    tokenizer = albertkit.AlbertTokenizer.from_pretrained(start)
    albertkit.VideoCaptioner(model, tokenizer, backbone, SAMPLING, grid).save_pretrained(
        folder / "RUN"
    )
    make_clips(folder / "clips", 20)
    next((folder / "clips").rglob("*.mp4")).rename(folder / "video.mp4")


# Names that a block uses and the page explains in words.
GIVEN = {
    "docs/architecture.md": lambda: dict(vars(successors)),
    "docs/inference.md": lambda: {
        "tokenizer": albertkit.AlbertTokenizer.from_pretrained("ONNX"),
        "rows": [
            {"input_ids": [2, 11, 12, 3], "labels": 0},
            {"input_ids": [2, 12, 11, 3], "labels": 1},
        ],
    },
}
FIXTURES = {
    "README.md": "readme",
    "docs/architecture.md": "architecture",
    "docs/finetuning.md": "finetuning",
    "docs/inference.md": "inference",
    "docs/engines.md": "engines",
    "docs/embeddings.md": "embeddings",
    "docs/captioning.md": "captioning",
    "docs/from-a-bert.md": "from_a_bert",
}


def test_every_page_with_python_is_run():
    assert {page for page in pages() if blocks(page)} == FIXTURES.keys() | RUN_ELSEWHERE.keys()
    assert all((ROOT / test).is_file() for test in RUN_ELSEWHERE.values() if test)


@pytest.mark.parametrize("page", FIXTURES)
def test_the_python_of_a_page_runs_twice(page, request):
    request.getfixturevalue(FIXTURES[page])
    names = GIVEN.get(page, dict)()
    for code in blocks(page):
        exec(compile(code, page, "exec"), names)
    if page == "README.md":  # a name that turned into a module failed at its second use
        exec(compile(blocks(page)[0], page, "exec"), names)
        assert albertkit.quickstart is first_run.quickstart


def test_links_lead_to_pages_and_headings():
    broken = []
    for page in pages():
        for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text(encoding="utf-8")):
            file, _, heading = target.partition("#")
            linked_page = (ROOT / page).parent / file if file else ROOT / page
            if target.startswith(("http:", "https:")):
                continue
            if not linked_page.exists():
                broken.append((page, target))
            elif heading:
                titles = re.findall(
                    r"^#+ (.+)$", linked_page.read_text(encoding="utf-8"), re.MULTILINE
                )
                if heading not in {
                    re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles
                }:
                    broken.append((page, target))
    assert broken == []


def test_the_readme_names_the_test_command_as_ci_reads_it():
    assert re.search(
        r"^make test\b", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
