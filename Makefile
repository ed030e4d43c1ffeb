# One virtual environment, made once; every other target makes it when it is missing. It has what the demos need, and
# targets for those who change synk add what tests and checks need, of which CUDA's compiler is the largest.
#
#     make test                                      the default python3, in .venv
#     make test VENV=.venv312 PYTHON=python3.12      another Python beside it

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Tests start hundreds of interpreters, and each would compile all of synk again. Empty is as if it was not set.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup mnist resnet unet test test-rest test-all test-graphs check soak faults machines-suite chaos linker-suite \
    pytensor-bench torch-ready torch-suite gpu-plans gpu-plans-ready other-processors without-gpu bench peers figures \
    gpu-wheels gpu-test gpu-bench site site-ready clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(READY)  ## make the environment for the demos and install synk in it, editable

# The stamp is younger than what it depends on: a new dependency installs again, nothing else does. Python compiles what
# is imported; all that is installed would be a fifth of the environment. An environment from before the distribution was
# called synk-pytensor has it as synk.
$(READY): setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	rm -rf synk.egg-info
	$(BIN)/python -m pip uninstall -qq --yes synk
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[demos,onednn]'
	touch $@

$(DEV): $(READY)
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[demos,onednn,dev]'
	touch $@

mnist: $(READY)  ## train a perceptron on MNIST digits with two ranks
	$(BIN)/python demos/mnist/train_mnist.py --ranks 2

resnet: $(READY)  ## train a small residual network on synthetic images with two ranks
	$(BIN)/python demos/resnet/train_resnet.py --ranks 2 --depth 18 --size 64 --classes 10 \
	    --synthetic 256 --epochs 2

unet: $(READY)  ## train a small U-Net with a Dice loss on synthetic images with two ranks
	$(BIN)/python demos/unet/train_unet.py --ranks 2 --base 16 --depth 3 --size 64 --rate 1e-3 --epochs 11 \
	    --picture build/unet.png

# `make test` is what a change waits for. It leaves to `make test-all` what is marked slow, and these: emulators of GPUs,
# benchmarks, manifests, wheels, faults at random, notebooks, the doctor, and tests of what tests use.
LATER := $(addprefix tests/,benchmarks deploy gpu support tools/bench tools/doctor run/launch/test_fork_source.py \
    run/on_machines/test_joined.py survival/test_notebooks.py survival/test_soak.py test_wheel.py)

# Three files at a time: a test that waits leaves its core to another. Files whose tests are scripts take longest, and
# come first; a file's tests share what they fork and compile, and stay together.
PYTEST := $(BIN)/python -m pytest -q
SCRIPTS := $(addprefix tests/,survival transport/machines demos test_docs.py)
OTHERS := $(filter-out $(SCRIPTS) tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/ tests/test_*.py)))
JOBS := -n 3 --dist loadfile --no-loadscope-reorder
SOON := -m 'not slow and not soak' $(addprefix --ignore=,$(LATER))

# Deadlines of tests are for a machine that is not busy: one or two tests that failed are run once more, by themselves,
# and named at the end. More failures are no accident.
CACHE = -o cache_dir=.pytest_cache/$@
AGAIN := --last-failed --last-failed-no-failures none --at-most-failed 2 -rap
run = $(PYTEST) $(CACHE) --cache-clear $(JOBS) $(1) || { [ $$? -eq 1 ] && $(PYTEST) $(CACHE) $(AGAIN) $(1); }

test: $(DEV)  ## run the tests that a change waits for, in six minutes
	$(call run,$(SOON) $(SCRIPTS) $(filter-out $(LATER),$(OTHERS)))

test-rest: $(DEV)  ## run the tests that `make test` leaves out, but for soaks
	$(call run,-m 'not soak' $(LATER))
	$(call run,-m 'slow and not soak' $(addprefix --ignore=,$(LATER)) $(SCRIPTS) $(filter-out $(LATER),$(OTHERS)))

test-all: $(DEV)  ## run all tests but soaks
	$(call run,-m 'not soak' $(SCRIPTS) $(OTHERS))

# What another Python and PyTensor may change: graphs, and what users write.
GRAPHS := $(addprefix tests/,compile exact ops extensions transport/processes test_docs.py) \
    $(addprefix tests/run/,arrays collectives functions rank)

test-graphs: $(DEV)  ## run the tests of `make test` that depend most on the versions of Python and PyTensor
	$(call run,$(SOON) $(GRAPHS))

# OpenBLAS and oneDNN take other paths on other processors, and sums come in another order: so tests that compare ranks
# with one process run on those too. OpenBLAS does not ask whether this processor can do what it is told.
PROCESSORS := Nehalem/SSE41 Haswell/AVX2 $(if $(shell grep -m1 avx512bw /proc/cpuinfo),SkylakeX/AVX512_CORE)
COMPARING := $(addprefix tests/,test_processors.py demos/test_demos.py extensions/test_train.py \
        extensions/test_layers.py exact/collectives/test_collectives.py)

