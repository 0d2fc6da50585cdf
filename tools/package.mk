# Installing, and the checks of what is installed. Included by the Makefile.
#   make install     PREFIX (/usr/local) and, for packagers, DESTDIR; `make uninstall` with the same two takes it away
PREFIX ?= /usr/local
DESTDIR ?=

.PHONY: install uninstall wheels

install: all
	@DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --prefix "$(PREFIX)" --component headrace >$(BUILD)/install.log || \
		{ cat $(BUILD)/install.log; exit 1; }
	@echo "installed in $(DESTDIR)$(PREFIX)"

uninstall:
	@tools/uninstall.sh $(BUILD) "$(DESTDIR)"

check-install: all
	@tools/check_install.sh $(BUILD)

check-hardening: all
	@$(PYTHON) tools/check_hardening.py $(BUILD)

check-completions: all
	@$(PYTHON) tools/check_completions.py $(BUILD)/headrace

check-abi:
	@$(PYTHON) tools/check_abi.py

check-aarch64:
	@tools/check_aarch64.sh

wheels check-wheels:
	@tools/wheels.sh
