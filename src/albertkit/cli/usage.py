"""Turn what cyclopts says of a mistyped command line into an error with a slug and a hint, as all others have."""

import inspect

from cyclopts import App, CycloptsError
from cyclopts.exceptions import MissingArgumentError, UnknownCommandError

from albertkit.errors import ConfigError, near_miss

# Scripts that people come from, and the command that does their work.
COMING_FROM = {
    "create_pretraining_data": "corpus build TEXT-FILES --tokenizer TOKENIZER --out STORE",
    "create_finetuning_data": "finetune TASK MODEL DATA --out RUN",
    "run_pretraining": "pretrain STORE --out RUN",
    "run_mlm": "pretrain STORE --continue MODEL --pair-task none --out RUN",
    "run_classifier": "finetune mrpc MODEL glue/MRPC --out RUN",
    "run_glue": "finetune mrpc MODEL glue/MRPC --out RUN",
    "run_squad": "finetune squad2 MODEL squad --out RUN",
    "run_squad_v1": "finetune squad1 MODEL squad --out RUN",
    "run_squad_v2": "finetune squad2 MODEL squad --out RUN",
    "run_qa": "finetune squad2 MODEL squad --out RUN",
    "run_race": "finetune race MODEL race --out RUN",
    "run_swag": "finetune choice MODEL DATA --out RUN",
    "run_ner": "finetune ner MODEL DATA --out RUN",
    "insert_vocab": "tokenizer extend TOKENIZER TEXT --model MODEL --out GROWN",
    "spm_train": "tokenizer train TEXT-FILES --out TOKENIZER",
    "spm_encode": "tokenizer encode TEXT --tokenizer TOKENIZER",
    "convert_albert_original_tf_checkpoint_to_pytorch": "convert SOURCE TARGET",
    "export_checkpoints": "convert SOURCE TARGET",
    "tf2_encoder_checkpoint_converter": "convert SOURCE TARGET",
    "tf2_albert_encoder_checkpoint_converter": "convert SOURCE TARGET",
    "evaluate-v1.1": "score squad PREDICTIONS GOLD",
    "evaluate-v2.0": "score squad PREDICTIONS GOLD",
    "albert-model-create": "init --tokenizer TOKENIZER --out MODEL",
    "albert-further-pretrain-mlm": "pretrain STORE --continue MODEL --pair-task none --out RUN",
    "albert-sts-to-sbert": "embed train korsts MODEL DATA --out RUN",
    "sbert-distillaton": "embed distill MODEL PAIRS --teacher TEACHER --out RUN",
    "run_caption_VidSwinBert_inference": "caption predict RUN video.mp4",
    "training_nli": "embed train nli MODEL DATA --out RUN",
    "training_stsbenchmark": "embed train stsb MODEL DATA --out RUN",
    "make_multilingual": "embed distill MODEL PAIRS --teacher TEACHER --out RUN",
    "migrate_to_albert": "migrate swinbert CHECKOUT",
    "run_caption_VidSwinBert": "caption train MODEL CLIPS --out RUN",
}


def usage_error(error: CycloptsError, app: App) -> ConfigError:
    """State a command line that cannot be understood as a fact and a hint."""
    chain = [word for word in (error.command_chain or ()) if not word.startswith("-")]
    command = " ".join(["albertkit", *chain])
    if isinstance(error, UnknownCommandError):
        word = error.unused_tokens[0] if error.unused_tokens else ""
        script = word.rsplit("/", 1)[-1].removesuffix(".py").removesuffix(".ipynb")
        if script in COMING_FROM:
            return ConfigError(
                "bad-command-line", f"`{word}` is a script of another project", f"albertkit {COMING_FROM[script]}"
            )
        group = app
        for name in chain:
            group = group[name]
        known = [name for name in group if not name.startswith("-")]
        return ConfigError("bad-command-line", f"`{command}` has no command `{word}`", near_miss(word, known))
    if isinstance(error, MissingArgumentError) and error.target is not None and error.argument:
        name = error.argument.field_info.name
        parameters = inspect.signature(error.target).parameters.values()
        required = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY and p.default is inspect.Parameter.empty]
        flag = error.argument.name
        shown = name.upper() if name in required else flag
        number, _ = error.argument.token_count()
        needed = "needs a value" if number == 1 else f"takes {number} words, separated by spaces"
        wrong = needed if flag in (error.root_input_tokens or ()) else "is missing"
        usage = " ".join([command, *map(str.upper, required)])
        return ConfigError("bad-command-line", f"`{usage}`: {shown} {wrong}", f"`{command} --help` lists the options")
    fact, asked, close = " ".join(str(error).split()).partition("Did you mean ")
    fact = fact.strip().rstrip(".").removeprefix(f'Command "{" ".join(chain)}" ')
    close = close.rstrip("?.").strip("\"'")
    hint = f"did you mean `{close}`?" if asked else f"`{command} --help` lists the options"
    return ConfigError("bad-command-line", f"`{command}`: {fact[:1].lower()}{fact[1:]}", hint)
