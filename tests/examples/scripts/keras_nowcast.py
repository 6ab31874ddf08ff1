"""Trains a small Keras model with ``fit`` on TFRecord files through tf.data."""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

SHAPE = (64, 64, 4)


def write_records(path, count):
    generator = np.random.default_rng(0)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(count):
            field = generator.random(SHAPE, dtype="f4")
            features = {
                "field": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[tf.io.serialize_tensor(field).numpy()])
                ),
                "rain": tf.train.Feature(
                    float_list=tf.train.FloatList(value=[float(field.mean())])
                ),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def parse(example):
    features = {
        "field": tf.io.FixedLenFeature([], tf.string),
        "rain": tf.io.FixedLenFeature([1], tf.float32),
    }
    parsed = tf.io.parse_single_example(example, features)
    field = tf.io.parse_tensor(parsed["field"], tf.float32)
    return tf.ensure_shape(field, SHAPE), parsed["rain"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("rain.tfrecord"))
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    if not arguments.data.exists():
        write_records(arguments.data, 256)

    keras.utils.set_random_seed(3)
    dataset = (
        tf.data.TFRecordDataset(str(arguments.data))
        .shuffle(64, seed=3)
        .map(parse, num_parallel_calls=2)
        .batch(8)
        .prefetch(2)
    )
    model = keras.Sequential(
        [
            keras.layers.Input(SHAPE),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer="adam", loss="mse")
    history = model.fit(dataset, epochs=arguments.epochs, verbose=0)
    for epoch, loss in enumerate(history.history["loss"]):
        print(f"epoch {epoch}: loss {loss:.5f}")


if __name__ == "__main__":
    main()
