"""transformers' own tests: on accelerated ALBERTs, on our classes in the place of theirs, on our folder of Google's vocabulary.

ALBERTKIT_TRANSFORMERS names a checkout of huggingface/transformers at the version installed, or its
unpacked source archive, which has the common tests of models and tokenizers alone:

pip download --no-deps --no-binary :all: transformers==5.23.0 && tar xf transformers-5.23.0.tar.gz
pip install parameterized
"""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.peer

# From the engine, states at padding are zeros; this test compares them with the model's own,
# computed from embeddings.
ZEROS_AT_PADDING = {"states at padding": "test_inputs_embeds_matches_input_ids"}
OWN_TESTS = "tests/models/albert"
OURS = {
    "private attributes of transformers' base class": """
        test_correct_missing_keys test_resize_embeddings_untied_no_reinit_on_post_init test_keep_in_fp32_modules
        test_keep_in_fp32_modules_exist test_all_tensors_are_parameter_or_buffer test_init_weights_can_init_buffers
        test_can_set_attention_dynamically test_can_set_attention_dynamically_composite_model test_attention_outputs
        test_retain_grad_hidden_states_attentions test_eager_matches_batched_and_grouped_inference
        test_eager_matches_sdpa_inference test_sdpa_can_dispatch_non_composite_models""",
    "gradient checkpointing through transformers' own class of layers": """
        test_gradient_checkpointing_backward_compatibility test_gradient_checkpointing_enable_disable
        test_peft_gradient_checkpointing_enable_disable test_training_gradient_checkpointing
        test_training_gradient_checkpointing_use_reentrant_false test_training_gradient_checkpointing_use_reentrant_true""",
    "from_pretrained refuses this keyword": """
        test_base_model_prefix_loads_base_weights test_can_use_safetensors test_load_save_without_tied_weights
        test_model_weights_reload_no_missing_tied_weights test_from_pretrained_no_checkpoint test_load_with_mismatched_shapes""",
    "a head of another size is a new one, with a warning": "test_can_load_ignoring_mismatched_shapes",
    "new tokens are drawn around 0, not around the mean": "test_resize_embeddings_untied test_resize_tokens_embeddings",
    "another message": "test_cannot_load_with_meta_device_context_manager",
}


@pytest.fixture
def source():
    folder = os.environ.get("ALBERTKIT_TRANSFORMERS")
    if not folder:
        pytest.skip("ALBERTKIT_TRANSFORMERS is not set")
    if importlib.util.find_spec("parameterized") is None:
        pytest.skip("transformers' tests need parameterized")
    return Path(folder)


@pytest.fixture
def common_tests(source, tmp_path):
    """The common tests of the archive, and `common_cases.py` beside them."""
    folder = tmp_path / "transformers"
    shutil.copytree(source / "tests", folder / "tests")
    (folder / "tests/fixtures").mkdir(exist_ok=True)
    (
        folder / "tests/fixtures/sample_text.txt"
    ).touch()  # read by the tests of tokenizers, used by none of these
    shutil.copy(Path(__file__).with_name("common_cases.py"), folder / "test_common_cases.py")
    return folder


def test_accelerated_models(run_suite, common_tests):
    result = run_suite(common_tests, ["test_common_cases.py::AlbertTest"], ["accelerated_albert"])
    result.check_failures(ZEROS_AT_PADDING, min_passed=90)
    assert int(result.output.split("computed by the engine: ")[1].split()[0]) > 30


def test_our_models(run_suite, common_tests):
    result = run_suite(common_tests, ["test_common_cases.py::AlbertTest"], ["our_albert"])
    result.check_failures(OURS, min_passed=45)


def test_tokenizer(run_suite, common_tests, hub):
    result = run_suite(
        common_tests, ["test_common_cases.py::AlbertTokenizerTest"], HF_HOME=str(hub)
    )
    result.check_failures({}, min_passed=50)


def test_checkout(run_suite, source, hub):
    if not (source / OWN_TESTS).is_dir():
        pytest.skip(f"{source} is no checkout: it has no {OWN_TESTS}")
    result = run_suite(
        source, ["--import-mode=prepend", OWN_TESTS], ["accelerated_albert"], HF_HOME=str(hub)
    )
    result.check_failures(ZEROS_AT_PADDING, min_passed=140)
    assert int(result.output.split("computed by the engine: ")[1].split()[0]) > 30
