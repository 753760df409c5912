"""Pretraining with a teacher, compared with transformers' BERT, NumPy's least squares and an undisturbed run."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from record_files import read_records
from small_store import differing, weights
from torch import nn

from albertkit.model import AlbertForPreTraining, PackedBatch
from albertkit.model.padded import Trace
from albertkit.pipelines.load import load_pipeline
from albertkit.pretraining.pretrain_command import estimate
from albertkit.pretraining.run import evaluate, pretrain
from albertkit.pretraining.settings import PretrainSettings
from albertkit.pretraining.teacher import (
    TaughtStudent,
    TeacherObjective,
    evaluate_states,
    start_from_teacher,
    student_config,
)
from albertkit.pretraining.teacher_encoder import open_teacher_encoder
from albertkit.tokenizer import train_tokenizer
from albertkit.training.processes import World

CPU = torch.device("cpu")
LENGTHS = (5, 17, 1, 30)


@pytest.fixture(scope="module")
def bert(tmp_path_factory, store):
    """The folder of a BERT of four layers that reads the store's ids."""
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=store.vocab_size,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    transformers.BertForMaskedLM(config).eval().save_pretrained(folder)
    for file in (store.folder / "tokenizer").iterdir():
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def teacher(bert, store):
    teacher = open_teacher_encoder(
        bert, store.tokenizer(), PretrainSettings(length=64, precision="fp32"), CPU
    )
    return teacher


@pytest.fixture
def student(teacher):
    """A new student in the teacher's shape."""
    torch.manual_seed(0)
    return AlbertForPreTraining(student_config(teacher.config, 64)).eval()


def draw_batch(vocab_size: int, seed: int = 0) -> PackedBatch:
    generator = torch.Generator().manual_seed(seed)
    return PackedBatch.from_sequences(
        [torch.randint(5, vocab_size, (n,), generator=generator).tolist() for n in LENGTHS]
    )


def transformers_states(folder, batch: PackedBatch) -> list[torch.Tensor]:
    """Return the embeddings and each layer's output, every sequence run by itself."""
    model = transformers.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        outputs = [
            model(ids[None], output_hidden_states=True).hidden_states
            for ids in batch.input_ids.split(batch.lengths)
        ]
    return [torch.cat([states[0] for states in layer]) for layer in zip(*outputs, strict=True)]


def test_states_are_those_of_transformers(bert, teacher, store):
    batch = draw_batch(store.vocab_size)
    for states, expected in zip(
        teacher.states(batch), transformers_states(bert, batch), strict=True
    ):
        torch.testing.assert_close(states, expected, atol=2e-5, rtol=0)


@torch.no_grad()
def test_the_loss_is_the_variance_that_is_not_explained(bert, teacher, store, student):
    batch = draw_batch(store.vocab_size)
    sample = draw_batch(store.vocab_size, 1)
    module = TaughtStudent(student, teacher, [sample])
    loss = TeacherObjective(module).losses(batch)["teacher_states"]
    expected_states, known = (transformers_states(bert, one) for one in (batch, sample))
    outputs = [
        student.albert(ids[None], output_hidden_states=True)
        for ids in batch.input_ids.split(batch.lengths)
    ]
    assert len(expected_states) == 5
    expected = 0.0
    for layer in range(5):
        target = (expected_states[layer] - known[layer].mean(0)) / known[layer].std(
            0, unbiased=False
        )
        mapped = module.maps[layer](
            torch.cat([output.hidden_states[layer][0] for output in outputs])
        )
        expected += (1 if layer == 4 else 0.2) * ((mapped - target) ** 2).mean(1).sum().item()
    assert float(loss.total) == pytest.approx(expected, rel=1e-4)
    assert loss.count == sum(LENGTHS)


