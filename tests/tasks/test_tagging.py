"""Tagging: every word has one place, windows lose nothing, losses are transformers', scores are seqeval's and KLUE's."""

import unicodedata
import warnings
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from record_files import read_records
from seqeval.metrics import f1_score as seqeval_f1
from seqeval.scheme import IOB2
from sklearn.metrics import f1_score

from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError, DataError
from albertkit.model import AlbertForTokenClassification
from albertkit.tables import IGNORED
from albertkit.tables.bad_rows import BadRows
from albertkit.tasks.models import run_model
from albertkit.tasks.tagging import (
    LABELS,
    find_tagged_words,
    klue_scores,
    spread_word_tags,
    tagging_task,
    window_starts_and_window_of_token,
)
from albertkit.tasks.tagging_files import TagFileLayout, TaggedExample, read_tagged
from albertkit.tokenizer import AlbertTokenizer

from .conftest import padded_rows, reread, whole_batch

TAGS = ("O", "B-X", "I-X", "B-Y", "I-Y")


@pytest.fixture(scope="module")
def korean(golden, tmp_path_factory):
    folder = tmp_path_factory.mktemp("korean")
    (folder / "spiece.model").write_bytes((golden / "korean/spiece.model").read_bytes())
    return AlbertTokenizer.from_pretrained(folder, text_rules="multilingual")


# --- places ---------------------------------------------------------------------------------------

WORDS = st.lists(
    st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r"),
        min_size=1,
        max_size=6,
    )
    | st.sampled_from(
        [
            "2,000",
            "😀",
            "👩‍👩‍👧",
            "\u200b",
            "\ufeff",
            "´",
            "ﬁ",
            "½",
            "http://t.co/x",
            "é",
            "\u0301",
            "한국",
            "\xad",
        ]
    ),
    min_size=1,
    max_size=12,
)


@given(words=WORDS, spaces=st.booleans())
@example(words=["a", "\u200b", "b"], spaces=True)
@example(words=["\ufffd"], spaces=False)
def test_every_word_has_one_place_or_follows(tokenizer, words, spaces):
    if not spaces:
        words = list("".join(words))
    text = (" " if spaces else "").join(words)
    _, spans = tokenizer.encode_with_offsets(text)
    tagged = find_tagged_words(words, spaces, spans)
    assert len(set(tagged.words.tolist())) == len(tagged.words) == len(set(tagged.tokens.tolist()))
    assert (np.diff(tagged.words) > 0).all()
    assert (np.diff(tagged.tokens) > 0).all()
    starts = np.cumsum([0, *(len(word) + spaces for word in words)])
    for piece, word, end in zip(*(column.tolist() for column in tagged), strict=True):
        (first, last), begin = spans[piece], starts[word]
        assert begin < last
        assert first < begin + len(words[word])
        # Nothing of an earlier word
        assert not any(visible(character) for character in text[first:begin])
        assert end > word
    followers = set(range(len(words))) - set(tagged.words.tolist())
    # No visible character of theirs is in a piece that does not begin in an earlier word
    for word in followers:
        spans_in_word = [
            s for s in spans if starts[word] <= s[0] and s[1] <= starts[word] + len(words[word])
        ]
        assert not any(
            visible(character) for first, last in spans_in_word for character in text[first:last]
        )
    tags, probabilities = spread_word_tags(
        len(words),
        tagged.words,
        tagged.ends,
        ["B-X"] * len(tagged.words),
        np.full(len(tagged.words), 0.5),
    )
    assert len(tags) == len(probabilities) == len(words)
    assert [tags[word] for word in tagged.words] == ["B-X"] * len(tagged.words)
    assert {tags[word] for word in followers} <= {"O", "I-X"}


def visible(character):
    return unicodedata.category(character) not in ("Zs", "Zl", "Zp", "Cc", "Cf")


