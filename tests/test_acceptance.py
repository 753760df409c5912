"""What a Korean ALBERT must do, from text to loss: the acceptance tests that are not those of one room.

Beside them stand: parity with SentencePiece (tests/tokenizer), pieces beside particles and old rows bit for bit
(tests/vocabulary/test_extend.py), unique silver pairs (tests/embeddings/test_augment.py), vectors in sentence-transformers
(tests/embeddings/test_folder.py).
"""

import json
import math
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch

from albertkit.config import AlbertConfig
from albertkit.corpus import TokenStore, build_store
from albertkit.model import AlbertForPreTraining
from albertkit.pretraining.run import evaluate, pretrain
from albertkit.pretraining.settings import PretrainSettings
from albertkit.pretraining.sources import held_out_stream
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.processes import join_world

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def korean(golden: Path, tmp_path_factory) -> tuple[AlbertTokenizer, Path]:
    """The reference vocabulary under Korean rules, as a folder that both libraries read."""
    folder = tmp_path_factory.mktemp("korean")
    (folder / "spiece.model").write_bytes((golden / "korean" / "spiece.model").read_bytes())
    tokenizer = AlbertTokenizer.from_pretrained(folder, text_rules="korean")
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "albert"}')
    return tokenizer, folder


def lines(golden: Path) -> list[str]:
    with open(golden / "korean" / "lines.jsonl", encoding="utf-8") as stream:
        texts = [json.loads(line)["nfc"] for line in stream]
    return [line for line in texts if "[" not in line and "<" not in line]


def test_1_no_unknown_for_known_hangul(golden: Path, korean) -> None:
    ours, folder = korean
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    syllables = {c for n in range(ours.vocab_size) for c in ours.id_to_piece(n) if "가" <= c <= "힣"}
    words = [word for line in lines(golden) for word in line.split() if syllables.issuperset(word)]
    assert len(syllables) > 900
    assert len(words) > 1000
    for form in ("NFC", "NFD"):
        texts = [unicodedata.normalize(form, text) for text in [*words, *syllables]]
        assert all(ours.unk_id not in ours.encode(text) for text in texts)
        assert all(theirs.unk_token_id not in ids for ids in theirs(texts)["input_ids"])
    assert ours.unk_id in ours.encode("뷁")  # a syllable that the vocabulary lacks is one


def test_3_mask_is_one_id_and_takes_the_space_before_it(korean) -> None:
    ours, folder = korean
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    text, plain = "한국의 수도는 [MASK] 이다.", "한국의 수도는 이다."
    ids = theirs(text)["input_ids"]
    assert ids == ours.encode(text, special_tokens=True, mask_literal=True)
    assert ids.count(ours.mask_id) == 1
    position = ids.index(ours.mask_id)
    assert ids[:position] + ids[position + 1 :] == theirs(plain)["input_ids"]  # no `▁` of its own before the mask
    assert theirs.decode([ours.mask_id]) == ours.decode([ours.mask_id]) == "[MASK]"


def test_4_saved_and_loaded_again_it_is_the_same(golden: Path, korean, tmp_path: Path) -> None:
    ours, folder = korean
    texts = lines(golden)
    once = transformers.AutoTokenizer.from_pretrained(folder)
    for number in range(2):
        once.save_pretrained(tmp_path / str(number))
        reloaded = transformers.AutoTokenizer.from_pretrained(tmp_path / str(number))
        assert reloaded(texts)["input_ids"] == once(texts)["input_ids"]
        assert reloaded(texts)["input_ids"] == [ours.encode(text, special_tokens=True) for text in texts]
        once = reloaded


def test_7_loss_at_the_start_is_about_ln_v_and_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=3000,
        embedding_size=32,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=128,
    )
    model = AlbertForPreTraining(config).eval()
    ids = torch.randint(5, 3000, (4, 24))
    labels = torch.where(torch.rand(4, 24) < 0.3, ids, -100)
    order = torch.tensor([0, 1, 0, 1])
    loss = model(input_ids=ids, labels=labels).loss.item()
    assert loss == pytest.approx(math.log(3000), abs=0.15)
    pad = torch.zeros(4, 40, dtype=torch.long)
    mask = torch.cat([torch.ones_like(ids), pad], 1)
    wide = {"input_ids": torch.cat([ids, pad], 1), "attention_mask": mask, "sentence_order_label": order}
    wide_labels = torch.cat([labels, pad + 7], 1)  # labels at padding, as a loop that forgot -100 there makes them
    narrow = model(input_ids=ids, labels=labels, sentence_order_label=order).loss.item()
    assert model(**wide, labels=wide_labels).loss.item() == pytest.approx(narrow, abs=1e-6)
    mask[:, 24:] = 1
    assert model(**wide, labels=wide_labels).loss.item() != pytest.approx(narrow, abs=1e-3)


def test_8_sentence_order_is_balanced_and_learned_and_segments_are_marked(tmp_path: Path) -> None:
    """Documents of a sentence of early words and one of late words: nothing but their order is to be learned."""
    early, late = "dawn morning sunrise breakfast start".split(), "dusk evening sunset supper end".split()
    rng = np.random.default_rng(0)
    sentence_pairs = [[" ".join(rng.choice(words, 6)) for words in (early, late)] for _ in range(600)]
    (tmp_path / "text.txt").write_text("\n\n".join("\n".join(pair) for pair in sentence_pairs), encoding="utf-8")
    (tmp_path / "tokenizer").mkdir()
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *early, *late]
    (tmp_path / "tokenizer" / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    build_store([tmp_path / "text.txt"], tmp_path / "store", tmp_path / "tokenizer", workers=0)
    shape = dict(
        vocab_size=len(pieces), embedding_size=16, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=32, initializer_range=0.1,
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(shape))
    settings = PretrainSettings(
        config=tmp_path / "config.json", length=16, batch_tokens=512, steps=200, lr=2e-3, optimizer="adamw",
        bias_correction=True, warmup_steps=15, held_out=0.3, precision="fp32", short_seq_prob=0,
    )  # fmt: skip
    store = TokenStore.open(tmp_path / "store")
    batches = list(held_out_stream(store, settings, store.held_out(0.3, 0), join_world("cpu")))
    labels = torch.cat([batch.sentence_order_labels for batch in batches])
    assert abs(labels.float().mean() - 0.5) < 4 * 0.5 / len(labels) ** 0.5
    assert all({0, 1} == set(batch.token_type_ids.tolist()) for batch in batches)
    model = pretrain(tmp_path / "store", tmp_path / "run", settings).model
    assert evaluate(model, tmp_path / "store").sentence_order_accuracy > 0.95
