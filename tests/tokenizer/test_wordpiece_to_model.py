"""From a `vocab.txt` to a trained model and back: everything downstream takes a WordPiece tokenizer."""

import json
import random

import numpy as np
import pytest

from albertkit.cli import main
from albertkit.corpus import TokenStore
from albertkit.first_run import fill_mask, masked_sentences
from albertkit.model import AlbertForPreTraining
from albertkit.pretraining.run import evaluate
from albertkit.tokenizer import AlbertTokenizer, WordPieceTokenizer

WORDS = "모델 은 작다 언어 를 배운다 문장 이 길다 the model learns".split()
SPECIAL = ["[PAD]", *(f"[unused{n}]" for n in range(1, 100)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIAL, ".", *WORDS, "##은", "##를", "##이"]


def albertkit(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    assert not stopped.value.code


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wordpiece")
    draw = random.Random(0)
    lines = []
    for _ in range(80):
        lines += [
            " ".join(draw.choices(WORDS, k=draw.randint(8, 14))) + "."
            for _ in range(draw.randint(2, 6))
        ] + [""]
    (folder / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / "old").mkdir()
    (folder / "old/vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    (folder / "old/tokenizer_config.json").write_text(
        '{"do_lower_case": false, "strip_accents": false}'
    )
    sizes = dict(
        vocab_size=len(PIECES),
        embedding_size=16,
        hidden_size=32,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=64,
    )
    (folder / "config.json").write_text(json.dumps(sizes))
    (folder / "run.toml").write_text(
        f'config = "{folder / "config.json"}"\nlength = 32\nbatch_tokens = 256\nheld_out = 0.2\noptimizer = "adamw"\n'
        "lr = 0.003\nwarmup_steps = 2\nsteps = 4\n"
    )
    albertkit(
        "corpus",
        "build",
        folder / "text.txt",
        "--tokenizer",
        folder / "old",
        "--out",
        folder / "store",
    )
    albertkit(
        "pretrain", folder / "store", "--out", folder / "run", "--config-file", folder / "run.toml"
    )
    return folder


def test_store(folder):
    store = TokenStore.open(folder / "store")
    tokenizer = store.tokenizer()
    assert isinstance(tokenizer, WordPieceTokenizer)
    assert tokenizer.text_rules == "bert split_chinese"
    assert store.vocab_size == len(PIECES)
    first = (folder / "text.txt").read_text(encoding="utf-8").split("\n")[0]
    assert store.document(0)[0].tolist() == tokenizer.encode(first)
    assert 100 not in np.concatenate(store.tokens)


def test_model(folder):
    final = folder / "run/final"
    assert {"vocab.txt", "tokenizer.json", "tokenizer_config.json"} <= {
        file.name for file in final.iterdir()
    }
    assert not (final / "spiece.model").exists()
    tokenizer = AlbertTokenizer.from_pretrained(final)
    model = AlbertForPreTraining.from_pretrained(final)
    TokenStore.open(folder / "store").check_tokenizer(tokenizer)
    special = (model.config.pad_token_id, model.config.bos_token_id, model.config.eos_token_id)
    assert special == (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id) != (0, 2, 3)
    filled = fill_mask(model, tokenizer, "모델 [MASK] 작다.")
    assert len(filled.predictions) == 5
    outputs = model(**tokenizer(["모델 은 작다.", "the model"], return_tensors="pt"))
    assert outputs[0].shape == (2, 6, len(PIECES))
    store = TokenStore.open(folder / "store")
    for text, answer in masked_sentences(store, tokenizer, store.held_out(0.9, 0), 3, 0):
        assert "[MASK]" in text
        assert answer in WORDS


def test_evaluation(folder):
    report = evaluate(folder / "run/final", folder / "store").to_dict()
    assert 0 < report["masked_lm_loss"] < 10
