import json

import sentencepiece

from benchmarks import google_rules


def lines_of(path):
    with open(path, encoding="utf-8") as stream:
        return [entry for entry in map(json.loads, stream) if not entry["differs_with"]]


def test_reference_gives_the_ids_of_the_released_model(golden, data):
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(data / "albert/30k-clean.model")
    )
    lines = lines_of(golden / "tokenizer/lines.jsonl")
    assert len(lines) > 1800
    wrong = [
        entry["id"]
        for entry in lines
        if google_rules.ids(processor, entry["text"]) != entry["lower"]["ids"]
    ]
    assert wrong == []


def test_preprocessing_is_the_original(golden):
    lines = lines_of(golden / "tokenizer/lines.jsonl")
    wrong = [
        entry["id"]
        for entry in lines
        if google_rules.preprocess(entry["text"]) != entry["lower"]["text"]
    ]
    assert wrong == []


def test_digit_comma_rule_on_pieces_that_start_no_word(golden):
    folder = golden / "tokenizer"
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(folder / "digit_comma_toy.model")
    )
    lines = lines_of(folder / "digit_comma_toy.jsonl")
    wrong = [
        entry["id"]
        for entry in lines
        if google_rules.ids(processor, entry["text"]) != entry["lower"]["ids"]
    ]
    assert wrong == []
