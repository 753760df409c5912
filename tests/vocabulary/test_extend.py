"""More tokens for a tokenizer and its model: the old ones stay as they were, the new ones are used, all readers agree."""

import io
import json
import re
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
import sentencepiece
import torch
from safetensors.torch import load_file

from albertkit.corpus.cooccurrence import Documents, cooccurrence_vectors
from albertkit.errors import AlbertKitError, CheckpointError, ConfigError, DataError
from albertkit.model import AlbertForPreTraining, AlbertForSequenceClassification
from albertkit.tokenizer import AlbertTokenizer, check_tokenizer, rules
from albertkit.tokenizer.extend import UnigramPieces, extend_tokenizer
from albertkit.tokenizer.options import SearchSettings
from albertkit.tokenizer.sentencepiece_model import UNUSED, read_facts
from albertkit.vocabulary import extend_vocabulary

WORDS = "embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def extended(english_model, korean_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("extended") / "both"
    report = extend_vocabulary(
        english_model,
        [korean_file],
        out,
        english_model,
        max_new=200,
        words=["문서중앙", "두 낱말", "", "문서" * 20],
        multiple_of=8,
    )
    return out, report


def test_report(extended):
    _, report = extended
    assert report.old_size == 160
    assert report.vocab_size % 8 == 0
    assert (
        report.vocab_size == 160 + report.characters + report.words + report.found + report.unused
    )
    assert report.left_out == {
        "several words": ["두 낱말"],
        "empty": [""],
        "too long": ["문서" * 20],
    }
    assert report.words == 1
    assert report.model_class == "AlbertForPreTraining"
    assert report.differing == 0
    assert report.before.unknown_rate > 0.3
    assert report.before.character_coverage < 0.2
    assert report.after.unknown_rate == 0
    assert report.after.character_coverage == 1
    assert report.after.round_trip == 1
    assert report.after.pieces_a_word < 3.5
    assert json.dumps(report.to_dict())


def test_old_ids_and_rows_are_the_same_bit_for_bit(english_model, extended):
    out, _ = extended
    before, after = (
        read_facts((folder / "spiece.model").read_bytes()).pieces for folder in (english_model, out)
    )
    assert after[:160] == before
    old = load_file(english_model / "model.safetensors")
    new = load_file(out / "model.safetensors")
    assert old.keys() == new.keys()
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed == {f"albert.{WORDS}", "predictions.bias"}
    for name in changed:
        assert torch.equal(new[name][:160].view(torch.int32), old[name].view(torch.int32))
        assert len(new[name]) == len(after)
    rows = new[f"albert.{WORDS}"][160:]
    # Symbols that start alike would have to be told apart first
    assert len(torch.unique(rows, dim=0)) == len(rows)
    # `pretrain --train-only new-rows` reads it
    assert json.loads((out / "provenance.json").read_text()) == {"new_rows_from": 160}


def test_old_texts_keep_their_ids(english, english_model, extended):
    out, _ = extended
    old = AlbertTokenizer.from_pretrained(english_model)
    new = AlbertTokenizer.from_pretrained(out)
    assert [new.encode(text) for text in english] == [old.encode(text) for text in english]


