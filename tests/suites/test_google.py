"""google-research/albert's own tests of tokenizer, model and optimizer, run on ours; ALBERTKIT_ALBERT names a checkout.

TensorFlow is not needed: what these tests use of it stands here, on torch.
`run_pretraining_test.py`, the fourth, drives a `TPUEstimator` of TensorFlow 1.15 and looks for the
files of its checkpoints.
"""

import importlib.util
import json
import os
import random
import sys
import types
import unittest
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

import albertkit
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.optimizers import make_optimizer

pytestmark = pytest.mark.peer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MODELS = []  # those that their tests made


def tokenizer_of(vocabulary, lower):
    """Return our tokenizer of a vocabulary, to which special tokens that it lacks are added at the end."""
    tokens = list(dict.fromkeys([*vocabulary, *SPECIAL]))
    with TemporaryDirectory() as folder:
        (Path(folder) / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
        settings = {"do_lower_case": lower, "tokenizer_class": "BertTokenizer"}
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps(settings))
        return AlbertTokenizer.from_pretrained(folder)


def pieces(tokenizer, text):
    return [tokenizer.id_to_piece(token) for token in tokenizer.encode(text)]


class FullTokenizer:
    def __init__(self, vocab_file, do_lower_case=True):
        self.vocabulary = Path(vocab_file).read_text(encoding="utf-8").split("\n")[:-1]
        self.tokenizer = tokenizer_of(self.vocabulary, do_lower_case)

    def tokenize(self, text):
        return pieces(self.tokenizer, text)

    def convert_tokens_to_ids(self, tokens):
        return self.tokenizer.convert_tokens_to_ids(tokens)


class WordpieceTokenizer:
    def __init__(self, vocab):
        self.tokenizer = tokenizer_of(vocab, lower=False)

    def tokenize(self, text):
        return pieces(self.tokenizer, text)


class BasicTokenizer:
    """Words are what begins without ##, with a vocabulary of single characters."""

    def __init__(self, do_lower_case=True):
        self.lower = do_lower_case

    def tokenize(self, text):
        characters = sorted(set(text + text.lower() + "e") - set(" \t\r\n\u00a0"))
        tokenizer = tokenizer_of(
            [*characters, *(f"##{character}" for character in characters)], self.lower
        )
        words = []
        for piece in pieces(tokenizer, text):
            if piece.startswith("##") and words:
                words[-1] += piece[2:]
            else:
                words.append(piece)
        return words


def words_around(character):
    return BasicTokenizer(do_lower_case=False).tokenize(f"a{character}b")


def tokenization():
    """Return a module with the names of theirs, made of our tokenizer."""
    module = types.ModuleType("albert.tokenization")
    module.FullTokenizer = FullTokenizer
    module.BasicTokenizer = BasicTokenizer
    module.WordpieceTokenizer = WordpieceTokenizer
    module.convert_tokens_to_ids = lambda vocab, tokens: [
        {token: number for number, token in enumerate(vocab)}[token] for token in tokens
    ]
    module._is_whitespace = lambda character: words_around(character) == ["a", "b"]
    module._is_control = lambda character: words_around(character) == ["ab"]
    module._is_punctuation = lambda character: words_around(character) == ["a", character, "b"]
    return module


class AlbertConfig(albertkit.AlbertConfig):
    def to_json_string(self):
        return json.dumps(self.to_dict())


class AlbertModel:
    """Their model computes where it is made. Embeddings are read where they have the hidden size, as in their test."""

    def __init__(self, config, is_training, input_ids, input_mask, token_type_ids, scope=None):
        self.model = albertkit.AlbertModel(config).train(is_training)
        MODELS.append(self.model)
        self.output = self.model(input_ids, input_mask, token_type_ids, output_hidden_states=True)

    def get_embedding_output(self):
        return self.output.hidden_states[0]

    def get_all_encoder_layers(self):
        return self.output.hidden_states[1:]

    def get_sequence_output(self):
        return self.output.last_hidden_state

    def get_pooled_output(self):
        return self.output.pooler_output


class Node:
    """A value of TensorFlow's graph: computed when a session runs it."""

    def __init__(self, compute):
        self.compute = compute

    def __rsub__(self, other):
        return Node(lambda: other - self.compute())


class AdamWeightDecayOptimizer:
    def __init__(self, learning_rate):
        self.learning_rate = learning_rate

    def apply_gradients(self, gradients, step):
        parameters = [variable.compute() for _, variable in gradients]
        named = [(f"w{index}", parameter) for index, parameter in enumerate(parameters)]
        optimizer = make_optimizer("adamw", named, self.learning_rate, weight_decay=0.0)

        def update():
            for (gradient, _), parameter in zip(gradients, parameters, strict=True):
                parameter.grad = gradient.compute()
            optimizer.step()

        return Node(update)


class Session:
    def run(self, fetched):
        value = fetched.compute() if isinstance(fetched, Node) else fetched
        return value.detach().numpy() if isinstance(value, torch.nn.Parameter) else value


