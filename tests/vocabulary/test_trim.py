"""Trimmed vocabularies: the states of transformers' models before, and the ids of its AutoTokenizer after."""

import json
import shutil
from collections import Counter

import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from record_files import write_json
from tokenizers import BertWordPieceTokenizer
from torch.testing import assert_close

from albertkit.conversion.convert import convert
from albertkit.embeddings import SentenceEncoder
from albertkit.files import read_json
from albertkit.model import AlbertForMaskedLM, AlbertForPreTraining, AlbertModel
from albertkit.tokenizer import AlbertTokenizer, train_tokenizer
from albertkit.tokenizer.sentencepiece import SentencePieceTokenizer
from albertkit.tokenizer.sentencepiece_model import NORMAL, read_facts, rebuild_model
from albertkit.vocabulary import repair_vocabulary, trim_vocabulary

SPECIALS = "[PAD] [UNK] [CLS] [SEP] [MASK]".split()


@pytest.fixture(scope="module")
def bert(english, korean, tmp_path_factory):
    """A BERT of two layers for English and Korean, with spare rows, tokens that no text has, and a far unknown token."""
    folder = tmp_path_factory.mktemp("bert")
    trainer = BertWordPieceTokenizer(strip_accents=False)
    trainer.train_from_iterator(
        [*english, *korean], vocab_size=600, min_frequency=1, show_progress=False
    )
    tokens = [token for token in trainer.get_vocab() if token not in SPECIALS]
    vocabulary = ["[PAD]", "[unused1]", *SPECIALS[1:], *sorted(tokens), "[unused2]"]
    (folder / "vocab.txt").write_text(
        "".join(f"{token}\n" for token in vocabulary), encoding="utf-8"
    )
    transformers.BertTokenizerFast(str(folder / "vocab.txt"), strip_accents=False).save_pretrained(
        folder
    )
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary) + 5,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    model = transformers.BertForMaskedLM(config)
    model.cls.predictions.bias.data.normal_()
    model.save_pretrained(folder)
    (folder / "modules.json").write_text(
        '[{"type": "sentence_transformers.models.Transformer", "path": ""}]'
    )
    return folder


def write_lines(folder, lines):
    file = folder / "text.txt"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def run_model(model, ids):
    with torch.no_grad():
        output = model(torch.tensor([ids]), output_hidden_states=True)
    return output.hidden_states, output.get("logits", output.get("prediction_logits"))


def check_same_model(model_class, their_model, old_folder, new_folder, lines):
    """Compare ids with AutoTokenizer's, states with the untrimmed model's bit by bit and with transformers'."""
    old = AlbertTokenizer.from_pretrained(old_folder)
    new = AlbertTokenizer.from_pretrained(new_folder)
    old_ids_of = old.get_vocab()
    order = [old_ids_of[new.id_to_piece(number)] for number in range(new.vocab_size)]
    convert(old_folder, new_folder.parent / "untrimmed")
    before, after = (
        model_class.from_pretrained(folder, strict=True).eval()
        for folder in (new_folder.parent / "untrimmed", new_folder)
    )
    theirs = transformers.AutoTokenizer.from_pretrained(new_folder)
    for line in lines:
        ids = new.encode(line)
        old_ids = old.encode(line)
        assert theirs(line, add_special_tokens=False).input_ids == ids
        assert [order[number] for number in ids] == old_ids
        states, logits = run_model(after, [new.cls_id, *ids, new.sep_id])
        old_states, old_logits = run_model(before, [old.cls_id, *old_ids, old.sep_id])
        assert all(torch.equal(*pair) for pair in zip(states, old_states, strict=True))
        assert_close(logits, old_logits[..., order], atol=1e-5, rtol=0)
        their_states, their_logits = run_model(their_model, [old.cls_id, *old_ids, old.sep_id])
        assert_close(states[-1], their_states[-1], atol=3e-5, rtol=0)
        assert_close(logits, their_logits[..., order], atol=1e-3, rtol=0)


