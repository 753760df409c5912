"""Folders of sentence encoders: sentence-transformers gives the same vectors of what we write, and we of what it writes."""

import json
import re
import shutil
import unicodedata

import pytest
import torch

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.folder import POOLINGS, Projection, is_encoder_folder
from albertkit.errors import AlbertKitError
from albertkit.files import read_json, write_json
from albertkit.model import AlbertModel
from albertkit.tokenizer import AlbertTokenizer, JsonTokenizer, WordPieceTokenizer

from .conftest import largest_difference

TEXTS = [
    "Seven old wizards brew strong potions near calm rivers",
    "",
    "fox",
    "the quick brown fox jumps over a lazy dog " * 20,  # is cut
    "Café (naïve): 1,234 déjà-vu…",
]
SHAPES = [((40, "identity", False), False), (None, True), (None, False), ((12, "tanh", True), True)]


@pytest.fixture(scope="module")
def theirs():
    """A folder in sentence-transformers: the model."""
    import sentence_transformers

    return lambda folder: sentence_transformers.SentenceTransformer(str(folder), device="cpu")


@pytest.fixture(scope="module")
def saved(checkpoint, tmp_path_factory):
    """A folder with every module."""
    folder = tmp_path_factory.mktemp("saved") / "encoder"
    with_shape(
        SentenceEncoder.from_pretrained(checkpoint), "mean", (12, "tanh", True), True
    ).save_pretrained(folder)
    return folder


def with_shape(encoder, pooling, projection, normalize, **options):
    torch.manual_seed(1)
    width = 32 * (1 if isinstance(pooling, str) else len(pooling))
    dense = None if projection is None else Projection(width, *projection)
    return SentenceEncoder(
        encoder.albert, encoder.tokenizer, pooling, 24, dense, normalize, **options
    )


# --- what we write --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pooling",
    [
        *POOLINGS,
        ("cls", "mean"),
        ("mean", "max"),
    ],
)
def test_sentence_transformers_gives_the_same_vectors(encoder, theirs, tmp_path, pooling):
    """The tenth acceptance test: every pooling, with and without projection and length 1, within 1e-5 in fp32."""
    for projection, normalize in SHAPES if pooling == "mean" else SHAPES[1:]:
        shaped = with_shape(encoder, pooling, projection, normalize)
        shaped.save_pretrained(tmp_path)
        model = theirs(tmp_path)
        assert model.max_seq_length == 24
        ours = shaped.encode(TEXTS, precision="fp32")
        expected = model.encode(TEXTS)
        assert ours.shape == expected.shape
        assert largest_difference(ours, expected) < 1e-5
        reloaded = SentenceEncoder.from_pretrained(tmp_path)
        assert (reloaded.encode(TEXTS, precision="fp32") == ours).all()
        # the comparison notices another pooling
        reloaded.pooling = (
            pooling[::-1] if isinstance(pooling, tuple) else "cls" if pooling == "max" else "max"
        )
        assert largest_difference(reloaded.encode(TEXTS, precision="fp32"), expected) > 1e-3
    folders = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert folders == ["1_Pooling", "2_Dense", "3_Normalize"]


def test_prompts_and_leading_dimensions_too(encoder, theirs, tmp_path):
    settings = {
        "prompts": {"query": "quick fox ", "passage": ""},
        "default_prompt_name": "query",
        "truncate_dim": 8,
    }
    texts = TEXTS[:3]
    for include, pooling in (
        (True, "mean"),
        (False, "mean"),
        (False, "cls"),
        (False, ("max", "weightedmean")),
    ):
        shaped = with_shape(
            encoder, pooling, None, False, include_prompt=include, settings=settings
        )
        shaped.save_pretrained(tmp_path)
        model = theirs(tmp_path)
        ours = SentenceEncoder.from_pretrained(tmp_path)
        vectors = ours.encode(texts, precision="fp32")
        assert vectors.shape == (3, 8)
        assert largest_difference(vectors, model.encode(texts)) < 1e-5
        ours.settings["default_prompt_name"] = "passage"
        passages = ours.encode(texts, precision="fp32")
        assert largest_difference(passages, model.encode(texts, prompt_name="passage")) < 1e-5
        assert largest_difference(passages, vectors) > 1e-2
    assert (
        read_json(tmp_path / "config_sentence_transformers.json")["prompts"] == settings["prompts"]
    )


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_korean_in_both_forms(golden, theirs, tiny_model, tmp_path, form):
    """The tokenizers on both sides agree, too: the text rules `korean` are in what transformers reads."""
    shutil.copyfile(golden / "korean/spiece.model", tmp_path / "spiece.model")
    tokenizer = AlbertTokenizer.from_pretrained(tmp_path, text_rules="korean")
    albert = tiny_model(AlbertModel, vocab_size=tokenizer.vocab_size)
    encoder = SentenceEncoder(albert, tokenizer, max_length=64)
    encoder.save_pretrained(tmp_path / "encoder")
    with open(golden / "korean/lines.jsonl", encoding="utf-8") as stream:
        lines = [json.loads(line)["nfc"] for line in stream]
    hangul = [
        line for line in lines if re.search("[가-힣]", line) and not re.search(r"[\[<]", line)
    ]
    texts = [unicodedata.normalize(form, line) for line in hangul[:200]]
    assert len(texts) == 200
    ours = encoder.encode(texts, precision="fp32")
    assert largest_difference(ours, theirs(tmp_path / "encoder").encode(texts)) < 1e-5
    composed = [unicodedata.normalize("NFC", text) for text in texts]
    assert largest_difference(ours, encoder.encode(composed, precision="fp32")) < 1e-5
    assert largest_difference(ours[1:], ours[:-1]) > 0.1


