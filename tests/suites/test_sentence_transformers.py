"""sentence-transformers' own tests on folders that albertkit wrote, plain and accelerated.

ALBERTKIT_SENTENCE_TRANSFORMERS names a checkout of huggingface/sentence-transformers, near the
version installed. Where its tests load a model from the Hub they get an ALBERT with random weights:
of albertkit's `SentenceEncoder` and `AlbertForSequenceClassification`.
"""

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.peer

TESTS = (
    "sentence_transformer/losses",
    "sentence_transformer/evaluation",
    "sentence_transformer/test_trainer.py",
    "sentence_transformer/test_training_args.py",
    "sentence_transformer/test_model.py",
    "sentence_transformer/test_compute_embeddings.py",
    "cross_encoder/losses",
    "cross_encoder/evaluation",
    "cross_encoder/test_model.py",
    "cross_encoder/test_trainer.py",
    "base/test_model.py",
    "base/test_trainer.py",
)
REASONS = {
    "models, revisions and data sets that are only on the Hub": """
        test_empty_matryoshka_dims_raises_error test_zero_dimension_raises_error test_negative_dimension_raises_error
        test_weights_length_mismatch_raises_error test_dimension_exceeds_model_dimension_raises_error
        test_model_dimension_not_in_dims_warns test_valid_initialization_no_warnings test_valid_initialization_with_weights
        test_dimensions_sorted_descending test_default_weights_when_none test_mse_loss_matryoshka test_nanobeir_evaluator
        test_nanobeir_evaluator_custom_dataset_id test_load_with_safetensors test_load_with_pytorch_bin test_load_with_revision
        test_safetensors test_multiple_adapters test_load_adapter_with_revision test_clip test_default_pooling_mode
        test_default_pooling_mode_causal_lm_with_is_causal_false test_load_activation_fn_from_config
        test_bge_reranker_max_length test_device_map_controls_placement test_can_flatten_inputs_static_model
        test_device_argument_warns_when_device_map_present""",
    "model cards, which our folders do not have": "test_model_card_reuse",
    "numbers of trained weights": "test_TripletEvaluator test_encode_single_sentences test_encode_tuple_sentences test_rank",
    "ALBERT is no causal decoder in transformers": """
        test_tie_encoder_decoder_does_not_raise test_tied_weights_share_storage test_decoder_only_weights_are_not_tied
        test_tying_preserves_decoder_lm_head test_untied_weights_are_independent test_forward_backward_flows_grad_to_tied_weight
        test_tie_without_decoder_name_does_not_require_it""",
    "BERT's class, layers, names of settings": """
        test_adaptive_layer_loss_kl_teacher_is_detached test_transformers_model_property test_classifier_dropout_is_set
        test_router_transformers_model_property test_classifier_dropout_default_value""",
    "BERT's blanks around punctuation, which SentencePiece keeps as they are": """
        test_prompts test_replacing_a_rejected_chat_template_takes_effect test_predict_applies_chat_template_with_pair_roles
        test_message_input_with_a_single_pair_role_is_not_checked test_probe_uses_the_configured_chat_template_kwargs""",
    "another version of sentence-transformers": """
        test_minibatch_text_only_samples test_minibatch_grid_rows_coincides_with_batch_size""",
}


@pytest.mark.parametrize("accelerated", [False, True], ids=["plain", "accelerated"])
def test_suite(run_suite, hub, accelerated):
    folder = os.environ.get("ALBERTKIT_SENTENCE_TRANSFORMERS")
    if not folder:
        pytest.skip("ALBERTKIT_SENTENCE_TRANSFORMERS is not set")
    plugins = ["sts_dataset", *["accelerated_albert"] * accelerated]
    tests = ["--import-mode=importlib", *(f"tests/{name}" for name in TESTS)]
    result = run_suite(Path(folder), tests, plugins, HF_HOME=str(hub))
    result.check_failures(REASONS, min_passed=950)
    if accelerated:
        assert int(result.output.split("computed by the engine: ")[1].split()[0]) > 100
