"""Folders that albertkit writes, opened by other programs' Python: the same ids, logits, losses and sentence vectors.

transformers 5 is the one beside albertkit. Of transformers 4 and sentence-transformers, which
cannot live in the same environment, an environment of their own is used:

    ALBERTKIT_TRANSFORMERS4_PYTHON           pip install torch==2.13.0 transformers==4.57.6 sentencepiece
    ALBERTKIT_SENTENCE_TRANSFORMERS_PYTHON   pip install torch==2.13.0 sentence-transformers
"""

import io
import itertools
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from small_models import shaken

from albertkit import model as classes
from albertkit.config import AlbertConfig
from albertkit.corpus.builtin import builtin_documents
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tokenizer import AlbertTokenizer, WordPieceTokenizer, train_tokenizer

TINY = dict(
    embedding_size=16,
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=96,
    max_position_embeddings=200,
)
TEXTS = [
    "The quick brown fox, born in 92000, jumped over 1,234 lazy dogs.",
    "“Café” costs €5 (naïvely); an emoji 🙂 costs nothing...",
    "Rivers",
    "한국어 문장도 하나 있다. 量子 physics",
]
PAIRS = [
    "Seven wizards!",
    "brew strong potions near calm rivers " * 4,
    "run",
    "and [MASK] they sleep.",
]
SHAPES = {
    "all": {},
    "groups": {"num_hidden_groups": 2, "inner_group_num": 2},
    "attention": {"parameter_sharing": "attention", "num_hidden_groups": 4},
}
# Folder: class, tokenizer, shape, and what to set besides.
CASES = {
    "encoder": ("AlbertModel", "sentencepiece", "all", {}),
    "pretraining": ("AlbertForPreTraining", "sentencepiece", "all", {}),
    "pretraining-groups": ("AlbertForPreTraining", "wordpiece", "groups", {}),
    "pretraining-shared-attention": ("AlbertForPreTraining", "sentencepiece", "attention", {}),
    "masked-lm": ("AlbertForMaskedLM", "wordpiece", "all", {}),
    "single-label": ("AlbertForSequenceClassification", "sentencepiece", "all", {"num_labels": 3}),
    "multi-label": (
        "AlbertForSequenceClassification",
        "sentencepiece",
        "all",
        {"num_labels": 3, "problem_type": "multi_label_classification"},
    ),
    "regression": ("AlbertForSequenceClassification", "wordpiece", "all", {"num_labels": 1}),
    "tokens": ("AlbertForTokenClassification", "sentencepiece", "attention", {"num_labels": 5}),
    "answers": ("AlbertForQuestionAnswering", "wordpiece", "groups", {}),
    "choices": ("AlbertForMultipleChoice", "sentencepiece", "all", {}),
    "beam": ("AlbertForBeamQuestionAnswering", "sentencepiece", "all", {}),
}
OUTPUTS = (
    "loss", "logits", "prediction_logits", "sop_logits", "start_logits", "end_logits", "last_hidden_state", "pooler_output",
)  # fmt: skip

TRANSFORMERS = """
import json, sys
from pathlib import Path
import numpy as np, torch, transformers
root, texts, pairs = Path(sys.argv[1]), *json.loads(sys.argv[2])
print(transformers.__version__)
for folder in sorted(path for path in root.iterdir() if path.is_dir()):
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    there = getattr(transformers, name, transformers.AlbertModel)  # the beam head is not transformers'
    model, report = there.from_pretrained(folder, output_loading_info=True)
    inputs = {key: torch.from_numpy(value) for key, value in np.load(folder / "inputs.npz").items()}
    with torch.no_grad():
        outputs = model.eval()(**inputs)
    found = {key: value.numpy() for key, value in outputs.items() if isinstance(value, torch.Tensor)}
    np.savez(folder / "outputs.npz", **found)
    encoded = transformers.AutoTokenizer.from_pretrained(folder)(texts, pairs, padding=True)
    keys = {key: sorted(report[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    (folder / "found.json").write_text(json.dumps({**keys, "outputs": sorted(found), "encoded": dict(encoded)}))
"""
SENTENCE_TRANSFORMERS = """
import json, sys
from pathlib import Path
import numpy as np, sentence_transformers
root, texts, _ = Path(sys.argv[1]), *json.loads(sys.argv[2])
print(sentence_transformers.__version__)
for folder in sorted(path for path in root.iterdir() if path.is_dir()):
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    pooled = [layer for layer in model if type(layer).__name__ == "Pooling"]
    assert len(pooled) == 1, model
    np.savez(folder / "vectors.npz", vectors=model.encode(texts))
"""

