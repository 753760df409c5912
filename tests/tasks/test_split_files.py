"""A folder has one file for each split; where it has two, the user says which one is meant."""

import pytest

from albertkit.tasks.registry import find_task


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("ner", ["train.txt", "valid.txt", "validation.jsonl"]),
        ("ner", ["train.conll", "eng.train", "dev.txt"]),
        ("klue-ner", ["klue-ner-v1_dev.tsv", "klue-ner-v1.1_dev.tsv"]),
        ("sst2", ["train.tsv", "dev.tsv", "validation.csv"]),
        ("sst2", ["train.tsv", "dev.tsv", "validation-00000-of-00001.parquet"]),
        ("klue-nli", ["train.json", "klue-nli-v1_dev.json", "klue-nli-v1.1_dev.json"]),
        ("nsmc", ["train.csv", "ratings_train.txt"]),
        ("choice", ["train.jsonl", "val.jsonl", "dev.csv"]),
        ("race", ["train.csv", "train.parquet", "validation.csv"]),
        ("squad1", ["train-v1.1.json", "dev-v1.1.json", "validation-v1.1.json"]),
    ],
)
def test_two_files_of_one_split_are_refused_by_their_names(task, names, tmp_path, error_of):
    for name in names:
        (tmp_path / name).write_text("{}")
    error = error_of(find_task(task).files, tmp_path)
    assert error.slug == "ambiguous"
    assert sum(f"`{name}`" in error.message for name in names) == 2


def test_the_originals_files_may_lie_beside_those_of_glue(tmp_path):
    """So GLUE's download leaves MRPC."""
    names = "msr_paraphrase_train.txt msr_paraphrase_test.txt train.tsv dev.tsv test.tsv".split()
    for name in names:
        (tmp_path / name).touch()
    files = find_task("mrpc").files(tmp_path)
    assert {split: path.name for split, path in files.items()} == {
        "train": names[2],
        "dev": names[3],
        "test": names[4],
    }
    for name in names[2:]:
        (tmp_path / name).unlink()
    files = find_task("mrpc").files(tmp_path)
    assert {split: path.name for split, path in files.items()} == {
        "train": names[0],
        "dev": names[1],
    }
