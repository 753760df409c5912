"""Against pycocoevalcap itself, installed or an unpacked wheel that ALBERTKIT_PYCOCOEVALCAP names, and its tokenizer in Java."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from albertkit.captioning.metrics import score_captions, tokenize_captions
from albertkit.files import read_json

pytestmark = pytest.mark.peer


@pytest.fixture
def package(monkeypatch):
    if folder := os.environ.get("ALBERTKIT_PYCOCOEVALCAP"):
        monkeypatch.syspath_prepend(folder)
    module = pytest.importorskip("pycocoevalcap")
    return Path(next(iter(module.__path__)))  # it has no __init__.py


@pytest.fixture
def java():
    if (program := shutil.which("java")) is None:
        pytest.skip("there is no java")
    return program


def cider_data(data):
    """CIDEr's own 500 scenes with 48 references each, and 400 candidates; an image has two of these."""
    references = {}
    for record in read_json(data / "captions/cider/abstract48S.json"):
        references.setdefault(record["image_id"], []).append(record["caption"])
    records = read_json(data / "captions/cider/abstract_candsB.json")
    candidates = {f"{index} {record['image_id']}": record for index, record in enumerate(records)}
    truth = {key: references[record["image_id"]] for key, record in candidates.items()}
    return truth, {key: [record["caption"]] for key, record in candidates.items()}


def compare(gold, tokens):
    """Assert that our scores of tokenised captions are theirs."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    ours = score_captions(gold, tokens, tokenize=False)
    predictions = {key: [text] for key, text in tokens.items()}
    bleu, bleu_each = Bleu(4).compute_score(gold, predictions, verbose=0)
    rouge, rouge_each = Rouge().compute_score(gold, predictions)
    cider, cider_each = Cider().compute_score(gold, predictions)
    theirs = {f"Bleu_{size}": value for size, value in enumerate(bleu, 1)} | {
        "ROUGE_L": rouge,
        "CIDEr": cider,
    }
    assert dict(ours) == pytest.approx(theirs, abs=1e-9)
    for name, values in zip(theirs, [*bleu_each, rouge_each, cider_each], strict=True):
        assert [scores[name] for scores in ours.per_clip.values()] == pytest.approx(
            list(values), abs=1e-9
        )


def test_scores_of_a_larger_set(package, data):
    truth, candidates = cider_data(data)
    tokens = tokenize_captions([texts[0] for texts in candidates.values()])
    gold = {key: tokenize_captions(texts) for key, texts in truth.items()}
    compare(gold, dict(zip(candidates, tokens, strict=True)))


def test_scores_of_odd_captions(package):
    """Few words, many repeats, empty captions and blanks in a row; sets of one clip too."""
    draw = random.Random(5)

    def caption():
        return " ".join(
            draw.choices(["a", "b", "c", "dd", ""], k=draw.choice([0, 1, 1, 2, 3, 5, 9]))
        )

    for clips in [1, 1, 1, 2, 2, 3, *[draw.randint(1, 20) for _ in range(200)]]:
        gold = {str(clip): [caption() for _ in range(draw.randint(1, 4))] for clip in range(clips)}
        # Their CIDEr has no maximum of nothing
        if any(text.split() for texts in gold.values() for text in texts):
            compare(gold, {key: caption() for key in gold})


def test_tokens_of_a_larger_set(package, data, java, tmp_path):
    truth, candidates = cider_data(data)
    texts = [text for group in (*truth.values(), *candidates.values()) for text in group]
    for file in ("STS-B/original_sts-train.tsv", "MRPC/msr_paraphrase_train.txt", "QNLI/dev.tsv"):
        lines = (data / "glue" / file).read_text(encoding="utf-8-sig").rstrip("\n").split("\n")
        texts += [
            column for line in lines for column in line.split("\t") if not column.strip().isdigit()
        ]
    file = tmp_path / "texts"
    file.write_text("\n".join(texts), encoding="utf-8")
    program = [
        java,
        "-Dfile.encoding=UTF-8",
        "-Dstdout.encoding=UTF-8",
        "-cp",
        str(package / "tokenizer/*"),
    ]
    command = [
        *program,
        "edu.stanford.nlp.process.PTBTokenizer",
        "-preserveLines",
        "-lowerCase",
        str(file),
    ]
    lines = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\n")
    dropped = {"''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"}
    theirs = [
        " ".join(token for token in line.rstrip().split(" ") if token not in dropped)
        for line in lines
    ]
    ours = tokenize_captions(texts)
    assert len(texts) > 50_000
    assert [(a, b) for a, b in zip(ours, theirs, strict=False) if a != b] == []
