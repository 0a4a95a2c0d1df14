# make demo   set up, run the embedded benchmark, show its table and name its page; FLAGS: more for 'opencil run'
# make test   set up, run the test suite, in a random order whose seed it prints; FLAGS: more for pytest
# make coverage  the same, and which lines and branches of the package no test reaches
# make mutants  put faults into the code and see that tests notice, with cosmic-ray; hours, and it resumes
# make siege  kill runs and damage their files, COUNT times (200); SEED (1) chooses when and how
# make check  set up, lint and type checks
# make docs   set up, build the documentation as a site; make docs-serve: show it on localhost:8000
# make lock   renew requirements/: pins with hashes; RENEW: packages whose versions may change, or all; needs uv
# make browser  install chromium where that is possible: the HTML report is tested in it

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
COUNT  ?= 200
SEED   ?= 1
# Python compiles what is imported, once; pip would compile all of torch, a third of the set-up's time.
INSTALL := $(BIN)/pip install --no-compile --quiet --disable-pip-version-check --no-deps --no-build-isolation
# Of yattag there is no wheel.
LOCKED  := $(INSTALL) --require-hashes --only-binary :all: --no-binary yattag
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test coverage mutants siege check docs docs-serve lock browser clean

# A folder of its own: whatever lies in runs/, the demo is never refused, and reports of runs/ are without it.
demo: $(VENV)/.installed
	$(BIN)/opencil run --benchmark digits --cil icarl,bic,wa,foster --detector paper --runs demo --jobs auto $(FLAGS)
	@$(BIN)/opencil report demo --html demo/report.html > /dev/null
	@echo "open it in a browser: demo/report.html"

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto --dist worksteal $(FLAGS)

coverage: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n auto --cov --cov-report=term $(FLAGS)

# The code is changed in place: commit before.
mutants: $(VENV)/.installed-mutants
	[ -f mutants.sqlite ] || $(BIN)/cosmic-ray init pyproject.toml mutants.sqlite
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/cosmic-ray exec pyproject.toml mutants.sqlite
	$(BIN)/cr-report --surviving-only mutants.sqlite

siege: $(VENV)/.installed-test
	COUNT=$(COUNT) SEED=$(SEED) $(BIN)/python -m pytest -n auto tests/runs/test_kills.py tests/runs/test_damage.py

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-docs
	OMP_NUM_THREADS=1 $(BIN)/python -m docs.site.make

docs-serve: $(VENV)/.installed-docs
	OMP_NUM_THREADS=1 $(BIN)/python -m docs.site.make --serve

lock:
	$(PYTHON) .ci/lock.py $(RENEW)

browser:
	@if command -v chromium || command -v chromium-browser || command -v google-chrome; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
			chromium fonts-dejavu-core > /dev/null; then command -v chromium; \
	else echo "no chromium, and it cannot be installed here: the tests in a browser will be skipped"; fi

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch alone first: the small CPU build where one is offered, else PyPI's, which has CUDA on Linux.
$(VENV)/.torch: requirements/torch-cpu.txt requirements/torch.txt requirements/cuda.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(LOCKED) -r requirements/torch-cpu.txt 2> $(VENV)/torch.log || \
		{ grep -q 'No matching distribution' $(VENV)/torch.log && \
			$(LOCKED) -r requirements/torch.txt -r requirements/cuda.txt; } || \
		{ cat $(VENV)/torch.log; exit 1; }
	@touch $@

$(VENV)/.installed: $(VENV)/.torch requirements/opencil.txt pyproject.toml
	$(LOCKED) -r requirements/opencil.txt
	$(INSTALL) -e .
	$(BIN)/pip check
	@touch $@

$(VENV)/.installed-%: $(VENV)/.torch requirements/opencil.txt requirements/%.txt pyproject.toml
	$(LOCKED) -r requirements/$*.txt
	$(INSTALL) -e .
	$(BIN)/pip check
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-mutants: $(VENV)/.installed-test
