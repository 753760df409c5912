"""What a run learns: both losses, or one of them, whose other head then keeps its bits; sentence order on a toy corpus."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from record_files import read_records, write_lines
from small_store import ALONE, SETTINGS, differing, store_of, weights, write_config

from albertkit.conversion.convert import convert
from albertkit.conversion.initial import init_model
from albertkit.corpus import TokenStore
from albertkit.model import AlbertForPreTraining
from albertkit.pipelines.load import load_pipelines
from albertkit.pretraining.objective import Unigram, evaluate_batches
from albertkit.pretraining.run import doubts, evaluate
from albertkit.pretraining.sources import open_pretraining_data
from albertkit.vocabulary.extend import extend_vocabulary
from albertkit.vocabulary.trim import trim_vocabulary

SETTINGS = replace(
    SETTINGS, steps=4, lr=2e-2, optimizer="lamb", warmup_steps=0, eval_every=None, save_every=None
)
HEADS = {"order": ("albert.pooler.", "sop_classifier."), "prediction": ("predictions.",)}


@pytest.fixture(scope="module")
def settings(tmp_path_factory, store):
    return replace(
        SETTINGS, config=write_config(tmp_path_factory.mktemp("objectives"), store.vocab_size)
    )


@pytest.mark.parametrize(
    ("how", "untouched"),
    [
        (dict(), ()),
        (dict(pair_task="none"), HEADS["order"]),
        (dict(masked_lm_prob=0.0), HEADS["prediction"]),
    ],
)
def test_a_head_without_a_loss_keeps_its_bits(tmp_path, train, how, untouched):
    """Its gradients would be 0, and LAMB would take the whole learning rate off it at every update."""
    model = train("first", steps=1).model
    train(start=model, config=None, **how)
    moved = differing(weights(tmp_path / "run/final"), weights(model))
    assert not any(name.startswith(untouched) for name in moved)
    expected = {name for name in weights(model) if not name.startswith(untouched)}
    assert moved == expected - ({"predictions.bias"} if "masked_lm_prob" in how else set())


def test_heads_that_no_training_had_a_loss_for_are_not_asked(
    tmp_path, store, settings, train, caplog
):
    def kinds(run):
        filled = any("fill-mask" in command for command, _ in run.next)
        card = (run.model / "README.md").read_text()
        assert filled == ("fill_mask" in card) == ("masked language modelling" in card)
        answering = set(load_pipelines(run.model)) - {"embed"}
        assert filled == ("fill-mask" in answering)
        return answering

    order = train("order", steps=1, masked_lm_prob=0.0)
    assert kinds(order) == {"sentence-order"}
    full = train("full", start=order.model, config=None, steps=1)
    assert kinds(full) == {"fill-mask", "sentence-order"}
    continued = train("masks", start=full.model, config=None, steps=1, pair_task="none")
    assert kinds(continued) == {"fill-mask", "sentence-order"}
    fresh = train("fresh", steps=1, pair_task="none")
    assert kinds(fresh) == {"fill-mask"}
    init_model(tmp_path / "init", store.folder / "tokenizer", config=settings.config)
    assert set(load_pipelines(tmp_path / "init")) == {"fill-mask", "sentence-order", "embed"}
    assert "never trained" in caplog.text
    begun = train("begun", start=tmp_path / "init", config=None, steps=1, masked_lm_prob=0.0)
    assert kinds(begun) == {"sentence-order"}
    text = store.folder.parent / "corpus.txt"
    trim_vocabulary(fresh.model, [text], tmp_path / "trimmed", min_count=2)
    extend_vocabulary(
        tmp_path / "trimmed", [text], tmp_path / "more", tmp_path / "trimmed", words=["zeb"]
    )
    convert(tmp_path / "more", tmp_path / "tf1", to="tf1")
    convert(tmp_path / "tf1", tmp_path / "back")
    for folder in ("trimmed", "more", "back"):
        assert set(load_pipelines(tmp_path / folder)) == {"fill-mask", "embed"}
    (fresh.model / "provenance.json").write_text("[]")  # another program's
    assert "sentence-order" in load_pipelines(fresh.model)


def test_order_alone(tmp_path, store, settings, train):
    """Nothing is masked, in training and in every evaluation; the best model is the one that orders best."""
    run = tmp_path / "run"
    result = train(masked_lm_prob=0.0, log_every=2, eval_every=2)
    records = read_records(run / "metrics.jsonl")
    assert {r["event"] for r in records} == {"step", "eval"}
    loss_names = {name for record in records for name in record if name.endswith("_loss")}
    assert loss_names == {"sentence_order_loss"}
    assert all(math.isfinite(record["loss"]) for record in records if record["event"] == "step")
    evaluation = evaluate(result.model, store)
    assert evaluation.masked_lm_loss is None
    assert evaluation.unigram_loss is None
    assert evaluation.masked_lm_count == 0
    assert evaluation.sentence_order_accuracy == pytest.approx(
        result.scores["sentence_order_accuracy"]
    )
    assert "sentence order" in (run / "final/README.md").read_text()
    for batch in open_pretraining_data(store, replace(settings, masked_lm_prob=0.0)).evaluation(
        ALONE
    ):
        assert batch.masked_positions is None
        assert not (batch.input_ids == store.tokenizer().mask_id).any()


# --- sentence order -------------------------------------------------------------------------------


def tale(rng):
    """A document whose sentences say where they stand: mornings before noons before evenings before nights."""
    words = "fox dog wizard potion river".split()
    return "\n".join(
        f"{time} {rng.choice(words)} {rng.choice(words)}"
        for time in ("morning", "noon", "evening", "night")
    )


@pytest.fixture(scope="module")
def tales(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tales")
    rng = np.random.default_rng(0)
    text = "\n\n".join(dict.fromkeys(tale(rng) for _ in range(400)))
    (folder / "tokenizer").mkdir()
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] morning noon evening night fox dog wizard potion river".split()
    write_lines(folder / "tokenizer/vocab.txt", pieces)
    return TokenStore.open(store_of(folder, text, folder / "tokenizer"))


def test_labels_are_balanced_and_segments_told_apart(tales):
    """Half of the pairs are swapped; label 0 is the order of the document; B has token type 1; each epoch draws anew."""
    source = open_pretraining_data(tales, replace(SETTINGS, masked_lm_prob=0.0))
    stream = source.training(ALONE)
    labels = []
    order = {}
    first = {
        tales.tokenizer().encode(word)[0]: number
        for number, word in enumerate("morning noon evening night".split())
    }
    while stream.state()["epoch"] < 4:
        (batch,) = next(stream)
        labels += batch.sentence_order_labels.tolist()
        for n, label in enumerate(batch.sentence_order_labels.tolist()):
            begin = batch.offsets[n]
            end = batch.offsets[n + 1]
            ids = batch.input_ids[begin:end].tolist()
            types = batch.token_type_ids[begin:end]
            middle = ids.index(3) + 1
            assert types.tolist() == [0] * middle + [1] * (len(ids) - middle)
            assert len(ids) - middle > 1
            a, b = (
                next(first[i] for i in part if i in first) for part in (ids[:middle], ids[middle:])
            )
            assert label == int(a > b)
            order.setdefault(tuple(sorted(ids)), set()).add(label)
    share = np.mean(labels)
    assert abs(share - 0.5) < 4 * math.sqrt(0.25 / len(labels))
    assert (
        sum(len(labels_of_pair) == 2 for labels_of_pair in order.values()) > 100
    )  # the same sentences, drawn both ways


def test_order_is_learned_on_a_toy_corpus(tmp_path, tales, train):
    result = train(
        data=tales,
        config=write_config(tmp_path, tales.vocab_size),
        masked_lm_prob=0.0,
        optimizer="adamw",
        lr=2e-3,
        steps=250,
        warmup_steps=30,
        batch_tokens=256,
        eval_every=0,
        bias_correction=True,
    )
    assert result.scores["sentence_order_accuracy"] > 0.95
    # On the same tales with their sentences shuffled there is nothing to learn: the number can
    # tell.
    rng = np.random.default_rng(1)
    shuffled = (rng.permutation(tale(rng).split("\n")) for _ in range(400))
    text = "\n\n".join("\n".join(lines) for lines in shuffled)
    store = store_of(tmp_path, text, tales.folder / "tokenizer")
    assert evaluate(result.model, store).sentence_order_accuracy == pytest.approx(0.5, abs=0.1)


# --- what is wrong with a model -------------------------------------------------------------------


def test_constant_outputs_are_seen(store, settings):
    torch.manual_seed(0)
    model = AlbertForPreTraining(settings.model_config(store.vocab_size)).eval()
    batches = list(open_pretraining_data(store, settings).evaluation(ALONE))
    usual = evaluate_batches(model, batches, Unigram.of_store(store), ALONE)
    assert usual.masked_lm_perplexity == pytest.approx(math.exp(usual.masked_lm_loss))
    assert usual.most_guessed < 0.9
    with torch.no_grad():
        model.predictions.bias[7] = 50.0
    constant = evaluate_batches(model, batches, Unigram.of_store(store), ALONE)
    assert constant.most_guessed == 1.0
    lines = doubts(20, constant.scalar_metrics(), warmup_steps=10)
    assert len(lines) == 2
    assert "worse than guessing by frequency" in lines[0]
    assert "outputs are constant: 100%" in lines[1]
    assert doubts(20, {"masked_lm_loss": 2.0, "unigram_loss": 3.0, "most_guessed": 0.3}, 10) == []
    assert doubts(20, {"sentence_order_loss": 0.7}, 10) == []
    assert doubts(20, {"unexplained": 0.7}, 10) == []
    assert "lengthen --warmup-steps" in doubts(20, {"unexplained": 1.05}, 10)[0]
    assert len(doubts(20, {"masked_lm_loss": math.nan, "unigram_loss": 3.0}, 10)) == 1


def test_nothing_is_reported_while_the_rate_still_rises():
    bad = {"masked_lm_loss": 4.0, "unigram_loss": 3.0, "masked_lm_perplexity": 54.6}
    assert doubts(10, bad, warmup_steps=10) == []
    (line,) = doubts(20, bad, warmup_steps=10)
    assert line.startswith("step 20: worse than guessing by frequency (4 nats, 3)")


def test_a_run_says_how_much_of_the_text_is_unknown(tmp_path, store, train, capsys):
    train(steps=1)
    assert "unknown tokens: 0.00% of the training text" in capsys.readouterr().err
    text = "the dog\n漢字 dog\n\nthe fox\n漢 fox\n\n漢 lazy\nthe dog\n"
    unknown = store_of(tmp_path, text, store.folder / "tokenizer")
    train("other", data=unknown, steps=1, held_out=0.5, seed=1)
    line = next(
        line for line in capsys.readouterr().err.splitlines() if line.startswith("unknown tokens")
    )
    assert "0.00%" not in line
