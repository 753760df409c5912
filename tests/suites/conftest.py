"""Whole suites of other projects: run in a process of their own, on folders that stand where a download from the Hub would."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REVISION = "0" * 40
SIZES = dict(
    embedding_size=64,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=512,
    max_position_embeddings=512,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
)


@dataclass(frozen=True)
class SuiteResult:
    """Names of the tests by outcome, without parameters; with an error where they failed; and what pytest printed."""

    passed: list[str]
    failed: list[tuple[str, str]]
    skipped: list[str]
    output: str

    def check_failures(self, reasons: dict[str, str], min_passed: int) -> None:
        """Check that every failing test has its reason: `reasons` has names of tests, several in a string."""
        counts = (
            f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"
        )
        reason_of = {name: reason for reason, names in reasons.items() for name in names.split()}
        number_of = Counter(reason_of.get(name) for name, _ in self.failed)
        unnamed = [f"{name}: {error}" for name, error in self.failed if name not in reason_of]
        print(
            counts,
            *(f"{number} {reason}" for reason, number in number_of.items()),
            *unnamed,
            sep="\n",
        )
        assert unnamed == [], counts
        assert len(self.passed) >= min_passed, f"{counts}\n{self.output[-3000:]}"


@pytest.fixture
def run_suite(tmp_path):
    """`run_suite(folder, tests, plugins, **environment)`: pytest on another project's tests, with plugins of this folder."""

    def run(
        folder: Path, tests: Sequence[str], plugins: Sequence[str] = (), **environment: str
    ) -> SuiteResult:
        report = tmp_path / "report.xml"
        paths = [str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        options = [
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore",
            "--tb=short",
            f"--junitxml={report}",
        ]
        named_plugins = [word for plugin in plugins for word in ("-p", plugin)]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *named_plugins, *tests],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "HF_HUB_OFFLINE": "1",
                **environment,
            },
            capture_output=True,
            text=True,
        )
        assert done.returncode in (0, 1), (done.stdout + done.stderr)[-3000:]
        result = SuiteResult([], [], [], done.stdout)
        # A test and its subtests have one name
        parts: dict[tuple[str, str], list[ElementTree.Element]] = {}
        for case in ElementTree.parse(report).iter("testcase"):
            parts.setdefault((case.attrib["classname"], case.attrib["name"]), []).append(case)
        for (_, full_name), cases in parts.items():
            name = re.split(r"\[|_\d+_", full_name)[0]  # the second is how `parameterized` names
            errors = [
                child for case in cases for child in case if child.tag in ("failure", "error")
            ]
            if errors:
                result.failed.append((name, errors[0].attrib["message"][:200]))
            elif any(case.find("skipped") is None for case in cases):
                result.passed.append(name)
            else:
                result.skipped.append(name)
        return result

    return run


@pytest.fixture(scope="session")
def hub(data, tmp_path_factory):
    """Make a cache of the Hub (HF_HOME) that has our folders under the names of models that the suites load."""
    import torch

    from albertkit.config import AlbertConfig
    from albertkit.embeddings.encoder import SentenceEncoder
    from albertkit.model import (
        AlbertForMaskedLM,
        AlbertForPreTraining,
        AlbertForSequenceClassification,
    )
    from albertkit.tokenizer import AlbertTokenizer, train_tokenizer

    home = tmp_path_factory.mktemp("huggingface")

    def folder_of(name: str) -> Path:
        repository = home / "hub" / f"models--{name.replace('/', '--')}"
        snapshot = repository / "snapshots" / REVISION
        snapshot.mkdir(parents=True)
        (repository / "refs").mkdir()
        (repository / "refs/main").write_text(REVISION)
        return snapshot

    lines = (data / "glue/STS-B/original_sts-train.tsv").read_text(encoding="utf-8").splitlines()
    sentences = [sentence for line in lines for sentence in line.split("\t")[5:7]]
    tokenizer = train_tokenizer(sentences, home / "tokenizer", 2000)

    def config(**changes: Any) -> AlbertConfig:
        return AlbertConfig(vocab_size=tokenizer.vocab_size, **SIZES).with_changes(**changes)

    torch.manual_seed(0)
    wide = config(hidden_size=768, num_attention_heads=12)
    for name, encoder_config in (
        ("sentence-transformers-testing/stsb-bert-tiny-safetensors", config()),
        ("sentence-transformers/paraphrase-distilroberta-base-v1", wide),
    ):
        AlbertForPreTraining(encoder_config).save_pretrained(home / name, tokenizer)
        SentenceEncoder.from_pretrained(home / name).save_pretrained(folder_of(name))
    for name in ("google-bert/bert-base-uncased", "distilbert/distilbert-base-uncased"):
        AlbertForPreTraining(wide).save_pretrained(folder_of(name), tokenizer)
    for name, labels in (
        ("cross-encoder-testing/reranker-bert-tiny-gooaq-bce", 1),
        ("cross-encoder-testing/reranker-bert-tiny-gooaq-bce-STv54", 1),
        ("cross-encoder/stsb-distilroberta-base", 1),
        ("distilbert/distilroberta-base", 1),
        ("cross-encoder/nli-MiniLM2-L6-H768", 3),
    ):
        AlbertForSequenceClassification(config(num_labels=labels)).save_pretrained(
            folder_of(name), tokenizer
        )
    AlbertForMaskedLM(config()).save_pretrained(
        folder_of("sparse-encoder-testing/splade-bert-tiny-nq"), tokenizer
    )
    google = folder_of("albert/albert-base-v1")
    original = home / "google"
    original.mkdir()
    (original / "spiece.model").write_bytes((data / "albert/30k-clean.model").read_bytes())
    AlbertTokenizer.from_pretrained(original).save_pretrained(google)
    AlbertConfig.from_size("base").save_pretrained(google)
    return home