other-processors: $(DEV)  ## compare ranks with one process as other processors compute
	for kind in $(PROCESSORS); do \
	    OPENBLAS_CORETYPE=$${kind%/*} ONEDNN_MAX_CPU_ISA=$${kind#*/} $(PYTEST) -n 3 -m 'not slow and not soak' $(COMPARING) \
	        -k 'as_it_is_told or losses or one_process or same_step' || exit 1; \
	done

soak: $(DEV)  ## run the tests that take minutes each, an hour or so
	$(BIN)/python -m pytest -m soak

HOSTS ?=
FAULTS := $(if $(HOSTS),on_hosts.py --hosts $(HOSTS) --faults 200,campaign.py --faults 300 --seconds 900 --jobs 2)

faults: $(DEV)  ## inflict 300 faults on runs, within a quarter of an hour; HOSTS=3: 200 on several machines
	$(BIN)/python tests/support/faults/$(FAULTS)

# As many ranks as tests ask for, which is one on some hosts; then two and three on each.
machines-suite: $(DEV)  ## run the tests of what functions, Data and collectives mean, and the demos, on 2 and 3 hosts
	for ranks in "" "--ranks 2" "--ranks 3"; do \
	    for hosts in 2 3; do \
	        $(BIN)/python tests/support/machines/run_suite.py --hosts $$hosts $$ranks || exit 1; \
	    done; \
	done
	$(BIN)/python -m pytest -q tests/transport/machines/test_demos.py

SECONDS ?= 6000

chaos: $(DEV)  ## train with a fault every five seconds: SECONDS=6000
	$(BIN)/python tests/support/faults/chaos.py --seconds $(SECONDS) --every 5

# Runs on cores need nothing of what is for GPUs alone: a copy of all other files that git knows passes the same checks
# and tests. It is a repository of its own, as ruff looks at no file that one ignores. Paths come first by PYTHONPATH.
BARE := build/without-gpu

without-gpu: $(DEV)  ## check and test a copy that has neither synk/gpu nor tests/gpu
	rm -rf $(BARE) && mkdir -p $(BARE)
	git ls-files -z | grep -zvE '^(synk|tests)/gpu/|^docs/gpu.rst' | xargs -0 cp -dp --parents -t $(BARE)
	sed -i '/synk\.gpu/d' $(BARE)/setup.cfg
	cd $(BARE) && git init -q . && git add -A
	export PYTHONPATH=$(CURDIR)/$(BARE) && cd $(BARE) && \
	    $(abspath $(BIN))/python -c 'import os, synk; assert synk.__path__ == [os.path.realpath("synk")], synk.__path__' && \
	    $(MAKE) VENV=$(abspath $(VENV)) -o $(abspath $(READY)) -o $(abspath $(DEV)) check test

check: $(DEV)  ## lint, formatting, types, and imports held to the floors
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_floors.py

linker-suite: $(DEV)  ## run PyTensor's tests of its Numba backend on the linker: SUITE=<checkout of pytensor>
	$(BIN)/python tests/support/cases/linker_suite.py $(SUITE)

pytensor-bench: $(DEV)  ## run PyTensor's benchmarks on the linker, NUMBA and C: SUITE=<checkout of pytensor> ONLY="scan join"
	$(BIN)/python benchmarks/pytensor_bench.py $(SUITE) $(if $(ONLY),--only $(ONLY))

# torch is large, and only compared with: it has an environment of its own.
BENCH := .venv-bench
BENCH_READY := $(BENCH)/.ready
ROUNDS ?= 40

torch-ready: $(BENCH_READY)

torch-suite: $(BENCH_READY)  ## hold the Ops of networks against torch
	$(BENCH)/bin/python -m pytest -q tests/ops/test_*_in_torch.py

# CUDA's libraries are large too, and these tests need them but no GPU. They are skipped where cuDNN does not load,
# so that is asked first.
PLANS := .venv-gpu
PLANS_READY := $(PLANS)/.ready
NO_GPU := $(addprefix tests/gpu/kernels/cudnn/test_,cudnn_plan.py convolution.py find_cudnn.py) \
    $(addprefix tests/gpu/dispatch/test_cublas.py::test_,names_and_arguments_are_those_of_cupy \
        signatures_are_those_of_cublas) \
    tests/support/cudnn/test_fake_cudnn.py tests/support/cupy/test_real_cupy.py

