# The targets of a checkout. Each creates the environment if it is missing or if pyproject.toml or constraints.txt
# have changed.

.ONESHELL:
.SHELLFLAGS := -euc
.DEFAULT_GOAL := help

# The versions to install: pinned (the tested ones in constraints.txt), newest (the newest that pyproject.toml
# allows today) or lowest (its lower bounds). Each has an environment of its own.
DEPENDENCIES := pinned
ifeq ($(filter $(DEPENDENCIES),pinned newest lowest),)
$(error DEPENDENCIES is '$(DEPENDENCIES)'; expected pinned, newest or lowest)
endif
VENV := .venv$(if $(filter-out pinned,$(DEPENDENCIES)),-$(DEPENDENCIES))
BIN := $(VENV)/bin
STAMP := $(VENV)/made-for
RUNS := $(VENV)/runs-for
COMMA := ,
COMPILED := $(VENV)/compiled
# The demo's run directory, a new one each time.
RUN = runs/demo-$(shell date +%Y%m%d-%H%M%S)
# Changes for a shorter demo: make demo CHANGES="epochs=5"
CHANGES :=
# Some of the tests: make test TESTS=tests/data, or those that what differs from a branch concerns:
# make test CHANGED=main
TESTS :=
CHANGED :=
# 500 examples of each property instead of 5 or 10, and every variant of every test, also those that take minutes:
# make test HYPOTHESIS=thorough. The fast tests draw 3 or 6.
HYPOTHESIS :=
test-fast: HYPOTHESIS := short
# Other cases: make fuzz FUZZ="--seed 1"
FUZZ :=
# Limit the libraries as on a processor without AVX-512, AMX and bf16, where precision auto is fp32: make test CPU=avx2
CPU :=
ifneq ($(CPU),$(filter avx2,$(CPU)))
$(error CPU is '$(CPU)'; expected avx2, or nothing)
endif
# Parallel test processes, each with one thread; each imports all libraries and collects all tests first. Many tests
# wait for processes that they have started, so two more workers than cores keep two cores busy; the fast tests wait
# for nothing.
WORKERS := 2
test: WORKERS := 4
PYTEST = $(if $(CPU),ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2) HYPOTHESIS=$(HYPOTHESIS) OMP_NUM_THREADS=1 $(BIN)/python -m pytest

# The tests and the demo start many processes. Bytecode is written even if the environment forbids it, so that they do
# not all compile PyTorch and the package again.
$(COMPILED) demo test test-fast: export PYTHONDONTWRITEBYTECODE :=

.PHONY: help environment demo test test-fast fuzz check docs bench digests release clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | while IFS="$$(printf '\t')" read -r name what; do
	    printf 'make %-9s  %s\n' "$$name" "$$what"
	done

demo: $(RUNS)  ## train on the built-in handwritten digits, score, and draw detections in unseen scenes
	@run="$(RUN)"
	$(BIN)/rankless train digits $(CHANGES) --run "$$run"
	$(BIN)/rankless predict "$$run" digits:val:1000-1007 --out "$$run/predictions"
	echo
	echo "run directory      $$run"
	printf 'scores             '
	$(BIN)/python -c "import csv; scored = (row for row in csv.DictReader(open('$$run/epochs.csv')) if row['AP']); \
	    best = max(scored, key=lambda row: float(row['AP'])); \
	    print(', '.join(f'{name} {float(best[name]):.3f}' for name in ('AP', 'AP50')))"
	echo "annotated image    $$run/predictions/digits-val-1000.png"
	echo "next, try          $(BIN)/rankless verify digits --steps 4"

test: $(COMPILED)  ## run all tests (DEPENDENCIES=newest or lowest: with other versions)
	@tests="$(TESTS)$(if $(CHANGED),$$(PYTHONPATH=tests $(BIN)/python -m support.changed $(CHANGED)))"
	$(PYTEST) -n $(WORKERS) $$tests

test-fast: $(COMPILED)  ## run the tests that start no processes and compute only briefly
	@$(PYTEST) -n $(WORKERS) $(TESTS) -m 'not processes and not slow'

fuzz: $(STAMP)  ## try 10,000 damaged files and odd command lines (FUZZ="--seed 1 --cases 50000")
	@OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m support.fuzz.run $(FUZZ)

check: $(STAMP)  ## check lint, formatting, types, the direction of imports and the documentation
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p rankless
	$(BIN)/mypy benchmarks
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory docs

docs: $(STAMP)  ## build the documentation into site/, strictly; open site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean

