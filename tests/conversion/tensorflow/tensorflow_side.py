"""TensorFlow's half of `test_peer.py`; run by a Python that has TensorFlow, with a task and a folder.

`write` leaves checkpoints of TensorFlow's own making and what they hold, `read` reads `ours` with
TensorFlow's readers.
"""

import json
import os
import pickle
import sys
from pathlib import Path

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import numpy as np
import tensorflow as tf

MANY = 15_000  # more than three blocks of 256 KB
TYPES = "float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split()


def write(folder):
    rng = np.random.default_rng(0)
    values = {kind: tf.cast(tf.constant(rng.normal(size=(3, 5)) * 10), kind) for kind in TYPES}
    values["string"] = tf.constant([[b"", b"one"], [b"\xff\x00", b"long" * 1000]])
    values["scalar"], values["none"] = tf.constant(7, tf.int64), tf.zeros([0, 3])

    module = tf.Module()
    module.parent = module  # a cycle
    for name, value in values.items():
        setattr(module, name, tf.Variable(value, name=f"variable_{name}"))
    module.shared = module.float32
    tf.train.Checkpoint(model=module, again=module).write(str(folder / "object_graph/ckpt"))
    tf.saved_model.save(module, str(folder / "saved_model"))

    save = tf.raw_ops.SaveV2
    names = [f"model/layer_{i:05d}/kernel/.ATTRIBUTES/VARIABLE_VALUE" for i in range(MANY)]
    tensors = [tf.constant([i, -i], tf.int32) for i in range(MANY)]
    save(
        prefix=str(folder / "many"),
        tensor_names=names,
        shape_and_slices=[""] * MANY,
        tensors=tensors,
    )
    plain = sorted(set(values) - {"bfloat16"})
    tensors = [values[name] for name in plain]
    save(
        prefix=str(folder / "plain"),
        tensor_names=plain,
        shape_and_slices=[""] * len(plain),
        tensors=tensors,
    )

    parts = [str(folder / f"part-{i}") for i in range(3)]
    for i, part in enumerate(parts):
        tensors = [tf.fill([i + 1], i), tf.constant(0.5)]
        save(
            prefix=part, tensor_names=[f"a{i}", f"b{i}"], shape_and_slices=["", ""], tensors=tensors
        )
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=parts, destination_prefix=str(folder / "shards/x")
    )

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        v1 = tf.compat.v1
        v1.get_variable("bert/kernel", initializer=np.eye(3, dtype=np.float32))
        v1.train.get_or_create_global_step()
        slices = v1.fixed_size_partitioner(3)
        v1.get_variable(
            "partitioned", shape=(12, 3), partitioner=slices, initializer=v1.ones_initializer()
        )
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(folder / "saver/model.ckpt"), global_step=7)

    described = {}
    for name, value in values.items():
        array = tf.cast(value, tf.float32).numpy() if value.dtype == tf.bfloat16 else value.numpy()
        described[name] = (value.dtype.name, value.shape.as_list(), array.tolist())
    (folder / "values.pickle").write_bytes(pickle.dumps(described))


def read(folder):
    reader = tf.train.load_checkpoint(str(folder / "ours"))
    shapes = reader.get_variable_to_shape_map()
    types = reader.get_variable_to_dtype_map()
    values = {name: reader.get_tensor(name) for name in shapes}
    tensors = {
        name: (types[name].name, shapes[name], np.asarray(value).tolist())
        for name, value in values.items()
    }
    (folder / "found.pickle").write_bytes(pickle.dumps(tensors))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("kernel", shape=(2, 3))
        tf.compat.v1.train.Saver([variable]).restore(session, str(folder / "ours"))
        (folder / "restored.json").write_text(json.dumps(session.run(variable).tolist()))


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](Path(sys.argv[2]))
