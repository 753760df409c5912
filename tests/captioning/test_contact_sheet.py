"""Contact sheets: frames where they should be, no text cut off, any script."""

import numpy as np
import pytest
from PIL import ImageFont

import albertkit.captioning.predict as sheet_text
from albertkit.captioning.predict import (
    contact_sheet,
    drawable_line,
    find_font_and_missing_letters,
    wrap_text,
)

WORDS = "a young boy in a blue shirt shows how to fold a plane out of red paper at a wooden table".split()


def frames_of(total, size=144):
    return np.random.default_rng(total).integers(0, 255, (total, size, size, 3), dtype=np.uint8)


@pytest.mark.parametrize("total", [1, 2, 7, 8, 9, 32, 70])
@pytest.mark.parametrize("words", [0, 1, 20])
def test_everything_lies_within_white_margins(total, words):
    sheet = contact_sheet(
        frames_of(total, 32), np.arange(total) * 700.0, " ".join(WORDS[:words]), score=-0.25
    )
    pixels = np.asarray(sheet)
    assert 600 <= sheet.width <= 1500
    for edge in (pixels[:24], pixels[-24:], pixels[:, :24], pixels[:, -24:]):
        assert (edge == 255).all()
    assert (pixels[24:25] != 255).any()  # the margin is no wider than that


def test_frames_are_shown_in_their_order():
    frames = frames_of(12)
    pixels = np.asarray(contact_sheet(frames, np.arange(12.0), "twelve frames"))
    frame_tops = []
    for number in range(12):
        inner = frames[number, 1:-1, 1:-1]  # within its frame's outline
        for top in range(24, pixels.shape[0] - 144):
            left = 24 + number % 6 * 152  # two rows of six
            if (pixels[top + 1 : top + 143, left + 1 : left + 143] == inner).all():
                frame_tops.append((number, top))
                break
    assert [number for number, _ in frame_tops] == list(range(12))
    tops = [top for _, top in frame_tops]
    assert tops[:6] == [24] * 6
    assert tops[6:] == [tops[6]] * 6
    assert tops[6] > 24 + 144


def test_lines_fit_and_lose_nothing():
    font = find_font_and_missing_letters("한국어 漢字 é")[0].font_variant(size=22)
    random = np.random.default_rng(3)
    letters = [*"aWéiه국x", "e\u0301"]
    for _ in range(60):
        words = [
            "".join(random.choice(letters, random.integers(1, 60)))
            for _ in range(random.integers(1, 12))
        ]
        text = " ".join(words)
        lines = wrap_text(text, font, 300)
        assert all(font.getlength(line) <= 300 for line in lines)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        assert not any(line.startswith("\u0301") for line in lines)
    assert wrap_text("short words here", font, 1000) == ["short words here"]
    assert wrap_text("", font, 10) == [""]
    assert wrap_text("WW", font, 1) == ["W", "W"]


def test_a_longer_caption_takes_more_lines():
    heights = [
        contact_sheet(frames_of(2), np.zeros(2), " ".join(["paper"] * num_words)).height
        for num_words in (1, 8, 80, 800)
    ]
    assert heights[0] == heights[1] < heights[2] < heights[3]


def test_hangul_is_drawn_where_a_font_has_it_and_named_where_none_has(monkeypatch):
    korean = "한 소년이 종이비행기를 접는다"
    missing = find_font_and_missing_letters(korean)[1]
    if not missing:
        font = find_font_and_missing_letters(korean)[0]
        assert bytes(font.getmask("한")) != bytes(font.getmask("소"))
    monkeypatch.setattr(sheet_text, "FONTS", ())
    fallback, missing = find_font_and_missing_letters(korean)
    assert fallback.getname() == ImageFont.load_default(16).getname()
    assert missing == sorted(set(korean.replace(" ", "")))
    assert find_font_and_missing_letters("plain letters")[1] == []
    noted = contact_sheet(frames_of(2), np.zeros(2), korean)
    plain = contact_sheet(frames_of(2), np.zeros(2), "plain letters")
    assert noted.height > plain.height  # by the note


def test_what_cannot_be_drawn_does_no_harm():
    assert drawable_line("a\x00 b\ud800\n\tc ") == "a b c"
    assert drawable_line("क्‍ष") == "क्‍ष"  # a joiner between letters stays
    for caption in ("", "\ud800\x07", "🙂" * 50, "x" * 3000, "عربي עברית 한국어 हिन्दी"):
        contact_sheet(frames_of(1, 8), np.array([np.nan]), caption, score=float("-inf"))


def test_the_picture_is_the_same_each_time():
    first, second = (
        contact_sheet(frames_of(8), np.arange(8), " ".join(WORDS), score=-1.5) for _ in range(2)
    )
    assert first.mode == "RGB"
    assert first.tobytes() == second.tobytes()