@torch.no_grad()
def test_the_maps_start_as_the_best_ones(bert, teacher, store, student):
    """Against NumPy: a ridge regression of the teacher's states on the student's, and the share that it explains."""
    sample = [draw_batch(store.vocab_size, seed) for seed in range(12)]
    module = TaughtStudent(student, teacher, sample)
    for layer in (0, 4):
        traces = [Trace(True, False) for _ in sample]
        for batch, trace in zip(sample, traces, strict=True):
            student.albert.encode(batch, trace)
        states = np.concatenate([trace.hidden_states[layer].numpy() for trace in traces])
        expected = np.concatenate([transformers_states(bert, b)[layer].numpy() for b in sample])
        regressors = np.pad(states, ((0, 0), (0, 1)), constant_values=1.0)
        penalties = np.full(64, (1e-3 * (states**2).sum() / 64) ** 0.5)
        solution = np.linalg.lstsq(
            np.concatenate([regressors, np.pad(np.diag(penalties), ((0, 0), (0, 1)))]),
            np.pad(expected, ((0, 64), (0, 0))),
        )[0]
        mapped = module.maps[layer](torch.from_numpy(states)).numpy()
        scale = expected.std(0)
        np.testing.assert_allclose(
            mapped * scale + expected.mean(0), regressors @ solution, atol=2e-4
        )
        errors = ((regressors @ solution - expected) ** 2).sum()
        share = 1 - errors / ((expected - expected.mean(0)) ** 2).sum()
        assert module.explained[layer] == pytest.approx(share, abs=1e-5)


def test_relations_of_the_last_layer_are_learned(bert, teacher, store, student):
    """The divergence of MiniLMv2 by transformers' queries, keys and values, and its gradients by autograd."""
    batch = draw_batch(store.vocab_size)
    module = TaughtStudent(student, teacher, [batch], relations_weight=0.5)
    loss = TeacherObjective(module).losses(batch)["teacher_relations"]
    assert loss.count == sum(LENGTHS)
    theirs = transformers.BertModel.from_pretrained(bert).encoder.layer[-1].attention.self
    mine = student.albert.encoder.albert_layer_groups[0].albert_layers[0].attention
    trace = Trace(True, False)
    student.albert.encode(batch, trace)
    expected = 0.0
    for inputs, expected_inputs in zip(
        trace.hidden_states[-2].split(LENGTHS),
        transformers_states(bert, batch)[-2].split(LENGTHS),
        strict=True,
    ):
        for name in ("query", "key", "value"):
            scores, targets = (
                torch.einsum("srd,trd->rst", heads, heads) / 32**0.5
                for heads in (
                    getattr(mine, name)(inputs).unflatten(1, (2, 32)),
                    getattr(theirs, name)(expected_inputs).detach().unflatten(1, (2, 32)),
                )
            )
            divergence = F.kl_div(scores.log_softmax(2), targets.softmax(2), reduction="sum")
            expected += 0.5 * divergence / 6
    held_out = evaluate_states(module, [batch], World(0, 1, CPU))
    assert held_out["relations"] == pytest.approx(2 * expected.item() / loss.count, rel=1e-4)
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-4)
    assert_equal_gradients(loss.total, expected, student)


def assert_equal_gradients(loss: torch.Tensor, expected: torch.Tensor, model: nn.Module) -> None:
    """Compare the gradients of two losses with respect to the parameters that the second reaches."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    for ours, theirs in zip(
        torch.autograd.grad(loss, parameters, allow_unused=True),
        torch.autograd.grad(expected, parameters, allow_unused=True),
        strict=True,
    ):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


def masked_batch(store) -> PackedBatch:
    """Two masked tokens in each of the longer sequences."""
    batch = draw_batch(store.vocab_size)
    positions = torch.tensor([1, 3, 6, 20, 24, 50])
    labels = batch.input_ids[positions]
    ids = batch.input_ids.index_fill(0, positions, store.tokenizer().mask_id)
    return replace(batch, input_ids=ids, masked_positions=positions, masked_labels=labels)


def transformers_probabilities(model, batch: PackedBatch) -> torch.Tensor:
    logits = [model(ids[None]).logits[0] for ids in batch.input_ids.split(batch.lengths)]
    return torch.cat(logits)[batch.masked_positions].log_softmax(1)


def test_masked_tokens_are_learned_as_the_teacher_guesses_them(bert, teacher, store, student):
    """The cross-entropy with the 32 likeliest tokens of transformers' BERT, and its gradients."""
    batch = masked_batch(store)
    losses = TeacherObjective(TaughtStudent(student, teacher, [batch])).losses(batch)
    loss = losses["teacher_guesses"]
    assert loss.count == 6
    assert losses["masked_lm"].count == 6
    with torch.no_grad():
        guessed = transformers_probabilities(
            transformers.BertForMaskedLM.from_pretrained(bert).eval(), batch
        ).exp()
    top = guessed.topk(32)
    shares = top.values / top.values.sum(1, keepdim=True)
    hidden = student.albert.encode(batch, positions=batch.masked_positions).hidden
    log_probabilities = student.predictions(hidden).log_softmax(1)
    expected = -(shares * log_probabilities.gather(1, top.indices)).sum()
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-4)
    assert_equal_gradients(loss.total, expected, student)


