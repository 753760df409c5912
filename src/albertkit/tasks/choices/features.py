"""What the model sees of questions: a sequence a choice."""

from collections.abc import Sequence

import numpy as np

from albertkit.errors import ConfigError
from albertkit.tasks.choices.example import ChoiceExample
from albertkit.tasks.features import Features
from albertkit.tokenizer import AlbertTokenizer


def choice_features(
    examples: Sequence[ChoiceExample], tokenizer: AlbertTokenizer, length: int, max_qa_length: int, cloze: bool
) -> Features:
    """`[CLS] context [SEP] question choice [SEP]`, as Google has RACE; without context `[CLS] question [SEP] choice [SEP]`.

    The second segment keeps its last `max_qa_length` pieces, the context loses what is too long at its end. A question that
    stands alone in the first segment loses it at its start: what is asked stands at the end.

    Args:
        examples: E of them.
        tokenizer: The model's.
        length: Longest sequence, special tokens included.
        max_qa_length: Pieces of the second segment at most.
        cloze: Whether a `_` in a question is a gap: every `_` is replaced by the choice, and nothing follows.

    Returns:
        M sequences; the choices of an example stand together, in their order. `left_out` is of the choice that loses most.

    Raises:
        ConfigError: bad-settings if there is no room.

    Source: google-research/albert, `race_utils.py`, `convert_single_example`.
    """
    room = length - 3
    if room < 1:
        raise ConfigError("bad-settings", f"length {length} has no room for a piece", "use --length 64 or more")
    texts: dict[str, int] = {}  # every text once: a passage of RACE has five questions of four choices
    firsts, seconds, owners = [], [], []
    for number, example in enumerate(examples):
        for choice in example.choices:
            firsts.append(texts.setdefault(example.context or example.question, len(texts)))
            seconds.append(texts.setdefault(_second(example, choice, cloze), len(texts)))
            owners.append(number)
    encoded = tokenizer.encode_batch(list(texts))
    cls, sep = np.array([tokenizer.cls_id], np.int32), np.array([tokenizer.sep_id], np.int32)
    rows = []
    left_out = np.zeros(len(examples), np.int64)
    for first, second, owner in zip(firsts, seconds, owners, strict=True):
        whole = len(encoded.text(first)) + len(encoded.text(second))
        answer = encoded.text(second)
        answer = answer[max(len(answer) - min(max_qa_length, room), 0) :]
        text, left = encoded.text(first), room - len(answer)
        text = text[:left] if examples[owner].context else text[max(len(text) - left, 0) :]
        rows.append((np.concatenate([cls, text, sep, answer, sep]), len(text) + 2))
        left_out[owner] = max(left_out[owner], whole - len(text) - len(answer))
    return Features.of(rows, owners, left_out=left_out)


def _second(example: ChoiceExample, choice: str, cloze: bool) -> str:
    if not example.context:
        return choice
    return (
        example.question.replace("_", choice) if cloze and "_" in example.question else f"{example.question} {choice}"
    )