gpu-plans: $(PLANS_READY)  ## check what needs CuPy and cuDNN, but no GPU
	$(PLANS)/bin/python -c 'from synk.gpu.kernels.cudnn import available, reason; assert available(), reason()'
	$(PLANS)/bin/python -m pytest -q $(NO_GPU) -k 'not oracle'

gpu-plans-ready: $(PLANS_READY)

$(PLANS_READY): setup.cfg pyproject.toml
	test -x $(PLANS)/bin/python || $(PYTHON) -m venv $(PLANS)
	$(PLANS)/bin/python -m pip install --quiet --no-compile --editable '.[gpu-plans]'
	touch $@

bench: $(BENCH_READY)  ## compare with PyTensor's own linkers, torch and Open MPI, minutes
	$(BENCH)/bin/python benchmarks/linker.py --rounds $(ROUNDS)
	$(BENCH)/bin/python benchmarks/densities.py
	$(BENCH)/bin/python benchmarks/recurrent.py
	$(BENCH)/bin/python benchmarks/ddp.py
	$(BENCH)/bin/python benchmarks/resnet.py
	$(BENCH)/bin/python benchmarks/unet.py
	$(BENCH)/bin/python benchmarks/collectives.py
	$(BENCH)/bin/python benchmarks/fit.py

# JAX is large, too.
PEERS := .venv-peers
PEERS_READY := $(PEERS)/.ready

peers: ROUNDS = 12
peers: $(PEERS_READY)  ## compare steps and starts with JAX and torch.compile, half an hour
	$(PEERS)/bin/python benchmarks/peers.py --rounds $(ROUNDS) $(if $(ONLY),--only $(ONLY))

$(PEERS_READY): setup.cfg pyproject.toml
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --no-compile --editable '.[demos,onednn,peers]'
	touch $@

figures: $(BENCH_READY)  ## measure collectives, calls and batches again, into docs/performance.rst
	sed -i '/^\.\. figures/q' docs/performance.rst
	{ echo; $(BENCH)/bin/python -m synk bench; echo; $(BENCH)/bin/python benchmarks/collectives.py; } \
	    >> docs/performance.rst

$(BENCH_READY): setup.cfg pyproject.toml
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --no-compile --editable '.[demos,bench,onednn]'
	touch $@

# A GPU's machine has CuPy, torch and often no network: what it has stays, what is missing comes from the folder
# WHEELS, or from the index. Both write the report after each part, so what is cut off leaves what it had found.
GPU := build/gpu
GPU_PYTHON := $(GPU)/venv/bin/python
GPU_READY := $(GPU)/.ready
WHEELS ?=
REPORT ?= docs/gpu_report.rst
FOR ?= 3.12
GPU_SECONDS ?= 240
BENCH_SECONDS ?= 215

gpu-wheels:  ## fill build/wheels with what a GPU's machine lacks, for its Python: FOR=3.12
	$(PYTHON) benchmarks/gpu_wheels.py --to build/wheels --python $(FOR)

gpu-test: $(GPU_READY)  ## run the tests on a GPU and write docs/gpu_report.rst: PYTHON=python3 WHEELS=folder
	$(GPU_PYTHON) tests/support/gpu/run_tests.py --notes $(GPU) --report $(REPORT) --seconds $(GPU_SECONDS)

gpu-bench: $(GPU_READY)  ## measure on a GPU beside torch, into the same report
	$(GPU_PYTHON) benchmarks/gpu.py --notes $(GPU) --report $(REPORT) --seconds $(BENCH_SECONDS)

$(GPU_READY): setup.cfg pyproject.toml benchmarks/gpu_environment.py
	$(PYTHON) benchmarks/gpu_environment.py $(GPU)/venv $(if $(WHEELS),--wheels $(WHEELS))
	touch $@

# Sphinx and its theme change what they warn of between versions, so the extra holds them to one. Nothing is fetched:
# what other projects document is in docs/inventories. Errors in a page or a reference that leads nowhere end the build.
SITE := .venv-site
SITE_READY := $(SITE)/.ready

site: $(SITE_READY)  ## build the documentation as a site into build/site, in two minutes
	rm -rf build/site
	mkdir -p build
	$(SITE)/bin/python tests/test_floors.py --diagram > build/suites.txt
	$(SITE)/bin/python docs/draw_call.py > build/call.txt
	$(SITE)/bin/sphinx-build -W -n --keep-going -q -j 2 -d build/site-doctrees docs build/site
	$(SITE)/bin/python docs/check_links.py build/site

site-ready: $(SITE_READY)

$(SITE_READY): setup.cfg pyproject.toml
	test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --no-compile --editable '.[docs]'
	touch $@

clean:  ## remove the environment, builds and caches
	rm -rf $(VENV) $(BENCH) $(PEERS) $(PLANS) $(SITE) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +
