"""Tests lie where the modules lie that they test, under their names; nothing is imported.

``tests/run/rank/test_sums.py`` tests ``synk/run/rank/sums.py``. What a package promises as a whole is tested
under the package's name, in it or beside it; kernels in C are tested under the name of their file. Tests of a
promise that no single module keeps are listed here, with its words. Whole scripts (``survival``, ``demos``,
``deploy``, ``benchmarks``) and tests of tests' own tools (``support``) have names of their own.
"""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SUITES = ("values", "compile", "transport", "exact", "run", "ops", "tools", "gpu", "extensions")
WITHOUT = not (TESTS / "gpu").is_dir()  # `make without-gpu` tries a copy that has none

# What is promised, by the file that holds it.
PROMISES = {
    "compile/test_random_graphs.py": "graphs with updates have the numbers of PyTensor's own linker",
    "compile/programs/passes/test_mixed_precision.py": "networks in 16 bits train as networks in 32",
    "compile/regions/test_random_graphs.py": "regions have the numbers and errors of Python",
    "exact/rules/test_edge_cases.py": "overflow, division by zero and selections are as in one process",
    "exact/rules/test_zero_rows.py": "every rule holds for ranks without rows",
    "exact/test_models.py": "models written for one process train to its numbers",
    "exact/test_random_graphs.py": "graphs have the numbers of one process, or are refused",
    "exact/test_random_integers.py": "graphs of integers have the numbers of NumPy",
    "extensions/fit/test_injured.py": "a training that is injured at random moments ends with the same bits",
    "extensions/fit/test_killed.py": "a training that is killed and started again ends with the same bits",
    "extensions/losses/test_on_ranks.py": "losses and gradients on ranks are those of one process",
    "extensions/pymc/test_distributions.py": "no Op of PyMC's distributions falls back to Python",
    "gpu/rank/test_containers.py": "the script reads and sets variables of a run on GPUs",
    "gpu/rank/test_restarts.py": "workers of restarts and of later runs use GPUs",
    "gpu/test_breakdowns.py": "deaths and full memory are told, and leave nothing",
    "gpu/test_collectives.py": "communicators of a GPU's arrays pass the suite of all",
    "gpu/test_convolutions.py": "cuDNN computes the definitions of convolutions",
    "gpu/test_networks.py": "Ops of networks have NumPy's numbers on a GPU",
    "gpu/test_options.py": "the options of `fork` for GPUs change no result beyond their precision",
    "gpu/test_residual.py": "residual networks train on GPUs as on cores",
    "gpu/test_runs.py": "whole runs on GPUs give the results of cores",
    "gpu/test_smoke.py": "CuPy, cuDNN and a kernel of ours work at all",
    "gpu/test_training.py": "perceptrons train on GPUs as on cores",
    "ops/test_derivatives_in_torch.py": "Ops on images have torch's values, first and second derivatives",
    "ops/test_images_in_torch.py": "convolution and pooling are no less exact than torch's",
    "ops/test_norms_in_torch.py": "normalisation and cross-entropy have torch's numbers",
    "ops/test_second_derivatives.py": "Ops of networks have second derivatives, those of differences",
    "run/arrays/test_many_variables.py": "thousands of small variables cost as much as few",
    "run/collectives/test_variables_once.py": "variables that live once are used by all else as any variable",
    "run/functions/test_batch_s.py": "`batch_s` selects rows of sliceable variables on every rank",
    "run/functions/test_call_overhead.py": "a repeated call sends one command and makes nothing anew",
    "run/functions/test_fingerprint.py": "a fingerprint tells graphs apart, and no process",
    "run/functions/test_profile.py": "functions are profiled and debugged on all ranks",
    "run/functions/test_random_calls.py": "calls in any order have the numbers of NumPy",
    "transport/machines/test_demos.py": "demos run on several machines unchanged",
    "transport/machines/test_failing_hosts.py": "hosts on which nothing runs are named in time",
    "transport/machines/test_lost_links.py": "a cut between two machines ends the wait of all",
    "transport/machines/test_same_numbers.py": "a training has the same numbers on any machines",
}


def modules():
    """Return the modules, packages and C files of all suites, by their paths without endings."""
    found = set()
    for root, suites in ((TESTS.parent / "synk", SUITES), (TESTS.parent, ["extensions"])):
        for path in (path for suite in suites for path in (root / suite).rglob("*")):
            if path.suffix in (".py", ".c", ".cu"):
                found |= {path.relative_to(root).with_suffix(""), path.relative_to(root).parent}
    return found


def is_named_after_a_module(file, modules):
    """Say whether a file of tests has the place and name of a module, or that of its package."""
    name = file.stem.removeprefix("test_")
    return file.parent / name in modules or (file.parent.name == name and file.parent in modules)


def strays(files, modules, promises):
    """Yield a complaint for every file that is named after nothing, and every promise without a file."""
    for file in files:
        if not is_named_after_a_module(file, modules) and file.as_posix() not in promises:
            yield f"{file} is named after no module: give it the place and name of the one that it tests"
    for promise in promises:
        if Path(promise) not in files and not (WITHOUT and promise.startswith("gpu/")):
            yield f"{promise} is not there: take it from the list"
        elif is_named_after_a_module(Path(promise), modules):
            yield f"{promise} is named after a module: take it from the list"


def test_tests_lie_where_their_modules_lie():
    files = [
        path.relative_to(TESTS) for suite in SUITES for path in sorted((TESTS / suite).rglob("test_*.py"))
    ]
    assert len(files) > 200
    assert list(strays(files, modules(), PROMISES)) == []


@pytest.mark.parametrize(
    ("file", "promises", "complaint"),
    [
        ("run/rank/test_states.py", {}, "run/rank/test_states.py is named after no module"),
        ("run/test_sums.py", {}, "run/test_sums.py is named after no module"),
        (
            "run/rank/test_sums.py",
            {"run/rank/test_late.py": "it is late"},
            "run/rank/test_late.py is not there",
        ),
        ("run/rank/test_sums.py", {"run/rank/test_sums.py": "it adds"}, "is named after a module"),
    ],
)
def test_a_violation_is_found(file, promises, complaint):
    (found,) = strays([Path(file)], {Path("run/rank"), Path("run/rank/sums")}, promises)
    assert complaint in found


@pytest.mark.parametrize("file", ["run/rank/test_sums.py", "run/rank/test_rank.py", "run/test_rank.py"])
def test_modules_and_packages_give_names(file):
    assert is_named_after_a_module(Path(file), {Path("run/rank"), Path("run/rank/sums")})