bench: $(STAMP)  ## measure the training step
	@$(BIN)/python benchmarks/step.py

# With these instructions all x86 CPUs should give the same bits, so the digests are kept with the source.
digests: $(STAMP)  ## train small recipes, limited to AVX2, and compare the digests with benchmarks/digests.txt
	@mkdir -p build
	$(BIN)/python benchmarks/recipe_digests.py digits digits-classify yolov3-tiny cpu_isa=avx2 > build/digests.txt
	$(BIN)/python benchmarks/digests.py digits epochs=1 cpu_isa=avx2 >> build/digests.txt
	diff benchmarks/digests.txt build/digests.txt

# The environment holds only the wheel and its requirements, and lies outside the checkout. Then the sdist replaces
# the wheel and has to train to the same weights. Nothing is uploaded.
SMOKE := digits epochs=1 data.train_images=36 data.val_images=4 model.width=0.125

release: $(STAMP)  ## build wheel and sdist into dist/, check them, and train with each in an empty environment
	@rm -rf dist build
	$(BIN)/python -m build --outdir dist . > /dev/null
	$(BIN)/twine check --strict dist/*
	empty=$$(mktemp -d)
	trap 'rm -rf "$$empty"' EXIT
	echo "installing into $$empty; PyTorch is a large download" >&2
	$(BIN)/python -m venv "$$empty"
	cd "$$empty"
	pip="bin/pip install --disable-pip-version-check --quiet"
	$$pip --constraint "$(CURDIR)/constraints.txt" "$(CURDIR)"/dist/*.whl
	bin/rankless --help > /dev/null
	bin/rankless train $(SMOKE) --run wheel
	bin/rankless digest wheel | cut -c -64 > wheel/digest
	$$pip --force-reinstall --no-deps "$(CURDIR)"/dist/*.tar.gz
	bin/rankless train $(SMOKE) --run sdist
	bin/rankless digest sdist | cut -c -64 > sdist/digest
	cmp wheel/digest sdist/digest
	cat sdist/digest
	ls -l "$(CURDIR)/dist"

clean:  ## remove the environment and the tools' caches, but no runs
	@rm -rf .venv .venv-newest .venv-lowest build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Only create the environment.
environment: $(STAMP)
	@:

# Compile what the tests import once, or every worker would compile all of it at the same time. The tests report its
# errors.
$(COMPILED): $(STAMP)
	@$(PYTEST) --collect-only --quiet > /dev/null 2>&1 || true
	touch $@

# An environment that was moved or copied here still points at the old place, so create it again.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif
ifneq ($(shell cat $(RUNS) 2>/dev/null),$(CURDIR))
.PHONY: $(RUNS)
endif

# Install $(1), the package with or without the tools of the tests, and mark the environment with the files $(2).
define install
found=
for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do
    if "$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
        found=$$python
        break
    fi
done
if [ -z "$$found" ]; then
    echo "error: no Python from 3.11 to 3.13 found; install one, or name it: make PYTHON=/path/to/python" >&2
    exit 1
fi
if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "error: $$found cannot make environments: on Debian or Ubuntu install python3-venv" >&2
    exit 1
fi
if [ "$$(cat $(RUNS) 2>/dev/null)" != "$(CURDIR)" ] || ! $(BIN)/python -c '' 2>/dev/null; then
    "$$found" -m venv --clear $(VENV)
fi
rm -f $(STAMP) $(RUNS)
echo "installing into $(VENV); PyTorch is a large download" >&2
case $(DEPENDENCIES) in
    pinned) set -- --constraint constraints.txt ;;
    newest) set -- --upgrade ;;
    lowest) $(BIN)/python tests/support/lower_bounds.py > $(VENV)/lower-bounds.txt
        set -- --constraint $(VENV)/lower-bounds.txt ;;
esac
# Skip bytecode: compiling modules that are never imported would take half of the installation's time.
$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile "$$@" --editable '$(1)'
for stamp in $(2); do printf '%s\n' "$(CURDIR)" > "$$stamp"; done
endef

# The demo needs only the package: a third of the packages that the tests and checks need.
$(RUNS): pyproject.toml constraints.txt
	@$(call install,.,$(RUNS))

$(STAMP): pyproject.toml constraints.txt
	@$(call install,.[test$(if $(filter pinned,$(DEPENDENCIES)),$(COMMA)lint$(COMMA)docs$(COMMA)release)],$(RUNS) $(STAMP))
