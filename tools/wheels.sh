#!/bin/bash
# Makes dist/: the source distribution and wheels for x86_64 and aarch64, and tries each where it can run:
# wheels.sh [x86_64|aarch64]... The tag follows from the C library of this machine: Debian 12 gives manylinux_2_34.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=$PWD
work=$tree/build-wheels
python=$work/venv/bin/python
[[ $# -gt 0 ]] || set -- x86_64 aarch64

# The output of a long command is of interest only when it fails: logged NAME COMMAND...
logged() {
    "${@:2}" >"$work/$1.log" 2>&1 || { cat "$work/$1.log"; return 1; }
}

new_venv() {
    "$([[ -x /usr/bin/python3 ]] && echo /usr/bin/python3 || echo python3)" -m venv "$1"
}

prepare() {
    if [[ ! -f $work/stamp || tools/requirements-wheels.txt -nt $work/stamp ]]; then
        rm -rf "$work"
        new_venv "$work/venv"
        "$python" -m pip install -q --disable-pip-version-check --only-binary :all: -r tools/requirements-wheels.txt
        touch "$work/stamp"
    fi
    rm -rf dist "$work"/raw.*
    logged sdist "$python" -m build --sdist --no-isolation --outdir dist .
}

# The wheel is built from the source distribution, so that nothing is missing there: build_raw ARCH [CMAKE ARGUMENT]...
build_raw() {
    local arch=$1
    shift
    # The arguments hold no spaces.
    CMAKE_ARGS="$*" _PYTHON_HOST_PLATFORM=linux-$arch logged wheel "$python" -m pip wheel --no-deps \
        --no-build-isolation --no-cache-dir --disable-pip-version-check -w "$work/raw.$arch" dist/*.tar.gz
}

# Renames the wheel by the oldest platform that it fits, and fails when it needs libraries of this machine.
repair() {
    PATH=$work/venv/bin:$PATH logged repair "$python" -m auditwheel repair --wheel-dir dist "$work/raw.$1"/*.whl
    if "$python" -m zipfile --list "$(wheel_of "$1")" | grep '\.libs/'; then
        echo "The $1 wheel carries libraries of this machine; only the C library may be needed." >&2
        exit 1
    fi
}

wheel_of() {
    ls "$tree"/dist/*_"$1".whl
}

try_here() {
    rm -rf "$work/clean"
    new_venv "$work/clean"
    "$work/clean/bin/python" -m pip install -q --disable-pip-version-check --no-index "$(wheel_of x86_64)"
    (cd / && "$work/clean/bin/python" -I "$tree/tools/wheel_smoke.py")
}

# The arm64 Python of the sysroot, in the emulator.
try_in_emulator() {
    local sysroot=$1
    rm -rf "$work/unpacked"
    "$python" -m zipfile --extract "$(wheel_of aarch64)" "$work/unpacked"
    (cd / && PYTHONHOME=$sysroot/usr PYTHONPATH=$work/unpacked qemu-aarch64 -L "$sysroot" \
        "$sysroot/usr/bin/python3" -s "$tree/tools/wheel_smoke.py")
}

x86_64() {
    build_raw x86_64
    repair x86_64
    try_here
}

aarch64() {
    local sysroot=$work/sysroot include
    tools/setup.sh tools/packages-aarch64.txt
    tools/sysroot_arm64.sh "$sysroot" libc6-dev liburing-dev libxxhash-dev libpython3-dev python3-minimal \
        libpython3-stdlib
    include=$(echo "$sysroot"/usr/include/python3.*)
    build_raw aarch64 -DCMAKE_TOOLCHAIN_FILE="$tree/cmake/aarch64.cmake" -DHEADRACE_SYSROOT="$sysroot" \
        -DPython_INCLUDE_DIR="$include"
    repair aarch64
    try_in_emulator "$sysroot"
}

prepare
for arch in "$@"; do
    "$arch"
done
ls -l dist
