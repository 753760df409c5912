"""albertkit bench tokenize | data | pretrain | finetune | embed | caption"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

Texts = Annotated[list[str] | None, Parameter(consume_multiple=True)]  # `--text *.gz`, as the shell expands it


def tokenize(
    *,
    text: Texts = None,
    tokenizer: Path | None = None,
    megabytes: float = 4.0,
    rounds: int = 7,
    threads: int = 0,
    json: bool = False,
) -> None:
    """Text to ids, beside transformers, tokenizers, sentencepiece, kitoken and tokie.

    Args:
        text: Files, globs or folders of text. Default: the built-in English text.
        tokenizer: Folder with one `*.model`. Default: one trained on the text on the spot.
        megabytes: Text to use at most, in millions of bytes.
        rounds: Timed rounds; each runs everybody once.
        threads: Threads for everybody. Default: all cores.
        json: Print one JSON object a row.
    """
    from albertkit.benchmarks.inputs import open_inputs
    from albertkit.benchmarks.showing import show
    from albertkit.benchmarks.tokenizing import tokenize_rows

    with open_inputs(text or [], tokenizer, megabytes) as inputs:
        show(tokenize_rows(inputs, rounds, threads), json)


def data(
    *,
    text: Texts = None,
    tokenizer: Path | None = None,
    google_albert: Path | None = None,
    peer_python: str | None = None,
    megabytes: float = 8.0,
    rounds: int = 3,
    threads: int = 0,
    json: bool = False,
) -> None:
    """Text to masked training batches beside create_pretraining_data.py, and masking beside transformers' collators.

    Args:
        text: Files, globs or folders of text. Default: the built-in English text.
        tokenizer: Folder with one `*.model`. Default: one trained on the text on the spot.
        google_albert: Checkout of google-research/albert to measure. Default: the Model Garden's script, if installed.
        peer_python: Interpreter that has TensorFlow for the peer. Default: this one.
        megabytes: Text to use at most, in millions of bytes.
        rounds: Timed rounds; each runs everybody once.
        threads: Processes that build our store. Default: what suits so much text.
        json: Print one JSON object a row.
    """
    import sys

    from albertkit.benchmarks.data import data_rows
    from albertkit.benchmarks.inputs import open_inputs
    from albertkit.benchmarks.showing import show

    with open_inputs(text or [], tokenizer, megabytes) as inputs:
        show(data_rows(inputs, rounds, threads, google_albert, peer_python or sys.executable), json)


def pretrain(
    *,
    text: Texts = None,
    tokenizer: Path | None = None,
    megabytes: float = 2.0,
    steps: int = 1,
    rounds: int = 3,
    threads: int = 0,
    device: str = "cpu",
    json: bool = False,
) -> None:
    """Real tokens a second of optimisation steps, beside transformers and its Trainer.

    Args:
        text: Files, globs or folders of text. Default: the built-in English text.
        tokenizer: Folder with one `*.model`. Default: one trained on the text on the spot.
        megabytes: Text to draw examples from at most, in millions of bytes.
        steps: Our optimisation steps a round; everybody gets the same examples.
        rounds: Timed rounds; each runs everybody once.
        threads: Threads for everybody. Default: all cores.
        device: cpu, or cuda or cuda:N for base and xxlarge on a GPU, beside transformers in a plain loop.
        json: Print one JSON object a row.
    """
    from albertkit.benchmarks.inputs import open_inputs
    from albertkit.benchmarks.pretraining import pretrain_rows
    from albertkit.benchmarks.showing import show

    if device != "cpu":
        from albertkit.benchmarks.gpu_pretraining import gpu_pretrain_rows
        from albertkit.training.distributed import find_device

        place = find_device(device)
        with open_inputs(text or [], tokenizer, megabytes) as inputs:
            show(gpu_pretrain_rows(inputs, place, rounds, steps), json)
        return
    with open_inputs(text or [], tokenizer, megabytes) as inputs:
        show(pretrain_rows(inputs, rounds, threads, steps), json)


def finetune(
    *,
    data: Path | None = None,
    model: Path | None = None,
    text: Texts = None,
    tokenizer: Path | None = None,
    steps: int | None = None,
    rounds: int = 3,
    threads: int = 0,
    json: bool = False,
) -> None:
    """Examples a second of fine-tuning steps beside transformers' Trainer; with --model, the dev metric of both instead.

    Args:
        data: Folder with MRPC/ and SST-2/. Default: sentences of the text, and pairs of them.
        model: Checkpoint that both fine-tune on the two tasks of the data: do they reach the same metric?
        text: Files, globs or folders of text. Default: the built-in English text.
        tokenizer: Folder with one `*.model`. Default: one trained on the text on the spot.
        steps: Updates of 32 examples a round, by default 2; with --model updates of a training, by default 300.
        rounds: Timed rounds, each runs everybody once; with --model seeds.
        threads: Threads for everybody. Default: all cores.
        json: Print one JSON object a row.
    """
    from albertkit.benchmarks.finetuning import finetune_rows
    from albertkit.benchmarks.inputs import open_inputs
    from albertkit.benchmarks.same_metric import same_metric_rows
    from albertkit.benchmarks.showing import show

    if model is not None:
        show(same_metric_rows(model, data, steps=300 if steps is None else steps, seeds=rounds, threads=threads), json)
        return
    with open_inputs(text or [], tokenizer, 1.0) as inputs:
        show(finetune_rows(inputs, data, rounds, threads, 2 if steps is None else steps), json)


def embed(
    *,
    text: Texts = None,
    tokenizer: Path | None = None,
    model: Path | None = None,
    peer_python: str | None = None,
    sentences: int = 512,
    rounds: int = 3,
    threads: int = 0,
    json: bool = False,
) -> None:
    """Sentences a second of encoding, beside sentence-transformers in its default setting and with its backends.

    Args:
        text: Files, globs or folders of text, whose sentences are encoded. Default: the built-in English text.
        tokenizer: Folder with one `*.model`, for random weights. Default: one trained on the text on the spot.
        model: Sentence encoder or checkpoint to measure. Default: base with random weights, mean pooling.
        peer_python: Interpreter that has sentence-transformers[onnx,openvino] and datasets. Default: what
            ALBERTKIT_SENTENCE_TRANSFORMERS_PYTHON names, or this one.
        sentences: How many, taken evenly from the text.
        rounds: Timed rounds; each runs everybody once.
        threads: Threads for everybody. Default: all cores.
        json: Print one JSON object a row.
    """
    from albertkit.benchmarks.embedding import embed_rows
    from albertkit.benchmarks.inputs import open_inputs
    from albertkit.benchmarks.showing import show

    with open_inputs(text or [], tokenizer, 1.0) as inputs:
        show(embed_rows(inputs, model, sentences, rounds, threads, peer_python), json)


def caption(
    *,
    visual_tokens: int = 784,
    words: int = 20,
    train: bool = False,
    batch_size: int = 1,
    rounds: int = 3,
    threads: int = 0,
    json: bool = False,
) -> None:
    """Captions a second, decoded from cached states, compared with encoding text and video again for every word.

    Args:
        visual_tokens: Of the clip; 784 are SwinBERT's 32 frames.
        words: Tokens of the caption.
        train: Updates a second instead: ALBERT and BERT as SwinBERT's text model, with parameters and memory of both.
        batch_size: With --train: clips in an update.
        rounds: Timed rounds; each runs everybody once.
        threads: Threads for everybody. Default: all cores.
        json: Print one JSON object a row.
    """
    from albertkit.benchmarks.caption_training import caption_training_rows
    from albertkit.benchmarks.captioning import caption_rows
    from albertkit.benchmarks.showing import show

    if train:
        show(caption_training_rows(visual_tokens, batch_size, rounds, threads), json)
        return
    show(caption_rows(visual_tokens, words, rounds, threads), json)
