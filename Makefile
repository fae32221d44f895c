# Every target sets up what it needs in .venv. On a machine with a GPU: make CONSTRAINTS=/dev/null demo (takes the CUDA build of torch).
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
RUN = $(VENV)/bin
READY = $(VENV)/ready
ARGS ?=

# SYSTEM=1 uses the interpreter's own torch and packages: no virtual environment, no network. Packages that it lacks are named, with the
# command that fetches their wheels elsewhere; WHEELS=FOLDER then takes them from there.
SYSTEM ?=
WHEELS ?=
ON_GPU = $(if $(SYSTEM),SCHEDCAST_WHEELS='$(WHEELS)' $(PYTHON) -m ui.commands.system_python,$(RUN)/schedcast)

# Fails with one line on a Python that is too old.
IS_NEW = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
  { echo "$(PYTHON) is older than Python 3.11; install a newer one and run: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }

TESTS = $(RUN)/python -m pytest -n auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder --durations=8

# What `make quick` runs: the plan, the engine, costs, predictions and documents; no capture of large models, no processes, no browser.
QUICK = tests/test_house.py tests/test_examples.py tests/traces $(addprefix tests/simulator/,plan engine machine model/test_layers.py predict strategies/scan)

# Compiles modules on all cores. pip would compile on one core, and the tests of packages too. Files that are no modules of this Python are
# left as they are.
COMPILE = $(RUN)/python -m compileall -qq -j 0
# Compiled once, since tests start many processes, and Python may be set not to write what it compiles (PYTHONDONTWRITEBYTECODE).
COMPILE_OWN = @$(COMPILE) traces simulator executors calibrate ui tests tools

.PHONY: demo test test-all quick lint fuzz bench zoo papers pictures gpu-report gpu-first ui docs clean

demo: $(READY)
	$(RUN)/schedcast demo $(ARGS)

# On a machine with an NVIDIA GPU: make CONSTRAINTS=/dev/null gpu-report ARGS='--minutes 8', or with the torch that is there already and
# without a network: make SYSTEM=1 gpu-report ARGS='--quick --out DIR', which is python3 -m ui.commands.system_python gpu-report --quick --out DIR
gpu-report gpu-first: $(if $(SYSTEM),,$(READY))
	@$(if $(SYSTEM),$(IS_NEW),:)
	$(ON_GPU) $@ $(ARGS)

ui: $(READY)
	$(RUN)/schedcast ui $(ARGS)

# What a change usually breaks: papers, fuzzing and hostile names in pages are in test-all.
test: lint
	$(COMPILE_OWN)
	$(TESTS) -m 'not thorough' $(ARGS)

test-all: lint
	$(COMPILE_OWN)
	$(TESTS) $(ARGS)

quick: lint
	$(COMPILE_OWN)
	$(RUN)/python -m pytest -n auto --maxprocesses=4 --dist=loadfile $(QUICK) $(ARGS)

lint: $(READY)
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/lint-imports --no-cache
	$(RUN)/mypy --num-workers auto

# Damaged input and random models for hours: FACTOR times what `make test` tries in a minute. Reports every kind of fault once.
FACTOR ?= 100
fuzz: $(READY)
	SCHEDCAST_FUZZ=$(FACTOR) $(RUN)/python -m pytest -n auto --maxprocesses=4 --dist=loadfile tests/fuzz $(ARGS)

bench: $(READY)
	$(RUN)/python -m tools $(ARGS)

# Tries 94 models of torchvision, timm, transformers and our own, and writes docs/zoo.md. Resumes; ARGS=--again begins anew.
zoo: $(READY)
	$(RUN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint $(CONSTRAINTS) --editable '.[zoo]'
	$(RUN)/python -m tools.zoo $(ARGS)

# Predicts all papers again (ten minutes), and writes docs/papers.md and the documents behind it. ARGS='--measure fusion' also measures.
papers: $(READY)
	$(RUN)/python -m tools.papers $(ARGS)

# The README's pictures of the app and of a report. Needs Chromium; takes three minutes.
pictures: $(READY)
	$(RUN)/python -m tools.pictures $(ARGS)

$(READY): pyproject.toml constraints.txt
	@$(IS_NEW)
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint $(CONSTRAINTS) --editable '.[test]'
	@$(COMPILE) -x '/tests/' $(VENV)/lib || true
	touch $@

# The site, in build/site. It needs no network; python3 -m http.server -d build/site shows it.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info report
