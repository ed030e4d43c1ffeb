"""What is missing is told with the remedy, on any Python."""

import pytest

from support.processes.scripts import run

pytestmark = pytest.mark.usefixtures("warm_interpreter")


def said_by(preparation):
    script = (
        f"import sys, synk.extensions; {preparation}\n"
        "try:\n    import synk.extensions.pymc\nexcept ImportError as error:\n    print(error)"
    )
    return run(script, deadline=120).stdout


def test_python_3_11_is_told_what_is_needed():
    said = said_by("sys.version_info = (3, 11, 9)")
    assert "needs Python 3.12 or newer, as PyMC 6 does; this is 3.11.9" in said
    assert "in an environment of a newer Python" in said
    assert "pip install" not in said  # which would bring nothing on this one


def with_versions(how):
    return said_by(f"sys.version_info = (3, 12, 0); from importlib import metadata; metadata.version = {how}")


def test_a_missing_package_is_named():
    said = with_versions("lambda name: metadata.Distribution.from_name('no-such-package')")
    assert "needs pymc, which is not installed. Use pip install 'synk-pytensor[pymc]'" in said


def test_a_package_without_metadata_is_named():
    said = with_versions("lambda name: None")
    assert "needs pymc 6.4 or newer; this is of no version that its metadata tell. Use pip install" in said


@pytest.mark.slow
def test_a_package_that_is_too_old_is_named():
    said = with_versions("{'pymc': '6.10.1', 'nutpie': '0.15.2'}.get")
    assert "needs nutpie 0.16 or newer; this is 0.15.2. Use pip install 'synk-pytensor[pymc]'" in said
