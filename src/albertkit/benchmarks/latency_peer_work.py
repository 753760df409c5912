"""How peers compute a work: sorted or not, padded, results in the order given. Part of `latency_peer.py`'s process."""

from functools import partial


def batches(work):  # type: ignore[no-untyped-def]
    """Places of the sequences of each batch, sorted by length if the work says so, the longest first."""
    lengths = [len(sequence) for sequence in work["sequences"]]
    places = list(range(len(lengths)))
    if work["by_length"]:
        places.sort(key=lambda place: -lengths[place])
    return [places[start : start + work["batch"]] for start in range(0, len(places), work["batch"])]


def padded(work, places):  # type: ignore[no-untyped-def]
    """ids and mask, int64 [N, longest]."""
    import numpy as np

    sequences = [work["sequences"][place] for place in places]
    ids = np.zeros((len(sequences), max(map(len, sequences))), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = 1
    return ids, mask


def doing(work, infer):  # type: ignore[no-untyped-def]
    """A run of a work, given what turns ids and mask into states."""
    import numpy as np

    if work["prepared"]:
        (places,) = batches(work)
        return partial(infer, *padded(work, places))

    def run():  # type: ignore[no-untyped-def]
        states = None
        for places in batches(work):
            found = infer(*padded(work, places))
            states = np.empty((len(work["sequences"]), found.shape[-1]), np.float32) if states is None else states
            states[places] = found
        return states

    return run
