# headrace: a thin layer over CMake. `make` builds the command and the library into build/; the rest:
#   make demo        installs what is missing, builds, and shows a real checkpoint being listed, checked, loaded, hashed
#   make test        installs what is missing, builds and runs every test; ends with "N passed, N failed"
#   make frameworks  installs PyTorch and JAX into .venv, much to fetch: tests that need them are skipped without
#   make lint        formatting, clang-tidy and the rules of the tree; `make format` formats
#   make fuzz        fuzzes TARGET (header, json, index, slice, plan, table) for SECONDS
#   make install     into PREFIX (/usr/local), under DESTDIR; `make uninstall` takes it away again
#   make wheels      dist/: source distribution and wheels for x86_64 and aarch64, each tried
#   make setup       only installs what is missing (packages.txt, as root or with sudo)
BUILD := build
PYTHON := .venv/bin/python
# In the order in which CI runs them: the quick ones first.
CHECKS := format python includes words spelling docs header kernel symbols abi completions hardening install aarch64 \
          wheels tidy sanitize tsan valgrind environments fuzz
# One more than there are processors: some tests wait.
export CTEST_PARALLEL_LEVEL ?= $(shell expr $$(nproc) + 1)

.DEFAULT_GOAL := all
.PHONY: all list-checks setup frameworks package demo test fuzz lint format clean $(CHECKS:%=check-%)

# ninja when it is there, else make; decided once per build folder, at its first configuration.
GENERATOR = $(if $(shell command -v ninja),-G Ninja)
configure = mkdir -p $(1) && cmake -S . -B $(1) $(if $(wildcard $(1)/CMakeCache.txt),,$(GENERATOR)) $(2) \
	>$(1)/configure.log 2>&1 || { cat $(1)/configure.log; exit 1; }
build = cmake --build $(1) --parallel

all:
	@tools/setup.sh --check
	@$(call configure,$(BUILD))
	@$(call build,$(BUILD)) --target headrace_cli headrace_static headrace_shared

setup:
	@tools/setup.sh

.venv/stamp: tests/requirements.txt tools/venv.sh
	@tools/venv.sh

frameworks: .venv/stamp
	@$(PYTHON) -m pip install -q --disable-pip-version-check --only-binary :all: -r tests/frameworks.txt

# The Python package as users get it, built and installed into .venv.
package: .venv/stamp
	@$(PYTHON) -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation .

.demo/stamp: tools/models.txt tools/get_models.py tools/make_shards.py .venv/stamp
	@$(PYTHON) tools/get_models.py .demo

demo: setup
	@$(MAKE) --no-print-directory all package .demo/stamp
	@$(PYTHON) tools/demo.py $(BUILD)/headrace .demo

test: setup
	@$(MAKE) --no-print-directory package .demo/stamp
	@$(call configure,$(BUILD),-DHEADRACE_TESTS=ON -DHEADRACE_PYTHON=ON)
	@$(call build,$(BUILD))
	@$(PYTHON) tools/run_tests.py $(BUILD)

# ---------------------------------------------------------------------------------------------------- checks
list-checks:
	@echo $(CHECKS)

C_FILES = $(shell git ls-files '*.c' '*.h' '*.cpp')

lint: check-format check-python check-tidy check-includes check-words check-spelling check-docs

format: .venv/stamp
	@.venv/bin/clang-format -i $(C_FILES)

check-format: .venv/stamp
	@.venv/bin/clang-format --dry-run -Werror --ferror-limit=2 $(C_FILES)

check-python: .venv/stamp
	@.venv/bin/ruff check -q .

check-tidy:
	@$(call configure,$(BUILD),-DHEADRACE_TESTS=ON -DHEADRACE_PYTHON=ON)
	@git ls-files 'src/*.c' 'cli/*.c' 'python/*.c' | xargs -P "$$(nproc)" -n 2 clang-tidy -quiet -p $(BUILD) -warnings-as-errors='*'

check-includes:
	@$(PYTHON) tools/check_includes.py

check-words:
	@$(PYTHON) tools/check_words.py

check-spelling: .venv/stamp
	@git ls-files ':!fuzz/corpus' ':!tests/conformance' ':!LICENSE' | xargs .venv/bin/codespell
	@$(PYTHON) tools/check_terms.py

# What is generated is in step, and links lead somewhere. That examples run is tested in tests/python/test_docs.py.
check-docs:
	@$(PYTHON) tools/make_errors_page.py --check
	@$(PYTHON) tools/make_readme_table.py --check
	@$(PYTHON) tools/check_links.py

check-symbols: all
	@$(PYTHON) tools/check_symbols.py $(BUILD)

# The public header alone, as the strictest C99 and C++11 that it promises.
check-header:
	@$(CC) -std=c99 -pedantic-errors -Wall -Wextra -Werror -fsyntax-only -x c include/headrace/headrace.h
	@$(CXX) -std=c++11 -pedantic-errors -Wall -Wextra -Werror -fsyntax-only -x c++ include/headrace/headrace.h

# The kernel's PTX against its source, and assembled, as far as the CUDA tools are here.
check-kernel:
	@tools/make_ptx.sh --check

# Compiled by clang: the other compiler's warnings are errors, too, and its sanitizers see more.
check-sanitize:
	@$(call configure,build-asan,-DCMAKE_C_COMPILER=clang -DCMAKE_C_FLAGS=-Werror -DHEADRACE_SANITIZE=ON \
	-DHEADRACE_TESTS=ON -DHEADRACE_PYTHON=ON)
	@$(call build,build-asan)
	@ctest --test-dir build-asan --output-on-failure --no-tests=error -E test_simulator

# What has threads and does not measure time, which this sanitizer stretches; forks of threads are nothing for it.
TSAN_TESTS := catalog|cli_timeline|cold|device|device_fake|device_faults|device_lanes|device_order|dlpack|$\
	files|flow_threads|gpu_faults|gpu_load|gpu_scarce|host_memory|io|load|$\
	probe|read_ahead|simulator|spread_end|spread_load|spread_scarce|spread_stream|writer|writer_files
check-tsan:
	@$(call configure,build-tsan,-DHEADRACE_TSAN=ON -DHEADRACE_TESTS=ON)
	@$(call build,build-tsan) --target $(addprefix test_,$(subst |, ,$(TSAN_TESTS)))
	@ctest --test-dir build-tsan --output-on-failure --no-tests=error -R '^test_($(TSAN_TESTS))$$'

check-valgrind:
	@$(call configure,$(BUILD),-DHEADRACE_TESTS=ON)
	@$(call build,$(BUILD))
	@tools/check_valgrind.sh $(BUILD)

check-environments: .venv/stamp
	@$(call configure,$(BUILD),-DHEADRACE_TESTS=ON)
	@$(call build,$(BUILD))
	@$(PYTHON) tools/check_environments.py $(BUILD)

# A minute in all; long runs: make fuzz TARGET=header SECONDS=3600.
check-fuzz:
	@for target in header json index slice plan table; do tools/fuzz.sh $$target 6 || exit 1; done

TARGET ?= header
SECONDS ?= 60
fuzz:
	@tools/fuzz.sh $(TARGET) $(SECONDS)

include tools/package.mk

clean:
	rm -rf $(BUILD) build-*
