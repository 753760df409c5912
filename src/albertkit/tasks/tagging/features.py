"""What the model sees of sentences, and at which of its tokens words are tagged."""

from collections.abc import Sequence

import numpy as np

from albertkit.errors import ConfigError, DataError
from albertkit.model.packing import IGNORED
from albertkit.tasks.features import Features
from albertkit.tasks.tagging.files import TaggedExample
from albertkit.tasks.tagging.places import find_places, windows
from albertkit.tasks.texts.label_names import label_indices
from albertkit.tokenizer import AlbertTokenizer


def tagging_features(
    examples: Sequence[TaggedExample], tokenizer: AlbertTokenizer, length: int, labels: Sequence[str] | None
) -> Features:
    """A sequence a sentence, `[CLS] pieces [SEP]`; of a sentence that is too long several windows, as `windows` cuts them.

    Args:
        examples: E of them.
        tokenizer: The model's.
        length: Most tokens of a sequence.
        labels: The tags, if `labels` are to be made.

    Returns:
        Features with, per token, int64: `words`, the word that is tagged there, or -1; `ends`, one more than the last word
        that its pieces reach; `labels`, its tag, or -100. A word is in one window at most, in training, too.

    Raises:
        ConfigError: bad-settings if no piece fits in the length.
        DataError: unknown-label, no-labels.
    """
    size = length - 2
    if size < 1:
        raise ConfigError("bad-settings", f"length {length} has no room for a piece", "use --length 64 or more")
    rows: list[tuple[list[int], int]] = []
    owners: list[int] = []
    tagged = [np.zeros((4, 0), np.int64)]  # token, word, end, label
    num_tokens = 0
    gold = [tag for tags in gold_tags(examples) for tag in tags] if labels is not None else []
    numbers = label_indices(gold, labels or ())
    bounds = np.cumsum([len(example.words) for example in examples], dtype=np.int64)
    for number, (example, example_numbers) in enumerate(zip(examples, np.split(numbers, bounds[:-1]), strict=False)):
        ids, spans = tokenizer.encode_with_offsets(example.text)
        places = find_places(example.words, example.spaces, spans)
        label = places.words if labels is None else example_numbers[places.words]
        starts, window_of = windows(len(ids), size)
        for window, start in enumerate(starts.tolist()):
            rows.append(([tokenizer.cls_id, *ids[start : start + size], tokenizer.sep_id], length))
            owners.append(number)
            here = window_of[places.pieces] == window
            tokens = num_tokens + 1 + places.pieces[here] - start
            tagged.append(np.stack([tokens, places.words[here], places.ends[here], label[here]]))
            num_tokens += len(rows[-1][0])
    tokens, *columns = np.concatenate(tagged, axis=1)
    per_token = {}
    for name, nothing, column in zip(("words", "ends", "labels"), (-1, -1, IGNORED), columns, strict=True):
        per_token[name] = np.full(num_tokens, nothing, np.int64)
        per_token[name][tokens] = column
    if labels is None:
        del per_token["labels"]
    return Features.of(rows, owners, per_token=per_token)


def gold_tags(examples: Sequence[TaggedExample]) -> list[tuple[str, ...]]:
    """The tags of labelled examples.

    Raises:
        DataError: no-labels.
    """
    if missing := [example.id for example in examples if not example.tags]:
        raise DataError(
            "no-labels", f"{len(missing):,} of {len(examples):,} sentences have no tags, the first is `{missing[0]}`",
            "score on data with tags",
        )  # fmt: skip
    return [example.tags for example in examples]
