"""Three epochs of 30 training batches, each followed by 10 validation batches, then a save."""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
x, y = rng.random((240, 16, 16, 3), dtype="f4"), rng.random((240, 1), dtype="f4")
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(240, seed=1).batch(8).prefetch(2)
validation = tf.data.Dataset.from_tensor_slices((x[:80], y[:80])).batch(8)
keras.utils.set_random_seed(0)
layers = [keras.layers.Conv2D(4, 3), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1)]
model = keras.Sequential([keras.layers.Input((16, 16, 3)), *layers])
model.compile("adam", "mse")
history = model.fit(train, epochs=3, validation_data=validation, verbose=0)
model.save("model.keras")
print({name: len(values) for name, values in history.history.items()})
