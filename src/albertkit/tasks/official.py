"""The official layouts of GLUE and of Korean tables, as data: files, columns, labels in the order of their indices.

Columns, labels and their order: google-research/albert, `classifier_utils.py`. Beside GLUE's own
files there are those of the original distributions, and the columns in which the Hugging Face hub
has the same tasks. Only hub files number MNLI's labels, and in another order than that of their
indices here.
"""

from albertkit.tables.layouts import TableForm, TaskLayout
from albertkit.tables.records import SPLIT_NAMES

_BINARY = ("0", "1")
_ENTAILED = ("entailment", "not_entailment")
_SENTIMENT = ("negative", "positive")
_INFERENCE = ("contradiction", "entailment", "neutral")
_HUB_INFERENCE = TableForm(
    "premise", "hypothesis", "label", ("idx",), numbered=("entailment", "neutral", "contradiction")
)
_HUB_PAIR = TableForm("sentence1", "sentence2", "label", ("idx",))

OFFICIAL: dict[str, TaskLayout] = {
    "cola": TaskLayout(
        "classification",
        (
            TableForm("sentence", "", "label", ("index", "idx")),
            TableForm("sentence", "", "label", header=("source", "label", "star", "sentence")),
        ),
        _BINARY, "matthews_correlation", "CoLA",
        {
            "train": ("train", "in_domain_train"), "dev": ("dev", "validation", "in_domain_dev"),
            "dev_out_of_domain": ("out_of_domain_dev",), "test": ("test",),
        },
        {"": "CoLA"}, label_names=("unacceptable", "acceptable"),
    ),
    "sst2": TaskLayout(
        "classification", (TableForm("sentence", "", "label", ("index", "idx")),), _BINARY, "accuracy", "SST-2", SPLIT_NAMES,
        {"": "SST-2"}, label_names=_SENTIMENT,
    ),
    "mrpc": TaskLayout(
        "classification",
        (TableForm("#1 String", "#2 String", "Quality", ("index",)), _HUB_PAIR),
        _BINARY, "accuracy_and_f1", "MRPC",
        {
            # the original distribution has no dev set; where there is one, its test set is GLUE's
            "train": ("train", "msr_paraphrase_train"), "dev": ("dev", "validation", "msr_paraphrase_test"),
            "test": ("test", "msr_paraphrase_test"),
        },
        {"": "MRPC"}, label_names=("not_equivalent", "equivalent"),
    ),
    "stsb": TaskLayout(
        "regression",
        (
            TableForm("sentence1", "sentence2", "score", ("index",)),
            _HUB_PAIR,
            TableForm(
                "sentence1", "sentence2", "score",
                header=("genre", "file", "year", "number", "score", "sentence1", "sentence2"),
            ),
        ),
        (), "pearson_and_spearman", "STS-B",
        {
            "train": ("train", "original_sts-train", "sts-train"), "dev": ("dev", "validation", "original_sts-dev", "sts-dev"),
            "test": ("test", "original_sts-test", "sts-test"),
        },
        {"": "STS-B"},
    ),
    "qqp": TaskLayout(
        "classification",
        (TableForm("question1", "question2", "is_duplicate", ("id",)), TableForm("question1", "question2", "label", ("idx",))),
        _BINARY, "accuracy_and_f1", "QQP", SPLIT_NAMES, {"": "QQP"},
        empty_texts=True,  # some questions are, and the original reads the other alone
        short_rows=True, label_names=("not_duplicate", "duplicate"),
    ),
    "mnli": TaskLayout(
        "classification",
        (TableForm("sentence1", "sentence2", "gold_label", ("index",)), _HUB_INFERENCE),
        _INFERENCE, "accuracy", "MNLI",
        {
            "train": ("train",), "dev_matched": ("dev_matched", "validation_matched"),
            "dev_mismatched": ("dev_mismatched", "validation_mismatched"), "test_matched": ("test_matched",),
            "test_mismatched": ("test_mismatched",), "diagnostic": ("diagnostic", "../diagnostic/diagnostic"),
        },
        {
            "dev_matched": "MNLI-m", "test_matched": "MNLI-m", "dev_mismatched": "MNLI-mm", "test_mismatched": "MNLI-mm",
            "diagnostic": "AX", "": "MNLI",
        },
    ),
    "ax": TaskLayout(
        "classification",
        (
            TableForm("sentence1", "sentence2", "gold_label", ("index",)),
            TableForm("Premise", "Hypothesis", "Label"),
            _HUB_INFERENCE,
        ),
        _INFERENCE, "matthews_correlation", "diagnostic",
        {"dev": ("diagnostic-full",), "test": ("diagnostic", "test")}, {"": "AX"},
    ),
    "qnli": TaskLayout(
        "classification", (TableForm("question", "sentence", "label", ("index", "idx"), numbered=_ENTAILED),),
        _ENTAILED, "accuracy", "QNLI", SPLIT_NAMES, {"": "QNLI"},
    ),
    "rte": TaskLayout(
        "classification", (TableForm("sentence1", "sentence2", "label", ("index", "idx"), numbered=_ENTAILED),),
        _ENTAILED, "accuracy", "RTE", SPLIT_NAMES, {"": "RTE"},
        quoted="look",  # there is an edition in quotes, with numbers for labels
    ),
    "wnli": TaskLayout(
        "classification", (TableForm("sentence1", "sentence2", "label", ("index", "idx")),), _BINARY, "accuracy", "WNLI",
        SPLIT_NAMES, {"": "WNLI"}, label_names=("not_entailment", "entailment"),
    ),
    # --- Korean ---
    "nsmc": TaskLayout(
        "classification", (TableForm("document", "", "label", ("id",)),), _BINARY, "accuracy", "nsmc",
        {"train": ("train", "ratings_train"), "dev": ("dev",), "test": ("test", "ratings_test")},
        empty_texts=True, label_names=_SENTIMENT,  # eight of the 200,000 reviews
    ),
    "klue-nli": TaskLayout(
        "classification",
        (
            TableForm("premise", "hypothesis", "gold_label", ("guid",)),
            TableForm("premise", "hypothesis", "label", ("guid",), numbered=("entailment", "neutral", "contradiction")),
        ),
        _INFERENCE, "accuracy", "klue-nli",
        {s: (f"klue-nli-v1.1_{s}", f"klue-nli-v1_{s}", *names) for s, names in SPLIT_NAMES.items()},
    ),
    "klue-sts": TaskLayout(
        "regression", (TableForm("sentence1", "sentence2", "labels.label", ("guid",)),), (), "pearson", "klue-sts",
        {s: (f"klue-sts-v1.1_{s}", f"klue-sts-v1_{s}", *names) for s, names in SPLIT_NAMES.items()},
        similar_from=3.0,  # KLUE's second metric, f1; the data hold the same decision as `binary-label`
    ),
    "kornli": TaskLayout(
        "classification", (TableForm("sentence1", "sentence2", "gold_label"), _HUB_INFERENCE), _INFERENCE, "accuracy", "KorNLI",
        {
            "train": ("train", "multinli.train.ko"), "train_snli": ("snli_1.0_train.ko",), "dev": ("dev", "xnli.dev.ko"),
            "test": ("test", "xnli.test.ko"),
        },
        empty_texts=True,  # translations
    ),
    "korsts": TaskLayout(
        "regression", (TableForm("sentence1", "sentence2", "score"),), (), "spearman", "KorSTS",
        {
            "train": ("sts-train", "train", "tune_train"), "dev": ("sts-dev", "dev", "tune_dev"),
            "test": ("sts-test", "test", "tune_test"),
        },
        empty_texts=True,
    ),
}  # fmt: skip