def test_both_libraries_load_the_model(english, english_model, extended, korean):
    import transformers

    out, report = extended
    ours = AlbertForPreTraining.from_pretrained(out)
    theirs = transformers.AlbertForPreTraining.from_pretrained(out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    inputs = tokenizer([english[0], korean[0]], padding=True, return_tensors="pt")
    with torch.no_grad():
        our_output = ours.eval()(**inputs)
        their_output = theirs.eval()(**inputs)
        before = AlbertForPreTraining.from_pretrained(english_model)(
            **tokenizer(english[0], return_tensors="pt")
        )
        after = ours(**tokenizer(english[0], return_tensors="pt"))
    assert our_output.prediction_logits.shape[-1] == report.vocab_size == len(tokenizer)
    mask = inputs["attention_mask"].bool()
    assert torch.allclose(
        our_output.prediction_logits[mask], their_output.prediction_logits[mask], atol=1e-5
    )
    assert torch.equal(after.prediction_logits[..., :160], before.prediction_logits)
    assert ours.predictions.decoder.weight is ours.albert.embeddings.word_embeddings.weight


def test_tokens_are_used_before_particles_and_come_back(extended):
    out, _ = extended
    tokenizer = AlbertTokenizer.from_pretrained(out)
    for text in ("문서중앙을 읽는다.", "서울에서 문서중앙까지 갔다.", "the 문서중앙을 reads"):
        for form in ("NFC", "NFD"):
            pieces = tokenizer.pieces(unicodedata.normalize(form, text))
            assert "▁문서중앙" in pieces
            assert not pieces[pieces.index("▁문서중앙") + 1].startswith("▁")
            ids = tokenizer.encode(unicodedata.normalize(form, text))
            assert tokenizer.unk_id not in ids
            assert tokenizer.decode(ids) == text


def test_every_reader_agrees(extended, korean):
    out, _ = extended
    report = check_tokenizer(out, korean[:200])
    assert report.ok
    assert [comparison.differing for comparison in report.comparisons] == [0, 0, 0]


def test_max_new_bounds_given_words_too(english_model, korean_file, tmp_path):
    """Characters and given words that are more than `max_new` are refused with the number that is needed."""
    words = [f"garden{a}{b}" for a in "bdfgk" for b in "aeiou"] * 2
    files = [korean_file]
    old = AlbertTokenizer.from_pretrained(english_model).vocab_size
    with pytest.raises(
        ConfigError, match=r"max_new is 30, .* need \d+ new ones, and 25 words were given"
    ) as caught:
        extend_vocabulary(english_model, files, tmp_path / "a", max_new=30, words=words)
    num_required = int(re.search(r"--max-new (\d+)", caught.value.hint)[1])
    report = extend_vocabulary(
        english_model, files, tmp_path / "b", max_new=num_required, words=words
    )
    assert report.vocab_size - old == num_required
    assert report.found == 0
    assert report.words == 25
    larger = extend_vocabulary(
        english_model, files, tmp_path / "c", max_new=num_required + 40, words=words
    )
    assert larger.vocab_size == report.vocab_size + 40


def test_only_unigram_models_are_extended(tmp_path, korean_file, slug_of):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["words of a text, and others"] * 9),
        model_writer=model,
        model_type="bpe",
        vocab_size=40,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        minloglevel=3,
    )
    (tmp_path / "spiece.model").write_bytes(model.getvalue())
    assert slug_of(extend_vocabulary, tmp_path, [korean_file], tmp_path / "out") == "unsupported"


def test_scores_are_above_the_old_segmentation_and_not_greedy(extended):
    out, report = extended
    facts = read_facts((out / "spiece.model").read_bytes())
    first = 160 + report.characters
    before = UnigramPieces(replace(facts, pieces=facts.pieces[:first]), 1)
    words = facts.pieces[first : report.vocab_size - report.unused]
    assert all(score > before.best_segmentation(piece)[0] for piece, score, _ in words)
    assert all(before.lowest <= score < -1 for _, score, _ in words)
    assert {score for _, score, _ in facts.pieces[160:first]} == {before.lowest}
    assert all(kind == UNUSED for _, _, kind in facts.pieces[report.vocab_size - report.unused :])
    assert {piece[0] == "▁" for piece, _, _ in words} == {True, False}  # both positions


def test_biases_follow_the_line_of_the_old_ones(english_model, extended):
    out, report = extended
    old, new = (
        load_file(f / "model.safetensors")["predictions.bias"] for f in (english_model, out)
    )
    added = new[160 : report.vocab_size - report.unused]
    assert old[13:].min() <= added.min() < added.max() <= old[13:].max()
    tokenizer = AlbertTokenizer.from_pretrained(out)
    words = sorted(range(160, tokenizer.vocab_size), key=lambda i: new[i].item())
    texts = tokenizer.encode_batch(
        ["서울에서 문서를 읽는다.", "학교에서 책을", "나라는 서울에서 읽는다."] * 10
    ).ids
    counts = np.bincount(texts, minlength=tokenizer.vocab_size)
    assert counts[words[-10:]].mean() > 5 * counts[words[:10]].mean()


def test_frequencies_are_shares_of_all_tokens(english_model):
    texts = ["the the the the the the the wizzzards"] * 3
    extension = extend_tokenizer(
        AlbertTokenizer.from_pretrained(english_model), texts, SearchSettings(), words=["wizzzards"]
    )
    counts = np.bincount(
        extension.tokenizer.encode_batch(texts).ids, minlength=extension.tokenizer.vocab_size
    )
    expected = np.maximum(counts[extension.first_id :], 0.5) / counts.sum()
    np.testing.assert_allclose(extension.frequencies, expected)
    assert expected.sum() < 0.5