def test_wordpiece_and_tokenizer_json(encoder, theirs, words, tmp_path):
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, "##s", "(", ")", ":", ","]
    pieces = "".join(f"{piece}\n" for piece in vocabulary)
    (tmp_path / "vocab.txt").write_text(pieces, encoding="utf-8")
    tokenizer = AlbertTokenizer.from_pretrained(tmp_path)
    assert isinstance(tokenizer, WordPieceTokenizer)
    wordpiece_encoder = SentenceEncoder(encoder.albert, tokenizer, max_length=24)
    wordpiece_encoder.save_pretrained(tmp_path / "wordpiece")
    shutil.copytree(tmp_path / "wordpiece", tmp_path / "json")
    (tmp_path / "json/vocab.txt").unlink()
    for name, kind in (("wordpiece", WordPieceTokenizer), ("json", JsonTokenizer)):
        ours = SentenceEncoder.from_pretrained(tmp_path / name)
        assert isinstance(ours.tokenizer, kind)
        assert (
            largest_difference(
                ours.encode(TEXTS, precision="fp32"), theirs(tmp_path / name).encode(TEXTS)
            )
            < 1e-5
        )


def test_transformers_reads_the_folder_as_a_plain_model(encoder, tmp_path):
    import transformers

    with_shape(encoder, "mean", (12, "tanh", True), True).save_pretrained(tmp_path)
    model, report = transformers.AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path)(
        TEXTS[:3], padding=True, return_tensors="pt"
    )
    assert inputs["token_type_ids"].shape == inputs["input_ids"].shape
    with torch.no_grad():
        hidden = model.eval()(**inputs).last_hidden_state
        mask = inputs["attention_mask"][..., None]
    mean = ((hidden * mask).sum(1) / mask.sum(1)).numpy()
    plain = with_shape(encoder, "mean", None, False)
    assert largest_difference(plain.encode(TEXTS[:3], precision="fp32"), mean) < 1e-5


# --- what it writes -------------------------------------------------------------------------------


def test_what_sentence_transformers_saves_again(encoder, theirs, tmp_path):
    """Its own layout of this year: no `max_seq_length`, classes under other names, Normalize with a file."""
    with_shape(encoder, ("cls", "mean"), (12, "tanh", False), True).save_pretrained(
        tmp_path / "ours"
    )
    model = theirs(tmp_path / "ours")
    model.save(str(tmp_path / "theirs"))
    assert "max_seq_length" not in read_json(tmp_path / "theirs/sentence_bert_config.json")
    reloaded = SentenceEncoder.from_pretrained(tmp_path / "theirs")
    assert reloaded.pooling == ("cls", "mean")
    assert reloaded.max_length == 24
    assert reloaded.normalize is True
    assert largest_difference(reloaded.encode(TEXTS, precision="fp32"), model.encode(TEXTS)) < 1e-5


