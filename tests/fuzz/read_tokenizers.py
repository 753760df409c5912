"""Tokenizer folders of every kind, read and used."""

import json
import shutil

from hostile import Reader

WORDS = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions near calm rivers".split()
TEXT = "The quick 1,000 brown [MASK] foxes, über 서울 \u202e\0 x"


def make_spiece(folder):
    from albertkit.tokenizer import train_tokenizer

    text = folder / "text.txt"
    text.write_text("\n".join(" ".join(WORDS[n % 20 :] + WORDS[: n % 7]) + "." for n in range(60)))
    train_tokenizer([text], folder / "made", vocab_size=48)
    for name in ("spiece.model", "tokenizer.json", "tokenizer_config.json"):
        (folder / "made" / name).rename(folder / name)
    shutil.rmtree(folder / "made")
    text.unlink()
    (folder / "special_tokens_map.json").write_text(
        '{"cls_token": "[CLS]", "mask_token": {"content": "[MASK]"}}'
    )
    (folder / "added_tokens.json").write_text("{}")


def make_json(folder):
    make_spiece(folder)
    (folder / "spiece.model").unlink()


def make_wordpiece(folder):
    folder.mkdir(exist_ok=True)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", "##es", ",", "1", "0"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    settings = {
        "do_lower_case": True,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "model_max_length": 64,
    }
    decoder = {"0": {"content": "[PAD]", "special": True}}
    settings |= {
        "cls_token": "[CLS]",
        "mask_token": {"content": "[MASK]"},
        "added_tokens_decoder": decoder,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def make_bert_json(folder):
    from albertkit.tokenizer import AlbertTokenizer

    make_wordpiece(folder)
    AlbertTokenizer.from_pretrained(folder).save_pretrained(folder)
    (folder / "vocab.txt").unlink()


def use(folder):
    from albertkit.tokenizer import AlbertTokenizer

    tokenizer = AlbertTokenizer.from_pretrained(folder)
    ids = tokenizer.encode(TEXT, pair="a dog", mask_literal=True)
    tokenizer.encode_batch([TEXT, ""])
    tokenizer.encode_with_offsets(TEXT)
    tokenizer.pieces(TEXT)
    tokenizer.decode(ids)
    tokenizer.word_starts()
    assert all(0 <= number < tokenizer.vocab_size for number in ids)
    return ids


def carry(folder):
    """Write what was read, as conversion does."""
    from albertkit.tokenizer import AlbertTokenizer

    AlbertTokenizer.from_pretrained(folder).save_pretrained(folder / "out")


READERS = {
    "SentencePiece tokenizer": Reader(
        make_spiece, use, ("spiece.model", "*config.json", "special*", "added*"), examples=15
    ),
    "tokenizer.json": Reader(make_json, use),
    "WordPiece tokenizer": Reader(make_wordpiece, use),
    "tokenizer.json of BERT": Reader(make_bert_json, use, ("tokenizer.json",)),
    "tokenizer written again": Reader(
        make_spiece, carry, ("spiece.model", "*config.json"), writes=True
    ),
}
