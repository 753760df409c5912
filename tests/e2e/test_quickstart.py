"""Quickstart on a small text, by a clock of the test's own: the time it is given, a kill, what it prints."""

import itertools
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_loop import replay_plans

import albertkit
from albertkit import first_run
from albertkit.first_run import SETTINGS
from albertkit.output.render import print_sections
from albertkit.pretraining.run import PretrainResult, pretrain
from albertkit.training import launch, loop

WORDS = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions near calm rivers".split()


@pytest.fixture
def corpus(tmp_path):
    rng = np.random.default_rng(5)

    def sentence():
        return " ".join(rng.choice(WORDS, rng.integers(4, 12))) + "."

    documents = ["\n".join(sentence() for _ in range(rng.integers(3, 9))) for _ in range(120)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    return [str(tmp_path / "text.txt")]


def test_a_killed_quickstart_goes_on_and_uses_the_time_it_was_given(
    tmp_path, corpus, monkeypatch, capsys
):
    # Each look at the clock is 0.1 s later than the one before
    seconds = iter(itertools.count(0.0, 0.1))
    monkeypatch.setattr("albertkit.training.pace.now", lambda: next(seconds))
    options = dict(vocab_size=48, minutes=0.1)
    plain = loop.learning_rate

    def killed(step, **how):
        if step == 6:
            raise RuntimeError("killed")
        return plain(step, **how)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "learning_rate", killed)
        with pytest.raises(RuntimeError, match="killed"):
            albertkit.quickstart(tmp_path / "out", corpus=corpus, **options)
    for number, ending in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)):
        with monkeypatch.context() as patch:
            patch.setattr(launch, "_last", number)
            patch.setattr(
                first_run, "pretrain", lambda *_, **__: PretrainResult(steps=7, seconds=1.0)
            )
            with pytest.raises(ending):
                albertkit.quickstart(tmp_path / "out", corpus=corpus, **options)
    result = albertkit.quickstart(tmp_path / "out", corpus=corpus, **options)
    pretraining = result.pretraining
    assert pretraining["minutes_used"] == pytest.approx(0.1, rel=0.1)
    assert pretraining["planned"][0] <= pretraining["steps"] <= pretraining["planned"][1]
    assert result.report.exists()

    capsys.readouterr()
    print_sections(albertkit.quickstart(tmp_path / "out", corpus=corpus, **options).sections())
    printed = " ".join(capsys.readouterr().out.split())
    steps = pretraining["steps"]
    assert f"6 seconds in all for {steps} updates, {steps} of them made before it" in printed

    # The same bits as an undisturbed run that follows its plans.
    replay_plans(monkeypatch, tmp_path / "out/run")
    settings = replace(SETTINGS, config=tmp_path / "out/config.json", minutes=0.1)
    repeated = pretrain(tmp_path / "out/store", tmp_path / "again", settings)
    first, second = (
        load_file(folder / "model.safetensors") for folder in (result.model, repeated.model)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)

    capsys.readouterr()
    print_sections(result.sections())
    printed = capsys.readouterr().out
    assert 0 < result.earlier_updates < 6 < steps  # of the call that was killed
    assert f"for {steps} updates, {result.earlier_updates} of them made before" in printed
    assert "--minutes 30" in printed


class WholeWords:
    """A tokenizer whose tokens are whole words and signs, and a store of one document a sentence."""

    def __init__(self, sentences):
        self.vocabulary = sorted({word for sentence in sentences for word in sentence.split()})
        self.sentences = [
            np.array([self.vocabulary.index(word) for word in line.split()]) for line in sentences
        ]

    def word_starts(self):
        return np.ones(len(self.vocabulary), bool)

    def decode(self, ids):
        return " ".join(self.vocabulary[token] for token in ids)

    def document(self, number):
        return [self.sentences[number]]


def test_masks_hide_words_of_prose():
    """Half of the sentences are code: with signs between its words, none is shown; nor is a sign or a number hidden."""
    rng = np.random.default_rng(7)
    prose = [" ".join([*rng.choice(WORDS, 30 - 3), "...", "1990", "on"]) for _ in range(20)]
    code = [f"{' = '.join(rng.choice(WORDS, 5))} ( 100 ) [ 2 ] ;" for _ in range(20)]
    texts = WholeWords(prose + code)
    sentences = first_run.masked_sentences(texts, texts, [np.ones(40, bool)], count=40, seed=0)
    assert len(sentences) == 20
    for sentence, word in sentences:
        assert sentence.replace("[MASK]", word) in prose
        assert word in WORDS
        assert len(word) >= 3
