"""Untrained checkpoints: published counts of parameters, the tokenizer's say, what cannot be, and that a seed is a model."""

import math

import pytest
import torch
from record_files import write_json, write_lines
from safetensors.torch import load_file

from albertkit.config import AlbertConfig
from albertkit.conversion.initial import init_model
from albertkit.errors import AlbertKitError
from albertkit.model import AlbertForMaskedLM, AlbertForPreTraining, AlbertModel, PackedBatch
from albertkit.tokenizer import AlbertTokenizer

SPECIALS = "[PAD] [UNK] [CLS] [SEP] [MASK]".split()


def tokenizer_folder(folder, pieces, first=0):
    """A WordPiece tokenizer of so many pieces, its special ones from the id `first` on."""
    folder.mkdir()
    words = [f"w{i}" for i in range(pieces - len(SPECIALS))]
    write_lines(folder / "vocab.txt", words[:first] + SPECIALS + words[first:])
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return tokenizer_folder(tmp_path_factory.mktemp("init") / "tokenizer", 100)


def refused(call):
    with pytest.raises(AlbertKitError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize(
    ("pieces", "size", "counts"),
    [
        (30_000, "base", {"encoder": 11_683_584}),
        (54_152, "base", {"masked_lm": 14_337_288, "total": 14_929_418}),
        (30_000, "small", {"total": 11_813_810}),
    ],
)
def test_published_counts(tmp_path, pieces, size, counts):
    """What the classes of transformers count for the same configurations."""
    report = init_model(
        tmp_path / "model", tokenizer_folder(tmp_path / "tokenizer", pieces), size=size
    )
    assert sum(report.parts.values()) == report.total
    kinds = {"encoder": AlbertModel, "masked_lm": AlbertForMaskedLM, "total": AlbertForPreTraining}
    for part, expected in counts.items():
        assert getattr(report, part) == expected
        with torch.device("meta"):
            model = kinds[part](AlbertConfig.from_pretrained(tmp_path / "model"))
        assert model.num_parameters() == expected


def test_transformers_loads_the_untrained_checkpoint(tmp_path, small):
    import transformers

    init_model(tmp_path / "model", small, size="tiny")
    theirs, report = transformers.AlbertForPreTraining.from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert theirs.config.pad_token_id == theirs.albert.embeddings.word_embeddings.padding_idx == 0
    assert len(transformers.AutoTokenizer.from_pretrained(tmp_path / "model")) == 100


def test_the_tokenizer_decides_vocabulary_and_special_ids(tmp_path):
    tokenizer = tokenizer_folder(tmp_path / "tokenizer", 90, first=20)
    config = tmp_path / "config.json"
    shape = dict(
        hidden_size=64,
        num_attention_heads=2,
        intermediate_size=64,
        embedding_size=16,
        num_hidden_layers=2,
    )
    write_json(config, shape)
    init_model(tmp_path / "model", tokenizer, config=config)
    saved_config = AlbertForPreTraining.from_pretrained(tmp_path / "model").config
    ids = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")
    assert [getattr(saved_config, name) for name in ids] == [90, 20, 22, 23]

    def refused_with(values, **options):
        write_json(config, values)
        return refused(lambda: init_model(tmp_path / "other", tokenizer, config=config, **options))

    for wrong in ({"vocab_size": 91}, {"pad_token_id": 0}):
        error = refused_with(shape | wrong)
        assert error.slug == "wrong-tokenizer"
        assert next(iter(wrong)) in error.hint
    assert refused_with([]).slug == "bad-file"
    assert refused_with(shape | {"vocab_size": "90"}).slug == "bad-value"
    assert refused_with(shape, size="tiny").slug == "conflicting-options"
    assert not (tmp_path / "other").exists()


def test_heads_that_do_not_divide_are_refused_and_narrow_ones_warned_of(tmp_path, small):
    error = refused(
        lambda: init_model(tmp_path / "model", small, size="tiny", num_attention_heads=3)
    )
    assert error.slug == "bad-value"
    assert "256 is not divisible by num_attention_heads 3" in error.message
    assert init_model(tmp_path / "wide", small, size="tiny").warnings == ()
    narrow = init_model(tmp_path / "narrow", small, size="tiny", num_attention_heads=16)
    assert len(narrow.warnings) == 1
    assert "head size 16" in narrow.warnings[0]


def test_the_seed_is_the_model(tmp_path, small):
    for name, seed in (("one", 4), ("same", 4), ("other", 5)):
        init_model(tmp_path / name, small, size="tiny", seed=seed)
    first, second, different = (
        load_file(tmp_path / n / "model.safetensors") for n in ("one", "same", "other")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["predictions.dense.weight"], different["predictions.dense.weight"])
    assert refused(lambda: init_model(tmp_path / "one", small, size="tiny")).slug == "exists"


def test_the_loss_of_an_untrained_checkpoint_is_that_of_knowing_nothing_and_padding_adds_nothing(
    tmp_path,
):
    """ln V at the masked positions, whatever stands at padding; labels there, and everywhere else, count for nothing."""
    folder = tokenizer_folder(tmp_path / "tokenizer", 5000)
    init_model(tmp_path / "model", folder, size="tiny")
    model = AlbertForPreTraining.from_pretrained(tmp_path / "model")
    tokenizer = AlbertTokenizer.from_pretrained(folder)
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 5000, (16, 40), generator=rng)
    labels = torch.where(torch.rand(16, 40, generator=rng) < 0.15, ids, -100)
    ids[labels != -100] = tokenizer.mask_id

    def loss(width, at_padding, label):
        padded_ids = torch.full((16, width), at_padding)
        padded_labels = torch.full((16, width), label)
        padded_ids[:, :40], padded_labels[:, :40] = ids, labels
        mask = (torch.arange(width) < 40).long().expand(16, width)
        with torch.inference_mode():
            return float(model(padded_ids, attention_mask=mask, labels=padded_labels).loss)

    without_padding = loss(40, 0, -100)
    assert without_padding == pytest.approx(math.log(5000), abs=0.05)
    for width, at_padding, target in (
        (64, tokenizer.pad_id, -100),
        (128, 77, -100),
        (64, tokenizer.pad_id, 77),
    ):
        assert loss(width, at_padding, target) == pytest.approx(without_padding, abs=1e-6)
    # The notebooks' loss, over every position: the comparison can tell
    with torch.inference_mode():
        everywhere = float(model(ids, labels=ids).loss)
    assert abs(everywhere - without_padding) > 1e-3
    batch = PackedBatch(
        input_ids=ids.flatten(),
        token_type_ids=torch.zeros(640, dtype=torch.long),
        position_ids=torch.arange(40).repeat(16),
        offsets=torch.arange(0, 641, 40),
        lengths=(40,) * 16,
        masked_positions=(labels != -100).flatten().nonzero().flatten(),
        masked_labels=labels[labels != -100],
    )
    with torch.inference_mode():
        packed = model.pretraining_losses(batch)
    assert float(packed.masked_lm.loss_sum / packed.masked_lm.label_count) == pytest.approx(
        without_padding, abs=1e-5
    )