def test_a_bert_for_one_of_its_languages(bert, korean, tmp_path):
    lines = [*korean[:400], "뷁 café ☃"]
    report = trim_vocabulary(bert, [write_lines(tmp_path, lines)], tmp_path / "new")
    old = AlbertTokenizer.from_pretrained(bert)
    new = AlbertTokenizer.from_pretrained(tmp_path / "new")
    assert new.vocab_size == report.vocab_size < old.vocab_size - 100
    assert report.text.changed_lines == 0
    assert report.text.changed_tokens == 0
    assert report.text.lines == len(lines)
    assert report.text.tokens == sum(len(old.encode(line)) for line in lines)
    assert report.model_class == "AlbertForMaskedLM"
    assert (tmp_path / "new/modules.json").read_bytes() == (bert / "modules.json").read_bytes()
    assert AlbertForMaskedLM.from_pretrained(tmp_path / "new").config.vocab_size == new.vocab_size
    original = transformers.BertForMaskedLM.from_pretrained(bert).eval()
    check_same_model(AlbertForMaskedLM, original, bert, tmp_path / "new", lines[-20:])


def test_an_albert_and_the_digit_before_a_comma(tmp_path, english, english_model):
    """Google's rules take "2010," apart after the search that has chosen it; without it `,b` would be chosen."""
    model = AlbertTokenizer.from_pretrained(english_model).model
    added = [("\u25812010,", -0.5, NORMAL), ("\u25812010", -4.0, NORMAL), (",b", -4.0, NORMAL)]
    tokenizer = SentencePieceTokenizer(rebuild_model(model, [*read_facts(model).pieces, *added]))
    shutil.copytree(english_model, tmp_path / "old")
    original = AlbertForPreTraining.from_pretrained(tmp_path / "old")
    original.resize_token_embeddings(tokenizer.vocab_size)
    original.save_pretrained(tmp_path / "old", tokenizer)
    lines = ["2010,ba", "da,ba", *english[:5]]
    report = trim_vocabulary(tmp_path / "old", [write_lines(tmp_path, lines)], tmp_path / "new")
    assert report.vocab_size < tokenizer.vocab_size
    assert report.text.changed_lines == 0
    theirs = transformers.AlbertForPreTraining.from_pretrained(tmp_path / "old").eval()
    check_same_model(AlbertForPreTraining, theirs, tmp_path / "old", tmp_path / "new", lines[1:])


@pytest.mark.parametrize("kind", ["english_model", "bert"])
def test_no_known_text_becomes_unknown(request, kind, english, tmp_path, run_command):
    """A text of all words, read with the tokens of one line: more tokens, none of them unknown."""
    folder = request.getfixturevalue(kind)
    file = write_lines(tmp_path, english[:1] * 3)
    values = run_command(
        "tokenizer", "trim", folder, file, "--out", tmp_path / "new", "--min-count", "4", "--json"
    ).json
    assert values["text"]["changed_lines"] == 3
    assert values["text"]["changed_tokens"] > 0
    old = AlbertTokenizer.from_pretrained(folder)
    new = AlbertTokenizer.from_pretrained(tmp_path / "new")
    for line in english:
        assert (old.unk_id in old.encode(line)) == (new.unk_id in new.encode(line))
    assert (
        "unknown tokens"
        in run_command("tokenizer", "trim", folder, file, "--out", tmp_path / "shown").out
    )


def test_the_size_has_a_limit(english_model, english, tmp_path, slug_of):
    file = write_lines(tmp_path, english)
    old = AlbertTokenizer.from_pretrained(english_model)
    frequent = Counter(token for line in english for token in old.encode(line))
    report = trim_vocabulary(english_model, [file], tmp_path / "new", vocab_size=120)
    new = AlbertTokenizer.from_pretrained(tmp_path / "new")
    assert new.vocab_size == report.vocab_size == 120
    left_out = set(old.get_vocab()) - set(new.get_vocab())
    assert max(frequent[old.get_vocab()[token]] for token in left_out) <= min(
        frequent[old.get_vocab()[token]]
        for token in new.get_vocab()
        if len(token) > 1 and token not in new.all_special_tokens
    )
    assert (
        slug_of(trim_vocabulary, english_model, [file], tmp_path / "small", vocab_size=20)
        == "bad-value"
    )
    assert not (tmp_path / "small").exists()


