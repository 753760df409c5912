"""Our search: cached equals encoding everything again, one beam is greedy, constraints hold, log-probabilities are right."""

import itertools
import math

import pytest
import torch
from small_models import tiny_config

from albertkit.captioning.generate import generate
from albertkit.captioning.layers import CaptionConfig
from albertkit.captioning.model import AlbertForImageCaptioning
from albertkit.captioning.settings import CaptionIds, GenerationSettings
from albertkit.errors import ConfigError
from benchmarks.captioning import caption_mask

IDS = CaptionIds(start=2, end=3, mask=4, padding=0)


def captioner(objective="mlm", vocab_size=30):
    torch.manual_seed(0)
    config = tiny_config(vocab_size=vocab_size, initializer_range=0.3)
    return AlbertForImageCaptioning(
        CaptionConfig(img_feature_dim=8, objective=objective).stored_in(config)
    ).eval()


def clips(model, count=3, seed=5):
    visual = torch.randn(count, 5, 8, generator=torch.Generator().manual_seed(seed))
    return visual, model.albert.encode_context(model.albert.project(visual))


def log_probabilities_again(model, ids, visual):
    """Of the word after ids [R, P], all encoded again under the whole table: SwinBERT's way."""
    mlm = model.caption.objective == "mlm"
    inputs = torch.cat([ids, torch.full((len(ids), 1), IDS.mask)], 1) if mlm else ids
    mask = caption_mask(
        torch.ones_like(inputs, dtype=torch.bool), torch.ones(len(ids), 5, dtype=torch.bool)
    )
    hidden = model.albert(inputs, visual, mask)[0][:, inputs.shape[1] - 1]
    return model.predictions(hidden).log_softmax(-1)


def score_again(model, ids, visual, penalty=1.0):
    """Log-probability of a caption int64 [L] from [CLS] to [SEP], and its score."""
    total = 0.0
    for position in range(1, len(ids)):
        total += log_probabilities_again(model, ids[None, :position], visual)[
            0, ids[position]
        ].item()
    return total, total / (len(ids) - 1) ** penalty


def real(ids):
    return ids[: int((ids == IDS.end).int().argmax()) + 1]


@pytest.mark.parametrize("objective", ["mlm", "causal"])
@pytest.mark.parametrize("settings", [
    GenerationSettings(max_length=9, num_beams=1),
    GenerationSettings(max_length=9, num_beams=3, num_captions=2, length_penalty=0.7),
    GenerationSettings(max_length=9, num_beams=1, num_captions=3, sample=True, top_k=9, top_p=0.9, temperature=1.3),
])  # fmt: skip
def test_cached_equals_encoding_everything_again(objective, settings):
    model = captioner(objective)
    visual, context = clips(model)
    with torch.no_grad():
        captions = generate(model, context, settings, IDS)
        for clip, rank in itertools.product(range(3), range(settings.num_captions)):
            total, score = score_again(
                model,
                real(captions.ids[clip, rank]),
                visual[clip : clip + 1],
                settings.length_penalty,
            )
            assert captions.log_probabilities[clip, rank].item() == pytest.approx(total, abs=1e-5)
            assert captions.scores[clip, rank].item() == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("objective", ["mlm", "causal"])
def test_greedy_takes_the_likeliest_word(objective):
    model = captioner(objective)
    visual, context = clips(model)
    with torch.no_grad():
        captions = generate(model, context, GenerationSettings(max_length=8, num_beams=1), IDS)
        for clip in range(3):
            ids = real(captions.ids[clip, 0])
            for position in range(1, len(ids) - (len(ids) == 8)):
                log_probabilities = log_probabilities_again(
                    model, ids[None, :position], visual[clip : clip + 1]
                )[0]
                log_probabilities[[IDS.start, IDS.mask, IDS.padding]] = -torch.inf
                assert log_probabilities.argmax() == ids[position]