TOKENIZER = """
import json, sys, transformers
folder, texts = sys.argv[1], json.load(sys.stdin)
print(json.dumps(transformers.AutoTokenizer.from_pretrained(folder)(texts)["input_ids"]))
"""


@dataclass
class Case:
    """A folder, the model that was saved in it, and the inputs that both programs get."""

    folder: Path
    model: PretrainedAlbert
    tokenizer: AlbertTokenizer
    inputs: dict[str, torch.Tensor]

    def outputs(self):
        """What our model computes; of a beam model the encoder."""
        model = self.model.albert if "Beam" in type(self.model).__name__ else self.model
        with torch.no_grad():
            outputs = model(**self.inputs)
        return {name: outputs[name] for name in OUTPUTS if outputs.get(name) is not None}

    def deviation(self):
        """The largest difference to theirs of each output, at real tokens."""
        theirs = np.load(self.folder / "outputs.npz")
        ours = self.outputs()
        assert ours.keys() <= set(theirs.files)
        mask = self.inputs["attention_mask"].bool()
        deviations = {}
        for name, values in ours.items():
            difference = (values - torch.from_numpy(theirs[name])).abs()
            by_token = difference.shape[: mask.dim()] == mask.shape
            deviations[name] = (difference[mask] if by_token else difference).max().item()
        return deviations


def make_tokenizers(folder):
    text = folder / "corpus.txt"
    words = " ".join([*TEXTS, *PAIRS]).replace("[MASK]", "")
    topics = [
        sentence for document in itertools.islice(builtin_documents(), 40) for sentence in document
    ]
    text.write_text("\n".join([words, *topics]), encoding="utf-8")
    train_tokenizer([text], folder / "sentencepiece", vocab_size=300)
    letters = sorted(set(words.lower()) - {" "})
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *(f"##{letter}" for letter in letters),
        "the",
        "river",
    ]
    return {
        "sentencepiece": AlbertTokenizer.from_pretrained(folder / "sentencepiece"),
        "wordpiece": WordPieceTokenizer(pieces),
    }


def values_of_labelled_examples(name, config, ids, mask):
    """Arguments that make a loss, for four rows. Padding has no labels: transformers would count them."""
    everywhere = torch.where((torch.arange(ids.shape[-1]) % 3 == 1) & (mask == 1), ids, -100)
    order = torch.tensor([0, 1, 1, 0])
    if name == "AlbertForPreTraining":
        return {"labels": everywhere, "sentence_order_label": order}
    if name == "AlbertForMaskedLM":
        return {"labels": everywhere}
    if name == "AlbertForTokenClassification":
        return {"labels": torch.where(everywhere == -100, -100, everywhere % 5)}
    if name == "AlbertForQuestionAnswering":
        return {"start_positions": order + 1, "end_positions": order + 3}
    if name == "AlbertForMultipleChoice":
        return {"labels": torch.tensor([1, 0])}
    if name != "AlbertForSequenceClassification":
        return {}
    if config.num_labels == 1:
        return {"labels": torch.tensor([0.5, -1.0, 2.0, 0.0])}
    multiple = config.problem_type == "multi_label_classification"
    return {
        "labels": torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])
        if multiple
        else order + 1
    }


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """A folder of every class, with parameters so random that none can be swapped or left out unnoticed."""
    root = tmp_path_factory.mktemp("folders")
    tokenizers = make_tokenizers(tmp_path_factory.mktemp("tokenizers"))
    cases_by_name = {}
    for name, (model_class, kind, shape, changes) in CASES.items():
        torch.manual_seed(len(cases_by_name))
        tokenizer = tokenizers[kind]
        config = AlbertConfig.from_dict(
            {**TINY, **SHAPES[shape], **changes, "vocab_size": tokenizer.vocab_size + 3}
        )
        model = shaken(getattr(classes, model_class)(config), 0.1)
        model.save_pretrained(root / name, tokenizer)
        inputs = tokenizer(TEXTS, PAIRS, return_tensors="pt")
        inputs |= values_of_labelled_examples(
            model_class, config, inputs["input_ids"], inputs["attention_mask"]
        )
        if model_class == "AlbertForMultipleChoice":
            inputs = {
                key: value.view(2, 2, -1) if key != "labels" else value
                for key, value in inputs.items()
            }
        np.savez(
            root / name / "inputs.npz", **{key: value.numpy() for key, value in inputs.items()}
        )
        cases_by_name[name] = Case(root / name, model, tokenizer, inputs)
    return cases_by_name


