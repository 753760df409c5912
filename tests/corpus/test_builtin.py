"""The text that every Python carries."""

import sys
from itertools import islice

from albertkit.corpus import builtin_documents, read_documents, write_builtin_corpus
from albertkit.corpus.builtin import prose_sentences


def test_markup_code_and_tables_go_and_sentences_stay():
    text = """Open a *stream*, as :func:`os.open` does; see `the docs <x>`.

    It returns ``None`` at the end of the file [1]_, which may
    surprise you.  Use it so::

        with stream(x) as y:
            print("This is a long line inside of code.")

        and this is still a literal block of the example here.

    * First point about the thing. It has two sentences.

    >>> stream("this is not prose at all, is it?")
    'no, it is not prose, dear reader.'

    +-----+-----+
    | a b | c d |

    stmt ::= "if" this is a rule of the grammar.
    :param x: The first argument of the function.
    """
    assert prose_sentences(text) == [
        "Open a stream, as os.open does; see the docs <x>.",
        "It returns None at the end of the file, which may surprise you.",
        "First point about the thing.",
        "It has two sentences.",
    ]


def test_documents_are_the_same_each_time_and_nothing_is_imported():
    before = set(sys.modules)
    first, second = (list(islice(builtin_documents(), 300)) for _ in range(2))
    assert first == second
    assert not {"antigravity", "this", "turtle", "pydoc_data.topics"} & (set(sys.modules) - before)


def test_the_written_corpus(tmp_path):
    sizes = write_builtin_corpus(tmp_path / "builtin.txt")
    assert sizes["bytes"] == (tmp_path / "builtin.txt").stat().st_size > 800_000
    documents = [
        document.text.split("\n") for document in read_documents([tmp_path / "builtin.txt"])
    ]
    assert len(documents) == sizes["documents"] > 1500
    assert sum(map(len, documents)) == sizes["sentences"]
    assert all(len(document) > 1 for document in documents)
    text = " ".join(sentence for document in documents for sentence in document).split()
    common = sum(
        word.lower() in {"the", "a", "of", "to", "is", "and", "in", "if", "be", "for"}
        for word in text
    )
    assert common > 0.2 * len(text)  # English
