"""What the plugins touch of vLLM and SGLang, as recorded from the real packages (seams/*.json): the stand-ins have the
same, and so have the packages where they are installed."""

import importlib.util
import json
import sys
from pathlib import Path

import conftest
import pytest

sys.path.insert(0, str(conftest.ROOT / "tools"))
import record_seams  # noqa: E402

PACKAGES = sorted(record_seams.SEAMS)


def recorded(package):
    return json.loads((Path(__file__).parent / "seams" / f"{package}.json").read_text())["seams"]


@pytest.mark.parametrize("package", PACKAGES)
def test_all_that_is_touched_is_recorded(package):
    assert {file: set(names) for file, names in record_seams.SEAMS[package].items()} == {
        file: set(functions) for file, functions in recorded(package).items()
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_stand_in_takes_what_the_package_takes(package):
    stand_in = record_seams.record(package, conftest.ROOT / "tests" / "support" / "servers" / package)
    for file, functions in recorded(package).items():
        assert stand_in[file].keys() == functions.keys()
        for name, real in functions.items():
            ours = stand_in[file][name]
            assert [part for part in real["parameters"] if part in ours["parameters"]] == ours["parameters"], name
            assert ours["generator"] == real["generator"], name


@pytest.mark.parametrize("package", PACKAGES)
def test_installed_package_has_what_is_touched(package):
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    found = record_seams.record(package, Path(next(iter(spec.submodule_search_locations))))
    for file, functions in recorded(package).items():
        for name, was in functions.items():
            assert name in found[file], f"{package} has no {name} in {file} any more"
            assert set(was["needed"]) >= set(found[file][name]["needed"]), name
            assert was["generator"] == found[file][name]["generator"], name