def test_words_without_a_piece_of_their_own():
    # 한국 은 one piece each; a space within an entity and one after it; a zero-width space that the
    # piece after it covers
    words = list("한국 은행\u200b총 재")
    tagged = find_tagged_words(words, False, [(0, 2), (2, 5), (5, 7), (7, 9)])
    assert tagged.tokens.tolist() == [0, 1, 2, 3]
    assert [words[word] for word in tagged.words] == ["한", "은", "총", "재"]
    assert tagged.ends.tolist() == [2, 5, 7, 9]
    tags, probabilities = spread_word_tags(
        9,
        tagged.words,
        tagged.ends,
        ["B-OG", "I-OG", "B-PS", "I-OG"],
        np.array([0.9, 0.8, 0.7, 0.6]),
    )
    assert tags == "B-OG I-OG I-OG I-OG I-OG O B-PS O I-OG".split()
    assert probabilities == [0.9, 0.9, 0.9, 0.8, 0.8, 0.8, 0.7, 0.7, 0.6]


@given(st.integers(0, 3000), st.integers(1, 60))
def test_windows_tag_every_piece_once_with_the_most_context(num_pieces, size):
    starts, window_of = window_starts_and_window_of_token(num_pieces, size)
    pieces = np.arange(num_pieces)
    num_before = pieces - starts[window_of]
    num_after = starts[window_of] + size - 1 - pieces
    assert len(window_of) == num_pieces
    assert (num_before >= 0).all()
    assert (num_after >= 0).all()
    assert starts[0] == 0
    assert starts[-1] == max(num_pieces - size, 0)
    if len(starts) > 1 and len(starts) * num_pieces < 100_000:
        contexts = np.minimum(pieces - starts[:, None], starts[:, None] + size - 1 - pieces)
        assert (np.minimum(num_before, num_after) == contexts.max(0)).all()


@settings(max_examples=30)
@given(
    words=st.lists(
        st.sampled_from(["Paris", "of", "2,000", "extraordinarily", "😀", "\u200b"]),
        min_size=1,
        max_size=80,
    )
)
def test_windows_of_sentences_tag_every_word_once(tokenizer, words):
    task = tagging_task("ner", labels=TAGS, length=12)
    sentence = TaggedExample("0", tuple(words), ("B-X",) * len(words))
    features = task.features([sentence, sentence], tokenizer, labelled=True)
    assert features.lengths.max() <= 12
    unsplit = task.with_changes(length=1000).features([sentence], tokenizer, labelled=True)
    expected = unsplit.per_token["words"][unsplit.per_token["words"] >= 0].tolist()
    words_of_tokens = features.per_token["words"]
    assert words_of_tokens[words_of_tokens >= 0].tolist() == expected * 2
    assert ((features.per_token["labels"] >= 0) == (words_of_tokens >= 0)).all()
    ids = {}
    for start, stop, of in zip(
        features.offsets[:-1], features.offsets[1:], features.examples, strict=True
    ):
        for token in range(start, stop):
            if words_of_tokens[token] >= 0:
                ids[of, words_of_tokens[token]] = features.input_ids[token]
    tagged = unsplit.per_token["words"] >= 0
    assert [ids[0, word] for word in expected] == unsplit.input_ids[tagged].tolist()


def test_features_by_hand(tokenizer):
    task = tagging_task("ner", labels=TAGS)
    words = ("In", "2,000", "Washingtonians", "\ufeff", "danced")
    features = task.features(
        [TaggedExample("0", words, ("O", "B-X", "B-Y", "I-Y", "O"))], tokenizer, labelled=True
    )
    pieces = [tokenizer.id_to_piece(piece) for piece in features.input_ids]
    assert pieces == "[CLS] ▁in ▁2,000 ▁washington ians ▁danced [SEP]".split()
    assert features.per_token["labels"].tolist() == [-100, 0, 1, 3, -100, 0, -100]
    assert features.per_token["words"].tolist() == [-1, 0, 1, 2, -1, 4, -1]
    assert set(task.features([], tokenizer, labelled=False).per_token) == {"words", "ends"}


# --- the model ------------------------------------------------------------------------------------


