"""Planted faults and healthy runs: what a case is, how it is run, how an answer is judged.

A case is a function with a decorator. It is given a ``Setting``, builds a small training in it and says what the right answer is::

    @fault("exp_of_features")
    def _(s):
        "Features of 12 and an exponential: above ln(65504) = 11.09 float16 gives Inf."
        n = s.size(4)                                        # another size in the renamed run
        bad = s.uniform((BATCH, n), 0.5, 1.0)
        bad[2, 1] = 12.0
        net = s.net(n, lambda x: s.tf.exp(x / 1.0 if s.cured else x))      # Dense "first" (identity), layer "hot", Dense "out"
        return Fault(
            Fit(net, good=s.uniform((BATCH, n), 0.5, 1.0), bad=bad, start=4),
            Truth("Exp", s.path("net", "hot", "Exp"), element=(2, 1), value=INF, start=4),
            Hand(inputs=[f16(bad)], output=np.exp(f16(bad))),
        )

What belongs to it:

* **Names and sizes** come from ``s.name("hot")`` and ``s.size(6)``: with seed 0 they are what is written, with another seed something else. ``s.path``
  joins renamed parts; what is no part of the case's own ("MatMul", "gradient_tape") passes through unchanged, unless it was given to ``s.name`` before.
* **The truth** is written down, never taken from the package under test. ``Hand`` proves it: the operator's inputs and output computed with numpy in
  float16. Its inputs must be finite and the first non-finite element of its output is the element (an ``element`` given in ``Truth`` as well must agree).
  For origins "data", "variable" and "constant" ``Hand.output`` is the batch, variable or literal: its first element that is non-finite or does not fit.
  Where hand computation says little, ``proof="…"`` in the decorator says what else proves it. Every fault's type and name are compared with what
  ``enable_check_numerics`` blames as well; a case in which that is wrong says why: ``@fault("…", numerics="blames the mask")``.
* **The cure**: with ``s.cured`` the case applies what the advice prints (or another fix of the operator named), and must be healthy: no report.
* **Graph tests and whole trainings**: most faults are judged by the record of one compiled step (``graph``), without ``fit`` and without a watch; those
  with ``whole=True`` (all of ``ways``) and all healthy runs are trained under watch, from the trigger to the report.
* **Names** are those of the graph. Besides the truth, each name that is reported is looked up in the graphs that TensorFlow really traced (``Graphs``).
* **Healthy runs** use ``@healthy("…")`` and return ``Healthy(training)``; they are run as they are, and with collection forced by ``at_steps``.
* **A training** is ``Fit`` (a compiled model; batches ``good`` before step ``start``, ``bad`` from then on), ``Steps`` (a loop of one tf.function a step) or,
  only for whole trainings, ``Loop`` (a function that trains by itself, run inside ``overflow_dump``; ``s.scaled`` and ``s.unscaled`` are the loss scaling of
  this Keras) or anything with ``train(**options) -> Outcome`` and ``run()``.
* Options of the watch for one case: ``@fault("…", options={"warmup": 20})``. Precision policy: ``policy="float32"``. Versions: ``versions=">=2.11"``.
* ``Fault(..., check=function)``: anything else that must hold, given the ``Outcome``, returns a list of complaints.

Cases live in modules of this folder that ``MODULES`` lists. ``python -m tests.faults`` prints the table, ``test_faults.py`` runs them as tests.
"""
from __future__ import annotations

import contextlib
import gc
import importlib
import io
import logging
import math
import random as python_random
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

__all__ = ["BATCH", "CASES", "INF", "MODULES", "NAN", "Case", "Fault", "Fit", "Hand", "Healthy", "Loop", "Outcome", "Setting", "Truth", "f16", "fault",
           "healthy", "judge", "judge_healthy", "load", "numerics", "prove", "run", "under_policy"]

#: modules with cases, those that exist are loaded
MODULES = ("forward", "harder", "healthy", "backward", "origins", "ways", "python")

BATCH = 4
STEPS = 9
SEED = 20  # of the renamed and reshaped run
INF, NAN = math.inf, math.nan

#: quick to trigger and to collect; a case can set others
OPTIONS: Mapping[str, Any] = {"patience": 2, "window": 40, "warmup": 0, "keep": 1, "verbose": 1, "language": "en"}


