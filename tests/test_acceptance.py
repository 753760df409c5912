"""What a Korean ALBERT must do, from text to ids: the acceptance tests that are not those of one room.

Beside them stand: parity with SentencePiece (tests/tokenizer), pieces beside particles and old rows
bit for bit (tests/vocabulary/test_extend.py), unique silver pairs
(tests/embeddings/test_augment.py), vectors in sentence-transformers
(tests/embeddings/test_folder.py), sentence order balanced and learned
(tests/pretraining/test_objectives.py), a loss of ln V at the start whatever the padding
(tests/conversion/test_initial.py).
"""

import json
import unicodedata

import pytest
import transformers

from albertkit.tokenizer import AlbertTokenizer


@pytest.fixture(scope="module")
def korean(golden, tmp_path_factory):
    """The reference vocabulary under Korean rules, as a folder that both libraries read."""
    folder = tmp_path_factory.mktemp("korean")
    (folder / "spiece.model").write_bytes((golden / "korean/spiece.model").read_bytes())
    tokenizer = AlbertTokenizer.from_pretrained(folder, text_rules="korean")
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "albert"}')
    return tokenizer, folder


def lines(golden):
    with open(golden / "korean/lines.jsonl", encoding="utf-8") as stream:
        texts = [json.loads(line)["nfc"] for line in stream]
    return [line for line in texts if "[" not in line and "<" not in line]


def test_1_no_unknown_for_known_hangul(golden, korean):
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


def test_3_mask_is_one_id_and_takes_the_space_before_it(korean):
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


def test_4_saved_and_loaded_again_it_is_the_same(golden, korean, tmp_path):
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
