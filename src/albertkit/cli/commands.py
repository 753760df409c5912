"""The table of commands: what is typed, the dataclass of its options, the function that runs it."""

from albertkit.command import Command

_CAPTION = "albertkit.captioning.options"
_TOKENIZER = "albertkit.tokenizer.options"
_EMBED = "albertkit.embeddings"
COMMANDS = (
    Command(
        "quickstart",
        "albertkit.report.options:QuickstartOptions",
        "albertkit.first_run:quickstart",
    ),
    Command(
        "init", "albertkit.conversion.options:InitOptions", "albertkit.conversion.initial:init"
    ),
    Command(
        "pretrain",
        "albertkit.pretraining.options:PretrainCommandOptions",
        "albertkit.pretraining.pretrain_command:run_pretrain",
    ),
    Command(
        "evaluate",
        "albertkit.tasks.options:EvaluateOptions",
        "albertkit.pipelines.predict:run_evaluate",
    ),
    Command(
        "finetune",
        "albertkit.tasks.options:FinetuneCommandOptions",
        "albertkit.tasks.finetune:run_finetune",
    ),
    Command(
        "predict",
        "albertkit.tasks.options:PredictCommandOptions",
        "albertkit.pipelines.predict:run_predict",
        show="albertkit.pipelines.predict:show_predictions",
    ),
    Command(
        "serve", "albertkit.serve.options:ServeOptions", "albertkit.serve.server:serve", json=False
    ),
    Command(
        "early-exit",
        "albertkit.tasks.options:EarlyExitOptions",
        "albertkit.tasks.early_exit:exit_curve",
    ),
    Command(
        "compare-precision",
        "albertkit.tasks.options:ComparePrecisionOptions",
        "albertkit.pipelines.compare_precision:compare_precision",
    ),
    Command(
        "score",
        "albertkit.tasks.options:ScoreOptions",
        "albertkit.tasks.evaluate:score_file",
        show="albertkit.tasks.evaluate:show_scores",
    ),
    Command(
        "doctor",
        "albertkit.report.options:DoctorOptions",
        "albertkit.report.doctor:doctor",
        show="albertkit.report.doctor:show_doctor",
    ),
    Command(
        "convert",
        "albertkit.conversion.options:ConvertOptions",
        "albertkit.conversion.convert:convert",
    ),
    Command(
        "inspect", "albertkit.report.options:InspectOptions", "albertkit.report.inspect:inspect"
    ),
    Command(
        "report",
        "albertkit.report.options:ReportOptions",
        "albertkit.report.run_page:write_run_report",
    ),
    Command(
        "tokenizer train",
        f"{_TOKENIZER}:TrainVocabularyOptions",
        "albertkit.vocabulary.train:train_vocabulary",
    ),
    Command(
        "tokenizer encode",
        f"{_TOKENIZER}:EncodeLinesOptions",
        "albertkit.tokenizer.check:encode_lines",
    ),
    Command(
        "tokenizer convert",
        f"{_TOKENIZER}:ConvertTokenizerOptions",
        "albertkit.tokenizer.check:convert_tokenizer",
    ),
    Command(
        "tokenizer check",
        f"{_TOKENIZER}:CheckOptions",
        "albertkit.tokenizer.check:run_tokenizer_check",
    ),
    Command(
        "tokenizer extend",
        f"{_TOKENIZER}:ExtendOptions",
        "albertkit.vocabulary.extend:extend_vocabulary",
    ),
    Command(
        "tokenizer repair",
        f"{_TOKENIZER}:RepairOptions",
        "albertkit.vocabulary.repair:repair_vocabulary",
    ),
    Command(
        "tokenizer trim", f"{_TOKENIZER}:TrimOptions", "albertkit.vocabulary.trim:trim_vocabulary"
    ),
    Command(
        "corpus build",
        "albertkit.corpus.options:BuildOptions",
        "albertkit.corpus.build:build_store",
    ),
    Command(
        "corpus inspect",
        "albertkit.pretraining.options:InspectStoreOptions",
        "albertkit.pretraining.inspection:inspect_examples",
    ),
    Command(
        "corpus export",
        "albertkit.pretraining.options:ExportOptions",
        "albertkit.pretraining.export:export_records",
    ),
    Command(
        "embed train", f"{_EMBED}.options:EmbedTrainOptions", f"{_EMBED}.train:train_embeddings"
    ),
    Command(
        "embed distill",
        f"{_EMBED}.options:EmbedDistillOptions",
        f"{_EMBED}.distill:distill_embeddings",
    ),
    Command("embed augment", f"{_EMBED}.options:AugmentOptions", f"{_EMBED}.augment:augment"),
    Command(
        "embed evaluate",
        f"{_EMBED}.options:EmbedEvaluateOptions",
        f"{_EMBED}.evaluate:run_embed_evaluate",
    ),
    Command("embed encode", f"{_EMBED}.options:EncodeOptions", f"{_EMBED}.encode:encode_file"),
    Command(
        "caption prepare", f"{_CAPTION}:PrepareOptions", "albertkit.captioning.prepare:prepare_data"
    ),
    Command(
        "caption train",
        "albertkit.captioning.settings:TrainCaptionerOptions",
        "albertkit.captioning.train:train_captioner",
    ),
    Command(
        "caption predict",
        f"{_CAPTION}:PredictCaptionsOptions",
        "albertkit.captioning.predict:predict_captions",
    ),
    Command(
        "caption evaluate",
        f"{_CAPTION}:EvaluateCaptionerOptions",
        "albertkit.captioning.evaluate:evaluate_captioner",
    ),
    Command(
        "caption score",
        f"{_CAPTION}:ScoreCaptionsOptions",
        "albertkit.captioning.score:score_caption_files",
    ),
    Command(
        "export web",
        "albertkit.export.options:ExportWebOptions",
        "albertkit.export.site:export_site",
    ),
    Command(
        "export onnx",
        "albertkit.export.options:ExportOnnxOptions",
        "albertkit.export.onnx:export_onnx",
    ),
    Command(
        "migrate swinbert",
        "albertkit.swinbert.options:MigrateOptions",
        "albertkit.swinbert.migrate:migrate_checkout",
        show="albertkit.swinbert.migrate:show_migration",
    ),
    Command(
        "migrate swinbert-checkpoint",
        "albertkit.swinbert.options:ConvertSwinBertOptions",
        "albertkit.swinbert.checkpoints:convert_swinbert",
    ),
)

_COMMANDS = {command.identifier: command for command in COMMANDS}


def __getattr__(name: str) -> object:
    """Make the function of a command when the command line asks for it."""
    if name not in _COMMANDS:
        raise AttributeError(name)
    return _COMMANDS[name].make_cli_function()