def test_a_tokenizer_alone_and_what_is_refused(tmp_path, english, slug_of):
    file = write_lines(tmp_path, english)
    blank = tmp_path / "blank.txt"
    blank.write_text("\n\n")
    bpe = tmp_path / "bpe"
    train_tokenizer(english, tmp_path / "unigram", vocab_size=160)
    assert trim_vocabulary(tmp_path / "unigram", [file], tmp_path / "new").model_class is None
    assert slug_of(trim_vocabulary, tmp_path / "unigram", [blank], tmp_path / "empty") == "empty"
    bpe.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        input=str(file),
        model_prefix=str(bpe / "spiece"),
        model_type="bpe",
        vocab_size=160,
        minloglevel=3,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
    )
    assert slug_of(trim_vocabulary, bpe, [file], tmp_path / "empty") == "unsupported"
    shutil.copytree(tmp_path / "unigram", tmp_path / "xlm-r")
    settings = tmp_path / "xlm-r/tokenizer_config.json"
    settings.write_text('{"tokenizer_class": "XLMRobertaTokenizer"}')
    slug = slug_of(trim_vocabulary, tmp_path / "xlm-r", [file], tmp_path / "empty")
    assert slug == "wrong-tokenizer"  # the model has ALBERT's pieces
    settings.write_text('{"tokenizer_class": "BartTokenizer"}')
    assert slug_of(trim_vocabulary, tmp_path / "xlm-r", [file], tmp_path / "empty") == "unsupported"
    (tmp_path / "unigram/config.json").write_text('{"model_type": "xlm-roberta"}')
    assert (
        "xlm-roberta" in trim_vocabulary(tmp_path / "unigram", [file], tmp_path / "alone").notes[0]
    )
    assert not (tmp_path / "empty").exists()


