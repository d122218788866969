"""What every test stands on: which tests run here, a clean environment, a folder of its own.

Tests that need TensorFlow carry ``@pytest.mark.tensorflow`` or, for some versions only, ``@pytest.mark.tensorflow(">=2.11")``. They are skipped where
TensorFlow is absent or another version; nothing here imports it.
"""
from __future__ import annotations

import gc
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, Iterator, Optional

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

# ``python -m pytest`` puts "" or the working folder first on the path; tests change folder, so it must be absolute.
sys.path[:] = [os.path.abspath(entry) if entry in ("", ".") else entry for entry in sys.path]

_NAMES_ON_INDEX = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos", "tensorflow-aarch64", "tf-nightly")

#: what the package or a tool it uses reads, by beginning
_ENVIRONMENT = (
    *("ASCEND_", "CM_", "DUMP_G", "ENABLE_EXCEPTION_DUMP", "HCCL_", "NPU_", "PRECISION_TOOL_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TF_CONFIG"),
    *("MASTER_", "OMPI_COMM_WORLD_", "PMI_", "SLURM_"),
    *("CLICOLOR", "COLUMNS", "FORCE_COLOR", "JUPYTER_", "LANG", "LC_", "LINES", "NO_COLOR", "TTY_"),
)


def _package_folder() -> Optional[Path]:
    """The folder of ``npu_overflow`` that tests will import, found without importing it."""
    spec = importlib.util.find_spec("npu_overflow")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _tensorflow_version() -> Optional[Version]:
    """Version of the TensorFlow that ``import tensorflow`` would give, or None."""
    if importlib.util.find_spec("tensorflow") is None:
        return None
    if sys.version_info >= (3, 8):
        from importlib import metadata
    else:
        import importlib_metadata as metadata
    for name in _NAMES_ON_INDEX:
        try:
            return Version(metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
    import tensorflow  # a build of the user's own, without a name we know

    return Version(tensorflow.__version__)


def _choose_examples() -> None:
    """What must hold before a change lands must not hang on luck or load: there hypothesis takes
    the same examples each time, without deadlines, and half as many as elsewhere: the same ones
    again find nothing new."""
    if os.environ.get("HYPOTHESIS_PROFILE") == "reproducible":
        from hypothesis import settings

        settings.register_profile("reproducible", derandomize=True, deadline=None, max_examples=50)
        settings.load_profile("reproducible")


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    _choose_examples()
    folder = _package_folder()
    if folder is None:
        return
    source_tree = Path(__file__).resolve().parent.parent
    from_source = source_tree in folder.resolve().parents and "site-packages" not in folder.parts
    if from_source:
        # Tests start Python in other folders: it must find the same package.
        paths = [str(folder.parent)] + [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        if str(folder.parent) not in sys.path:
            sys.path.insert(0, str(folder.parent))
    if from_source and os.environ.get("NPU_OVERFLOW_TEST_INSTALLED") == "1":
        raise pytest.UsageError("npu_overflow would be imported from the source tree %s, not from the installed wheel" % folder)


def pytest_report_header(config: pytest.Config) -> str:
    return "npu_overflow from %s, TensorFlow %s" % (_package_folder(), _tensorflow_version() or "not installed")


def pytest_collection_modifyitems(config: pytest.Config, items: Any) -> None:
    installed = _tensorflow_version()
    for item in items:
        if item.get_closest_marker("tensorflow"):
            # a tracer of every line would only slow TensorFlow's own Python, and stand in its way
            item.add_marker(pytest.mark.no_cover)
        for mark in item.iter_markers("tensorflow"):
            wanted = ",".join(str(part) for part in mark.args)
            if installed is None:
                item.add_marker(pytest.mark.skip(reason="needs TensorFlow"))
            elif not SpecifierSet(wanted).contains(installed, prereleases=True):
                item.add_marker(pytest.mark.skip(reason="needs TensorFlow %s, this is %s" % (wanted, installed)))


try:
    import hypothesis
except ImportError:  # property tests then fail on their own import, the others run
    pass
else:
    # No test may fail because a machine is slow; on CI the same examples are tried every time.
    hypothesis.settings.register_profile("npu_overflow", deadline=None, derandomize=os.environ.get("CI") == "true")
    hypothesis.settings.load_profile("npu_overflow")


@pytest.fixture(scope="session")
def package_folder() -> Path:
    """The folder of the package under test: of the source tree or of the installed wheel."""
    folder = _package_folder()
    assert folder is not None, "npu_overflow is not installed"
    return folder


@pytest.fixture(autouse=True)
def clean_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An environment without settings of the package, an English locale, and an empty working folder."""
    for name in list(os.environ):
        if name.startswith(_ENVIRONMENT) and name != "NPU_OVERFLOW_TEST_INSTALLED":
            monkeypatch.delenv(name)
    monkeypatch.setenv("LANG", "en_US.UTF-8")
    monkeypatch.chdir(tmp_path)
    yield
    if "tensorflow" in sys.modules:
        # Keras collects garbage at each new model: what survived this test is not looked through again
        gc.collect()
        gc.freeze()
