"""Windows against the features that google-research/albert made of the same questions (golden `squad`)."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from albertkit.tables.bad_rows import BadRows
from albertkit.tasks.answers import (
    Paragraph,
    answer_features,
    context_windows,
    count_reasons,
    unrecoverable_answers,
)
from albertkit.tasks.questions import AnnotatedAnswer, QuestionExample, read_questions

from .conftest import GOLDEN_QUESTIONS

SETTINGS = {"s384": (384, 128, 64), "s128": (128, 32, 64), "s96q12": (96, 48, 12)}
PLACES = {"tok_start_to_orig_index", "tok_end_to_orig_index"}
DROPPED_BY_GOOGLE = ["edge-a-09", "edge-a-10"]  # "MISMATCH DETECTED": heavy accents, Hangul
# Every piece of the golden files whose place is another: question, piece, our text, theirs. Google
# finds the places with a search for the longest common subsequence of the text and its pieces,
# which has to guess where the two differ.
INEXACT_AT_GOOGLE = {
    ("56f7c651aef2371900625bf6", "<unk>", "ɐ̯", "ɐ"),  # a mark belongs to its letter
    (
        "573081c2069b531400832137",
        "▁",
        "",
        '"',
    ),  # the space that SentencePiece puts before the first word: nothing there
    (
        "edge-a-03",
        "▁cafe",
        "Cafe\u0301",
        "Cafe",
    ),  # decomposed accents: theirs cuts them off the end of an answer
    ("edge-a-03", "▁cre", " cre\u0300", " cre"),
    ("edge-a-03", "▁bru", " bru\u0302", " bru"),
    ("edge-a-06", "▁", "", "“"),
    ("edge-a-12", "▁leading", "Leading", "   Leading"),  # white space before the text
    ("edge-a-13", "▁", "", "א"),
}


@pytest.fixture(scope="module")
def load(golden, tokenizer, read_golden_questions):
    def load_golden(kind, setting):
        examples = read_golden_questions(kind)
        length, stride, query = SETTINGS[setting]
        settings = {"length": length, "doc_stride": stride, "max_query_length": query}
        features = answer_features(examples, tokenizer, labelled=True, **settings)
        return (
            examples,
            features,
            dict(np.load(golden / "squad" / f"features_{kind}_{setting}.npz")),
        )

    return load_golden


def padded(features, sequences, width):
    """Our windows in the arrays that Google's code fills."""
    names = ("input_ids", "segment_ids", "input_mask", "p_mask", "token_is_max_context")
    arrays = {name: np.zeros((len(sequences), width), np.int64) for name in names}
    arrays["p_mask"][:] = 1
    arrays["token_is_max_context"][:] = -1
    for name in ("tok_start_to_orig_index", "tok_end_to_orig_index"):
        arrays[name] = np.full((len(sequences), width), -1)
    for row, number in enumerate(sequences):
        tokens = slice(features.offsets[number], features.offsets[number + 1])
        size = features.lengths[number]
        first = features.per_sequence["text_starts"][number]
        text_tokens = slice(tokens.start + first, tokens.stop - 1)
        arrays["input_ids"][row, :size] = features.input_ids[tokens]
        arrays["segment_ids"][row, :size] = features.token_type_ids[tokens]
        arrays["input_mask"][row, :size] = 1
        arrays["p_mask"][row, 0] = 0
        arrays["p_mask"][row, first : size - 1] = 0
        arrays["token_is_max_context"][row, first : size - 1] = features.per_token["max_context"][
            text_tokens
        ]
        arrays["tok_start_to_orig_index"][row, : size - 1 - first] = features.per_token[
            "char_starts"
        ][text_tokens]
        arrays["tok_end_to_orig_index"][row, : size - 1 - first] = (
            features.per_token["char_ends"][text_tokens] - 1
        )
    arrays["paragraph_len"] = features.lengths[sequences]
    labels = {
        "start_positions": "start_positions",
        "end_positions": "end_positions",
        "is_impossible": "impossible",
    }
    return arrays | {
        theirs: features.per_sequence[ours][sequences] for theirs, ours in labels.items()
    }