@pytest.mark.parametrize("how", ["subword-mean", "mean", "normal", "zero"])
def test_rows(english_model, tmp_path, how):
    tokenizer = AlbertTokenizer.from_pretrained(english_model)
    text = tmp_path / "text.txt"
    text.write_text(
        "\n".join(["the garden house reads 강"] * 50 + ["window garden"] * 50), encoding="utf-8"
    )
    extend_vocabulary(
        english_model,
        [text],
        tmp_path / "out",
        english_model,
        rows=how,
        words=["gardenhouse"],
        min_count=9999,
        coverage=1,
    )
    old_VE, new_VE = (
        load_file(f / "model.safetensors")[f"albert.{WORDS}"]
        for f in (english_model, tmp_path / "out")
    )
    extended = AlbertTokenizer.from_pretrained(tmp_path / "out")
    unknown, known_ids = (new_VE[extended.piece_to_id(piece)] for piece in ("강", "▁gardenhouse"))
    ordinary_VE = old_VE[13:]
    mean_E = ordinary_VE.mean(0)
    std_E = ordinary_VE.std(0)
    if how == "zero":
        assert not new_VE[160:].any()
    elif how == "normal":
        assert 0.005 < new_VE[160:].std() < 0.04
    else:
        assert ((unknown - mean_E).abs() < 0.6 * std_E).all()
        assert (unknown != mean_E).any()
    parts = old_VE[tokenizer.encode("gardenhouse")].mean(0)
    assert torch.allclose(known_ids, parts, atol=1e-7) == (how == "subword-mean")


def test_rows_from_cooccurrence_are_turned_to_the_old_ones(english_model, tmp_path):
    """A model whose rows are vectors of co-occurrence in other axes and of another length: new rows come out in those axes."""
    tokenizer = AlbertTokenizer.from_pretrained(english_model)
    draw = np.random.default_rng(0)
    ordinary = [
        p for n in range(13, 160) if (p := tokenizer.id_to_piece(n)).startswith("▁") and len(p) > 2
    ]
    groups = [ordinary[n::4] for n in range(4)]  # tokens of one group stand beside each other
    lines = [" ".join(p[1:] for p in draw.choice(groups[n % 4], 12)) for n in range(1500)]
    lines = [
        line.replace(f" {groups[0][0][1:]} ", " 강 ") if n % 8 == 0 else line
        for n, line in enumerate(lines)
    ]
    text = tmp_path / "text.txt"
    text.write_text("\n".join(lines), encoding="utf-8")

    encoded = tokenizer.encode_batch(lines)
    counts = np.bincount(encoded.ids, minlength=160)
    model = AlbertForPreTraining.from_pretrained(english_model)
    words = model.albert.embeddings.word_embeddings.weight
    documents = Documents(encoded.ids, encoded.offsets[:-1], encoded.offsets[1:])
    vectors = cooccurrence_vectors([documents], counts, words.shape[1], 1)
    axes = torch.linalg.qr(
        torch.randn(2 * vectors.shape[1:], generator=torch.Generator().manual_seed(0))
    )[0]
    with torch.no_grad():
        words.copy_(3 * vectors @ axes + 0.5)
    model.save_pretrained(tmp_path / "turned", tokenizer)

    rows = dict(rows="cooccurrence", min_count=9999, coverage=1)
    extend_vocabulary(tmp_path / "turned", [text], tmp_path / "out", tmp_path / "turned", **rows)
    new_VE = load_file(tmp_path / "out/model.safetensors")[f"albert.{WORDS}"]
    row = new_VE[AlbertTokenizer.from_pretrained(tmp_path / "out").piece_to_id("강")]
    near = torch.cosine_similarity(row[None] - 0.5, new_VE[:160] - 0.5)
    means = [near[[tokenizer.piece_to_id(piece) for piece in group]].mean() for group in groups]
    assert means[0] > 0.3 + max(means[1:])

    text.write_text("\n".join(lines[:8]), encoding="utf-8")
    with pytest.raises(DataError, match="of the old tokens occur 20 times") as caught:
        extend_vocabulary(
            tmp_path / "turned", [text], tmp_path / "few", tmp_path / "turned", **rows
        )
    assert "--rows subword-mean" in caught.value.hint


