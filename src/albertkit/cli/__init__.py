"""The command line: one short file a command, no logic. Commands are imported only when they are called."""

import os
import sys
from importlib import import_module
from pathlib import Path

from cyclopts import App
from cyclopts.config import Toml

from albertkit import __version__
from albertkit.errors import AlbertKitError, explain

app = App(
    name="albertkit",
    help="One layer, run twelve times: train, adapt, measure and serve ALBERT.",
    version=__version__,
    help_format="markdown",
    result_action="return_value",  # `main` ends the process
    suppress_keyboard_interrupt=False,  # `main` says it
)
tokenizer = App(name="tokenizer", help="Train, use and convert SentencePiece tokenizers.")
corpus = App(name="corpus", help="Turn text into a token store and look inside it.")
embed = App(name="embed", help="Sentence embeddings: train, distil, augment, evaluate, encode, look.")
caption = App(name="caption", help="Video captioning: prepare clips, train, predict, evaluate, score.")
migrate = App(name="migrate", help="Put ALBERT into SwinBERT's place, and its checkpoints into ours.")
bench = App(name="bench", help="Measure albertkit beside its peers, on this machine, in one run.")
for group in (tokenizer, corpus, embed, caption, migrate, bench):
    app.command(group)

_COMMANDS = "albertkit.cli"
app.command(
    f"{_COMMANDS}.quickstart:quickstart",
    name="quickstart",
    help="From text to a trained tiny ALBERT and a report, in minutes.",
)
app.command(
    f"{_COMMANDS}.init:init", name="init", help="An empty ALBERT of any size or configuration, with its tokenizer."
)
app.command(
    f"{_COMMANDS}.pretrain:pretrain",
    name="pretrain",
    help="Train an ALBERT on a token store or on masked records, from scratch or from a model.",
)
app.command(
    f"{_COMMANDS}.evaluate:evaluate",
    name="evaluate",
    help="Score a model: pretrained on held-out documents, fine-tuned on labelled examples.",
)
app.command(
    f"{_COMMANDS}.finetune:finetune",
    name="finetune",
    help="Fine-tune on GLUE, SQuAD, RACE, named entities or a table of your own.",
)
app.command(f"{_COMMANDS}.predict:predict", name="predict", help="Predict a file of any size with a fine-tuned model.")
app.command(
    f"{_COMMANDS}.score:score", name="score", help="Score anybody's predictions by the official rules of a task."
)
app.command(
    f"{_COMMANDS}.doctor:doctor",
    name="doctor",
    help="Look at the environment: versions, extras, hardware, and how to get what is missing.",
)
app.command(
    f"{_COMMANDS}.convert:convert",
    name="convert",
    help="Any ALBERT (TensorFlow 1 and 2, SavedModel, transformers, BERT) to a checkpoint folder, verified.",
)
app.command(
    f"{_COMMANDS}.inspect:inspect", name="inspect", help="What a model is made of: parameters, FLOPs, memory, origin."
)
tokenizer.command(f"{_COMMANDS}.tokenizer:train", name="train", help="Train a SentencePiece tokenizer.")
tokenizer.command(f"{_COMMANDS}.tokenizer:encode", name="encode", help="Turn lines of text into ids and pieces.")
tokenizer.command(
    f"{_COMMANDS}.tokenizer:convert", name="convert", help="Write any tokenizer as albertkit and transformers read it."
)
tokenizer.command(
    f"{_COMMANDS}.tokenizer:check", name="check", help="Compare every reader of a tokenizer folder on hard sentences."
)
tokenizer.command(
    f"{_COMMANDS}.vocabulary:extend", name="extend", help="Add pieces of another language, and their rows to a model."
)
tokenizer.command(
    f"{_COMMANDS}.vocabulary:repair", name="repair", help="Renumber special ids, together with a model's rows."
)
corpus.command(f"{_COMMANDS}.corpus:build", name="build", help="Turn text files into a token store.")
corpus.command(f"{_COMMANDS}.corpus:inspect", name="inspect", help="Show masked examples as the model will see them.")
corpus.command(
    f"{_COMMANDS}.corpus:export",
    name="export",
    help="Write a store as masked TFRecords, as Google's create_pretraining_data does.",
)
embed.command(
    f"{_COMMANDS}.embed_train:train",
    name="train",
    help="Train on scored pairs, inference, pairs that mean the same, or texts.",
)
embed.command(
    f"{_COMMANDS}.embed_train:distill",
    name="distill",
    help="Learn a teacher's vectors, across languages from parallel texts.",
)
embed.command(
    f"{_COMMANDS}.embed_evaluate:augment",
    name="augment",
    help="Silver pairs: sampled, scored by a cross-encoder, balanced.",
)
embed.command(
    f"{_COMMANDS}.embed_evaluate:evaluate",
    name="evaluate",
    help="Correlations, retrieval and anisotropy, beside a bag of pieces.",
)
embed.command(f"{_COMMANDS}.embed_encode:encode", name="encode", help="A file of texts of any size to npy or Parquet.")
embed.command(f"{_COMMANDS}.embed_evaluate:map", name="map", help="Texts laid out by their vectors, in one HTML page.")
caption.command(
    f"{_COMMANDS}.caption_prepare:prepare",
    name="prepare",
    help="Decode clips once and keep what a captioner sees of them.",
)
caption.command(
    f"{_COMMANDS}.caption_convert:convert", name="convert", help="A manifest to SwinBERT's files, and back."
)
caption.command(f"{_COMMANDS}.caption_train:train", name="train", help="Train a captioner on prepared clips.")
caption.command(
    f"{_COMMANDS}.caption_predict:predict", name="predict", help="Say what videos show, and draw what was looked at."
)
caption.command(
    f"{_COMMANDS}.caption_predict:evaluate", name="evaluate", help="Caption prepared clips and score the captions."
)
caption.command(
    f"{_COMMANDS}.caption_score:score",
    name="score",
    help="Score anybody's captions as the COCO caption scorer does.",
)
caption.command(
    f"{_COMMANDS}.caption_shapes:shapes",
    name="shapes",
    help="Learn to caption moving shapes from nothing, and score what was never seen.",
)
migrate.command(
    f"{_COMMANDS}.migrate:swinbert",
    name="swinbert",
    help="Put ALBERT into a checkout of SwinBERT: diff, apply, revert.",
)
migrate.command(
    f"{_COMMANDS}.migrate:swinbert_checkpoint",
    name="swinbert-checkpoint",
    help="A trained SwinBERT to a captioning checkpoint, exactly.",
)
bench.command(
    f"{_COMMANDS}.bench:tokenize", name="tokenize", help="Text to ids: transformers, tokenizers, raw SentencePiece."
)
bench.command(
    f"{_COMMANDS}.bench:data",
    name="data",
    help="Text to masked batches: Google's or the Model Garden's script, transformers' collator.",
)
bench.command(
    f"{_COMMANDS}.bench:finetune",
    name="finetune",
    help="Fine-tuning steps: transformers' Trainer as run_glue sets it, and at its best.",
)
bench.command(
    f"{_COMMANDS}.bench:embed",
    name="embed",
    help="Sentences to vectors: sentence-transformers, its ONNX and OpenVINO backends.",
)
bench.command(
    f"{_COMMANDS}.bench:caption",
    name="caption",
    help="Captions from cached states, beside encoding everything again for each word.",
)
bench.command(
    f"{_COMMANDS}.bench:pretrain",
    name="pretrain",
    help="Training steps: transformers' Trainer, as documented and at its best.",
)


