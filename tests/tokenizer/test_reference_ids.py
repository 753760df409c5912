"""Ids, pieces and types against Google's code, transformers 4.57.6 and SentencePiece."""

import json
from pathlib import Path

import numpy as np
import pytest

from albertkit.tokenizer import AlbertTokenizer, SentencePieceTokenizer

# The reference ids of transformers' tests/models/albert/test_tokenization_albert.py.
TRANSFORMERS_SENTENCE = (
    "Transformers (formerly known as pytorch-transformers and pytorch-pretrained-bert) provides general-purpose "
    "architectures (BERT, GPT-2, RoBERTa, XLM, DistilBert, XLNet...) for Natural Language Understanding (NLU) and "
    "Natural Language Generation (NLG) with over 32+ pretrained models in 100+ languages and deep interoperability "
    "between Jax, PyTorch and TensorFlow."
)
TRANSFORMERS_IDS = [
    2, 21970, 13, 5, 6092, 167, 28, 7103, 2153, 673, 8, 7028, 12051, 18, 17, 7103, 2153, 673, 8, 3515,
    18684, 8, 4461, 6, 1927, 297, 8, 12060, 2607, 18, 13, 5, 4461, 15, 10538, 38, 8, 135, 15, 822,
    58, 15, 993, 10363, 15, 1460, 8005, 4461, 15, 993, 255, 2328, 9, 9, 9, 6, 26, 1112, 816, 3260,
    13, 5, 103, 2377, 6, 17, 1112, 816, 2782, 13, 5, 103, 10641, 6, 29, 84, 2512, 2430, 782, 18684,
    2761, 19, 808, 2430, 2556, 17, 855, 1480, 9477, 4091, 128, 11712, 15, 7103, 2153, 673, 17, 24883, 9990, 9,
    3,
]  # fmt: skip


def rows(path: Path) -> list[dict]:
    with open(path, encoding="utf-8", newline="\n") as stream:
        return [json.loads(line) for line in stream]


@pytest.fixture(scope="module")
def google(data: Path) -> AlbertTokenizer:
    return AlbertTokenizer.from_pretrained(data / "albert")


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("This is a test", [48, 25, 21, 1289]),
        ("I was born in 92000, and this is falsé.", [31, 23, 386, 19, 561, 3050, 15, 17, 48, 25, 4997, 9]),
        (
            "BERT is designed to pre-train deep bidirectional representations from unlabeled text by jointly "
            "conditioning on both left and right context in all layers.",
            [11502, 25, 1006, 20, 782, 8, 11809, 855, 1732, 19393, 18667, 37, 367, 21018, 69, 1854, 34, 11860, 19124,
             27, 156, 225, 17, 193, 4141, 19, 65, 9124, 9],
        ),
        ("The quick brown fox jumps over the lazy dog.", [14, 2231, 886, 2385, 17659, 84, 14, 16792, 1952, 9]),
        (TRANSFORMERS_SENTENCE, TRANSFORMERS_IDS[1:-1]),
    ],
)  # fmt: skip
def test_reference_ids_of_transformers(google: AlbertTokenizer, text: str, ids: list[int]) -> None:
    assert google.text_rules == "google"
    assert google.encode(text) == ids
    assert google.encode(text, special_tokens=True) == [2, *ids, 3]


def test_accents_kept(data: Path) -> None:
    tokenizer = AlbertTokenizer.from_pretrained(data / "albert", text_rules="multilingual")
    text = "i was born in 92000, and this is falsé."  # the reference lower-cases first
    assert tokenizer.encode(text) == [31, 23, 386, 19, 561, 3050, 15, 17, 48, 25, 8256, 18, 1, 9]


@pytest.mark.parametrize(("rules", "key"), [("google", "lower"), ("none", "raw")])
def test_hard_lines(golden: Path, data: Path, rules: str, key: str) -> None:
    tokenizer = AlbertTokenizer.from_pretrained(data / "albert", text_rules=rules)
    lines = [row for row in rows(golden / "tokenizer" / "lines.jsonl") if not row["differs_with"]]
    assert len(lines) == 1872
    for row in lines:
        assert tokenizer.encode(row["text"]) == row[key]["ids"], row["id"]
        assert tokenizer.pieces(row["text"]) == row[key]["pieces"], row["id"]
    batch = tokenizer.encode_batch([row["text"] for row in lines])
    assert [ids.tolist() for ids in batch.texts()] == [row[key]["ids"] for row in lines]


