"""Somebody else's `create_pretraining_data.py`, timed without its imports.

It is run by another interpreter (TensorFlow 1.15 ends at Python 3.7). The job holds `folder` (a
checkout of google-research/albert; empty for the Model Garden's script), `flags`, and `output` (the
TFRecord file to be read back).
"""

import sys
import types

from benchmarks.peer_programs import protocol


def prepare(job, say):
    """Import the script; one run calls its `main`, another counts what it wrote."""
    script = load(job["folder"])
    script.FLAGS(["create_pretraining_data"] + job["flags"])
    return {"main": lambda: script.main(None), "count": lambda: count(job["output"])}, {
        "failed": {}
    }


def load(folder):
    """Import the script as a module."""
    if not folder:
        from official.nlp.data import create_pretraining_data

        return create_pretraining_data
    # The checkout's own imports say `from albert import ...`, whatever its folder's name.
    package = types.ModuleType("albert")
    package.__path__ = [folder]
    sys.modules["albert"] = package
    sys.path.insert(0, folder)
    from albert import create_pretraining_data

    return create_pretraining_data


def count(path):
    """Count examples, real tokens and predictions in a TFRecord file."""
    import tensorflow as tf

    totals = {"examples": 0, "tokens": 0, "predictions": 0}
    for record in tf.compat.v1.io.tf_record_iterator(path):
        features = tf.train.Example.FromString(record).features.feature
        totals["examples"] += 1
        totals["tokens"] += sum(features["input_mask"].int64_list.value)
        totals["predictions"] += int(sum(features["masked_lm_weights"].float_list.value))
    return totals


if __name__ == "__main__":
    protocol.answer(prepare)