def test_folders_of_2020(encoder, theirs, tmp_path):
    """The model in a folder of its own, poolings as flags, no file of lengths, a projection in a file of torch."""
    with_shape(encoder, "mean", (12, "tanh", True), False).save_pretrained(tmp_path)
    (tmp_path / "0_Transformer").mkdir()
    for file in [
        path for path in tmp_path.iterdir() if path.is_file() and path.name != "modules.json"
    ]:
        file.rename(tmp_path / "0_Transformer" / file.name)
    for name in ("config_sentence_transformers.json", "sentence_bert_config.json"):
        (tmp_path / "0_Transformer" / name).unlink()
    modules = read_json(tmp_path / "modules.json")
    modules[0]["path"] = "0_Transformer"
    write_json(tmp_path / "modules.json", modules)
    flags = {
        f"pooling_mode_{name}": name in ("cls_token", "max_tokens")
        for name in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    }
    write_json(tmp_path / "1_Pooling/config.json", {"word_embedding_dimension": 32, **flags})
    projection = Projection(64, 12)
    (tmp_path / "2_Dense/model.safetensors").unlink()
    torch.save(projection.state_dict(), tmp_path / "2_Dense/pytorch_model.bin")
    dense = {"in_features": 64, "out_features": 12, "bias": True}  # Tanh where nothing is said
    write_json(tmp_path / "2_Dense/config.json", dense)
    reloaded = SentenceEncoder.from_pretrained(tmp_path)
    assert reloaded.pooling == ("cls", "max")
    assert reloaded.max_length == 64
    assert (
        largest_difference(reloaded.encode(TEXTS, precision="fp32"), theirs(tmp_path).encode(TEXTS))
        < 1e-5
    )


def test_lower_casing(theirs, tiny_model, tmp_path, words):
    """`do_lower_case` counts where the tokenizer keeps capitals."""
    pieces = "".join(
        f"{piece}\n" for piece in ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    )
    (tmp_path / "vocab.txt").write_text(pieces, encoding="utf-8")
    write_json(tmp_path / "tokenizer_config.json", {"do_lower_case": False})
    tokenizer = AlbertTokenizer.from_pretrained(tmp_path)
    albert = tiny_model(AlbertModel, vocab_size=tokenizer.vocab_size)
    for lower_case in (True, False):
        encoder = SentenceEncoder(albert, tokenizer, max_length=24, lower_case=lower_case)
        encoder.save_pretrained(tmp_path / str(lower_case))
        reloaded = SentenceEncoder.from_pretrained(tmp_path / str(lower_case))
        vectors = reloaded.encode(["Quick FOX", "quick fox"], precision="fp32")
        assert (
            largest_difference(
                vectors, theirs(tmp_path / str(lower_case)).encode(["Quick FOX", "quick fox"])
            )
            < 1e-5
        )
        assert (largest_difference(vectors[0], vectors[1]) < 1e-6) == lower_case


# --- folders, runs, errors ------------------------------------------------------------------------


def test_runs_and_plain_checkpoints(encoder, checkpoint, tmp_path):
    assert SentenceEncoder.from_pretrained(checkpoint, "cls").pooling == "cls"
    assert not is_encoder_folder(checkpoint)
    with_shape(encoder, "max", None, True).save_pretrained(tmp_path / "run/best")
    assert is_encoder_folder(tmp_path / "run")
    from_run = SentenceEncoder.from_pretrained(tmp_path / "run")
    assert from_run.pooling == "max"
    assert from_run.normalize is True
    assert from_run.max_length == 24
    assert SentenceEncoder.from_pretrained(tmp_path / "run", "max").pooling == "max"
    with pytest.raises(AlbertKitError, match="max pooling, asked for is mean"):
        SentenceEncoder.from_pretrained(tmp_path / "run", "mean")


def test_saved_over_another_shape(encoder, tmp_path):
    """What an earlier, larger model left is gone; files of others stay."""
    with_shape(encoder, ("cls", "mean"), (12, "tanh", True), True).save_pretrained(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "2_Dense_of_mine").mkdir()
    with_shape(encoder, "mean", None, True).save_pretrained(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == [
        "1_Pooling",
        "2_Dense_of_mine",
        "2_Normalize",
    ]
    reloaded = SentenceEncoder.from_pretrained(tmp_path)
    assert reloaded.pooling == "mean"
    assert reloaded.projection is None
    assert reloaded.normalize is True
    assert (tmp_path / "notes.txt").exists()
    assert not list(tmp_path.glob(".partial*"))


TYPES = "sentence_transformers.models"
DENSE = {
    "in_features": 32,
    "out_features": 12,
    "bias": True,
    "activation_function": "torch.nn.modules.activation.Tanh",
}
POOLED = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}


