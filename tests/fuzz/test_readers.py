"""Every reader of files: damaged files, and what is no file in the place of each."""

import pytest
import read_captioning
import read_checkpoints
import read_corpus
import read_embeddings
import read_export
import read_runs
import read_tasks
import read_tensorflow
import read_tokenizers

MODULES = (
    read_captioning,
    read_checkpoints,
    read_corpus,
    read_embeddings,
    read_export,
    read_runs,
    read_tasks,
    read_tensorflow,
    read_tokenizers,
)
READERS = {name: reader for module in MODULES for name, reader in module.READERS.items()}


def test_every_reader_has_a_name_of_its_own():
    assert len(READERS) == sum(len(module.READERS) for module in MODULES)


@pytest.mark.parametrize("name", READERS)
def test_damaged_files(name, fuzzing):
    fuzzing.damage(name, READERS[name])


@pytest.mark.parametrize("name", [name for name in READERS if not READERS[name].alone])
def test_what_is_no_file(name, fuzzing):
    fuzzing.misplace_files(name, READERS[name])