def other_python(variable):
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} is not set")
    return python


def arguments(cases):
    root = next(iter(cases.values())).folder.parent
    return [str(root), json.dumps([TEXTS, PAIRS])]


def run_here(script, cases):
    """Run a script over the folders in this process, which has imported its libraries; their version."""
    printed = io.StringIO()
    with patch.object(sys, "argv", ["-c", *arguments(cases)]), redirect_stdout(printed):
        exec(script, {})
    return printed.getvalue().split()[0]


def run(python, script, cases):
    """Run a script over the folders; its version."""
    process = subprocess.run(
        [python, "-c", script, *arguments(cases)],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout.split()[0]


@pytest.fixture(scope="module", params=["5", pytest.param("4", marks=pytest.mark.peer)])
def transformers_ran(request, cases):
    if request.param == "5":
        version = run_here(TRANSFORMERS, cases)
    else:
        version = run(other_python("ALBERTKIT_TRANSFORMERS4_PYTHON"), TRANSFORMERS, cases)
    assert version.startswith(f"{request.param}.")
    return version


@pytest.mark.parametrize("name", CASES)
def test_transformers_opens_the_folder_and_computes_the_same(transformers_ran, cases, name):
    case = cases[name]
    report = json.loads((case.folder / "found.json").read_text())
    assert report["mismatched_keys"] == []
    # transformers has the encoder alone, with a pooler that the beam head does without
    if name == "beam":
        assert report["missing_keys"] == ["pooler.bias", "pooler.weight"]
        assert {key.split(".")[0] for key in report["unexpected_keys"]} == {
            "start_logits",
            "end_logits",
            "answer_class",
        }
    else:
        assert report["missing_keys"] == report["unexpected_keys"] == []
        assert set(case.outputs()) == set(report["outputs"])
    ours = case.tokenizer(TEXTS, PAIRS, padding=True)
    assert {key: report["encoded"][key] for key in ours} == ours
    deviation = case.deviation()
    assert max(deviation.values()) < 1e-5, (transformers_ran, deviation)


@pytest.mark.peer
def test_transformers_4_reads_the_english_tokenizer_as_we_do(golden, data, tmp_path):
    python = other_python("ALBERTKIT_TRANSFORMERS4_PYTHON")
    ours = AlbertTokenizer.from_pretrained(data / "albert")
    ours.save_pretrained(tmp_path)
    AlbertConfig.from_size("base").save_pretrained(tmp_path)
    with open(golden / "tokenizer/lines.jsonl", encoding="utf-8", newline="\n") as stream:
        texts = [json.loads(line)["text"] for line in stream]
    special = [ours.id_to_piece(number) for number in ours.special_ids()]
    texts = [text for text in texts if not any(name in text for name in special)]
    assert len(texts) > 1000
    command = [python, "-c", TOKENIZER, str(tmp_path)]
    process = subprocess.run(
        command, input=json.dumps(texts), capture_output=True, text=True, check=True
    )
    theirs = json.loads(process.stdout)
    other_rules = AlbertTokenizer.from_pretrained(data / "albert", "none")
    assert theirs == [ours.encode(text, special_tokens=True) for text in texts]
    assert theirs != [other_rules.encode(text, special_tokens=True) for text in texts]


@pytest.mark.peer
def test_sentence_transformers_pools_the_same_vectors(cases):
    run(other_python("ALBERTKIT_SENTENCE_TRANSFORMERS_PYTHON"), SENTENCE_TRANSFORMERS, cases)
    for name, case in cases.items():
        inputs = case.tokenizer(TEXTS, return_tensors="pt")
        with torch.no_grad():
            hidden = case.model.encoder_model(**inputs).last_hidden_state
        mask = inputs["attention_mask"][..., None]
        mean = (hidden * mask).sum(1) / mask.sum(1)
        theirs = torch.from_numpy(np.load(case.folder / "vectors.npz")["vectors"])
        torch.testing.assert_close(
            mean, theirs, atol=1e-5, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )
        # Padding counted would be noticed
        assert not torch.allclose(hidden.mean(1), theirs, atol=1e-3), name
