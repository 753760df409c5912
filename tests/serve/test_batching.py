"""What is put into a batch: every sequence once, in its own request's place, and nobody waits behind a large request."""

import asyncio
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albertkit.batches.features import Features
from albertkit.serve.queue import SHARE, Queue, RequestJob, Sender

KEY = ("model", "embed")


def job(lengths, key=KEY, first=0, client=""):
    """Sequence n of length `lengths[n]` is made of the id first + n."""
    rows = [(np.full(length, first + number), length) for number, length in enumerate(lengths)]
    future = asyncio.new_event_loop().create_future()
    return RequestJob(
        key, Features.from_sequences(rows, range(len(rows))), future, sender=Sender(client)
    )


def computed(batch):
    """The outputs of a worker that says the first id of each sequence."""
    content = batch.content()
    return content.input_ids[content.offsets[:-1]].tolist()


def drain(queue):
    batches = []
    while (batch := queue.next_batch()) is not None:
        batches.append(batch)
        batch.distribute_outputs(computed(batch))
    return batches


@given(
    st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=30), min_size=1, max_size=8),
    st.integers(1, 200),
    st.integers(1, 3),
)
def test_every_request_gets_its_own_outputs_in_order(requests, batch_tokens, pipelines):
    queue = Queue(batch_tokens)
    keys = [("model", str(number % pipelines)) for number in range(len(requests))]
    jobs = [
        job(lengths, key, 1000 * number)
        for number, (lengths, key) in enumerate(zip(requests, keys, strict=True))
    ]
    for request in jobs:
        queue.add(request)
    assert queue.tokens == sum(map(sum, requests))
    for batch in drain(queue):
        assert batch.tokens <= batch_tokens or batch.sequences == 1
        assert {part.job.key for part in batch.parts} == {batch.key}
    assert queue.tokens == 0
    for number, (request, lengths) in enumerate(zip(jobs, requests, strict=True)):
        assert request.future.result() == [1000 * number + index for index in range(len(lengths))]


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(1, 40), min_size=1)),
        min_size=1,
        max_size=8,
    )
)
def test_tokens_that_wait_are_known_of_each_client(requests):
    queue = Queue(100)
    jobs = [job(lengths, client=str(client)) for client, lengths in requests]
    for request in jobs:
        queue.add(request)
    lost = queue.next_batch()
    queue.next_batch()
    queue.put_back(lost)
    queue.discard(jobs[0])
    while queue.rows:
        (row,) = queue.rows.values()
        expected = Counter()
        for request in queue:
            expected[request.sender.client] += sum(
                request.ends[stop] - request.ends[start] for start, stop in request.todo
            )
        assert row.tokens == expected
        assert {client: list(row.jobs_of_client(client)) for client in expected} == {
            client: [request for request in queue if request.sender.client == client]
            for client in expected
        }
        queue.next_batch()
    assert queue.tokens == 0


def test_small_requests_share_a_batch():
    queue = Queue(4096)
    for number in range(64):
        queue.add(job([20], first=number))
    (batch,) = drain(queue)
    assert len(batch.jobs) == 64
    assert batch.sequences == 64
    assert batch.tokens == 64 * 20


def test_a_small_request_does_not_wait_behind_a_large_one():
    queue = Queue(800)
    large = job([20] * 2000)
    small = job([20])
    queue.add(large)
    queue.add(small)
    first = queue.next_batch()
    assert small in first.jobs
    large_parts = [part.tokens for part in first.parts if part.job is large]
    assert max(large_parts) <= 800 // SHARE
    assert sum(large_parts) == 800 - 20


def test_pipelines_take_turns():
    queue = Queue(100)
    for key in (("model", "tag"), ("model", "embed")):
        queue.add(job([50] * 6, key))
    assert [batch.key[1] for batch in drain(queue)] == ["tag", "embed"] * 3


def test_calls_are_alone():
    queue = Queue(4096)
    for number in range(2):
        queue.add(
            RequestJob(
                ("model", "passes"), {"text": str(number)}, asyncio.new_event_loop().create_future()
            )
        )
    first = queue.next_batch()
    second = queue.next_batch()
    assert first.content() == {"text": "0"}
    assert second.content() == {"text": "1"}
    assert queue.next_batch() is None


@pytest.mark.parametrize("answered", [0, 1, 2])
def test_what_a_dead_worker_had_comes_first_again(answered):
    queue = Queue(100)
    jobs = [job([30] * 5, first=10), job([30] * 3, first=20), job([7], first=30)]
    for request in jobs:
        queue.add(request)
    for _ in range(answered):
        batch = queue.next_batch()
        batch.distribute_outputs(computed(batch))
    lost = [queue.next_batch(), queue.next_batch()]
    before = queue.tokens
    for batch in reversed([batch for batch in lost if batch]):
        queue.put_back(batch)
    assert queue.tokens == before + sum(batch.tokens for batch in lost if batch)
    drain(queue)
    assert [request.future.result() for request in jobs] == [
        [10, 11, 12, 13, 14],
        [20, 21, 22],
        [30],
    ]


def test_what_nobody_waits_for_is_not_computed():
    queue = Queue(100)
    abandoned = job([30] * 5)
    awaited = job([30])
    queue.add(abandoned)
    queue.add(awaited)
    queue.next_batch()
    queue.discard(abandoned)
    queue.discard(abandoned)
    assert queue.tokens == awaited.tokens
    assert all(batch.jobs == {awaited} for batch in drain(queue))
