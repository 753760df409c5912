"""transformers' own common tests of models and tokenizers, for ALBERTs.

Run by `test_transformers.py` in the unpacked source archive of transformers, whose `tests` it
imports.
"""

import importlib.util
import sys
import types
import unittest

import torch
import transformers


def empty_class(name):
    if name.startswith("__"):  # a module's own attributes
        raise AttributeError(name)
    return type(name, (), {})


class Absent:
    """Makes modules of `tests` that the archive leaves out: every name in them is an empty class."""

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name.startswith("tests.") else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = empty_class
        return module

    def exec_module(self, module):
        pass


sys.meta_path.append(Absent())

from tests.test_modeling_common import ModelTesterMixin, ids_tensor, random_attention_mask  # noqa: E402
from tests.test_tokenization_common import TokenizerTesterMixin  # noqa: E402


class AlbertTester:
    """Configuration and inputs as the common tests ask for them."""

    batch_size = 3
    seq_length = 9
    hidden_size = 64
    num_hidden_layers = 2
    num_attention_heads = 4
    num_choices = 3
    is_training = True

    def __init__(self, parent):
        self.parent = parent

    def get_config(self):
        return transformers.AlbertConfig(
            vocab_size=99,
            embedding_size=16,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=96,
            max_position_embeddings=64,
            hidden_dropout_prob=0.1,
            attention_probs_dropout_prob=0.1,
        )

    def prepare_config_and_inputs_for_common(self):
        shape = [self.batch_size, self.seq_length]
        inputs = {
            "input_ids": ids_tensor(shape, 99),
            "attention_mask": random_attention_mask(shape),
            "token_type_ids": ids_tensor(shape, 2),
        }
        return self.get_config(), inputs


class AlbertTest(ModelTesterMixin, unittest.TestCase):
    all_model_classes = (
        transformers.AlbertModel,
        transformers.AlbertForPreTraining,
        transformers.AlbertForMaskedLM,
        transformers.AlbertForMultipleChoice,
        transformers.AlbertForSequenceClassification,
        transformers.AlbertForTokenClassification,
        transformers.AlbertForQuestionAnswering,
    )

    def setUp(self):
        self.model_tester = AlbertTester(self)

    def _prepare_for_class(self, inputs, model_class, return_labels=False):
        prepared = super()._prepare_for_class(inputs, model_class, return_labels)
        if return_labels and model_class is transformers.AlbertForPreTraining:
            prepared["labels"] = torch.zeros_like(prepared["input_ids"])
            prepared["sentence_order_label"] = torch.zeros(
                len(prepared["input_ids"]), dtype=torch.long
            )
        return prepared


class AlbertTokenizerTest(TokenizerTesterMixin, unittest.TestCase):
    """The Hub's name is that of Google's vocabulary in a folder that albertkit wrote."""

    from_pretrained_id = "albert/albert-base-v1"
    tokenizer_class = transformers.AlbertTokenizer