def test_a_bert_with_the_tokenizer_of_xlm_r(
    tmp_path, english, korean, slug_of, run_command, caplog
):
    """As multilingual-e5-small is: fairseq's ids, a model of SentencePiece, and an encoder without a pooler."""
    folder = tmp_path / "e5"
    folder.mkdir()
    file = write_lines(tmp_path, [*english, *korean])
    sentencepiece.SentencePieceTrainer.train(
        input=str(file),
        model_prefix=str(folder / "sentencepiece.bpe"),
        vocab_size=600,
        minloglevel=3,
        character_coverage=1.0,
    )
    names = dict(cls="<s>", sep="</s>", pad="<pad>", unk="<unk>", mask="<mask>")
    settings = {f"{role}_token": name for role, name in names.items()}
    settings["tokenizer_class"] = "XLMRobertaTokenizer"
    write_json(folder / "tokenizer_config.json", settings)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=610,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.3,
        pad_token_id=1,
        tokenizer_class="XLMRobertaTokenizer",
    )
    theirs = transformers.BertModel(config, add_pooling_layer=False).eval()
    theirs.save_pretrained(folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, (path, kind) in enumerate(kinds.items())
    ]
    write_json(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(
        '{"word_embedding_dimension": 32, "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}'
    )
    their_tokenizer = transformers.XLMRobertaTokenizer.from_pretrained(folder)
    assert slug_of(AlbertTokenizer.from_pretrained, folder) == "unsupported"
    report = trim_vocabulary(folder, [file], tmp_path / "new", vocab_size=500)
    assert "separator" in repair_vocabulary(folder, tmp_path / "renumbered").notes[0]
    assert "separator" in report.notes[0]
    # As transformers 5 saves it: `tokenizer.json` alone
    theirs.save_pretrained(tmp_path / "saved")
    their_tokenizer.save_pretrained(tmp_path / "saved")
    # and as transformers 4 does
    saved = read_json(tmp_path / "saved/tokenizer.json")
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    saved["normalizer"] = {"type": "Sequence", "normalizers": [saved["normalizer"], spaces]}
    write_json(tmp_path / "saved/tokenizer.json", saved)
    repair_vocabulary(tmp_path / "saved", tmp_path / "from-json")
    cut = {**saved["added_tokens"][0], "id": 10, "content": "b", "special": False}
    damaged = [
        ("[]", "unsupported"),
        ("", "bad-file"),
        (json.dumps(saved | {"model": saved["model"] | {"unk_id": None}}), "unsupported"),
        (json.dumps(saved | {"added_tokens": [*saved["added_tokens"], cut]}), "wrong-tokenizer"),
    ]
    for content, slug in damaged:
        (tmp_path / "saved/tokenizer.json").write_text(content)
        assert slug_of(repair_vocabulary, tmp_path / "saved", tmp_path / "none") == slug
    (tmp_path / "saved/spiece.model").write_bytes(b"")
    assert slug_of(repair_vocabulary, tmp_path / "saved", tmp_path / "none") == "bad-file"
    assert report.text.changed_lines > 0
    printed = run_command("tokenizer", "trim", folder, file, "--out", tmp_path / "again").out
    assert "\\n" not in printed
    assert len(printed.splitlines()) >= 6
    assert "no pooler" in caplog.text
    assert "tokenizer_class" not in read_json(tmp_path / "new/config.json")
    for name in ("new", "renumbered", "from-json"):
        tokenizer = AlbertTokenizer.from_pretrained(tmp_path / name)
        ours = AlbertModel.from_pretrained(tmp_path / name).eval()
        special_ids = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id)
        assert (*special_ids, tokenizer.mask_id) == (0, 1, 2, 3, 4)
        equal_lines = 0
        for line in [*english[:100], *korean[:100], "☃ \uff21\u1112\u1161\u11ab", "뷁 1,000"]:
            ids = their_tokenizer(line).input_ids
            own_ids = tokenizer(line)["input_ids"]
            pieces = their_tokenizer.convert_ids_to_tokens(ids)
            if pieces != [tokenizer.id_to_piece(number) for number in own_ids]:
                assert name == "new"
                continue
            equal_lines += 1
            (their_state, *_), (state, *_) = run_model(theirs, ids), run_model(ours, own_ids)
            assert_close(state[-1], their_state[-1], atol=3e-5, rtol=0)
        assert equal_lines > (100 if name == "new" else 201)
    shutil.copytree(folder, tmp_path / "two")
    saved["model"]["vocab"][20:22] = saved["model"]["vocab"][21:19:-1]
    write_json(tmp_path / "two/tokenizer.json", saved)
    assert slug_of(repair_vocabulary, tmp_path / "two", tmp_path / "none") == "wrong-tokenizer"
    import sentence_transformers as st

    vectors = SentenceEncoder.from_pretrained(tmp_path / "renumbered").encode(korean[:8])
    their_vectors = st.SentenceTransformer(str(folder), device="cpu").encode(korean[:8])
    np.testing.assert_allclose(vectors, their_vectors, atol=1e-5)


def test_the_mask_is_found_as_before(tmp_path, english):
    file = write_lines(tmp_path, english)
    train_tokenizer(english, tmp_path / "old", vocab_size=160)
    tokenizer = AlbertTokenizer.from_pretrained(tmp_path / "old")
    tokenizer.mask_flags = ("normalized",)
    tokenizer.save_pretrained(tmp_path / "flagged")
    trim_vocabulary(tmp_path / "flagged", [file], tmp_path / "new")
    for folder in ("flagged", "new"):
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / folder)
        ours = AlbertTokenizer.from_pretrained(tmp_path / folder)
        assert ours.mask_flags == ("normalized",)
        assert ours("a [mask] here")["input_ids"] == theirs("a [mask] here")["input_ids"]