def test_rows_of_another_model(english_model, extended, korean_file, tmp_path):
    donor, _ = extended
    report = extend_vocabulary(
        english_model, [korean_file], tmp_path / "out", english_model, rows_from=donor, max_new=120
    )
    assert report.taken_over > 50
    theirs = AlbertTokenizer.from_pretrained(donor)
    ours = AlbertTokenizer.from_pretrained(tmp_path / "out")
    donor_VE, new_VE = (
        load_file(f / "model.safetensors")[f"albert.{WORDS}"] for f in (donor, tmp_path / "out")
    )
    piece = "에서"
    assert torch.equal(new_VE[ours.piece_to_id(piece)], donor_VE[theirs.piece_to_id(piece)])


def test_other_heads_are_kept(english_model, korean_file, tmp_path):
    torch.manual_seed(1)
    model = AlbertForSequenceClassification.from_pretrained(
        english_model, allow_missing=["classifier"], num_labels=3
    )
    model.save_pretrained(tmp_path / "task")
    report = extend_vocabulary(
        english_model, [korean_file], tmp_path / "out", tmp_path / "task", max_new=100
    )
    assert report.model_class == "AlbertForSequenceClassification"
    reloaded = AlbertForSequenceClassification.from_pretrained(tmp_path / "out")
    assert torch.equal(reloaded.classifier.weight, model.classifier.weight)
    assert reloaded.config.vocab_size == report.vocab_size > 230


def test_broken_weights_are_not_spread(english_model, korean_file, tmp_path):
    model = AlbertForPreTraining.from_pretrained(english_model)
    with torch.no_grad():
        model.albert.embeddings.word_embeddings.weight[7] = float("nan")
    model.save_pretrained(tmp_path / "broken")
    with pytest.raises(CheckpointError, match="word embeddings are not finite"):
        extend_vocabulary(
            english_model, [korean_file], tmp_path / "out", tmp_path / "broken", max_new=100
        )
    assert not (tmp_path / "out").exists()


def test_tokens_of_old_characters_only_when_asked(english_model, korean):
    tokenizer = AlbertTokenizer.from_pretrained(english_model)
    texts = [f"gardening{', '[n % 2 :]}{line} housewindow" for n, line in enumerate(korean)]

    def latin(recut):
        extension = extend_tokenizer(tokenizer, texts, SearchSettings(max_new=150, recut=recut))
        new = map(extension.tokenizer.id_to_piece, range(160, extension.tokenizer.vocab_size))
        return {piece for piece in new if piece.removeprefix("▁").isascii()}

    assert latin(False) == set()
    assert latin(True) >= {"▁gardening", "▁housewindow"}


def test_morphemes_bound_what_is_found(english_model, korean):
    pytest.importorskip("mecab")
    tokenizer = AlbertTokenizer.from_pretrained(english_model)

    def pieces(analyser):
        texts = ["서울에서 문서를 읽는다. 서울에서, 서울에서."] * 200 + korean
        extended = extend_tokenizer(
            tokenizer, texts, SearchSettings(max_new=200, analyser=analyser)
        ).tokenizer
        return set(map(extended.id_to_piece, range(160, extended.vocab_size)))

    assert "▁서울에서" in pieces(None)
    assert "▁서울에서" not in pieces("mecab")
    assert {"▁서울", "에서"} <= pieces("mecab")


@pytest.mark.parametrize(
    ("settings", "slug"),
    [
        ({"max_new": 5}, "bad-value"),
        ({"max_new": 0}, "bad-value"),
        ({"coverage": 0}, "bad-value"),
        ({"rows": "random"}, "unknown-name"),
        ({"analyser": "hannanum"}, "unknown-name"),
        ({"rows": "zero"}, "conflicting-options"),
        ({"rows_from": "MODEL"}, "conflicting-options"),
    ],
)
def test_refused_settings_leave_nothing(english_model, korean_file, tmp_path, settings, slug):
    with pytest.raises(AlbertKitError) as caught:
        extend_vocabulary(english_model, [korean_file], tmp_path / "out", **settings)
    assert caught.value.slug == slug
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_add_is_refused(english_model, english, tmp_path):
    text = tmp_path / "english.txt"
    text.write_text("\n".join(english), encoding="utf-8")
    with pytest.raises(AlbertKitError, match="lacks nothing"):
        extend_vocabulary(english_model, [text], tmp_path / "out")