class TestCase(unittest.TestCase):
    __test__ = False  # not for pytest

    @contextmanager
    def test_session(self):
        yield Session()

    def assertAllEqual(self, left, right):
        assert list(left) == list(right)

    def assertAllClose(self, left, right, rtol, atol):
        np.testing.assert_allclose(np.asarray(left), right, rtol=rtol, atol=atol)

    def assert_all_tensors_reachable(self, session, outputs):
        """Every parameter has a gradient: what theirs asserts of the operations of a graph."""
        outputs[1]["pooled_output"].sum().backward()
        assert [
            name for name, parameter in MODELS[-1].named_parameters() if parameter.grad is None
        ] == []


def tensorflow():
    """Return what their tests use of TensorFlow."""
    module = types.ModuleType("tensorflow.compat.v1")
    variables = []

    def get_variable(name, shape, initializer):
        parameter = torch.nn.Parameter(torch.tensor(initializer))
        variables.append(Node(lambda: parameter))
        return variables[-1]

    def gradients(loss, of):
        return [Node(lambda v=v: torch.autograd.grad(loss.compute(), v.compute())[0]) for v in of]

    module.int32 = torch.int32
    module.float32 = torch.float32
    module.constant = lambda value, dtype=None, shape=None, name=None: torch.tensor(
        value, dtype=dtype
    ).reshape(shape or (-1,))
    module.constant_initializer = list
    module.get_variable = get_variable
    module.gradients = gradients
    module.trainable_variables = lambda: variables
    module.square = lambda node: Node(lambda: node.compute() ** 2)
    module.reduce_mean = lambda node: Node(lambda: node.compute().mean())
    module.group = module.global_variables_initializer = module.local_variables_initializer = (
        lambda *operations: None
    )
    module.train = types.SimpleNamespace(get_or_create_global_step=lambda: None)
    module.test = types.SimpleNamespace(TestCase=TestCase)
    return module


@pytest.fixture
def their_tests(monkeypatch):
    """`their_tests("modeling")`: the class of tests in `modeling_test.py`, which imports our code as theirs."""
    folder = os.environ.get("ALBERTKIT_ALBERT")
    if not folder:
        pytest.skip("ALBERTKIT_ALBERT is not set")
    names = ("albert", "six", "six.moves", "tensorflow", "tensorflow.compat")
    modules = {name: types.ModuleType(name) for name in names} | {
        "tensorflow.compat.v1": tensorflow()
    }
    modules["albert"].tokenization = tokenization()
    modules["albert"].modeling = types.SimpleNamespace(
        AlbertConfig=AlbertConfig, AlbertModel=AlbertModel
    )
    modules["albert"].optimization = types.SimpleNamespace(
        AdamWeightDecayOptimizer=AdamWeightDecayOptimizer
    )
    six = modules["six"]
    six.PY2 = False
    six.ensure_str = str
    six.ensure_binary = str.encode
    modules["six.moves"].range = range
    modules["six.moves"].zip = zip
    modules["tensorflow"].compat = modules["tensorflow.compat"]
    modules["tensorflow.compat"].v1 = modules["tensorflow.compat.v1"]

    def load(name):
        spec = importlib.util.spec_from_file_location(
            f"{name}_test", Path(folder) / f"{name}_test.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with monkeypatch.context() as patch:
            for module_name, stand_in in modules.items():
                patch.setitem(sys.modules, module_name, stand_in)
            spec.loader.exec_module(module)
        if name == "modeling":  # else one mask in ten has a row of padding alone
            module.random = types.SimpleNamespace(Random=lambda: random.Random(3))
        (tests,) = [
            kind
            for kind in vars(module).values()
            if isinstance(kind, type) and kind.__module__ == spec.name
        ]
        return tests

    return load


def run_tests(tests, absent=""):
    """Return how many tests ran, without the one of theirs that is absent here, and the errors by name."""
    names = unittest.defaultTestLoader.getTestCaseNames(tests)
    result = unittest.TestResult()
    unittest.TestSuite(tests(name) for name in names if name not in ("test_session", absent)).run(
        result
    )
    return result.testsRun, {
        test._testMethodName: text for test, text in (*result.failures, *result.errors)
    }


def test_tokenization(their_tests):
    assert run_tests(their_tests("tokenization")) == (9, {})


def test_modeling(their_tests):
    """Their helper for TPUs, an einsum by matrix products, has no counterpart; 64 heads of a width of 37 are refused."""
    tests = their_tests("modeling")
    tests.assert_all_tensors_reachable = TestCase.assert_all_tensors_reachable
    number, errors = run_tests(tests, absent="test_einsum_via_matmul")
    assert number == 2
    assert list(errors) == ["test_config_to_json_string"]
    assert "num_attention_heads" in errors["test_config_to_json_string"]


def test_optimization(their_tests):
    number, errors = run_tests(their_tests("optimization"))
    assert (number, errors) == (1, {}), errors
