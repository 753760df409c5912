"""What a Korean ALBERT must do, from text to loss: the acceptance tests that are not those of one room.

Beside them stand: parity with SentencePiece (tests/tokenizer), pieces beside particles and old rows
bit for bit (tests/vocabulary/test_extend.py), unique silver pairs
(tests/embeddings/test_augment.py), vectors in sentence-transformers
(tests/embeddings/test_folder.py), sentence order balanced and learned
(tests/pretraining/test_objectives.py).
"""

import json
import math
import unicodedata
from pathlib import Path

import pytest
import torch

from albertkit.config import AlbertConfig
from albertkit.model import AlbertForPreTraining
from albertkit.tokenizer import AlbertTokenizer

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
    syllables = {
        c for n in range(ours.vocab_size) for c in ours.id_to_piece(n) if "가" <= c <= "힣"
    }
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
    text = "한국의 수도는 [MASK] 이다."
    plain = "한국의 수도는 이다."
    ids = theirs(text)["input_ids"]
    assert ids == ours.encode(text, special_tokens=True, mask_literal=True)
    assert ids.count(ours.mask_id) == 1
    position = ids.index(ours.mask_id)
    # No `▁` of its own before the mask
    assert ids[:position] + ids[position + 1 :] == theirs(plain)["input_ids"]
    assert theirs.decode([ours.mask_id]) == ours.decode([ours.mask_id]) == "[MASK]"


def test_4_saved_and_loaded_again_it_is_the_same(golden: Path, korean, tmp_path: Path) -> None:
    ours, folder = korean
    texts = lines(golden)
    once = transformers.AutoTokenizer.from_pretrained(folder)
    for number in range(2):
        once.save_pretrained(tmp_path / str(number))
        reloaded = transformers.AutoTokenizer.from_pretrained(tmp_path / str(number))
        assert reloaded(texts)["input_ids"] == once(texts)["input_ids"]
        assert reloaded(texts)["input_ids"] == [
            ours.encode(text, special_tokens=True) for text in texts
        ]
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
    wide = {
        "input_ids": torch.cat([ids, pad], 1),
        "attention_mask": mask,
        "sentence_order_label": order,
    }
    # Labels at padding, as a loop that forgot -100 there makes them
    wide_labels = torch.cat([labels, pad + 7], 1)
    narrow = model(input_ids=ids, labels=labels, sentence_order_label=order).loss.item()
    assert model(**wide, labels=wide_labels).loss.item() == pytest.approx(narrow, abs=1e-6)
    mask[:, 24:] = 1
    assert model(**wide, labels=wide_labels).loss.item() != pytest.approx(narrow, abs=1e-3)
