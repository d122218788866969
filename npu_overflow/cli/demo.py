"""``npu-overflow demo``: a small float16 model on this machine that begins to overflow in a known
layer, under watch."""
from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import Any, Callable, Iterator, Tuple

from npu_overflow import messages
from npu_overflow.errors import MissingExtra
from npu_overflow.training import loss_scale

__all__ = ["ALIASES", "add_arguments", "run"]

ALIASES: Tuple[str, ...] = ()

BATCH, FEATURES = 16, 8
#: from this step on the batches are far larger: as when a feature is not normalised in part of the
#: data
HOT_FROM = 30
LAYER = "hot"
DEMO_PATH = os.path.join("precision_data", "demo", "dump")


def add_arguments(parser: argparse.ArgumentParser, say: Callable[..., str]) -> None:
    parser.add_argument("--quick", action="store_true", help=say("cli.demo.quick"))
    parser.add_argument(
        "--dump-path",
        default=DEMO_PATH,
        metavar="FOLDER",
        help=say("cli.demo.dump_path", default=DEMO_PATH),
    )
    parser.add_argument("--language", choices=messages.LANGUAGES, help=say("cli.language"))


def run(arguments: argparse.Namespace) -> int:
    language = arguments.language or messages.language_of_user()

    def say(code: str, **values: Any) -> None:
        sys.stdout.write(messages.say("cli.demo." + code, language, **values) + "\n")
        sys.stdout.flush()

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    say("starting")
    with _quiet():
        tensorflow = _tensorflow()
    from npu_overflow.training.watch import OverflowWatch

    steps = 60 if arguments.quick else 200
    keras = tensorflow.keras
    keras.mixed_precision.set_global_policy("mixed_float16")
    with _quiet():
        model = _model(keras)
    say("model", version=tensorflow.__version__, layer=LAYER, step=HOT_FROM)
    watch = OverflowWatch(
        dump_path=arguments.dump_path, language=language, max_reports=1, collector="host"
    )
    x, y = _data(steps)
    model.fit(
        x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[_ScaleLines(say, watch), watch]
    )
    found = watch.reports[0].first if watch.reports else None
    if found is None or LAYER not in str(found.op_name):
        say("wrong", layer=LAYER)
        return 1
    say("right", name=found.op_name, tree=watch.reports[0].path)
    return 0


def _tensorflow() -> Any:
    try:
        import tensorflow
    except ImportError as error:
        raise MissingExtra("demo.tensorflow") from error
    return tensorflow


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what TensorFlow's compiled part prints while it starts: it writes to the file
    descriptor."""
    sys.stderr.flush()
    try:
        saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:
        yield
        return
    try:
        os.dup2(null, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def _model(keras: Any) -> Any:
    """Three Dense layers; the one called "hot" has weights so large that features above 200
    overflow in float16."""
    import numpy as np

    inputs = keras.Input((FEATURES,), name="features")
    h = keras.layers.Dense(16, activation="relu", name="first")(inputs)
    h = keras.layers.Dense(8, name=LAYER)(h)
    model = keras.Model(
        inputs, keras.layers.Dense(1, dtype="float32", name="out")(h), name="demo_model"
    )
    random = np.random.RandomState(0)
    for name, size in (("first", 1.0), (LAYER, 30.0), ("out", 1e-4)):
        layer = model.get_layer(name)
        layer.set_weights(
            [
                size * random.uniform(0.5, 1.0, value.shape).astype(value.dtype)
                for value in layer.get_weights()
            ]
        )
    optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam(1e-5))
    model.compile(optimizer, "mse")
    return model


def _data(steps: int) -> Tuple[Any, Any]:
    import numpy as np

    x = np.random.RandomState(1).uniform(0.5, 1.0, (steps, BATCH, FEATURES)).astype(np.float32)
    x[HOT_FROM:] *= 300.0
    return x.reshape(-1, FEATURES), np.zeros((steps * BATCH, 1), np.float32)


class _ScaleLines:
    """A callback that prints the falls of the loss scale as they come; it stands before the watch,
    whose own lines follow its."""

    def __init__(self, say: Callable[..., None], watch: Any) -> None:
        self._say, self._watch, self._step = say, watch, 0

    def set_model(self, model: Any) -> None:
        self._reader = loss_scale.reader_for(model.optimizer)

    def on_train_begin(self, logs: Any = None) -> None:
        self._scale = self._read()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        scale = self._read()
        if scale < self._scale and not self._watch.reports:
            self._say("drop", step=self._step, before="%g" % self._scale, after="%g" % scale)
        self._step, self._scale = self._step + 1, scale

    def _read(self) -> float:
        reading = self._reader.read()
        return reading.scale if reading is not None else 0.0

    def __getattr__(self, name: str) -> Any:
        """All other hooks of Keras do nothing."""
        if name.startswith("on_") or name == "set_params":
            return lambda *args, **kwargs: None
        if name.startswith("_implements_"):
            return lambda: name == "_implements_train_batch_hooks"
        raise AttributeError(name)
