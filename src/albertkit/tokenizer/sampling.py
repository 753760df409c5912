"""An even sample of a stream of texts."""

import random
from collections.abc import Iterable


def even_sample(texts: Iterable[str], size: int, seed: int) -> list[str]:
    """Draw texts evenly (reservoir sampling); all of them, in order, if there are no more than `size`.

    SentencePiece's own sampling (0.2.3) takes no seed: `SetRandomGeneratorSeed` leaves the sample as it is.

    Args:
        texts: A stream.
        size: Texts to keep at most.
        seed: Of the draw.
    """
    draw = random.Random(seed)
    sample: list[str] = []
    for number, text in enumerate(texts):
        if number < size:
            sample.append(text)
        elif (place := draw.randrange(number + 1)) < size:
            sample[place] = text
    return sample