def f16(values: Any) -> Any:
    """As float16, the way a cast does it: silently, to Inf where it does not fit."""
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(np.float16)


# --- what a case says ---------------------------------------------------------------------------------------------------------------


@dataclass
class Truth:
    """The right answer.

    Args:
        op_type, op_name: of the operator to blame, or the first consumer of a variable, batch or literal.
        phase: "forward" or "backward".
        origin: "operator", "variable", "data" or "constant".
        element: index of the first bad element of the output (of the batch, variable or literal); None: what ``Hand`` finds.
        value: that element; None: what ``Hand`` finds.
        start: the first step with the fault. The loss scale must fall in it for the first time (where one skips the step), and no
            earlier step may be blamed.
        source: name of the variable or batch.
        cured_by_scale: whether a lower loss scale would cure it; None: not compared.
        advice: a code, or several, that must be among the advice; None: not compared.
        forward_op: full name of the forward operator of one of the backward pass; None: not compared.
        or_reason: the report may also name nobody and give this reason, because only the compiled step overflows.
        falls: whether the loss scale tells of the fault (False without loss scaling).
        eager: whether the operator runs eagerly: no graph has its name.
    """

    op_type: str
    op_name: str
    phase: str = "forward"
    origin: str = "operator"
    element: Optional[Tuple[int, ...]] = None
    value: Optional[float] = None
    start: int = 0
    source: Optional[str] = None
    cured_by_scale: Optional[bool] = None
    advice: Union[str, Tuple[str, ...], None] = None
    forward_op: Optional[str] = None
    or_reason: Optional[str] = None
    falls: bool = True
    eager: bool = False

    @property
    def advices(self) -> Tuple[str, ...]:
        """``advice`` as a tuple."""
        return (self.advice,) if isinstance(self.advice, str) else self.advice or ()


@dataclass
class Hand:
    """The operator by hand: its inputs and the output that carries the fault, as numpy arrays of the types it works in."""

    inputs: Sequence[Any]
    output: Any


@dataclass
class Fault:
    """A training with a fault, and the truth about it."""

    training: Any
    truth: Truth
    hand: Optional[Hand] = None
    check: Optional[Callable[[Outcome], List[str]]] = None


@dataclass
class Healthy:
    """A training in which nothing is to be blamed."""

    training: Any
    check: Optional[Callable[[Outcome], List[str]]] = None


@dataclass
class Outcome:
    """What a training under watch gave."""

    reports: List[Any]
    drops: List[Tuple[int, float, float]]
    state: str
    said: str  # stderr: the watch's own words and what it logged
    printed: str  # stdout


@dataclass
class Case:
    """One registered case."""

    name: str
    kind: str
    build: Callable[[Setting], Any]
    module: str
    policy: str = "mixed_float16"
    versions: Optional[str] = None
    options: Mapping[str, Any] = field(default_factory=dict)
    numerics: Optional[str] = None
    proof: Optional[str] = None
    forced: Tuple[int, ...] = (2, 3, 4)
    whole: bool = False

    @property
    def about(self) -> str:
        """The case in one line."""
        return " ".join((self.build.__doc__ or "").split())

    def variants(self) -> Tuple[str, ...]:
        """The ways in which it is run."""
        if self.kind == "healthy":
            return ("plain", "forced")
        return ("plain", "cured") if self.whole else ("plain", "renamed", "cured")

    @property
    def is_graph_test(self) -> bool:
        """Whether it is judged by the record of one step (see ``graph``); else by a whole training under watch."""
        return self.kind == "fault" and not self.whole

    def runs_here(self) -> bool:
        """Whether this TensorFlow is among its versions."""
        if self.versions is None:
            return True
        import tensorflow as tf
        from packaging.specifiers import SpecifierSet

        return SpecifierSet(self.versions).contains(tf.__version__, prereleases=True)


CASES: Dict[str, Case] = {}


def _register(kind: str, name: str, **details: Any) -> Callable[[Callable[[Setting], Any]], Callable[[Setting], Any]]:
    def register(build: Callable[[Setting], Any]) -> Callable[[Setting], Any]:
        if name in CASES and CASES[name].build.__module__ != build.__module__:
            raise ValueError("two cases are called %r" % name)
        CASES[name] = Case(name, kind, build, build.__module__.rpartition(".")[2], **details)
        return build

    return register