def test_the_loss_is_transformers(tokenizer, tiny_model, tmp_path):
    from transformers import AlbertForTokenClassification as Theirs

    task = tagging_task("ner", labels=TAGS, length=32)
    examples = [
        TaggedExample("0", ("The", "New", "York", "Philharmonicians"), ("O", "B-X", "I-X", "B-Y")),
        TaggedExample("1", ("Hello",), ("O",)),
        TaggedExample("2", tuple("a b c d e f g".split()), TAGS + TAGS[:2]),
    ]
    features = task.features(examples, tokenizer, labelled=True)
    model = tiny_model(AlbertForTokenClassification, vocab_size=tokenizer.vocab_size, **task.head())
    batch = whole_batch(features)
    with torch.no_grad():
        ours = task.losses(model, batch)["tagging"]
    model.save_pretrained(tmp_path)
    theirs = Theirs.from_pretrained(tmp_path).eval()
    inputs = padded_rows(batch.packed)
    labels = batch.packed.unpack(batch.per_token["labels"] - IGNORED) + IGNORED
    expected = theirs(**inputs, labels=labels).loss
    assert ours.mean().item() == pytest.approx(expected.item(), abs=1e-5)
    assert task.count_targets(batch) == {"tagging": int(ours.label_count)} == {"tagging": 12}
    weights = torch.tensor([0.5, 1.0, 2.0, 3.0, 1.0])
    weighted = torch.nn.functional.cross_entropy(
        theirs(**inputs).logits.flatten(0, 1),
        labels.flatten(),
        weights,
        reduction="sum",
    )
    assert task.losses(model, batch, weights)["tagging"].loss_sum.item() == pytest.approx(
        weighted.item(), abs=1e-4
    )
    labels[0, 2] = 4  # another tag of one word is noticed
    assert abs(theirs(**inputs, labels=labels).loss.item() - ours.mean().item()) > 1e-3


def test_predictions_do_not_depend_on_batches_and_give_every_word_a_tag(tokenizer, tiny_model):
    task = tagging_task("ner", labels=TAGS, length=16)
    examples = [
        TaggedExample("0", ("\u200b",)),
        TaggedExample("1", tuple(f"word{n} of Paris ´".split()[n % 4] for n in range(70))),
        TaggedExample("2", ("Hello", "\ufeff", "World")),
    ]
    features = task.features(examples, tokenizer, labelled=False)
    model = tiny_model(AlbertForTokenClassification, vocab_size=tokenizer.vocab_size, **task.head())
    outputs = run_model(model, task, features, 40)
    records = task.predictions(examples, features, outputs)
    assert [len(record["tags"]) for record in records] == [1, 70, 3]
    assert records[0]["tags"] == ["O"]
    with torch.inference_mode():
        alone = [
            task.outputs(model, features.batch(np.array([m])))[0]
            for m in range(features.num_sequences)
        ]
    assert [record["tags"] for record in task.predictions(examples, features, alone)] == [
        r["tags"] for r in records
    ]
    logits = model(
        input_ids=torch.from_numpy(features.input_ids[features.offsets[-2] :].astype(np.int64))[
            None
        ]
    ).logits
    chances = logits[0].softmax(-1)[features.per_token["words"][features.offsets[-2] :] >= 0]
    assert outputs[-1][0].tolist() == chances.argmax(-1).tolist()
    np.testing.assert_allclose(outputs[-1][1], chances.max(-1).values.detach().numpy(), atol=1e-5)


def test_entities_of_predictions(tokenizer):
    task = tagging_task("ner", labels=TAGS)
    examples = [TaggedExample("7", ("I", "saw", "New", "York", "twice"))]
    features = task.features(examples, tokenizer, labelled=False)
    outputs = [(np.array([0, 2, 1, 2, 4]), np.array([0.9, 0.8, 0.7, 0.5, 0.4]))]
    [record] = task.predictions(examples, features, outputs)
    assert record == {
        "id": "7",
        "words": "I saw New York twice".split(),
        "tags": "O I-X B-X I-X I-Y".split(),
        "entities": [
            {"type": "X", "text": "saw", "start": 2, "end": 5, "score": 0.8},
            {"type": "X", "text": "New York", "start": 6, "end": 14, "score": 0.6},
            {"type": "Y", "text": "twice", "start": 15, "end": 20, "score": 0.4},
        ],
    }


