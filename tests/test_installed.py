"""CI tests the built wheel: what is imported then comes from site-packages, and not from the source that the tests lie beside."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(os.environ.get("NPU_OVERFLOW_TEST_INSTALLED") != "1", reason="the source tree is tested, not an installed wheel")
def test_the_installed_wheel_is_what_is_imported(package_folder: Path) -> None:
    import npu_overflow
    from npu_overflow.analysis import analyzer

    assert "site-packages" in package_folder.parts
    for module in (npu_overflow, analyzer):
        assert Path(str(module.__file__)).resolve().is_file() and package_folder.resolve() in Path(str(module.__file__)).resolve().parents
    # programs that tests start find the same one
    program = "import npu_overflow; print(npu_overflow.__file__)"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, encoding="utf-8")
    assert Path(done.stdout.strip()) == Path(str(npu_overflow.__file__))


@pytest.mark.skipif(not (ROOT / "npu_overflow").is_dir(), reason="the source is not here")
def test_the_source_tree_is_refused_where_the_wheel_is_asked_for(tmp_path: Path) -> None:
    environment = dict(os.environ, NPU_OVERFLOW_TEST_INSTALLED="1", PYTHONPATH=str(ROOT))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", str(Path(__file__))]
    done = subprocess.run(command, cwd=str(ROOT), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "npu_overflow would be imported from the source tree" in done.stdout


def test_warnings_of_our_own_modules_fail_tests(pytestconfig: pytest.Config) -> None:
    import warnings

    assert "error:::npu_overflow" in pytestconfig.getini("filterwarnings")
    with pytest.raises(UserWarning, match="ours"):
        warnings.warn_explicit("ours", UserWarning, "x.py", 1, module="npu_overflow.analysis.analyzer")