def fault(name: str, **details: Any) -> Callable[[Callable[[Setting], Any]], Callable[[Setting], Any]]:
    """Register a planted fault; ``details`` are fields of ``Case``."""
    return _register("fault", name, **details)


def healthy(name: str, **details: Any) -> Callable[[Callable[[Setting], Any]], Callable[[Setting], Any]]:
    """Register a healthy run; ``details`` are fields of ``Case``."""
    return _register("healthy", name, **details)


def load() -> List[Case]:
    """All cases of all modules, in order."""
    package = __name__.rpartition(".")[0]
    for module in MODULES:
        name = "%s.%s" % (package, module) if package else module
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    return list(CASES.values())


# --- where a case is built ----------------------------------------------------------------------------------------------------------


class Setting:
    """One build of a case: the Keras at hand, names and sizes by seed, cured or not.

    Attributes:
        tf, keras: the modules.
        keras3: whether this Keras is version 3: where names differ, a case says so with the reason.
        cured: apply the fix.
        random: a numpy generator with the build's seed.
    """

    def __init__(self, seed: int = 0, cured: bool = False) -> None:
        import tensorflow as tf

        self.tf, self.keras = tf, tf.keras
        self.keras3 = tf.keras.__version__.startswith("3.") if hasattr(tf.keras, "__version__") else False
        self.version = tuple(int(part) for part in tf.__version__.split(".")[:2])
        self.seed, self.cured = seed, cured
        self.random = np.random.RandomState(1000 + seed)
        self._python_random = python_random.Random(seed)
        self._names: Dict[str, str] = {}
        self.sizes: List[int] = []  # what ``size`` gave, in order

    # --- names, sizes, numbers ----------------------------------------------------------------------------------------------------

    def name(self, base: str) -> str:
        """The name of a layer, model or input in this build."""
        if base not in self._names:
            letters = "".join(self._python_random.choice("bcdfghjkmpqrtvwxz") for _ in range(4))
            self._names[base] = base if not self.seed else "%s%d" % (letters, self._python_random.randrange(100))
        return self._names[base]

    def path(self, *parts: str) -> str:
        """Full name of an operator: parts that went through ``name`` are renamed; "a/b" counts as two."""
        return "/".join(self._names.get(part, part) for part in "/".join(parts).split("/"))

    def size(self, base: int) -> int:
        """A dimension in this build."""
        self.sizes.append(base if not self.seed else base + self._python_random.randrange(1, 4))
        return self.sizes[-1]

    def at(self, *shape: int) -> Tuple[int, ...]:
        """An element of a tensor of that shape: some fixed one with seed 0, another with another seed."""
        return tuple(min(i + 1, n - 1) if not self.seed else self._python_random.randrange(n) for i, n in enumerate(shape))

    def uniform(self, shape: Sequence[int], low: float = 0.5, high: float = 1.0) -> Any:
        """A float32 array of values that do no harm."""
        return self.random.uniform(low, high, tuple(shape)).astype(np.float32)

    # --- layers and models --------------------------------------------------------------------------------------------------------

    def constant(self, values: Any) -> Callable[..., Any]:
        """An initializer that gives these values."""
        array, tf = np.asarray(values), self.tf

        def initial(shape: Any, dtype: Any = None, **ignored: Any) -> Any:
            return tf.constant(np.broadcast_to(array, tuple(shape)), tf.as_dtype(dtype or "float32"))

        return initial

    def dense(self, name: str, kernel: Any, bias: Optional[Any] = None, **details: Any) -> Any:
        """A Dense layer with this kernel."""
        kernel = np.asarray(kernel, np.float32)
        more = {"use_bias": False} if bias is None else {"bias_initializer": self.constant(bias)}
        return self.keras.layers.Dense(kernel.shape[1], kernel_initializer=self.constant(kernel), name=self.name(name), **dict(more, **details))

    def layer(self, name: str, call: Callable[..., Any], **details: Any) -> Any:
        """A layer that computes ``call(inputs)`` with operators of TensorFlow."""

        class Raw(self.keras.layers.Layer):  # type: ignore[misc, name-defined]
            def call(self, inputs: Any) -> Any:
                return call(inputs)

            def compute_output_shape(self, shape: Any) -> Any:  # Keras 3 finds shapes by tracing ``call``; Keras 2 never asks
                return shape

        if self.keras3:
            del Raw.compute_output_shape
        return Raw(name=self.name(name), **details)

    def net(self, features: Any, body: Callable[..., Any], out: float = 1e-3, hot: Optional[Mapping[str, Any]] = None, units: int = 1) -> Any:
        """Model "net": Dense "first" hands the features on (identity), layer "hot" computes ``body``, Dense "out" (float32) sums with weight ``out``.

        Args:
            features: their number, or the shape of one example.
            hot: details of the layer "hot", such as ``{"dtype": "float32"}``.
        """
        shape = features if isinstance(features, tuple) else (features,)
        inputs = self.keras.Input(shape, name=self.name("features"))
        h = self.dense("first", np.eye(shape[-1]))(inputs)
        h = self.layer("hot", body, **dict(hot or {}))(h)
        return self.model(inputs, self.head(h, out, units))

    def head(self, h: Any, out: float = 1e-3, units: int = 1) -> Any:
        """Dense "out" in float32 with small weights, whatever the shape."""
        fixed = self.keras.initializers.Constant(out)
        return self.keras.layers.Dense(units, kernel_initializer=fixed, use_bias=False, dtype="float32", name=self.name("out"))(h)

    def model(self, inputs: Any, outputs: Any, name: str = "net") -> Any:
        """A functional model."""
        return self.keras.Model(inputs, outputs, name=self.name(name))

    # --- optimizers and loss scaling ----------------------------------------------------------------------------------------------

    def optimizer(self, scale: Optional[float] = 16.0, inner: Optional[Any] = None, growth: int = 2000) -> Any:
        """A dynamic loss-scale optimizer (``scale`` None: the plain one); slow, so that weights stay those of the hand computation.

        The scale is low, so that what is planted in the forward pass is the only fault; faults of the backward pass choose a higher one.
        """
        inner = inner or self.keras.optimizers.SGD(1e-20)
        if scale is None:
            return inner
        scaling = self.keras.mixed_precision.LossScaleOptimizer
        try:
            return scaling(inner, initial_scale=scale, dynamic_growth_steps=growth)
        except TypeError:
            return scaling(inner, dynamic=True, initial_scale=scale, dynamic_growth_steps=growth)

    def scaled(self, optimizer: Any, loss: Any) -> Any:
        """The loss times the loss scale."""
        return optimizer.get_scaled_loss(loss) if hasattr(optimizer, "get_scaled_loss") else optimizer.scale_loss(loss)

    def unscaled(self, optimizer: Any, gradients: Any) -> Any:
        """Gradients as ``apply_gradients`` wants them (Keras 3 divides by the scale itself)."""
        return optimizer.get_unscaled_gradients(gradients) if hasattr(optimizer, "get_unscaled_gradients") else gradients

    def compile(self, model: Any, loss: Any = "mse", optimizer: Optional[Any] = None, **details: Any) -> Any:
        """Compile a model. Without XLA, whose fused kernels keep float16 intermediates in float32."""
        given = dict({"jit_compile": False} if self.version >= (2, 12) else {}, **details)
        model.compile(optimizer if optimizer is not None else self.optimizer(), loss, **given)
        return model


