"""Run by a Python that has TensorFlow: restore a checkpoint into objects of TensorFlow's own, and save what was read.

Arguments: the prefix of the checkpoint, the npz file to write.
"""

import json
import sys

import numpy as np
import tensorflow as tf


def main(prefix, out):
    reader = tf.train.load_checkpoint(prefix)
    shapes = reader.get_variable_to_shape_map()
    keys = [key for key in shapes if key != "_CHECKPOINTABLE_OBJECT_GRAPH"]
    np.savez(out, **{key: reader.get_tensor(key) for key in keys})

    # The same objects as in the Model Garden: Python objects with attributes, some of them reached
    # by two paths.
    modules = {}

    def object_at(path):
        if path not in modules:
            modules[path] = tf.Module()
            above, _, name = path.rpartition("/")
            if above:
                setattr(object_at(above), name, modules[path])
        return modules[path]

    variables = {}
    for key in keys:
        path, _, _ = key.partition("/.ATTRIBUTES")
        if path == "save_counter":
            continue
        above, _, name = path.rpartition("/")
        variables[key] = tf.Variable(tf.zeros(shapes[key]))
        setattr(
            object_at(above), "bias" if name.startswith("output_bias") else name, variables[key]
        )
    head = variables["masked_lm/embedding_table/.ATTRIBUTES/VARIABLE_VALUE"]
    words = object_at("encoder/layer_with_weights-0")
    words.embeddings = head  # one variable, reached by two paths
    root = tf.train.Checkpoint(encoder=modules["encoder"], masked_lm=modules["masked_lm"])
    root.read(prefix).assert_existing_objects_matched()
    are_equal = all(
        np.array_equal(variable.numpy(), reader.get_tensor(key))
        for key, variable in variables.items()
    )
    table = head.numpy()
    # The encoder alone, as somebody restores it who fine-tunes: its words are found by its own
    # path.
    words.embeddings = tf.Variable(tf.zeros(head.shape))
    tf.train.Checkpoint(encoder=modules["encoder"]).read(
        prefix
    ).expect_partial().assert_existing_objects_matched()
    shared = bool(np.array_equal(words.embeddings.numpy(), table))
    print(json.dumps({"restored": "same" if are_equal else "differs", "shared": shared}))


if __name__ == "__main__":
    main(*sys.argv[1:])
