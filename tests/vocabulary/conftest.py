"""Sentences made of words, in English and in Korean, enough of them to train small vocabularies on; a small model."""

import random

import pytest
import torch

from albertkit.config import AlbertConfig
from albertkit.model import AlbertForPreTraining
from albertkit.tokenizer import AlbertTokenizer, train_tokenizer

_NOUNS = "서울 학교 도서관 학생 선생님 문서 중앙 시장 아침 저녁 겨울 여름 나라 사람 언어 모델 강아지 고양이 바다 하늘".split()
_PARTICLES = "은 는 을 를 에서 에게 으로 까지 부터 이다 처럼 보다".split()
_VERBS = "읽는다 썼다 하였다 찾았다 열었다 닫는다 갔다 왔다 만들었다 배운다 가르친다".split()


@pytest.fixture(scope="session")
def english():
    draw = random.Random(0)
    syllables = [a + b for a in "bdfgklmnprstwh" for b in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(300)] + [
        "garden",
        "house",
        "window",
    ]
    return [
        " ".join(draw.choices(words, k=9)).capitalize() + f", {draw.randint(1, 99)}."
        for _ in range(400)
    ]


@pytest.fixture(scope="session")
def korean():
    draw = random.Random(0)
    other_lines = [
        "".join(draw.choices("가나도라마바사우자차고노두로모보소수", k=3)) for _ in range(2000)
    ]
    nouns = _NOUNS + other_lines + _NOUNS * 40
    return [
        " ".join(
            draw.choice(nouns) + draw.choice(_PARTICLES) + draw.choice(["", "", ","])
            for _ in range(4)
        )
        + f" {draw.choice(_VERBS)}."
        for _ in range(1500)
    ]


@pytest.fixture(scope="session")
def korean_file(korean, tmp_path_factory):
    path = tmp_path_factory.mktemp("korean") / "korean.txt"
    path.write_text("\n".join(korean), encoding="utf-8")
    return path


def small_config(vocab_size):
    return AlbertConfig.from_size(
        "tiny",
        vocab_size=vocab_size,
        embedding_size=16,
        hidden_size=64,
        num_attention_heads=2,
        intermediate_size=96,
    )


@pytest.fixture(scope="session")
def config_of():
    """A small configuration for so many tokens."""
    return small_config


@pytest.fixture(scope="session")
def english_model(english, tmp_path_factory):
    """A checkpoint folder with both heads; its biases follow how frequent tokens are, as trained ones do."""
    folder = tmp_path_factory.mktemp("models") / "english"
    tokenizer = train_tokenizer(english, folder, vocab_size=160)
    torch.manual_seed(0)
    model = AlbertForPreTraining(small_config(160))
    scores = torch.tensor([tokenizer._processor.get_score(i) for i in range(160)])
    with torch.no_grad():
        model.predictions.bias.copy_(0.25 * scores + 1 + 0.02 * torch.randn(160))
    model.save_pretrained(folder, AlbertTokenizer.from_pretrained(folder))
    return folder