# --- trainings ----------------------------------------------------------------------------------------------------------------------


#: what runs one step by its number, the model, the optimizer
Stepwise = Tuple[Callable[[int], None], Any, Any]


class Fit:
    """``fit`` over batches in order: ``good`` before step ``start``, ``bad`` from then on (both arrays or structures of arrays).

    Args:
        model: compiled by the kit if it is not.
        targets: of one batch; None: zeros of shape (batch, 1).
        batches: all batches instead, a list of (x, y).
        details: further arguments of ``fit``.
    """

    def __init__(self, model: Any, good: Any = None, bad: Any = None, start: int = 0, steps: int = STEPS, targets: Any = None,
                 batches: Optional[List[Tuple[Any, Any]]] = None, setting: Optional[Setting] = None, **details: Any) -> None:
        if getattr(model, "optimizer", None) is None:
            (setting or Setting()).compile(model)
        if batches is None:
            first = good if good is not None else bad
            count = len(_leaves(first)[0])
            targets = np.zeros((count, 1), np.float32) if targets is None else targets
            later = bad if bad is not None else first
            batches = [(first if step < start else later, targets) for step in range(steps)]
        self.model, self.batches, self.details = model, batches, details

    def run(self, callbacks: Sequence[Any] = ()) -> None:
        """Train once."""
        x = _stacked([batch[0] for batch in self.batches])
        y = _stacked([batch[1] for batch in self.batches])
        size = len(_leaves(self.batches[0][0])[0])
        given = dict({"batch_size": size, "shuffle": False, "verbose": 0}, **self.details)
        self.model.fit(x, y, callbacks=list(callbacks), **given)

    def before(self, step: int) -> None:
        """Called with the number of each step that is about to run."""

    def stepwise(self) -> Stepwise:
        """The compiled function that ``fit`` calls, fed with one batch at a time."""
        import tensorflow as tf

        model, weights = self.model, self.details.get("sample_weight")
        given = []
        for i, batch in enumerate(self.batches):
            size = len(_leaves(batch[0])[0])
            more = () if weights is None else (weights[i * size : (i + 1) * size],)
            batch = tf.nest.map_structure(_as_fit_takes_it, (*batch, *more))
            given.append(tf.data.Dataset.from_tensor_slices(batch).batch(size))
        symbolic = getattr(model, "_maybe_symbolic_build", None)
        if symbolic is not None:
            symbolic(data_batch=next(iter(given[0])))
        if model.built and hasattr(model.optimizer, "build"):
            # the first trace would make its variables, which takes a second trace
            model.optimizer.build(model.trainable_variables)
        model.make_train_function()

        def call(step: int) -> None:
            self.before(step)
            model.train_function(iter(given[step]))

        return call, model, model.optimizer

    def train(self, **options: Any) -> Outcome:
        """Train once under watch."""
        import npu_overflow

        watch = npu_overflow.OverflowWatch(**options)
        with listening() as (said, printed):
            self.run([watch])
        return Outcome(watch.reports, watch.drops, watch.state, said.getvalue(), printed.getvalue())


