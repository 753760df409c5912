"""Google's text rules once more, in plain Python, on nothing but `unicodedata` and raw sentencepiece.

Written apart from `albertkit.tokenizer`, slowly and literally, so that the benchmark can check our
ids against somebody who does not share our code. Sources: `preprocess_text` and `encode_pieces` of
google-research/albert `tokenization.py` and of the Model Garden's
`official/nlp/tools/tokenization.py`, whose comparison of `str` with `str` is the rule as intended.
"""

import unicodedata
from typing import Any


def preprocess(text: str) -> str:
    """Collapse white space, decompose (NFKD), drop combining marks, lower-case: in this order."""
    text = unicodedata.normalize("NFKD", " ".join(text.split()))
    return "".join(character for character in text if not unicodedata.combining(character)).lower()


def pieces(processor: Any, text: str) -> list[str]:
    """Pieces of preprocessed text; a piece such as `▁2010,` becomes the pieces of `2010` and a comma.

    Args:
        processor: A `sentencepiece.SentencePieceProcessor`.
        text: Untouched text.
    """
    result: list[str] = []
    for piece in processor.EncodeAsPieces(preprocess(text)):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            subpieces = processor.EncodeAsPieces(piece[:-1].replace("▁", ""))
            # The dummy prefix added a word start that was not there
            if piece[0] != "▁" and subpieces[0][0] == "▁":
                subpieces = (
                    subpieces[1:] if len(subpieces[0]) == 1 else [subpieces[0][1:], *subpieces[1:]]
                )
            result += [*subpieces, piece[-1]]
        else:
            result.append(piece)
    return result


def ids(processor: Any, text: str) -> list[int]:
    """Ids of `pieces`."""
    return [processor.PieceToId(piece) for piece in pieces(processor, text)]