def test_digit_comma_rule_where_it_matters(golden: Path) -> None:
    folder = golden / "tokenizer"
    tokenizer = SentencePieceTokenizer((folder / "digit_comma_toy.model").read_bytes())
    raw = SentencePieceTokenizer((folder / "digit_comma_toy.model").read_bytes(), "none")
    lines = [row for row in rows(folder / "digit_comma_toy.jsonl") if not row["differs_with"]]
    changed = 0
    for row in lines:
        assert tokenizer.encode(row["text"]) == row["lower"]["ids"], row["id"]
        assert tokenizer.pieces(row["text"]) == row["lower"]["pieces"], row["id"]
        assert raw.encode(row["text"]) == row["raw"]["ids"], row["id"]
        changed += row["lower"]["ids"] != row["raw"]["ids"]
    assert changed > 200  # the rule had something to do
    batch = tokenizer.encode_batch([row["text"] for row in lines])
    assert [ids.tolist() for ids in batch.texts()] == [row["lower"]["ids"] for row in lines]
    for row in lines:
        assert tokenizer.encode_with_offsets(row["text"])[0] == row["lower"]["ids"]


# transformers' slow class knows more than Google's rules: `` and '' become ", and every special token's name in a text
# becomes its id. The API offers the latter for [MASK] alone.
def _beyond_google(text: str) -> bool:
    return any(mark in text for mark in ("``", "''", "[CLS]", "[SEP]", "<pad>", "<unk>"))


def test_single_texts_of_transformers(golden: Path, google: AlbertTokenizer) -> None:
    lines = [row for row in rows(golden / "hf" / "tokenizer_single.jsonl") if not _beyond_google(row["text"])]
    assert len(lines) == 296
    for row in lines:
        ids = google.encode(row["text"], special_tokens=True, mask_literal=True)
        assert ids == row["input_ids"], row["i"]
        if google.unk_id not in ids:
            assert google.decode(ids, skip_special_tokens=True) == row["decode_skip_special"], row["i"]
            assert google.decode(ids) == row["decode"], row["i"]


def test_offsets_of_transformers(golden: Path, google: AlbertTokenizer) -> None:
    lines = [row for row in rows(golden / "hf" / "tokenizer_single.jsonl") if row["offsets"] and row["text"].isascii()]
    lines = [
        row
        for row in lines
        if not _beyond_google(row["text"]) and "[MASK]" not in row["text"] and row["text"].isprintable()
    ]
    assert len(lines) > 40
    for row in lines:
        ids, spans = google.encode_with_offsets(row["text"])
        # transformers lets a mark of a space that stands for nothing cover the character after it
        for piece_id, ours, theirs in zip(ids, spans, row["offsets"][1:-1], strict=True):
            assert list(ours) == theirs or (google.id_to_piece(piece_id) == "▁" and ours == (0, 0)), row["i"]


def test_pairs_of_transformers(golden: Path, google: AlbertTokenizer) -> None:
    pairs = [r for r in rows(golden / "hf" / "tokenizer_pairs.jsonl") if not _beyond_google(r["text_a"] + r["text_b"])]
    assert len(pairs) == 56
    for row in pairs:
        ids = google.encode(row["text_a"], row["text_b"], mask_literal=True)
        assert ids == row["input_ids"], row["i"]
        assert google.token_type_ids(ids) == row["token_type_ids"], row["i"]


@pytest.mark.parametrize("model", ["spiece", "spiece_userdef"])
@pytest.mark.parametrize("rules", ["multilingual", "none"])
def test_korean_composed_and_decomposed(golden: Path, model: str, rules: str) -> None:
    folder = golden / "korean"
    tokenizer = SentencePieceTokenizer((folder / f"{model}.model").read_bytes(), rules)
    lines = rows(folder / "lines.jsonl")
    truth = [row[f"{model}_ids"] for row in lines]
    for form in ("nfc", "nfd"):
        assert [tokenizer.encode(row[form]) for row in lines] == truth
        assert [ids.tolist() for ids in tokenizer.encode_batch([row[form] for row in lines]).texts()] == truth


def test_korean_under_google_rules(golden: Path) -> None:
    folder = golden / "korean"
    tokenizer = SentencePieceTokenizer((folder / "spiece.model").read_bytes(), "google")
    for row in rows(folder / "lines.jsonl"):
        if any(mark in row["nfc"] for mark in ("[MASK]", "[SEP]", "<pad>")):
            continue
        for form in ("nfc", "nfd"):
            assert tokenizer.encode(row[form]) == (row["spiece_after_albert_preprocessing_ids"] or row["spiece_ids"]), (
                row["i"]
            )


def test_word_starts_of_create_pretraining_data(golden: Path, google: AlbertTokenizer) -> None:
    starts = google.word_starts()
    assert starts.dtype == np.bool_
    assert starts.shape == (30000,)
    ids = {google.id_to_piece(i): i for i in range(google.vocab_size)}
    checked = 0
    for row in rows(golden / "masking" / "instances.jsonl"):
        ours = [int(starts[ids.get(token, google.unk_id)]) for token in row["tokens_before_masking"]]
        assert ours == row["token_boundary"], row["id"]
        units: list[list[int]] = []
        for position, token in enumerate(row["tokens_before_masking"]):
            if token in ("[CLS]", "[SEP]"):
                continue
            if ours[position] or not units:
                units.append([position])
            else:
                units[-1].append(position)
        assert units == row["units"], row["id"]
        checked += len(ours)
    assert checked > 10_000