class Loop:
    """A training of the user's own: ``run()`` does all of it. Run inside ``overflow_dump``; a ``run`` with a parameter is given the watch (None without)."""

    def __init__(self, run: Callable[..., None]) -> None:
        self._run = run
        self._wants_watch = bool(run.__code__.co_argcount - len(run.__defaults__ or ())) if hasattr(run, "__code__") else False

    def run(self, watch: Any = None) -> None:
        """Train once."""
        self._run(*([watch] if self._wants_watch else []))

    def train(self, **options: Any) -> Outcome:
        """Train once under watch."""
        import npu_overflow

        with listening() as (said, printed), npu_overflow.overflow_dump(**options) as watch:
            self.run(watch)
        return Outcome(watch.reports, watch.drops, watch.state, said.getvalue(), printed.getvalue())


class Steps(Loop):
    """A loop whose steps are calls of one function: ``step(batch)``, compiled as a tf.function.

    Args:
        optimizer: whose loss scale tells of overflows.
        before: called with the number of each step that is about to run.
    """

    def __init__(
        self,
        s: Setting,
        step: Callable[[Any], Any],
        batches: Sequence[Any],
        optimizer: Any,
        before: Callable[[int], None] = lambda step: None,
    ) -> None:
        def run() -> None:
            call, _, _ = self.stepwise()
            for i in range(len(batches)):
                call(i)

        super().__init__(run)
        self._tf, self._step, self._batches = s.tf, step, batches
        self._optimizer, self._before = optimizer, before

    def stepwise(self) -> Stepwise:
        """The function of one step."""
        compiled = self._tf.function(self._step)

        def call(step: int) -> None:
            self._before(step)
            compiled(self._tf.constant(self._batches[step]))

        return call, None, self._optimizer


def _leaves(structure: Any) -> List[Any]:
    if isinstance(structure, dict):
        return [leaf for key in sorted(structure) for leaf in _leaves(structure[key])]
    if isinstance(structure, (list, tuple)):
        return [leaf for item in structure for leaf in _leaves(item)]
    return [structure]