def test_a_model_of_another_tokenizer_is_refused(
    english_model, extended, korean_file, tmp_path, slug_of
):
    arguments = (english_model, [korean_file])
    small = AlbertForPreTraining.from_pretrained(english_model)
    small.resize_token_embeddings(100)
    small.save_pretrained(tmp_path / "small")
    assert (
        slug_of(extend_vocabulary, *arguments, tmp_path / "out", tmp_path / "small", max_new=100)
        == "wrong-tokenizer"
    )
    AlbertTokenizer.from_pretrained(extended[0]).save_pretrained(tmp_path / "small")
    with pytest.raises(AlbertKitError, match="has other tokens"):
        extend_vocabulary(*arguments, tmp_path / "out", tmp_path / "small", max_new=100)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/note.txt").touch()
    assert slug_of(extend_vocabulary, *arguments, tmp_path / "full") == "exists"


def test_command(english_model, korean_file, tmp_path, run_command):
    words = tmp_path / "words.txt"
    words.write_text("문서중앙\n\n서울\n", encoding="utf-8")
    command = ["tokenizer", "extend", english_model, korean_file, "--max-new", "100", "--out"]
    report = run_command(
        *command, tmp_path / "out", "--model", english_model, "--words", words, "--json"
    ).json
    assert report["words"] == 2
    assert report["old_size"] == 160
    output = run_command(*command, tmp_path / "shown").out
    assert "before" in output
    assert "unknown tokens" in output


def test_words_themselves(english_model, korean_file, tmp_path, run_command):
    """Words, comma-separated words and files of words can be mixed; a file that is missing from a folder is no word."""
    words = tmp_path / "words.txt"
    words.write_text("문서중앙\n", encoding="utf-8")
    command = ["tokenizer", "extend", english_model, korean_file, "--max-new", "100", "--out"]
    report = run_command(
        *command, tmp_path / "out", "--words", "전자책,출판사", words, "--words", "zebra", "--json"
    ).json
    assert report["words"] == 4
    assert report["left_out"] == {}
    added = AlbertTokenizer.from_pretrained(tmp_path / "out")
    assert all(added.pieces(word) == [f"▁{word}"] for word in ["전자책", "출판사", "zebra"])
    assert (
        extend_vocabulary(
            english_model, [korean_file], tmp_path / "one", words="zebra", max_new=100
        ).words
        == 1
    )
    missing = run_command(*command, tmp_path / "none", "--words", tmp_path / "wrods.txt")
    assert missing.status == 2
    assert "error[not-found]" in missing.err


def test_only_a_path_is_a_file_of_words(
    english_model, korean_file, tmp_path, monkeypatch, run_command
):
    """A slash, an ending or a length of more than a file's name make no file; an existing name without ending is one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "terms").write_text("zebra\n", encoding="utf-8")
    words = ["km/h", "main.csv", "terms", ",".join(f"garden{n}" for n in range(40))]
    command = [
        "tokenizer",
        "extend",
        english_model,
        korean_file,
        "--max-new",
        "300",
        "--words",
        *words,
        "--out",
    ]
    report = run_command(*command, tmp_path / "out", "--json").json
    assert report["requested_words"] == [
        "km/h",
        "main.csv",
        "zebra",
        *(f"garden{n}" for n in range(40)),
    ]
    assert "given: km/h, main.csv, zebra" in run_command(*command, tmp_path / "shown").out


def test_google_with_korean_of_wikipedia(data, tmp_path):
    """Google's vocabulary and real text: zero unknown Hangul in both forms, the same ids in the file for transformers."""
    (tmp_path / "google").mkdir()
    (tmp_path / "google/spiece.model").write_bytes((data / "albert/30k-clean.model").read_bytes())
    report = extend_vocabulary(
        tmp_path / "google",
        [data / "wiki-ko/wiki_03.gz"],
        tmp_path / "out",
        max_new=3000,
        max_lines=1500,
    )
    assert report.after.pieces_a_word < 3.2
    assert report.after.unknown_rate < 0.01 < 0.4 < report.before.unknown_rate
    assert report.differing == 0
    tokenizer = AlbertTokenizer.from_pretrained(tmp_path / "out")
    known_ids = {c for c in map(chr, range(0xAC00, 0xD7A4)) if tokenizer.piece_to_id(c) != 1}
    assert len(known_ids) > 700
    text = " ".join(sorted(known_ids))
    for form in ("NFC", "NFD"):
        assert tokenizer.unk_id not in tokenizer.encode(unicodedata.normalize(form, text))
    assert rules.apply("google", text) != text  # and that though the rules take syllables apart
