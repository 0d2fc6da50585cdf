#!/bin/sh
# Makes .venv with the packages of tests/requirements.txt. Debian's own Python is preferred to whatever else comes
# first in PATH, since python3-dev and python3-venv of packages.txt belong to it.
set -eu
cd "$(dirname "$0")/.."

python=python3
/usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null && python=/usr/bin/python3
rm -rf .venv
"$python" -m venv .venv
.venv/bin/python -m pip install -q --disable-pip-version-check --only-binary :all: -r tests/requirements.txt
touch .venv/stamp
