"""A whole run on a small store: records, resume to the bit, kill, settings, the folder that transformers loads."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from record_files import read_records
from small_loop import replay_plans
from small_store import ALONE, differing, weights, write_config

from albertkit.corpus import TokenStore, build_store
from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.pretraining.batches import EvaluationStream
from albertkit.pretraining.export import export_records
from albertkit.pretraining.objective import Unigram, evaluate_batches
from albertkit.pretraining.options import ExportSettings
from albertkit.pretraining.preparation import initialise_from_seed, prepare_model
from albertkit.pretraining.pretrain_command import estimate
from albertkit.pretraining.run import evaluate, held_out_stream, pretrain
from albertkit.pretraining.settings import PretrainSettings
from albertkit.pretraining.sources import open_pretraining_data
from albertkit.report.inspect import inspect_folder
from albertkit.tokenizer import train_tokenizer
from albertkit.training.processes import World


def assert_same_bits(first, second):
    assert not differing(weights(first / "final"), weights(second / "final"))


def test_a_run_leaves_what_it_promises(tmp_path, store, train):
    result = train()
    run = tmp_path / "run"
    assert result.model == run / "final"
    for name in (
        "config.json",
        "model.safetensors",
        "spiece.model",
        "tokenizer.json",
        "README.md",
        "provenance.json",
    ):
        assert (run / "final" / name).exists(), name
    assert (run / "best" / "model.safetensors").exists()
    assert 'from_pretrained("run/final")' in (run / "final" / "README.md").read_text()
    assert 'from_pretrained("run/best")' in (run / "best" / "README.md").read_text()
    assert inspect_folder(run / "best").card
    assert (run / "loss.png").stat().st_size > 1000
    assert PretrainSettings.read(run / "run.toml")["lr"] == 2e-3
    record = read_records(run / "metrics.jsonl")[-1]
    assert isinstance(record["masked_lm_count"], int)
    assert isinstance(result.to_dict()["sentence_order_count"], int)
    evaluation = evaluate(run / "final", store.folder).to_dict()
    for name in ("masked_lm_loss", "masked_lm_accuracy", "sentence_order_loss", "unigram_loss"):
        assert evaluation[name] == pytest.approx(record[name], abs=1e-5), name


def test_what_cannot_be_evaluated_is_reported_before_anything_is_written(
    tmp_path, store, train, slug_of
):
    with pytest.raises(DataError, match=f"none of the {store.num_documents:,} documents") as caught:
        train(held_out=0.0)
    assert caught.value.slug == "too-little-data"
    assert "--held-out 0.1" in caught.value.hint
    assert not (tmp_path / "run").exists()
    (tmp_path / "one.txt").write_text("the quick brown fox jumps.\nover a lazy dog it does.\n" * 20)
    build_store(
        [tmp_path / "one.txt"], tmp_path / "one", store.folder.parent / "tokenizer", workers=0
    )
    # No share of one is held out
    with pytest.raises(DataError, match="none of the 1 documents") as caught:
        train(data=tmp_path / "one", held_out=0.3)
    assert "an empty line ends a document" in caught.value.hint
    model = train(steps=1).model
    for wrong in (dict(held_out=1.5), dict(length=65), dict(device="cuda:99"), dict(device="gpu")):
        assert slug_of(evaluate, model, store, **wrong) == (
            "no-device" if "device" in wrong else "bad-value"
        )


def test_where_held_out_documents_are_too_short_a_larger_share_is_suggested(tmp_path, store):
    short = "".join(f"the quick brown fox jumps {number} times.\n\n" for number in range(20))
    (tmp_path / "short.txt").write_text(short)
    build_store(
        [tmp_path / "short.txt"], tmp_path / "short", store.folder.parent / "tokenizer", workers=0
    )
    documents = np.arange(20)
    for held_out, hint in (
        (documents < 2, "more than 2 of 20 documents"),
        (documents < 15, "build a store of more documents, or"),
    ):
        with pytest.raises(DataError, match="no held-out document can be evaluated on") as caught:
            EvaluationStream(TokenStore.open(tmp_path / "short"), [held_out])
        assert hint in caught.value.hint


def test_another_seed_never_evaluates_on_documents_of_the_training(train, store, settings):
    model = train(steps=1).model
    requests = []

    class Recording(TokenStore):
        def held_out(self, share, seed):
            requests.append((share, seed))
            return super().held_out(share, seed)

    first, second = (
        evaluate(model, Recording.open(store.folder), seed=seed) for seed in (settings.seed, 9)
    )
    assert requests == [(settings.held_out, settings.seed)] * 2
    assert first.masked_lm_loss != second.masked_lm_loss


def test_a_polynomial_may_decay_faster_or_slower(tmp_path, store, train):
    train(steps=4, warmup_steps=0, poly_power=2.0, log_every=1, lr=1e-3)
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").open())
    rates = [record["learning_rate"] for record in records if record["event"] == "step"]
    assert rates == pytest.approx([1e-3 * (1 - k / 4) ** 2 for k in range(4)], abs=1e-6)


def test_the_pair_head_has_a_rate_of_its_own(train):
    """With a factor near 0 pooler and classifier stay where they began, and without one they do not."""
    begun = weights(train("begun", steps=2, lr=1e-9).model)
    pair_head = {name for name in begun if "pooler" in name or "sop_classifier" in name}
    assert len(pair_head) == 4
    for factor, expected in ((1e-7, pair_head), (1.0, set())):
        ended = weights(train(str(factor), steps=2, pair_lr_factor=factor).model)
        assert {
            name
            for name in pair_head
            if torch.allclose(begun[name], ended[name], atol=1e-7, rtol=0)
        } == expected
        assert not torch.allclose(
            begun["predictions.bias"], ended["predictions.bias"], atol=1e-7, rtol=0
        )


def test_the_best_model_is_the_one_with_the_least_held_out_loss(tmp_path, store, train):
    train(eval_every=1, steps=8, lr=0.05, warmup_steps=0)
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    losses = [record["masked_lm_loss"] for record in records if record["event"] == "eval"]
    assert losses.index(min(losses)) != len(losses) - 1, (
        "the last model is the best: the test says nothing"
    )
    assert evaluate(tmp_path / "run" / "best", store).masked_lm_loss == pytest.approx(
        min(losses), abs=1e-5
    )


def test_a_run_by_the_clock_has_the_bits_of_its_plans(tmp_path, train, monkeypatch):
    # Each look at the clock is 0.05 s later than the one before
    seconds = iter(itertools.count(0.0, 0.05))
    monkeypatch.setattr("albertkit.training.pace.now", lambda: next(seconds))
    by_the_clock = dict(
        minutes=0.1, steps=None, warmup_steps=None, eval_every=None, save_every=None
    )
    timed = train("timed", **by_the_clock)
    assert timed.minutes_used == pytest.approx(0.1, rel=0.1)
    assert timed.planned is not None
    assert timed.planned[0] <= timed.steps <= timed.planned[1]
    replay_plans(monkeypatch, tmp_path / "timed")
    assert train("again", **by_the_clock).steps == timed.steps
    assert_same_bits(tmp_path / "timed", tmp_path / "again")


def test_impossible_times_and_powers_are_refused(settings, slug_of):
    for wrong in (dict(minutes=0.0), dict(minutes=float("nan")), dict(poly_power=0.0)):
        assert slug_of(replace(settings, **wrong).check) == "bad-value"


def test_a_run_is_resumed_only_with_its_own_store(tmp_path, store, slug_of, train):
    train(steps=3)
    shutil.copy(store.folder.parent / "corpus.txt", tmp_path / "other.txt")
    build_store(
        [tmp_path / "other.txt"], tmp_path / "other", store.folder.parent / "tokenizer", workers=0
    )
    assert slug_of(train, data=tmp_path / "other", resume=True, steps=3) == "changed"
    assert train(resume=True, steps=3).steps == 3


def test_without_pairs_there_are_no_numbers_of_sentence_order(tmp_path, store, train):
    result = train(steps=2, pair_task="none")
    assert not any(name.startswith("sentence_order_acc") for name in result.scores)
    evaluation = evaluate(tmp_path / "run" / "final", store)
    assert evaluation.sentence_order_accuracy is None
    assert evaluation.sentence_order_count == 0
    assert evaluation.masked_lm_count > 0


def test_a_process_without_batches_joins_the_same_sums(store, settings):
    """The other processes wait in one reduction: the one that has nothing to score must enter it, and no other."""
    reductions = []

    class OneOfMany(World):
        def sum(self, values):
            reductions.append(values.shape)
            return values + 1

    model = prepare_model(initialise_from_seed(settings, store.vocab_size).model, settings, ALONE)
    world = OneOfMany(1, 2, torch.device("cpu"))
    evaluate_batches(model, [], Unigram.of_store(store), world)
    evaluate_batches(
        model,
        held_out_stream(store, settings, store.held_out(0.2, 0), world),
        Unigram.of_store(store),
        world,
    )
    assert len(reductions) == 2
    assert reductions[0] == reductions[1]


def test_transformers_loads_the_folder_and_computes_the_same(train):
    transformers = pytest.importorskip("transformers")
    from albertkit import AlbertForPreTraining

    folder = train(steps=2).model
    theirs = transformers.AlbertForPreTraining.from_pretrained(folder).eval()
    ours = AlbertForPreTraining.from_pretrained(folder).eval()
    encoded = transformers.AutoTokenizer.from_pretrained(folder)(
        "the quick dog", "seven lazy rivers", return_tensors="pt"
    )
    assert encoded["token_type_ids"].sum() > 0
    with torch.inference_mode():
        expected = theirs(**encoded)
        computed = ours(**encoded)
    torch.testing.assert_close(
        computed.prediction_logits, expected.prediction_logits, rtol=0, atol=1e-5
    )
    torch.testing.assert_close(computed.sop_logits, expected.sop_logits, rtol=0, atol=1e-5)


@pytest.mark.slow  # the same loop is killed by default in tests/embeddings/test_train.py
@pytest.mark.parametrize("kind", ["store", "records"])
def test_killed_at_any_moment_and_resumed_it_ends_with_the_same_bits(
    tmp_path, store, settings, kind
):
    """SIGKILL a real process a few times, resume until it finishes, compare with a run that nothing disturbed."""
    script = (
        "import sys, json; from pathlib import Path; import torch; torch.set_num_threads(1)\n"
        "from albertkit.pretraining.run import pretrain\n"
        "from albertkit.pretraining.settings import PretrainSettings\n"
        "data, out, toml = map(Path, sys.argv[1:])\n"
        "values = PretrainSettings.read(toml); values['config'] = Path(values['config'])\n"
        "pretrain(data, out, PretrainSettings(**values), resume=(out / 'run.toml').exists())\n"
    )
    settings = replace(settings, steps=150, eval_every=50, save_every=5)
    if kind == "records":
        data = tmp_path / "records"
        export_records(store, data, ExportSettings(length=32, dupe_factor=1, files=3))
    else:
        data = store.folder
        settings = replace(settings, mask_units="pieces", initial_weights="text")
    settings.save(tmp_path / "settings.toml")

    def start(name):
        command = [sys.executable, "-c", script, data, tmp_path / name, tmp_path / "settings.toml"]
        return subprocess.Popen(
            command, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )

    straight = start("straight")
    assert straight.wait(600) == 0
    kills = 0
    for steps_wanted in (5, 30, 60):
        process = start("killed")
        deadline = time.monotonic() + 600  # of a process that starts beside twenty others
        expected_names = [f"step-{n:06d}" for n in range(steps_wanted, 150)]
        while time.monotonic() < deadline and process.poll() is None:
            if any(
                (tmp_path / "killed" / "checkpoints" / name).exists() for name in expected_names
            ):
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
        kills += process.wait() == -signal.SIGKILL
    assert kills == 3
    last = start("killed")
    assert last.wait(600) == 0, last.stderr.read().decode()
    assert_same_bits(tmp_path / "straight", tmp_path / "killed")


def count_training_tokens(store, share, seed):
    counts = np.zeros(store.vocab_size, np.int64)
    for number in np.flatnonzero(~np.concatenate(store.held_out(share, seed))):
        counts += np.bincount(np.concatenate(store.document(number)), minlength=store.vocab_size)
    return counts


def test_the_bias_begins_at_the_frequencies_of_what_is_trained_on(store, settings, train):
    model = train(steps=1, lr=1e-6, initial_weights="text").model
    counts = count_training_tokens(store, settings.held_out, settings.seed)
    expected = np.log((counts + 1) / (counts + 1).sum())
    np.testing.assert_allclose(weights(model)["predictions.bias"].numpy(), expected, atol=1e-4)
    with pytest.raises(ConfigError, match="is for a new model"):
        train("more", start=model, initial_weights="text", config=None)


def test_pieces_are_masked_one_by_one(store, settings):
    """Of words of several pieces: all of them are masked, or any."""
    starts = store.tokenizer().word_starts()

    def torn(units):
        source = open_pretraining_data(
            store, replace(settings, mask_units=units, max_ngram=1, pair_task="none")
        )
        batch = next(source.training(ALONE))[0]
        original = batch.input_ids.clone()
        original[batch.masked_positions] = batch.masked_labels
        chosen = torch.zeros(len(original), dtype=torch.bool)
        chosen[batch.masked_positions] = True
        special = torch.isin(original, torch.tensor(store.tokenizer().special_ids()))
        is_inside_word = ~torch.from_numpy(starts)[original] & ~special
        is_inside_word[batch.offsets[:-1] + 1] = False  # a sequence may begin within a word
        return int((chosen[1:] != chosen[:-1])[is_inside_word[1:]].sum())

    assert torn("words") == 0
    assert torn("pieces") > 5


def test_settings_files_name_the_nearest_key(tmp_path):
    (tmp_path / "run.toml").write_text("stepz = 3\n")
    with pytest.raises(ConfigError) as caught:
        PretrainSettings.read(tmp_path / "run.toml")
    assert "did you mean `steps`" in caught.value.hint


def test_derived_settings_follow_the_paper():
    resolved, reasons = PretrainSettings(
        batch_tokens=512 * 64, accumulation=64, steps=125_000
    ).resolve()
    assert resolved.lr == 0.00176
    assert resolved.warmup_steps == 3125
    assert any("0.00176" in line for line in reasons)


def test_unigram_counts_only_the_training_documents(store):
    expected = count_training_tokens(store, 0.3, 1)
    unigram = Unigram.of_store(store, store.held_out(0.3, seed=1))
    loss, right = unigram.score(torch.arange(store.vocab_size))
    assert loss == pytest.approx(-np.log((expected + 1) / (expected.sum() + len(expected))).sum())
    assert right == 1
    assert unigram.most_frequent == expected.argmax()


def test_a_store_of_another_tokenizer_is_refused(tmp_path, store, train, slug_of):
    model = train(steps=2).model
    text = store.folder.parent / "corpus.txt"
    train_tokenizer([text], tmp_path / "tokenizer", vocab_size=46)
    build_store([text], tmp_path / "store", tmp_path / "tokenizer", workers=0)
    assert slug_of(evaluate, model, tmp_path / "store") == "wrong-tokenizer"


def test_a_store_of_as_many_other_words_is_refused(tmp_path, store, settings, slug_of):
    """The vocabularies have the same size, so only their files tell them apart."""
    text = store.folder.parent / "corpus.txt"
    words = "[PAD] [UNK] [CLS] [SEP] [MASK]".split(), sorted(set(text.read_text().split()))
    for name, vocabulary in (("own", words[0] + words[1]), ("other", words[0] + words[1][::-1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.txt").write_text("\n".join(vocabulary))
        build_store([text], tmp_path / f"{name}-store", tmp_path / name, workers=0)
    settings = replace(settings, config=write_config(tmp_path, len(vocabulary)), steps=1)
    model = pretrain(tmp_path / "own-store", tmp_path / "run", settings).model
    assert evaluate(model, tmp_path / "own-store").masked_lm_count
    assert slug_of(evaluate, model, tmp_path / "other-store") == "wrong-tokenizer"


def test_the_estimate_counts_what_is_there(store, settings):
    measured = estimate(store, settings=settings)
    expected = settings.model_config(store.vocab_size).num_parameters(heads=True)
    assert measured.parameters == expected
    assert measured.training_state_mb == pytest.approx(16 * expected / 1e6)
    assert 0 < measured.tokens_per_step <= settings.batch_tokens
    # 2 layers keep at least input, QKV, context and the feed-forward's two widths of every token,
    # in fp32.
    assert measured.activations_mb * 1e6 > measured.tokens_per_step * 2 * 4 * (
        64 + 3 * 64 + 64 + 2 * 128
    )


def test_everything_impossible_is_listed_at_once(settings):
    wrong = dict(
        schedule="cosin",
        optimizer="sgd",
        warmup_steps=-1,
        eval_every=-5,
        lr=-1.0,
        held_out=2.0,
        batch_tokens=8,
    )
    with pytest.raises(ConfigError) as caught:
        replace(settings, **wrong).check()
    assert all(name in caught.value.message for name in wrong)


@pytest.mark.parametrize(
    ("changes", "idle"),
    [
        (dict(schedule="cosine", poly_power=2.0), "poly_power"),
        (dict(schedule="constant", end_lr=1e-5), "end_lr"),
        (dict(pair_task="nsp", sop_pairs="google"), "sop_pairs"),
        (dict(pair_task="none", pair_lr_factor=0.1), "pair_lr_factor"),
        (dict(masked_lm_prob=0.0, mask_units="pieces"), "mask_units"),
        (dict(masked_lm_prob=0.0, max_predictions=9, max_ngram=2), "max_predictions"),
        (dict(start_share=0.5), "start_share"),
    ],
)
def test_options_that_another_one_leaves_without_effect_are_told(settings, changes, idle):
    """A settings file may have them, such as a recipe with --pair-task none."""
    notes = " ".join(replace(settings, **changes).resolve()[1])
    assert f"{idle} has no effect with " in notes


def test_a_rate_that_was_left_open_ends_no_higher_than_it_begins():
    with pytest.raises(ConfigError, match=r"end_lr is 0\.001, .* at most lr, 0\.000156"):
        PretrainSettings(end_lr=1e-3).resolve()


def test_a_run_with_a_configuration_claims_no_size(settings):
    resolved, _ = settings.resolve()
    assert "size" not in resolved.to_dict()
    assert PretrainSettings().resolve()[0].size == "base"
    (settings.config.parent / "run.toml").write_text(f'size = "base"\nconfig = "{settings.config}"')
    replace(PretrainSettings(), config=settings.config).check_same(
        settings.config.parent / "run.toml"
    )
    assert "size has no effect with config" in " ".join(replace(settings, size="tiny").resolve()[1])


# --- what is said before anything is spent --------------------------------------------------------


def test_a_dry_run_refuses_what_the_run_would_refuse(
    tmp_path, store, settings, monkeypatch, slug_of, train
):
    train("there", steps=1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.csv").write_text("mine")

    def slugs(out, changes, **options):
        changed = replace(settings, **changes)
        return [
            slug_of(attempt, store, tmp_path / out, changed, **options)
            for attempt in (pretrain, estimate)
        ]

    assert slugs("new", dict(held_out=0.0)) == ["too-little-data"] * 2
    assert slugs("there", {}) == ["exists"] * 2
    assert slugs("other", {}) == ["exists"] * 2
    assert slugs("new", {}, resume=True) == ["missing-file"] * 2
    assert slugs("new", dict(length=65)) == ["bad-value"] * 2
    assert slugs("new", dict(train_only="new-rows")) == ["bad-value"] * 2
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10, 10, 1000))
    assert slugs("new", {}) == ["disk-full"] * 2
    assert not (tmp_path / "new").exists()


def test_a_dry_run_says_what_it_knows_before_it_times_anything(store, settings, monkeypatch):
    lines = []

    def timing(*_):
        assert any(line.startswith("parameters: ") for line in lines)
        return 1.0, 100

    monkeypatch.setattr("albertkit.pretraining.pretrain_command._time_one_update", timing)
    measured = estimate(store, settings=settings, note=lines.append)
    assert any(
        "held out: " in line and "few, their mean loss is uncertain by about" in line
        for line in lines
    )
    assert 0.3 < measured.tokens_used < 0.75
    assert any("tokens used an epoch: " in line and "--pair-task none" in line for line in lines)
    assert measured.held_out_predictions < 1000


def test_a_slow_update_is_timed_in_part(store, settings, monkeypatch):
    """Ten seconds for 100 tokens: three updates of 2,000 would take ten minutes."""
    timed = []

    def slow(prepared, batches):
        timed.append(sum(batch.num_tokens for batch in batches))
        return timed[-1] / 10, timed[-1]

    monkeypatch.setattr("albertkit.pretraining.pretrain_command._time_one_update", slow)
    measured = estimate(store, settings=replace(settings, batch_tokens=2048))
    assert sum(timed) / 10 < 45
    assert measured.timed_tokens == max(timed) < measured.tokens_per_step
    assert measured.tokens_per_second == pytest.approx(10)


def test_a_configuration_may_leave_out_what_the_tokenizer_decides(
    tmp_path, store, settings, slug_of
):
    stated = json.loads(settings.config.read_text())
    (tmp_path / "short.json").write_text(
        json.dumps({k: v for k, v in stated.items() if k != "vocab_size"})
    )
    (tmp_path / "wrong.json").write_text(json.dumps(stated | {"vocab_size": 30_000}))
    (tmp_path / "ids.json").write_text(json.dumps(stated | {"eos_token_id": 7}))
    first = initialise_from_seed(settings, stated["vocab_size"]).model
    second = initialise_from_seed(
        replace(settings, config=tmp_path / "short.json"), stated["vocab_size"]
    ).model
    assert first.config == second.config
    for name in ("wrong", "ids"):
        wrong = replace(settings, config=tmp_path / f"{name}.json")
        assert slug_of(estimate, store, settings=wrong) == "wrong-tokenizer"


# --- more updates ---------------------------------------------------------------------------------


def test_a_run_whose_rate_does_not_decay_is_lengthened_to_the_bits_of_a_longer_one(
    tmp_path, store, train
):
    constant = dict(schedule="constant", eval_every=None, save_every=None)
    train("short", steps=8, warmup_steps=1, **constant)
    train("short", resume=True, steps=12, warmup_steps=None, **constant)
    train("long", steps=12, warmup_steps=1, **constant)
    assert_same_bits(tmp_path / "short", tmp_path / "long")
    assert PretrainSettings.read(tmp_path / "short" / "run.toml")["steps"] == 12


def test_a_run_that_decays_cannot_be_lengthened_and_the_hint_says_what_can_be_done(
    tmp_path, store, train
):
    train(steps=2)
    with pytest.raises(CheckpointError) as caught:
        train(resume=True, steps=5)
    assert caught.value.slug == "changed"
    assert f"--continue {tmp_path / 'run' / 'final'} --out NEW --steps 3" in caught.value.hint
    with pytest.raises(CheckpointError, match="cannot be shortened"):
        train(resume=True, steps=1)
    assert train(resume=True, steps=None, eval_every=None, warmup_steps=None).steps == 2


def test_a_batch_may_be_counted_in_sequences(store, settings):
    sized = replace(settings, batch_size=3, batch_tokens=16_384)
    stream = open_pretraining_data(store, sized).training(ALONE)
    epoch = [next(stream)[0].num_sequences for _ in range(stream.estimate_global_batches())]
    assert set(epoch[:-1]) == {3}
    assert 1 <= epoch[-1] <= 3
    assert sum(epoch) == len(stream.plan(0).examples)
    assert sized.resolve()[1][0] == "batch: up to 96 tokens an update (96 x 1 x 1)"
    with pytest.raises(ConfigError, match="batch_size and batch_tokens are both given"):
        replace(settings, batch_size=3).check()


def test_longer_spans_may_be_the_likelier_ones(store, settings):
    """With probability 1/n of n words 6/11 of the spans are single words, in reverse 2/11."""
    shares = []
    for shorter in (True, False):
        source = open_pretraining_data(
            store, replace(settings, favor_shorter_ngram=shorter, mask_units="pieces", length=64)
        )
        stream = source.training(ALONE)
        plan = stream.plan(0)
        assembled = stream._assembler.batch_with_drawn_masks(plan, np.arange(len(plan.examples)), 0)
        shares.append(float((assembled.ngrams[:, 1] == 1).mean()))
    assert shares == pytest.approx([6 / 11, 2 / 11], abs=0.05)