# --- scores and files -----------------------------------------------------------------------------


@st.composite
def tagged_characters(draw: st.DrawFn) -> tuple[str, list[str], list[str]]:
    text = draw(st.text("가나 ", min_size=1, max_size=12).filter(str.strip))
    tags = st.lists(st.sampled_from(LABELS[:7]), min_size=len(text), max_size=len(text))
    return text, draw(tags), draw(tags)


@given(st.lists(tagged_characters(), min_size=1, max_size=5))
def test_klue_scores_are_the_benchmarks(sentences):
    examples = [TaggedExample("", tuple(text), tuple(gold), False) for text, gold, _ in sentences]
    ours = klue_scores(examples, [predicted for _, _, predicted in sentences])
    # The baseline puts all sentences in one list, `O` of [CLS] and [SEP] between them.
    gold = ["O"]
    predicted = ["O"]
    for text, gold_row, predicted_row in sentences:
        indices = [index for index, character in enumerate(text) if character != " "]
        gold += [gold_row[index] for index in indices] + ["O"]
        predicted += [predicted_row[index] for index in indices] + ["O"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entity = seqeval_f1(
            [gold], [predicted], average="macro", mode="strict", scheme=IOB2, zero_division=0
        )
    assert ours["entity_macro_f1"] == pytest.approx(float(entity), nan_ok=True)
    without_frame = [
        [
            tag
            for text, *rows in sentences
            for index, tag in enumerate(rows[side])
            if text[index] != " "
        ]
        for side in (0, 1)
    ]
    character = f1_score(*without_frame, labels=LABELS, average="macro", zero_division=1)
    assert ours["character_macro_f1"] == pytest.approx(character)


def test_klue_scores_notice_spaces_and_loose_tags():
    examples = [TaggedExample("", tuple("가 나"), ("B-PS", "I-PS", "I-PS"), False)]
    # The space does not count
    assert klue_scores(examples, [["B-PS", "O", "I-PS"]])["entity_macro_f1"] == 1.0
    assert (
        klue_scores(examples, [["I-PS", "I-PS", "I-PS"]])["entity_macro_f1"] == 0.0
    )  # begun with I-: conlleval has 1.0
    assert klue_scores(examples, [["B-PS", "I-PS", "O"]])["character_macro_f1"] < 1.0
    assert np.isnan(
        klue_scores([TaggedExample("", ("가",), ("O",), False)], [["O"]])["entity_macro_f1"]
    )


def test_scores_details_and_collapse():
    task = tagging_task("ner", labels=TAGS)
    examples = [TaggedExample(str(n), ("a", "b", "c"), ("B-X", "I-X", "O")) for n in range(4)]
    right = {"tags": ["B-X", "I-X", "O"], "entities": [{}]}
    nothing = {"tags": ["O", "O", "O"], "entities": []}
    scores = task.score(examples, [right, right, right, nothing])
    assert scores == pytest.approx(
        {"precision": 1, "recall": 0.75, "f1": 6 / 7, "accuracy": 10 / 12}
    )
    details = task.details(examples, [right, right, right, nothing])
    assert details["types"][0]["support"] == 4
    assert details["intervals"]["f1"][0] < 6 / 7 <= details["intervals"]["f1"][1]
    assert task.collapsed(examples, [right, nothing]) is None
    assert task.collapsed(examples, [nothing] * 4) == "every word of 4 sentences is tagged `O`"


def test_written_predictions_are_read_again(tmp_path):
    task = tagging_task("klue-ner", labels=TAGS)
    records = [
        {"id": "0", "words": list("가 나"), "tags": ["B-X", "I-X", "I-X"], "entities": []},
        {"id": "1", "words": ["#"], "tags": ["O"], "entities": []},
    ]
    paths = task.write(tmp_path / "out", records, split="dev")
    assert [path.name for path in paths] == ["predictions.jsonl", "predictions.conll"]
    examples = list(
        read_tagged(paths[1], TagFileLayout(characters=True), labelled=True, bad_rows=BadRows())
    )
    assert [(list(e.words), list(e.tags)) for e in examples] == [
        (r["words"], r["tags"]) for r in records
    ]
    assert read_records(paths[0]) == records


def test_a_perfect_model_on_real_data(data, tokenizer, korean):
    """No word of WNUT shares a token; of KLUE's characters a model with this vocabulary cannot tag 4 % of the entities."""
    wnut = ("wnut17", "ner/wnut17", tokenizer, 0.0, 1.0)
    klue = ("klue-ner", "korean/klue", korean, 0.3965, 0.9535)
    for name, folder, of_language, shares, f1 in (wnut, klue):
        task = tagging_task(name, length=64)
        file = task.files(data / folder)["dev"]
        rows = task.examples(file, split="dev", labelled=True, bad_rows=BadRows())
        examples = list(islice(rows, 1000))
        task = task.fitted(examples)
        features = task.features(examples, of_language, labelled=True)
        labels = np.split(features.per_token["labels"], features.offsets[1:-1])
        outputs = [(row[row != IGNORED], np.ones((row != IGNORED).sum())) for row in labels]
        tagged = sum(len(row) for row, _ in outputs)
        words = sum(len(example.words) for example in examples)
        assert 1 - tagged / words == pytest.approx(shares, abs=0.02)
        scores = task.score(examples, task.predictions(examples, features, outputs))
        assert scores["f1"] == pytest.approx(f1, abs=0.02 * (f1 < 1))


# --- settings -------------------------------------------------------------------------------------


def test_labels_of_the_training_data():
    task = tagging_task("ner").fitted(
        [TaggedExample("0", ("a",) * 4, ("I-y", "O", "B-y", "B-creative-work"))]
    )
    assert task.labels == (
        "O",
        "B-creative-work",
        "I-creative-work",
        "B-y",
        "I-y",
    )  # dev may have the I- that train lacks
    assert task.label_counts([TaggedExample("0", ("a",) * 2, ("O", "B-y"))]) == [1, 0, 0, 1, 0]
    assert list(AlbertConfig(foreign=task.head()).label2id) == list(task.labels)
    assert reread(task) == task
    with pytest.raises(DataError, match="no tag but `O`"):
        task.fitted([TaggedExample("0", ("a",), ("O",))])


def test_what_features_refuse(tokenizer):
    task = tagging_task("ner", labels=TAGS)
    with pytest.raises(
        DataError, match=r"\[bad-label\].*1 label that the model was not trained with: `B-Z` \(1\)"
    ):
        task.features([TaggedExample("3", ("a",), ("B-Z",))], tokenizer, labelled=True)
    for use in (
        lambda rows: task.features(rows, tokenizer, labelled=True),
        lambda rows: task.score(rows, [{"tags": ["O"]}]),
    ):
        with pytest.raises(DataError, match=r"\[bad-label\].*1 of 1 examples have no tags"):
            use([TaggedExample("3", ("a",))])
    with pytest.raises(ConfigError, match="no room"):
        task.with_changes(length=2).features([], tokenizer, labelled=True)


def test_files(tmp_path, data):
    assert set(tagging_task("wnut17").files(data / "ner/wnut17")) == {"train", "dev", "test"}
    assert set(tagging_task("klue-ner").files(data / "korean/klue")) == {"dev"}
    with pytest.raises(DataError, match="no file of ner; it holds nothing"):
        tagging_task("ner").files(tmp_path)
    (tmp_path / "train.conll.gz").touch()
    assert tagging_task("ner").files(tmp_path) == {"train": tmp_path / "train.conll.gz"}
    assert tagging_task("ner").files(tmp_path / "train.conll.gz") == {
        "train": tmp_path / "train.conll.gz"
    }
    with pytest.raises(DataError, match="no such file"):
        tagging_task("ner").files(tmp_path / "none")