def compared(loaded):
    """Our sequences of the questions that Google did not drop, and their arrays."""
    examples, features, expected = loaded
    google_ids = set(expected["qas_id"])
    sequences = np.array(
        [m for m, number in enumerate(features.examples) if examples[number].id in google_ids]
    )
    assert [examples[number].id for number in features.examples[sequences]] == expected[
        "qas_id"
    ].tolist()
    return sequences, padded(features, sequences, expected["input_ids"].shape[1])


def differing(loaded):
    _, ours = compared(loaded)
    return {name for name, array in ours.items() if not np.array_equal(array, loaded[2][name])}


def other_places(loaded, tokenizer):
    examples, features, expected = loaded
    sequences, ours = compared(loaded)
    unequal = np.any([ours[name] != expected[name] for name in PLACES], axis=0)
    places_of_pieces = set()
    for row, column in np.argwhere(unequal):
        example = examples[features.examples[sequences[row]]]
        piece = int(
            ours["input_ids"][row, column + features.per_sequence["text_starts"][sequences[row]]]
        )
        texts = [
            example.context[
                a["tok_start_to_orig_index"][row, column] : a["tok_end_to_orig_index"][row, column]
                + 1
            ]
            for a in (ours, expected)
        ]
        places_of_pieces.add((example.id, tokenizer.id_to_piece(piece), *texts))
    return places_of_pieces


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", GOLDEN_QUESTIONS)
def test_all_arrays_are_googles(load, tokenizer, kind, setting):
    loaded = load(kind, setting)
    assert differing(loaded) <= PLACES
    assert other_places(loaded, tokenizer) <= INEXACT_AT_GOOGLE
    # Theirs stands for no other piece: what is missing are marks, what is too much is white space
    # or of the next piece.
    for _, piece, ours, _ in other_places(loaded, tokenizer):
        assert piece == "<unk>" or tokenizer.pieces(ours) == ([piece] if ours else [])


def test_every_place_of_the_list_is_found(load, tokenizer):
    differences = set().union(
        *(other_places(load(kind, "s384"), tokenizer) for kind in GOLDEN_QUESTIONS)
    )
    assert differences == INEXACT_AT_GOOGLE


def test_no_question_is_dropped_and_every_answer_comes_back(load):
    for kind in GOLDEN_QUESTIONS:
        for setting in SETTINGS:
            examples, features, _ = load(kind, setting)
            assert set(features.examples) == set(range(len(examples)))
            lost = list(unrecoverable_answers(examples, features))
            # Both of them Google drops: an answer that leaves the marks off its last letter;
            # Hangul, one <unk> a word.
            assert [item.id for item in lost] == (DROPPED_BY_GOOGLE if kind == "edge" else [])
            assert all(item.recovered.startswith(item.answer) for item in lost)


def test_a_place_that_is_off_is_unrecoverable(load):
    examples, features, _ = load("v11", "s384")
    before = len(list(unrecoverable_answers(examples, features)))
    for name, change in (("char_starts", 2), ("char_ends", -1)):
        features.per_token[name][:] += change
        assert len(list(unrecoverable_answers(examples, features))) > before + 30
        features.per_token[name][:] -= change
    features.per_sequence["start_positions"][:] -= 1
    assert len(list(unrecoverable_answers(examples, features))) > before + 30


@pytest.mark.slow
def test_all_of_squad_train(data, tokenizer):
    """87,599 questions: all there, and all answers come back but those that begin or end inside a token."""
    bad_rows = BadRows("skip")
    file = data / "squad/train-v1.1.json.gz"
    examples = list(read_questions(file, version=1, labelled=True, bad_rows=bad_rows))
    assert len(examples) == 87_599
    assert not bad_rows.rows
    features = answer_features(
        examples, tokenizer, length=384, doc_stride=128, max_query_length=64, labelled=True
    )
    assert np.array_equal(np.unique(features.examples), np.arange(87_599))
    lost = list(unrecoverable_answers(examples, features))
    assert count_reasons(lost) == {
        "ends inside a token": 174,
        "starts inside a token": 78,
        "starts and ends inside a token": 16,
    }
    for item in lost:
        assert item.answer in item.recovered


