"""A made-up run with a known shape, and what a browser would make of a page."""

import math
import random
import re
from html.parser import HTMLParser

import pytest

VOID = {"meta", "br", "img", "link", "input", "hr", "path", "use", "rect"}


class Outline(HTMLParser):
    """Checks that tags nest, and keeps what the tests ask for."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open = []
        self.tags = set()
        self.attributes = []
        self.identifiers = []
        self.text = []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.identifiers += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def parse(html):
    parsed = Outline()
    parsed.feed(html)
    parsed.close()
    assert parsed.open == []
    return parsed


def parse_harmless(html):
    parsed = parse(html)
    for tag, name, value in parsed.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in ("src", "href", "srcset", "data", "action", "poster"):
            assert value.startswith("#"), (tag, name, value)
    assert not parsed.tags & {"script", "link", "img", "iframe", "object", "base", "form"}
    without_namespace = html.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", without_namespace)
    assert len(parsed.identifiers) == len(set(parsed.identifiers))
    return parsed


@pytest.fixture(scope="session")
def outline():
    """`outline(html)`: the page, parsed; its tags nest."""
    return parse


@pytest.fixture(scope="session")
def harmless():
    """`harmless(html)`: the same, and nothing in it runs or comes from outside."""
    return parse_harmless


@pytest.fixture(scope="session")
def records():
    """120 training records and 4 evaluations of a run that learns."""
    noise = random.Random(7)
    lines = []
    for index in range(1, 121):
        step = 10 * index
        share = index / 120
        loss = 4 + 5 * math.exp(-5 * share) + noise.gauss(0, 0.1)
        lines.append(
            {
                "event": "step",
                "step": step,
                "loss": loss + 0.6,
                "masked_lm_loss": loss,
                "masked_lm_accuracy": 0.4 * share,
                "sentence_order_loss": 0.69 - 0.2 * share,
                "sentence_order_accuracy": 0.5 + 0.25 * share,
                "learning_rate": 1e-3 * (1 - share),
                "grad_norm": 1.0,
                "tokens_per_second": 9000.0,
                "tokens": 4096 * step,
                "seconds": 0.5 * step,
            }
        )
        if index % 30 == 0:
            lines.append(
                {
                    "event": "eval",
                    "step": step,
                    "masked_lm_loss": loss,
                    "sentence_order_accuracy": 0.5 + 0.2 * share,
                }
            )
    return lines