@pytest.mark.parametrize(
    ("file", "content", "slug"),
    [
        ("modules.json", "[{]", "bad-file"),
        ("modules.json", {}, "bad-file"),
        ("modules.json", [], "unsupported"),
        ("modules.json", [5], "bad-file"),
        ("modules.json", [{"type": f"{TYPES}.Transformer"}], "bad-file"),
        ("modules.json", [{"type": f"{TYPES}.Transformer", "path": ""}], "unsupported"),
        ("modules.json", [{"type": f"{TYPES}.LSTM", "path": "1"}], "unsupported"),
        ("modules.json", [{"type": "somebody.Pooling", "path": "1"}], "unsupported"),
        (
            "modules.json",
            [{"type": f"{TYPES}.Normalize", "path": ""}, {"type": f"{TYPES}.Dense", "path": ""}],
            "unsupported",
        ),
        ("modules.json", [{"type": f"{TYPES}.Transformer", "path": "../other"}], "bad-file"),
        ("1_Pooling/config.json", None, "not-found"),
        ("1_Pooling/config.json", [], "bad-file"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True}, "bad-file"),
        ("1_Pooling/config.json", {**POOLED, "word_embedding_dimension": 768}, "bad-file"),
        ("1_Pooling/config.json", {**POOLED, "pooling_mode_mean_tokens": "yes"}, "bad-file"),
        (
            "1_Pooling/config.json",
            {"embedding_dimension": 32, "pooling_mode": "attention"},
            "unknown-name",
        ),
        ("1_Pooling/config.json", {"embedding_dimension": 32, "pooling_mode": []}, "unknown-name"),
        (
            "1_Pooling/config.json",
            {"embedding_dimension": 32, "pooling_mode": ["mean", 5]},
            "unknown-name",
        ),
        (
            "1_Pooling/config.json",
            {"embedding_dimension": 32, "pooling_mode": ["cls", "mean"]},
            "bad-value",
        ),
        ("2_Dense/config.json", None, "not-found"),
        (
            "2_Dense/config.json",
            {**DENSE, "activation_function": "torch.nn.modules.activation.GELU"},
            "unsupported",
        ),
        ("2_Dense/config.json", {**DENSE, "activation_function": None}, "bad-file"),
        ("2_Dense/config.json", {**DENSE, "out_features": 13}, "bad-file"),
        ("2_Dense/config.json", {**DENSE, "in_features": True}, "bad-file"),
        ("2_Dense/config.json", {**DENSE, "bias": False}, "bad-file"),
        ("2_Dense/config.json", {**DENSE, "use_residual": True}, "unsupported"),
        ("2_Dense/config.json", {**DENSE, "module_input_name": "token_embeddings"}, "unsupported"),
        ("2_Dense/model.safetensors", None, "missing-file"),
        ("2_Dense/model.safetensors", "torn", "corrupt"),
        ("sentence_bert_config.json", {"max_seq_length": "128"}, "bad-file"),
        (
            "config_sentence_transformers.json",
            {"prompts": {}, "default_prompt_name": "query"},
            "bad-file",
        ),
        ("config_sentence_transformers.json", {"prompts": []}, "bad-file"),
        ("config_sentence_transformers.json", {"truncate_dim": "8"}, "bad-file"),
        ("config.json", None, "not-found"),
        ("model.safetensors", None, "missing-file"),
        ("spiece.model", "torn", "bad-file"),
    ],
)
def test_broken_files_are_named(saved, tmp_path, file, content, slug, error_of):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    if content is None:
        (tmp_path / file).unlink()
    elif isinstance(content, str):
        (tmp_path / file).write_text(content)
    else:
        write_json(tmp_path / file, content)
    error = error_of(SentenceEncoder.from_pretrained, tmp_path)
    assert error.slug == slug
    assert str(tmp_path) in error.message or slug in ("unknown-name", "bad-value")


def test_missing_files_that_may_be_missing(encoder, tmp_path):
    with_shape(encoder, "mean", None, False).save_pretrained(tmp_path)
    for name in ("sentence_bert_config.json", "config_sentence_transformers.json"):
        (tmp_path / name).unlink()
    # The tokenizer's 512, the model's 64 positions
    assert SentenceEncoder.from_pretrained(tmp_path).max_length == 64
    write_json(
        tmp_path / "sentence_albert_config.json", {"max_seq_length": 17, "do_lower_case": False}
    )
    assert SentenceEncoder.from_pretrained(tmp_path).max_length == 17


def test_what_is_wanted_of_the_hub(saved):
    """All files of a folder that reading needs are among those that are downloaded."""
    from huggingface_hub.utils import filter_repo_objects

    from albertkit import model_paths

    names = [str(path.relative_to(saved)) for path in saved.rglob("*") if path.is_file()]
    assert sorted(filter_repo_objects(names, allow_patterns=model_paths._FILES)) == sorted(names)
    assert "2_Dense/model.safetensors" in names
