"""`train_embeddings` on pairs that a tiny model learns in seconds."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from record_files import read_records, write_lines, write_records

from albertkit.batches.features import ExampleStream
from albertkit.config import AlbertConfig
from albertkit.embeddings.data import read_embedding_data
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.losses import EmbeddingObjective, make_loss
from albertkit.embeddings.options import EmbedTrainOptions
from albertkit.embeddings.settings import EmbedSettings
from albertkit.embeddings.train import example_features, number_equal_texts, train_embeddings
from albertkit.errors import ConfigError
from albertkit.files import read_json
from albertkit.model import AlbertForPreTraining
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.columns import Columns
from albertkit.tasks.metrics import regression_scores
from albertkit.tokenizer import AlbertTokenizer

from .conftest import row_cosines

SETTINGS = EmbedSettings(lr=3e-3, epochs=6, eval_every=40, batch_size=16, precision="fp32", seed=1)
COLUMNS = Columns(text="first", pair="second", label="score")
NLI = Columns(text="premise", pair="hypothesis", label="label")
learn_scores = partial(train_embeddings, "scores", columns=COLUMNS)


@pytest.fixture(scope="module")
def table(tmp_path_factory, words):
    """Pairs of 3 to 7 words; the score is high if both have wizards, or both have none."""
    folder = tmp_path_factory.mktemp("table")
    other_words = [word for word in words if word != "wizards"]
    for name, rows, seed in (("train.tsv", 320, 1), ("dev.tsv", 120, 2)):
        rng = np.random.default_rng(seed)
        lines = ["first\tsecond\tscore"]
        for _ in range(rows):
            has = rng.integers(0, 2, 2)
            texts = [
                " ".join(
                    rng.permutation(
                        [*rng.choice(other_words, rng.integers(3, 7)), *["wizards"] * h]
                    )
                )
                for h in has
            ]
            score = 4 * int(has[0] == has[1]) + int(rng.integers(2))
            lines.append(f"{texts[0]}\t{texts[1]}\t{score}")
        write_lines(folder / name, lines)
    return folder


@pytest.fixture(scope="module")
def inference(tmp_path_factory, table):
    """96 first texts with an entailed, a neutral and a contradicting one each."""
    first, second, _ = read_columns(table, "train.tsv")
    lines = ["premise\thypothesis\tlabel"]
    for n in range(96):
        hypotheses = {
            "entailment": first[n][:20],
            "contradiction": second[(n + 1) % 96],
            "neutral": second[n],
        }
        lines += [f"{first[n]}\t{text}\t{label}" for label, text in hypotheses.items()]
    path = tmp_path_factory.mktemp("inference") / "nli.tsv"
    write_lines(path, lines)
    return path


@pytest.fixture(scope="module")
def learned(start, table, tmp_path_factory):
    """A finished run and its result."""
    run = tmp_path_factory.mktemp("learned") / "run"
    return run, learn_scores(start, table, run, SETTINGS)


def read_columns(table, name="dev.tsv"):
    rows = [line.split("\t") for line in (table / name).read_text().splitlines()[1:]]
    return [r[0] for r in rows], [r[1] for r in rows], [float(r[2]) for r in rows]


def spearman_of(vectors, scores):
    return regression_scores(scores, row_cosines(*vectors))["spearman"]


def test_scores_are_learned_and_the_folder_is_sentence_transformers(learned, start, table):
    run, result = learned
    first, second, scores = read_columns(table)
    fresh = SentenceEncoder.from_pretrained(start)
    before = spearman_of((fresh.encode(first), fresh.encode(second)), scores)
    assert result.value > 0.7 > before + 0.2  # 0.8 would be perfect: scores vary within both kinds
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(run / "best"), device="cpu")
    vectors = theirs.encode(first), theirs.encode(second)
    assert spearman_of(vectors, scores) == pytest.approx(result.value, abs=1e-3)
    assert read_json(run / "results.json")["spearman"] == result.value
    low, high = result.intervals["spearman"]
    assert low < result.value < high
    card = (run / "best/README.md").read_text()
    assert f"| spearman | {result.value:.4f} | {low:.4f} to {high:.4f} |" in card
    assert "320 examples of the kind `scores`" in card
    from huggingface_hub import ModelCard

    card_data = ModelCard.load(run / "best/README.md").data  # what a hub reads
    metrics = {entry.metric_type: entry.metric_value for entry in card_data.eval_results}
    assert metrics["spearman"] == round(result.value, 4)
    assert card_data.library_name == "sentence-transformers"
    assert card_data.base_model is None  # it began at a folder


def test_the_card_names_language_licence_and_all_models_before(learned, start, table, tmp_path):
    from huggingface_hub import ModelCard

    run, _ = learned
    settings = replace(SETTINGS, epochs=None, steps=1, language="en, ko", license="apache-2.0")
    result = learn_scores(run / "best", table, tmp_path / "again", settings)
    card = ModelCard.load(result.model / "README.md")
    assert card.data.language == ["en", "ko"]
    assert card.data.license == "apache-2.0"
    assert f"Trained with albertkit from `{run / 'best'}`" in card.text.replace("\\_", "_")
    assert f"Before that: from `{start}` on `scores`." in card.text.replace("\\_", "_")


def test_the_pooler_is_left_alone_and_the_rest_is_trained(learned, start):
    run, _ = learned
    before = dict(SentenceEncoder.from_pretrained(start).albert.named_parameters())
    after = dict(SentenceEncoder.from_pretrained(run).albert.named_parameters())
    unchanged = {name for name in before if torch.equal(before[name], after[name])}
    assert unchanged == {"pooler.weight", "pooler.bias"}


def test_rows_in_memory_are_learned_as_the_file(learned, start, table, tmp_path):
    frames = {}
    for split in ("train", "dev"):
        rows = list(zip(*read_columns(table, f"{split}.tsv"), strict=True))
        frames[split] = [dict(zip(("first", "second", "score"), row, strict=True)) for row in rows]
    settings = replace(SETTINGS, epochs=1)
    result = learn_scores(start, frames, tmp_path / "run", settings)
    from_file = learn_scores(start, table, tmp_path / "same", settings)
    assert result.scores == from_file.scores


class Killed(BaseException):
    """Ends the run as SIGKILL does: no handler catches it."""


def test_killed_and_resumed_it_gives_the_same_bits(start, inference, tmp_path, monkeypatch):
    settings = replace(
        SETTINGS, loss="softmax", epochs=4, eval_every=12, dropout=0.1, projection=16
    )
    losses = EmbeddingObjective.losses
    updates = iter(range(20))

    def ending(self, batch):
        if next(updates, None) is None:
            raise Killed
        return losses(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(EmbeddingObjective, "losses", ending)
        with pytest.raises(Killed):
            train_embeddings("nli", start, inference, tmp_path / "killed", settings, columns=NLI)
    assert (tmp_path / "killed/checkpoints/step-000012").exists()
    assert not (tmp_path / "killed/results.json").exists()
    for run in ("straight", "killed"):
        train_embeddings(
            "nli", start, inference, tmp_path / run, settings, columns=NLI, resume=run == "killed"
        )
    for name in ("model.safetensors", "2_Dense/model.safetensors", "modules.json"):
        paths = [tmp_path / run / "best" / name for run in ("straight", "killed")]
        assert paths[0].read_bytes() == paths[1].read_bytes(), name


def test_another_run_other_settings_and_other_data_are_refused(
    learned, start, table, tmp_path, slug_of
):
    run, _ = learned

    def resume_error(settings=SETTINGS, data=table, resume=True, out=run):
        return slug_of(learn_scores, start, data, out, settings, resume=resume)

    assert resume_error(resume=False) == "exists"
    assert resume_error(replace(SETTINGS, lr=1e-3)) == "changed"
    assert resume_error(out=tmp_path / "none") == "missing-file"
    for changed in ("train.tsv", "dev.tsv"):
        folder = tmp_path / changed
        folder.mkdir()
        for name in ("train.tsv", "dev.tsv"):
            text = (table / name).read_text()
            (folder / name).write_text(text.replace("\t4\n", "\t5\n") if name == changed else text)
        assert resume_error(data=folder) == "changed"


def test_several_seeds_give_the_median_and_keep_the_best(start, table, tmp_path):
    settings = replace(SETTINGS, epochs=1, seeds=3)
    result = learn_scores(start, table, tmp_path / "run", settings)
    values = [
        read_json(tmp_path / "run" / f"seed-{n}" / "results.json")["value"] for n in (1, 2, 3)
    ]
    assert result.value == sorted(values)[1]
    best = tmp_path / "run" / f"seed-{1 + int(np.argmax(values))}" / "best/model.safetensors"
    assert (tmp_path / "run/best/model.safetensors").read_bytes() == best.read_bytes()


def test_single_texts_are_told_apart_with_dropout_switched_on(
    start, table, tmp_path, capfd, slug_of
):
    texts = tmp_path / "texts.txt"
    first, second, _ = read_columns(table, "train.tsv")
    texts.write_text("\n\n".join([*first, *second[:60]]) + "\n")  # empty lines are passed over
    settings = EmbedSettings(lr=1e-3, epochs=1, eval_every=10, precision="fp32")
    pairs = tmp_path / "pairs.tsv"
    write_lines(pairs, (f"{a}\t{b}" for a, b in zip(first[:50], second[:50], strict=True)))
    result = train_embeddings(
        "texts", start, texts, tmp_path / "run", settings, dev=pairs, dev_kind="pairs"
    )
    assert result.metric == "retrieval"
    output = capfd.readouterr().err
    assert "dropout: 0.1 (SimCSE needs dropout; the model's own is 0)" in output
    losses = read_records(tmp_path / "run/metrics.jsonl")
    assert all(record["mnrl_loss"] > 0 for record in losses if record["event"] == "step")
    assert (
        slug_of(train_embeddings, "texts", start, texts, tmp_path / "other", settings)
        == "too-little-data"
    )


@pytest.mark.parametrize("loss", ["mnrl", "softmax"])
def test_inference_is_learned_as_triplets_or_as_classes(start, inference, tmp_path, loss):
    settings = replace(SETTINGS, loss=loss, epochs=4, lr=3e-3)
    result = train_embeddings("nli", start, inference, tmp_path / "run", settings, columns=NLI)
    assert result.metric == "retrieval"
    records = read_records(tmp_path / "run/metrics.jsonl")
    losses = [record[f"{loss}_loss"] for record in records if record["event"] == "step"]
    assert losses[-1] < losses[0]


@pytest.mark.filterwarnings("ignore")
def test_the_loss_of_triplets_is_that_of_sentence_transformers(encoder, words, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    rng = np.random.default_rng(6)
    rows = [[" ".join(rng.permutation(words)[:n]) for n in (4, 6, 5)] for _ in range(12)]
    file = tmp_path / "t.jsonl"
    names = ("anchor", "positive", "negative")
    write_records(file, (dict(zip(names, row, strict=True)) for row in rows))
    options = EmbedTrainOptions("pairs", "model", file, "out", SETTINGS, dev=file)
    data = read_embedding_data(options, True, BadRows())
    features = example_features(encoder, data.train.texts)
    objective = EmbeddingObjective(
        encoder,
        "mnrl",
        make_loss("mnrl", encoder.dimension),
        3,
        None,
        number_equal_texts(data.train),
    )
    part = objective.losses(
        next(ExampleStream(features, grouped=True, batch_size=12, batch_tokens=1 << 62))[0]
    )["mnrl"]
    encoder.save_pretrained(tmp_path / "model")
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu").eval()
    inputs = [model.tokenize(list(texts)) for texts in zip(*rows, strict=True)]
    theirs = MultipleNegativesRankingLoss(model)
    pairs_alone = inputs[:2]
    assert part.count == 12
    assert part.total.item() / 12 == pytest.approx(theirs(inputs, None).item(), abs=1e-5)
    assert part.total.item() / 12 != pytest.approx(theirs(pairs_alone, None).item(), abs=1e-2)


def test_triplets_are_learned(start, inference, tmp_path):
    names = {"entailment": "positive", "contradiction": "negative"}
    by_premise = {}
    for line in inference.read_text().splitlines()[1:]:
        premise, hypothesis, label = line.split("\t")
        if label in names:
            by_premise.setdefault(premise, {"anchor": premise})[names[label]] = hypothesis
    file = tmp_path / "triplets.jsonl"
    write_records(file, by_premise.values())
    result = train_embeddings("pairs", start, file, tmp_path / "run", replace(SETTINGS, epochs=4))
    records = read_records(tmp_path / "run/metrics.jsonl")
    losses = [record["mnrl_loss"] for record in records if record["event"] == "step"]
    assert result.metric == "retrieval"
    assert losses[-1] < losses[0]


def test_constant_vectors_are_reported(start, table, tmp_path, capfd):
    model = AlbertForPreTraining.from_pretrained(start)
    for layer in model.albert.encoder.modules():
        if isinstance(layer, torch.nn.LayerNorm):
            layer.weight.data.zero_()  # whatever comes in, the bias comes out
            layer.bias.data.fill_(0.5)
    model.save_pretrained(tmp_path / "model", AlbertTokenizer.from_pretrained(start))
    settings = replace(SETTINGS, epochs=1, lr=1e-9, loss="cosine")
    result = learn_scores(tmp_path / "model", table, tmp_path / "run", settings)
    assert "the vectors are constant" in " ".join(result.constant)
    assert "try a higher --lr (0.0001 to 0.001)" in capfd.readouterr().err
    assert result.failure.startswith("nothing learned")
    assert read_json(tmp_path / "run/results.json")["spearman"] is None


def test_losses_that_cannot_learn_from_the_data_are_refused(start, table, tmp_path, error_of):
    with pytest.raises(ConfigError, match="the loss mnrl cannot learn from scores"):
        learn_scores(start, table, tmp_path, replace(SETTINGS, loss="mnrl"))
    error = error_of(train_embeddings, "score", start, table, tmp_path, SETTINGS, columns=COLUMNS)
    assert error.slug == "unknown-name"
    assert error.hint == "did you mean `scores`?"


def test_the_command_prints_one_object(start, table, tmp_path, run_command):
    replace(SETTINGS, steps=1, epochs=None).save(tmp_path / "few.toml")
    arguments = ["--out", tmp_path / "run", "--config-file", tmp_path / "few.toml", "--json"]
    arguments += [
        word for name, value in COLUMNS.settings().items() for word in (f"--{name}", value)
    ]
    ran = run_command("embed", "train", "scores", start, table, *arguments)
    assert ran.status == 0
    assert ran.json["model"] == str(tmp_path / "run/best")
    assert ran.json["spearman"] == ran.json["value"]


def test_defaults_are_numbers_with_reasons(start):
    config = AlbertConfig.from_pretrained(start)
    resolved, reasons = EmbedSettings().resolve("scores", config, 64, 5749)
    assert resolved.loss == "cosent"
    assert resolved.lr == 3e-4
    assert resolved.batch_size == 32
    assert resolved.steps == 1797
    usual, _ = EmbedSettings().resolve("scores", config.with_changes(hidden_size=768), 64, 5749)
    assert usual.lr == 1e-4
    assert any(line.startswith("steps: 1,797 = 10 epochs of 5,749 at 32") for line in reasons)
    wide, reasons = EmbedSettings().resolve(
        "scores", config.with_changes(hidden_size=2048), 64, 5749
    )
    assert wide.lr == 1e-5
    assert "lr: 1e-05 in place of 0.0001: models this wide diverge at more" in reasons
    assert EmbedSettings(matryoshka="64, 32").dims == (64, 32)


@pytest.mark.parametrize(
    "settings",
    [
        dict(matryoshka="a"),
        dict(matryoshka="8,0"),
        dict(epochs=1.0, steps=1),
        dict(lr=-1.0),
        dict(projection=-1),
    ],
)
def test_impossible_settings_are_named(settings):
    with pytest.raises(ConfigError) as caught:
        EmbedSettings(**settings).check()
    assert caught.value.slug == "bad-value"
    assert next(iter(settings)) in caught.value.message


@pytest.mark.slow
def test_the_folder_goes_on_training_in_sentence_transformers(learned, table, tmp_path):
    import datasets
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

    run, _ = learned
    model = SentenceTransformer(str(run / "best"), device="cpu")
    before = model.encode(["the quick brown fox"])
    first, second, scores = read_columns(table, "train.tsv")
    data = datasets.Dataset.from_dict(
        {
            "sentence1": first[:16],
            "sentence2": second[:16],
            "score": [score / 8 for score in scores[:16]],
        }
    )
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=8,
        report_to=[],
        use_cpu=True,
        learning_rate=1e-3,
    )
    trainer = SentenceTransformerTrainer(
        model, arguments, train_dataset=data, loss=CosineSimilarityLoss(model)
    )
    trainer.train()
    assert np.abs(model.encode(["the quick brown fox"]) - before).max() > 1e-5