def test_rows_without_a_token_are_never_guessed_and_states_alone_need_no_head(
    tmp_path, bert, store
):
    model = transformers.BertForMaskedLM.from_pretrained(bert).eval()
    model.resize_token_embeddings(store.vocab_size + 8)
    with torch.no_grad():
        model.cls.predictions.bias[-8:] = 100.0
    shutil.copytree(bert, tmp_path / "wide")
    model.save_pretrained(tmp_path / "wide")
    batch = masked_batch(store)
    settings = PretrainSettings(length=64, precision="fp32")
    wide = open_teacher_encoder(tmp_path / "wide", store.tokenizer(), settings, CPU)
    states = wide.states(batch)[-1][batch.masked_positions]
    assert int(wide.guess(states, store.vocab_size).ids.max()) < store.vocab_size

    states_alone = replace(settings, masked_lm_prob=0.0)
    assert open_teacher_encoder(bert, store.tokenizer(), states_alone, CPU).head is None


def test_the_start_is_the_best_compression(bert, teacher, store):
    """Against NumPy: components of the frequent tokens' scaled embeddings, then a regression on the first states."""
    batch = draw_batch(store.vocab_size, 2)
    config = student_config(teacher.config, 64).replace(embedding_size=16)
    torch.manual_seed(1)
    student = AlbertForPreTraining(config).eval()
    counts = torch.arange(store.vocab_size)
    notes = start_from_teacher(student, teacher, counts, batch)

    original = transformers.BertModel.from_pretrained(bert)
    scale = original.embeddings.LayerNorm.weight.detach().numpy()
    words = original.embeddings.word_embeddings.weight.detach().numpy() * scale
    positions = original.embeddings.position_embeddings.weight.detach().numpy() * scale
    frequencies = (counts.numpy() + 1) / (counts.sum().item() + len(counts))
    rows = np.concatenate([words * frequencies[:, None] ** 0.5, positions / len(positions) ** 0.5])
    squares = np.linalg.svd(rows, compute_uv=False) ** 2
    assert f"keep {squares[:16].sum() / squares.sum():.1%}" in notes[0]

    with torch.no_grad():
        embedded = student.albert.embeddings(batch).numpy()
    expected = transformers_states(bert, batch)[0].numpy()
    regressors = np.concatenate([embedded, np.ones((len(embedded), 1))], 1)
    # Normalised rows sum to 0 but for rounding
    solution = np.linalg.lstsq(regressors, expected, rcond=1e-5)[0]
    left = ((regressors @ solution - expected) ** 2).sum() / (
        (expected - expected.mean(0)) ** 2
    ).sum()
    explained = float(notes[1].split("explain ")[1].split("%")[0]) / 100
    assert explained == pytest.approx(1 - left, abs=0.0006)
    layers = original.encoder.layer
    mean = torch.stack([layer.intermediate.dense.weight for layer in layers]).mean(0)
    torch.testing.assert_close(
        student.albert.encoder.albert_layer_groups[0].albert_layers[0].ffn.weight, mean
    )


def test_a_run_with_a_teacher(tmp_path, bert, store, taught, slug_of):
    settings = replace(taught, teacher=bert, teacher_relations=1.0, eval_every=2, save_every=2)
    result = pretrain(store, tmp_path / "run", settings)
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    unexplained = [
        record["teacher_states_loss"] for record in records if record["event"] == "evaluation"
    ]
    assert unexplained == sorted(unexplained, reverse=True)
    relations = [record["relations"] for record in records if record["event"] == "evaluation"]
    assert relations == sorted(relations, reverse=True)
    model = AlbertForPreTraining.from_pretrained(result.model, strict=True)
    assert model.config.hidden_size == 64
    assert model.config.num_hidden_groups == 1
    assert model.config.num_hidden_layers == 4
    assert not [name for name in weights(result.model) if "maps" in name]
    assert not [
        command for command, _ in result.next if "evaluate" in command or "fill-mask" in command
    ]
    assert slug_of(evaluate, result.model, store) == "wrong-model"
    assert slug_of(load_pipeline, result.model) == "wrong-model"

    expected = weights(result.model)
    for folder in ("checkpoints/step-000006", "final"):
        shutil.rmtree(tmp_path / "run" / folder)
    resumed = pretrain(store, tmp_path / "run", settings, resume=True)
    assert not differing(weights(resumed.model), expected)