# Which settings a command's --config-file holds.
_SETTINGS = {
    "pretrain": ("albertkit.pretraining.settings", "PretrainSettings"),
    "finetune": ("albertkit.tasks.settings", "FinetuneSettings"),
    "embed train": ("albertkit.embeddings.learning.settings", "EmbedSettings"),
    "embed distill": ("albertkit.embeddings.learning.settings", "DistillSettings"),
    "caption train": ("albertkit.captioning.training.settings", "CaptionSettings"),
}


def _use_settings_file(arguments: list[str]) -> None:
    """Let the file named by --config-file stand between the defaults and the flags."""
    app.config = ()  # not that of the command before, in one process
    command = next((name for name in _SETTINGS if arguments[: name.count(" ") + 1] == name.split()), None)
    for position, argument in enumerate(arguments):
        flag, _, value = argument.partition("=")
        path = value or next(iter(arguments[position + 1 :]), "")
        if flag == "--config-file" and path and command:
            module, name = _SETTINGS[command]
            # A key that is not known is answered with the nearest one that is.
            getattr(import_module(module), name).read(Path(path))
            app.config = Toml(path, use_commands_as_keys=False, must_exist=True)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; say errors without a traceback. Exit status 2: the user's mistake; 1: ours or the machine's."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        _use_settings_file(arguments)
        result = app(arguments)
        sys.stdout.flush()  # a reader that has gone shows here, not after the last line of Python
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # `albertkit … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (AlbertKitError, OSError) as error:
        explained = explain(error)
        if explained is None or os.environ.get("ALBERTKIT_TRACEBACK"):
            raise
        print(explained, file=sys.stderr)
        sys.exit(explained.exit_code)
    sys.exit(result if isinstance(result, int) else 0)
