"""Runs somebody else's `create_pretraining_data.py` in a process of its own and prints how long its own function took.

It is run by another interpreter (TensorFlow 1.15 ends at Python 3.7), so it knows nothing of albertkit.
Argument: a JSON object with `folder` (a checkout of google-research/albert; empty for the Model Garden's
script), `flags`, and `output` (the TFRecord file to be read back). Prints one JSON object as its last line.
"""

import json
import sys
import time
import types


def load(folder):  # type: ignore[no-untyped-def]
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


def count(path):  # type: ignore[no-untyped-def]
    """Examples, real tokens and predictions in a TFRecord file."""
    import tensorflow as tf

    totals = {"examples": 0, "tokens": 0, "predictions": 0}
    for record in tf.compat.v1.io.tf_record_iterator(path):
        features = tf.train.Example.FromString(record).features.feature
        totals["examples"] += 1
        totals["tokens"] += sum(features["input_mask"].int64_list.value)
        totals["predictions"] += int(sum(features["masked_lm_weights"].float_list.value))
    return totals


def main():  # type: ignore[no-untyped-def]
    """Time the script's own `main`, imports excluded."""
    job = json.loads(sys.argv[1])
    script = load(job["folder"])
    script.FLAGS(["create_pretraining_data", *job["flags"]])
    start = time.perf_counter()
    script.main(None)
    seconds = time.perf_counter() - start
    result = {"seconds": seconds}
    result.update(count(job["output"]))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