def test_a_dry_run_counts_the_memory_of_the_teacher(bert, store, taught):
    """Four bytes a weight of the teacher, sixteen of the student and of five maps: gradients and two moments, too."""
    measured = estimate(store, settings=replace(taught, teacher=bert))
    # An ALBERT's projection
    original = transformers.BertModel.from_pretrained(bert).num_parameters() + 64 * 64 + 64
    student = transformers.AlbertConfig(
        vocab_size=store.vocab_size,
        embedding_size=64,
        hidden_size=64,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    trained = transformers.AlbertForPreTraining(student).num_parameters() + 5 * (64 * 64 + 64)
    assert measured.training_state_mb == pytest.approx((16 * trained + 4 * original) / 1e6)


@pytest.mark.parametrize(
    "shape",
    [
        dict(embedding_size=128),
        dict(max_position_embeddings=128),
        dict(hidden_size=32),
    ],
)
def test_a_student_of_another_shape_starts_from_what_fits(teacher, store, shape):
    student = AlbertForPreTraining(student_config(teacher.config, 64).replace(**shape)).eval()
    notes = start_from_teacher(
        student, teacher, torch.ones(store.vocab_size), draw_batch(store.vocab_size)
    )
    assert "keep 100.0%" in notes[0]
    assert (
        TaughtStudent(student, teacher, [draw_batch(store.vocab_size)]).maps[0].out_features == 64
    )


def test_a_teacher_in_shards_with_spare_rows_and_one_segment(tmp_path, store, taught, slug_of):
    config = transformers.BertConfig(
        vocab_size=store.vocab_size + 4,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=64,
        type_vocab_size=1,
    )
    model = transformers.BertModel(config)
    shutil.copytree(store.folder / "tokenizer", tmp_path / "teacher")
    model.save_pretrained(tmp_path / "teacher", max_shard_size="100KB")
    settings = replace(taught, teacher=tmp_path / "teacher", steps=1)
    assert (
        slug_of(pretrain, store, tmp_path / "run", replace(settings, pair_task="sop"))
        == "bad-value"
    )
    result = pretrain(store, tmp_path / "run", settings)
    card = " ".join((result.model / "README.md").read_text().split())
    assert "to have the states of teacher." in card
    assert "fill-mask" not in card
    model.embeddings.LayerNorm.bias.data += 1
    model.save_pretrained(tmp_path / "teacher", max_shard_size="100KB")
    assert slug_of(pretrain, store, tmp_path / "run", settings, resume=True) == "changed"


def test_masked_tokens_are_learned_beside_a_teacher(tmp_path, bert, store, settings):
    alone = replace(settings, config=None, steps=1, warmup_steps=0, log_every=1)
    pretrain(store, tmp_path / "run", replace(alone, teacher=bert))
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    learned = {
        "teacher_states_loss",
        "masked_lm_loss",
        "sentence_order_loss",
    }
    assert learned | {"unexplained"} <= records[-1].keys()
    assert any(learned | {"teacher_guesses_loss"} <= record.keys() for record in records)


def test_what_cannot_teach_is_refused(tmp_path, bert, store, taught, slug_of):
    settings = replace(taught, teacher=bert)
    assert slug_of(pretrain, store, tmp_path / "run", replace(settings, length=65)) == "bad-value"
    for wrong in (
        dict(start_layers=2),
        dict(teacher=None),
        dict(teacher=None, initial_weights="teacher"),
        dict(teacher=None, teacher_relations=1.0, masked_lm_prob=0.15),
    ):
        assert slug_of(pretrain, store, tmp_path / "run", replace(settings, **wrong)) == "bad-value"
    assert not (tmp_path / "run").exists()

    copy = tmp_path / "teacher"
    shutil.copytree(bert, copy)
    one_step = replace(settings, teacher=copy, steps=1)
    pretrain(store, tmp_path / "run", one_step)
    changed = transformers.BertForMaskedLM.from_pretrained(copy)
    changed.bert.embeddings.LayerNorm.bias.data += 1
    changed.save_pretrained(copy)
    assert slug_of(pretrain, store, tmp_path / "run", one_step, resume=True) == "changed"
    train_tokenizer([store.folder.parent / "corpus.txt"], tmp_path / "tokenizer", vocab_size=46)
    shutil.copytree(tmp_path / "tokenizer", copy, dirs_exist_ok=True)
    assert (
        slug_of(pretrain, store, tmp_path / "new", replace(one_step, masked_lm_prob=0.15))
        == "wrong-tokenizer"
    )
