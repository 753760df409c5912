"""Batches that are copied one update ahead: the same batches, a state that knows what is ahead, and who waits for whom."""

from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from small_loop import CountingStream, train_small, weights

from albertkit.training import loop
from albertkit.training.loop import CudaCopies, Feed

CPU = torch.device("cpu")


class LateCopies:
    """Copies hold zeros until somebody waits for them, and again when they may be reused: a device that is slow and hasty."""

    def __init__(self):
        self.last_sent = []
        self.coming = []

    def send(self, batches):
        late = [batch._map_tensors(torch.zeros_like) for batch in batches]

        def arrive():
            self.last_sent = late
            for copy, batch in zip(late, batches, strict=True):
                copy.input_ids.copy_(batch.input_ids)
                copy.offsets.copy_(batch.offsets)

        return late, arrive

    def allow_reuse(self):
        for copy in self.last_sent:
            copy.input_ids.zero_()


@pytest.mark.parametrize("copies", [None, LateCopies()])
def test_the_batches_and_states_are_the_streams_own(copies):
    feed = Feed(CountingStream(split=True), CPU, copies)
    stream = CountingStream(split=True)
    for number in range(1, 6):
        assert feed.state() == stream.state()
        batches = next(feed)
        expected = next(stream)
        if number != 3:  # whether the loop asks for the next ones early or not
            feed.send_next()
        assert [batch.input_ids.tolist() for batch in batches] == [
            batch.input_ids.tolist() for batch in expected
        ]
        assert feed.state() == stream.state()
    for source in (feed, stream):
        source.restore({"cursor": 2})
    assert next(feed)[0].input_ids.tolist() == next(stream)[0].input_ids.tolist()


def test_a_training_fed_ahead_is_the_same_and_resumes_to_the_bit(tmp_path, monkeypatch):
    def trained(name, steps, **how):
        model, _ = train_small(
            tmp_path / name, steps=steps, save_every=3, schedule="constant", **how
        )
        return weights(model)

    expected = trained("plain", 7)
    monkeypatch.setattr(loop, "Feed", lambda stream, device: Feed(stream, device, LateCopies()))
    assert torch.equal(trained("ahead", 7), expected)
    trained("cut", 3)
    assert torch.equal(trained("cut", 7, resume=True), expected)


def test_who_waits_for_whom_on_cuda(monkeypatch):
    """The calls of `CudaCopies`, with streams that write down what they are asked."""
    calls = []
    current = ["compute"]

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_event(self, event):
            calls.append(f"{self.name} waits for {event.after}")

    class Event:
        def record(self, stream=None):
            self.after = f"{stream.name if stream else current[-1]} after {len(calls)}"

    @contextmanager
    def within(stream):
        current.append(stream.name)
        yield
        current.pop()

    def batch(number):
        def pin_memory():
            return SimpleNamespace(to=partial(copied, number))

        return SimpleNamespace(pin_memory=pin_memory)

    def copied(number, device, non_blocking):
        assert non_blocking
        calls.append(f"copy {number} on {current[-1]}")
        return number

    fakes = dict(
        Stream=lambda _: Stream("copies"),
        Event=Event,
        stream=within,
        current_stream=lambda _: Stream(current[-1]),
    )
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    numbers = iter(range(9))
    Batches = type(
        "Batches", (), {"__next__": lambda _: [batch(next(numbers))], "state": lambda _: {}}
    )
    feed = Feed(Batches(), torch.device("cuda:0"), CudaCopies(torch.device("cuda:0")))
    for _ in range(2):
        assert len(next(feed)) == 1
        calls.append("compute")
        feed.send_next()
    assert calls == [
        "copies waits for compute after 0",
        "copy 0 on copies",
        "compute waits for copies after 2",
        "compute",
        # Batch 1 is copied beside: it waits for what was asked before batch 0 was given, not for
        # what reads batch 0.
        "copies waits for compute after 2",
        "copy 1 on copies",
        "compute waits for copies after 6",
        "compute",
        "copies waits for compute after 6",
        "copy 2 on copies",
    ]