def _as_fit_takes_it(array: Any) -> Any:
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def _stacked(batches: List[Any]) -> Any:
    first = batches[0]
    if isinstance(first, dict):
        return {key: _stacked([batch[key] for batch in batches]) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(_stacked([batch[i] for batch in batches]) for i in range(len(first)))
    return np.concatenate(batches)


@contextlib.contextmanager
def listening() -> Iterator[Tuple[io.StringIO, io.StringIO]]:
    """Collects what goes to stderr and stdout, and what the package logs."""
    said, printed = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setLevel(logging.WARNING)
    logger = logging.getLogger("npu_overflow")
    logger.addHandler(handler)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
            yield said, printed
    finally:
        logger.removeHandler(handler)


# --- running and judging ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def under_policy(name: str) -> Iterator[None]:
    """A cleared, seeded Keras under a precision policy, as it was afterwards."""
    import tensorflow as tf

    keras = tf.keras
    modern = hasattr(keras, "config") and hasattr(keras.config, "set_dtype_policy")
    set_policy = keras.config.set_dtype_policy if modern else keras.mixed_precision.set_global_policy
    keras.backend.clear_session()
    # what lives by now stays (TensorFlow, and graphs that Keras never lets go): nobody looks through it again
    gc.freeze()
    np.random.seed(7)
    python_random.seed(7)
    tf.random.set_seed(7)
    set_policy(name)
    try:
        yield
    finally:
        set_policy("float32")


def build(case: Case, variant: str) -> Any:
    """The case's Fault or Healthy in one of its variants; under its policy (see ``run``)."""
    return case.build(Setting(seed=SEED if variant == "renamed" else 0, cured=variant == "cured"))


def run(case: Case, variant: str, dump_path: str) -> List[str]:
    """Run a case in one variant and judge what the package says.

    Returns:
        what is wrong, in words; empty where all is right.
    """
    if case.is_graph_test and variant != "forced":
        from . import graph

        return graph.run(case, variant, dump_path)
    with under_policy(case.policy), Graphs() as graphs:
        built = build(case, variant)
        options = dict(OPTIONS, **case.options)
        options["dump_path"] = dump_path
        if variant == "forced":
            options["at_steps"] = case.forced
        faulty = case.kind == "fault" and variant != "cured"
        wrong = prove(built) if faulty else []
        outcome = built.training.train(**options)
        if faulty:
            wrong += judge(built.truth, outcome, graphs)
        else:
            wrong += judge_healthy(outcome, asked="at_steps" in options)
        if built.check is not None and variant != "cured":
            wrong += built.check(outcome)
        return wrong


def prove(built: Fault) -> List[str]:
    """Check the truth by the hand computation, and complete its element and value."""
    hand, truth = built.hand, built.truth
    if hand is None:
        return []
    wrong = ["by hand, input %d is not finite" % i for i, item in enumerate(hand.inputs) if not np.isfinite(np.asarray(item, np.float64)).all()]
    output = np.asarray(hand.output, np.float64)
    with np.errstate(invalid="ignore"):
        bad = ~np.isfinite(output) if truth.origin == "operator" or not np.isfinite(output).all() else ~(np.abs(output) < 65520.0)
    if not bad.any():
        return [*wrong, "by hand, nothing overflows"]
    place = tuple(int(i) for i in np.unravel_index(int(np.flatnonzero(bad.reshape(-1))[0]), output.shape)) if output.ndim else ()
    value = float(output[place])
    if truth.element is not None and tuple(truth.element) != place:
        wrong.append("by hand, the element is %s, the case says %s" % (place, truth.element))
    if truth.value is not None and not _equal(truth.value, value):
        wrong.append("by hand, the value is %r, the case says %r" % (value, truth.value))
    truth.element, truth.value = place, value
    return wrong


def judge(truth: Truth, outcome: Outcome, graphs: Graphs) -> List[str]:
    """Compare what was reported with the truth, its name with the graphs that were traced as well."""
    wrong = _failures(outcome)
    if not outcome.reports:
        return [*wrong, "no report (state %s, %d drops): %s" % (outcome.state, len(outcome.drops), outcome.said.strip()[-600:])]
    report = outcome.reports[0]
    first = report.first
    if first is None and truth.or_reason is not None and report.reason == truth.or_reason:
        return wrong
    if first is None:
        return [*wrong, "nothing blamed: reason %s, remarks %s" % (report.reason, [remark.text for remark in report.remarks][:3])]
    for item in ("op_type", "op_name", "phase", "origin", "cured_by_scale", "forward_op"):
        wanted, found = getattr(truth, item), getattr(first, item)
        same = same_name(wanted, found) if item in ("op_name", "forward_op") else found == wanted
        if wanted is not None and not same:
            wrong.append("%s: expected %r, got %r" % (item, wanted, found))
    # what follows a step that was asked for, and that nothing skipped, is what it did to the weights
    others = [item for item in outcome.reports[1:] if not (item.first and item.first.origin == "variable")]
    if any(later.first is None or later.first.op_name != first.op_name for later in others):
        wrong.append("later reports blame another: %s" % [later.first and later.first.op_name for later in outcome.reports])
    if not truth.eager and not graphs.hold(first.op_name, first.op_type):
        wrong.append("no graph has a %s %r" % (first.op_type, first.op_name))
    wrong += _wrong_element(truth, first)
    if first.train_step is None or first.train_step < truth.start:
        wrong.append("train_step: expected %d or later, got %r" % (truth.start, first.train_step))
    if truth.falls and (not outcome.drops or outcome.drops[0][0] != truth.start):
        wrong.append("the loss scale was to fall first in step %d, its falls: %s" % (truth.start, outcome.drops[:2]))
    said = {*first.advice, *("keep_float32" for trial in first.trials if trial.change == "float32")}
    missing = [code for code in truth.advices if code not in said]
    if missing:
        wrong.append("advice: expected %s, got %s" % (missing, list(first.advice)))
    return wrong


def judge_healthy(outcome: Outcome, asked: bool = False) -> List[str]:
    """Nothing may be blamed, nothing warned of. Who asked for a step is told what was harmless."""
    wrong = _failures(outcome)
    for report in outcome.reports:
        first = report.first
        if asked and first is None and (report.reason == "absorbed" or report.headroom is not None):
            continue
        blamed = "%s %s (%s, %s)" % (first.op_type, first.op_name, first.phase, first.origin) if first else "nothing blamed, %s" % report.reason
        wrong.append("a report: %s" % blamed)
    if outcome.state != "watching" and not outcome.reports:
        wrong.append("state is %s: %s" % (outcome.state, outcome.said.strip()[-600:]))
    if "overflow is frequent" in outcome.said:
        wrong.append("triggered: %s" % outcome.said.strip()[-300:])
    return wrong


def _failures(outcome: Outcome) -> List[str]:
    signs = ("turned itself off", "Traceback", "npu_overflow: off", "can't be replayed")
    return ["failed: %s" % outcome.said.strip()[-1500:]] if any(sign in outcome.said for sign in signs) else []


def _wrong_element(truth: Truth, first: Any) -> List[str]:
    if truth.element is None and truth.value is None and truth.source is None:
        return []
    if truth.origin == "operator":
        found = next((tensor.first_overflow for tensor in first.outputs or () if tensor.first_overflow), None)
        element, value = (found["index"], found["value"]) if found else (None, None)
        source = None
    else:
        detail = first.origin_detail or {}
        element, value, source = detail.get("element"), detail.get("value"), detail.get("name")
    wrong = []
    if truth.element is not None and (element is None or tuple(element) != tuple(truth.element)):
        wrong.append("element: expected %s, got %s" % (truth.element, element))
    if truth.value is not None and not _equal(truth.value, value):
        wrong.append("value: expected %r, got %r" % (truth.value, value))
    if truth.source is not None and source != truth.source:
        wrong.append("source: expected %r, got %r" % (truth.source, source))
    return wrong


def _equal(one: Any, other: Any) -> bool:
    if isinstance(other, str):
        other = float(other)
    if one is None or other is None:
        return False
    return (math.isnan(one) and math.isnan(other)) or one == other or (math.isfinite(one) and abs(one - other) <= 1e-2 * abs(one))


def same_name(wanted: Optional[str], found: Optional[str]) -> bool:
    """Whether a graph's name is the one wanted, part by part: a graph numbers a scope that is opened
    twice ("net_1/hot_1"), the operator's own name counts as it is."""
    if wanted is None or found is None:
        return wanted == found
    (*scopes, own), (*numbered, its) = wanted.split("/"), found.split("/")
    return own == its and len(scopes) == len(numbered) and all(map(_same_scope, scopes, numbered))


def _same_scope(wanted: str, found: str) -> bool:
    beginning, _, number = found.rpartition("_")
    return found == wanted or (beginning == wanted and number.isdigit())


# --- the graphs that were really traced ------------------------------------------------------------

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


class Graphs:
    """All graphs of functions that are traced while it is entered, whatever traces them."""

    def __init__(self) -> None:
        self.traced: List[Any] = []

    def __enter__(self) -> Graphs:
        from tensorflow.python.framework import func_graph

        kind, traced = func_graph.FuncGraph, self.traced
        init, emptied = kind.__init__, func_graph.dismantle_func_graph

        def made(graph: Any, *args: Any, **details: Any) -> None:
            init(graph, *args, **details)
            traced.append(graph)

        def undo() -> None:
            kind.__init__, func_graph.dismantle_func_graph = init, emptied

        # without the second, graphs are emptied as soon as nobody can call their functions any more
        kind.__init__, func_graph.dismantle_func_graph = made, lambda graph: None
        self._undo = undo
        return self

    def __exit__(self, *error: Any) -> None:
        self._undo()
        self.traced.clear()

    def hold(self, name: str, op_type: str) -> bool:
        """Whether one of them has an operator of this name and type, inside the scopes of the calls
        that lead to it."""
        if not self.traced:
            return True  # in another process
        prefixes = {""}
        for graph in self.traced:
            calls = [op.name for op in graph.get_operations() if op.type in _CALLS]
            prefixes.update(call.rpartition("/")[0] + "/" for call in calls if "/" in call)
        return any(self._has(name[len(p):], op_type) for p in prefixes if name.startswith(p))

    def _has(self, name: str, op_type: str) -> bool:
        for graph in self.traced:
            try:
                if graph.get_operation_by_name(name).type == op_type:
                    return True
            except (KeyError, ValueError):
                continue
        return False


# --- the usual means, for comparison ------------------------------------------------------------------------------------------------


def numerics(case: Case) -> Tuple[Optional[Truth], Tuple[Optional[str], Optional[str]]]:
    """The truth of a case (None of a healthy one), and type and full name of the operator that
    ``tf.debugging.enable_check_numerics`` ends the training with; (None, None) if it does not.

    Run it in a process of its own (see ``__main__``): the first of several failing checks is only
    certain with one thread.
    """
    import tensorflow as tf
    from tensorflow.python.debug.lib import check_numerics_callback as callback

    from . import graph

    real = callback.get_check_numerics_error_message

    def named(slot: Any, count: Any, op_type: Any, tensor: Any, inputs: Any, graph: Any = None, **details: Any) -> Any:
        name = tensor.name if graph is not None else ""
        return "<<%s|%s>>%s" % (op_type, name.rpartition(":")[0], real(slot, count, op_type, tensor, inputs, graph=graph, **details))

    with under_policy(case.policy):
        built = build(case, "plain")
        truth = built.truth if case.kind == "fault" else None
        callback.get_check_numerics_error_message = named
        tf.debugging.enable_check_numerics()
        try:
            if case.is_graph_test:
                call, _, _ = built.training.stepwise()
                first, last = graph.steps_of(case, built.truth)
                for step in range(first, last + 1):
                    call(step)
            else:
                built.training.run()
        except tf.errors.InvalidArgumentError as error:
            text = str(error)
            if "<<" not in text:
                return truth, ("?", text[:200])
            op_type, _, op_name = text.partition("<<")[2].partition(">>")[0].partition("|")
            if op_type.startswith("b'"):
                op_type = op_type[2:-1]
            return truth, (op_type, op_name or "(eager)")
        finally:
            tf.debugging.disable_check_numerics()
            callback.get_check_numerics_error_message = real
    return truth, (None, None)
