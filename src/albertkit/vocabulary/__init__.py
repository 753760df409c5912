"""A vocabulary and the rows that belong to it: training on files, more or fewer tokens for both, renumbered ids."""

from albertkit import lazy_names

_WHERE = {
    "ExtensionReport": "albertkit.vocabulary.extend",
    "RepairReport": "albertkit.vocabulary.repair",
    "TextChange": "albertkit.vocabulary.trim",
    "TrainingReport": "albertkit.vocabulary.train",
    "TrimReport": "albertkit.vocabulary.trim",
    "extend_vocabulary": "albertkit.vocabulary.extend",
    "repair_vocabulary": "albertkit.vocabulary.repair",
    "train_vocabulary": "albertkit.vocabulary.train",
    "trim_vocabulary": "albertkit.vocabulary.trim",
}

__all__ = list(_WHERE)

__getattr__ = lazy_names(__name__, _WHERE)