# --- what the originals have no numbers for -------------------------------------------------------


def features_of(tokenizer, *examples, length=64, stride=32, query=64):
    return answer_features(
        examples, tokenizer, length=length, doc_stride=stride, max_query_length=query, labelled=True
    )


def test_a_question_longer_than_the_window_is_cut_and_said(tokenizer):
    long = QuestionExample(
        "a", "why " * 500, "Because of the rain.", (AnnotatedAnswer("the rain", 11),)
    )
    short = QuestionExample("b", "Why?", "Because of the rain.", (AnnotatedAnswer("the rain", 11),))
    features = features_of(tokenizer, long, short)
    assert features.per_sequence["question_cut"].tolist() == [True, False]
    assert features.lengths.max() <= 64
    assert not list(unrecoverable_answers([long, short], features))


def test_a_text_of_fifty_thousand_words(tokenizer):
    words = [f"word{number}" for number in range(50_000)]
    context = " ".join(words)
    answer = AnnotatedAnswer(words[43_210], context.index(words[43_210]))
    example = QuestionExample("a", "Which?", context, (answer,))
    features = features_of(tokenizer, example, length=384, stride=128)
    assert not list(unrecoverable_answers([example], features))
    # Every piece is in some window, and in exactly one of them with the most around it.
    ids, _ = tokenizer.encode_with_offsets(context)
    best = features.per_token["max_context"]
    assert features.input_ids[best].tolist() == ids


@pytest.mark.parametrize(
    ("pieces", "room", "stride"),
    [
        (0, 10, 5),
        (1, 10, 5),
        (10, 10, 5),
        (11, 10, 5),
        (99, 10, 40),
    ],
)
def test_windows_leave_nothing_out(pieces, room, stride):
    cut = context_windows(pieces, room, stride)
    assert len(cut) >= 1
    assert {p for w in cut for p in range(w.start, w.stop)} == set(range(pieces))
    assert sum(int(w.is_best.sum()) for w in cut) == pieces
    assert all(w.stop - w.start <= room for w in cut)


@given(
    st.integers(20, 100),
    st.integers(1, 200),
    st.integers(1, 80),
    st.integers(0, 60),
    st.integers(0, 300),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_piece_is_in_a_window_whatever_the_length_and_the_stride(
    tokenizer, length, stride, query, num_question_words, words
):
    context = " ".join(f"word{number % 7}" for number in range(words))
    example = QuestionExample("a", "why " * num_question_words + "?", context)
    features = answer_features(
        [example],
        tokenizer,
        length=length,
        doc_stride=stride,
        max_query_length=query,
        labelled=False,
    )
    pieces = Paragraph.of(context, tokenizer)
    in_text = features.per_token["char_starts"] >= 0
    spans = set(
        zip(
            features.per_token["char_starts"][in_text],
            features.per_token["char_ends"][in_text],
            strict=True,
        )
    )
    assert spans == set(zip(pieces.starts, pieces.ends, strict=True))
    assert features.input_ids[features.per_token["max_context"]].tolist() == pieces.ids.tolist()
    assert features.lengths.max() <= length


def test_a_text_without_a_piece_has_a_window(tokenizer):
    example = QuestionExample("a", "What?", "\u200b\u200b", (AnnotatedAnswer("\u200b", 0),))
    features = features_of(tokenizer, example)
    assert features.num_sequences == 1
    assert features.input_ids[-2:].tolist() == [tokenizer.sep_id] * 2
    assert [item.reason for item in unrecoverable_answers([example], features)] == [
        "no window holds the answer"
    ]


def test_no_questions_no_features(tokenizer):
    assert features_of(tokenizer).num_sequences == 0