def test_a_wide_beam_finds_the_best_of_all_captions():
    """With as many beams as there are captions the search is exhaustive: compared with trying every caption."""
    model = captioner(vocab_size=9)  # tokens 1, 5, 6, 7, 8 and the special ones
    visual, context = clips(model, count=1)
    with torch.no_grad():
        captions = generate(model, context, GenerationSettings(max_length=5, num_beams=80), IDS)
        best = max(
            (
                score_again(model, torch.tensor([2, *words, 3]), visual)[1]
                for length in range(4)
                for words in itertools.product((1, 5, 6, 7, 8), repeat=length)
            ),
        )
    assert captions.scores[0, 0].item() == pytest.approx(best, abs=1e-5)


def test_a_batch_equals_clips_one_by_one():
    model = captioner()
    _, context = clips(model, count=5)
    settings = GenerationSettings(max_length=10, num_beams=3, num_captions=3)
    together = generate(model, context, settings, IDS)
    for clip in range(5):
        alone = generate(model, context.select(torch.tensor([clip])), settings, IDS)
        assert torch.equal(alone.ids[0], together.ids[clip])
        torch.testing.assert_close(alone.scores[0], together.scores[clip])
    assert (together.scores[:, :-1] >= together.scores[:, 1:]).all()


def test_every_caption_ends_and_has_no_special_token():
    model = captioner()
    _, context = clips(model)
    for settings in (
        GenerationSettings(max_length=6),
        GenerationSettings(max_length=6, num_beams=1, sample=True),
    ):
        ids = generate(model, context, settings, IDS).ids[:, 0]
        for caption in ids:
            words = real(caption)
            assert words[0] == IDS.start
            assert words[-1] == IDS.end
            assert not set(words[1:-1].tolist()) & {IDS.start, IDS.end, IDS.mask, IDS.padding}
            assert set(caption[len(words) :].tolist()) <= {IDS.padding}


def test_bad_endings_are_avoided():
    model = captioner()
    model.predictions.bias.data[IDS.end] += 4
    _, context = clips(model, count=8)
    settings = GenerationSettings(max_length=12, num_beams=1)
    plain = generate(model, context, settings, IDS).ids[:, 0]
    last = [int(real(caption)[-2]) for caption in plain if 2 < len(real(caption)) < 12]
    assert last
    bad = torch.tensor(sorted(set(last)))
    avoided = generate(model, context, settings, IDS, bad).ids[:, 0]
    assert all(int(real(caption)[-2]) not in bad for caption in avoided if len(real(caption)) < 12)


def test_repetition_penalty_and_seeds():
    model = captioner()
    _, context = clips(model, count=6)

    def words(**settings):
        return generate(
            model, context, GenerationSettings(max_length=20, num_beams=1, **settings), IDS
        ).ids[:, 0]

    def repeated(ids):
        return sum(len(real(c)) - len(set(real(c).tolist())) for c in ids)

    assert repeated(words(repetition_penalty=8.0)) < repeated(words())
    assert torch.equal(words(sample=True, seed=1), words(sample=True, seed=1))
    assert not torch.equal(words(sample=True, seed=1), words(sample=True, seed=2))
    assert torch.equal(words(sample=True, top_k=1, seed=3), words())


def test_draws_follow_the_probabilities():
    model = captioner(vocab_size=9)
    visual, context = clips(model, count=1)
    settings = GenerationSettings(max_length=3, num_beams=1, num_captions=4000, sample=True)
    first = generate(model, context, settings, IDS).ids[0, :, 1]
    with torch.no_grad():
        expected = log_probabilities_again(model, torch.tensor([[2]]), visual)[0].exp()
    expected[[IDS.start, IDS.mask, IDS.padding]] = 0
    expected /= expected.sum()
    for token in range(9):
        share = float((first == token).float().mean())
        p = float(expected[token])
        assert abs(share - p) <= 4 * math.sqrt(p * (1 - p) / 4000) + 1e-9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_beams": 0}, "num_beams is 0"),
        ({"num_captions": 5}, "num_captions 5 is more than num_beams 4"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"length_penalty": 0}, "length_penalty is 0"),
    ],
)
def test_impossible_settings(changes, message):
    with pytest.raises(ConfigError, match=message):
        GenerationSettings(**changes)


def test_captions_longer_than_positions_are_refused():
    model = captioner()
    _, context = clips(model)
    with pytest.raises(ConfigError, match="max_length is 25, the model has 24 positions"):
        generate(model, context, GenerationSettings(max_length=25), IDS)
