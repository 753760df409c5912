"""Folders, decoding, errors."""

import io
import pickle
import shutil
import subprocess
import sys

import pytest
import sentencepiece

from albertkit.errors import AlbertKitError
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.sentencepiece_model import digit_comma_rule, read_facts


def test_the_whole_table_of_the_digit_comma_rule(data):
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(data / "albert/30k-clean.model")
    )
    rule = digit_comma_rule(processor)
    assert rule is not None
    assert int((rule.counts > 1).sum()) == 141
    assert set(rule.counts[rule.counts > 1]) == {2}


def test_model_facts_against_protobuf(data):
    # in a process of its own: sentencepiece's and transformers' copies of the schema cannot meet
    model = data / "albert/30k-clean.model"
    code = (
        "import sys; from sentencepiece import sentencepiece_model_pb2 as pb\n"
        "from albertkit.tokenizer.sentencepiece_model import read_facts\n"
        "raw = open(sys.argv[1], 'rb').read(); m = pb.ModelProto(); m.ParseFromString(raw); f = read_facts(raw)\n"
        "assert [*f.pieces] == [(p.piece, p.score, p.type) for p in m.pieces]\n"
        "t = m.trainer_spec; assert f.model_type == t.model_type\n"
        "assert f.whitespace_as_suffix == t.treat_whitespace_as_suffix\n"
        "n = m.normalizer_spec; assert f.charsmap == n.precompiled_charsmap and len(f.charsmap) > 1000\n"
        "assert (f.dummy_prefix, f.one_space) == (n.add_dummy_prefix, n.remove_extra_whitespaces)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(model)], check=True)
    assert len(read_facts(model.read_bytes()).pieces) == 30000


def test_saved_folder_comes_back(google, data, tmp_path):
    for rules in ("google", "multilingual"):
        tokenizer = AlbertTokenizer.from_pretrained(data / "albert", rules)
        tokenizer.save_pretrained(tmp_path / rules)
        files = sorted(p.name for p in (tmp_path / rules).iterdir())
        assert files == ["spiece.model", "tokenizer.json", "tokenizer_config.json"]
        reloaded = AlbertTokenizer.from_pretrained(tmp_path / rules)
        assert reloaded.text_rules == rules
        assert reloaded.fingerprint == tokenizer.fingerprint
    assert (
        AlbertTokenizer.from_pretrained(data / "albert", "none").fingerprint != google.fingerprint
    )


def test_pickle(google):
    restored = pickle.loads(pickle.dumps(google))
    assert restored.fingerprint == google.fingerprint
    assert restored.encode("Naïve, 2010, words") == google.encode("Naïve, 2010, words")


def test_decode(google):
    text = 'a "quoted" (and bracketed) sentence, with £5 - and hyphens.'
    assert google.decode(google.encode(text)) == text
    assert google.decode(google.encode("One.", "Two.")) == "[CLS] one.[SEP] two.[SEP]"
    assert google.decode(google.encode("One.", "Two."), skip_special_tokens=True) == "one. two."
    assert google.decode([]) == ""
    assert google.decode(google.encode("the [MASK] of", mask_literal=True)) == "the[MASK] of"


def test_batches(google):
    texts = ["", "One, 2010, two.", "   ", "Café \ud800 x", "three"]
    batch = google.encode_batch(texts, num_threads=2)
    assert str(batch.ids.dtype) == "int32"
    assert str(batch.offsets.dtype) == "int64"
    assert [ids.tolist() for ids in batch.texts()] == [google.encode(text) for text in texts]
    empty = google.encode_batch([])
    assert empty.num_texts == 0
    assert len(empty.ids) == 0
    assert empty.offsets.tolist() == [0]


def test_importing_is_light():
    code = "import sys, albertkit.tokenizer.tokenizer as t; print({'torch', 'numba', 'tokenizers'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"


def test_folders_that_are_no_tokenizer(data, tmp_path, slug_of):
    model = data / "albert/30k-clean.model"
    assert slug_of(AlbertTokenizer.from_pretrained, tmp_path) == "no-tokenizer"
    assert slug_of(AlbertTokenizer.from_pretrained, tmp_path / "nowhere") == "not-found"
    shutil.copyfile(model, tmp_path / "one.model")
    assert AlbertTokenizer.from_pretrained(tmp_path).vocab_size == 30000
    assert (
        slug_of(AlbertTokenizer.from_pretrained(tmp_path).save_pretrained, tmp_path) == "ambiguous"
    )
    shutil.copyfile(model, tmp_path / "two.model")
    with pytest.raises(AlbertKitError, match=r"(?s)\[ambiguous\].*one\.model, two\.model.*hint: "):
        AlbertTokenizer.from_pretrained(tmp_path)
    (tmp_path / "two.model").unlink()
    for content in (b"", b"no model at all", model.read_bytes()[:1000]):
        (tmp_path / "one.model").write_bytes(content)
        assert slug_of(AlbertTokenizer.from_pretrained, tmp_path) in ("bad-file", "wrong-tokenizer")


def test_special_ids_that_are_not_alberts(tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["ein kleiner satz", "noch ein satz"]),
        model_writer=model,
        vocab_size=19,
        minloglevel=3,
    )
    (tmp_path / "other.model").write_bytes(model.getvalue())
    with pytest.raises(AlbertKitError, match=r"(?s)\[wrong-tokenizer\].*<unk>=0 <s>=1.*hint: "):
        AlbertTokenizer.from_pretrained(tmp_path)


def test_ids_out_of_range(google, slug_of):
    for ids in ([30000], [-1]):
        assert slug_of(google.decode, ids) == "wrong-tokenizer"
