#!/bin/sh
# Builds everything for aarch64 by a cross compiler and runs in qemu's user mode the C tests that are not long there
# (all that can run, with --all). The emulator lacks io_uring and cachestat: the tests of these say that they skip.
set -eu
cd "$(dirname "$0")/.."
build=build-aarch64
sysroot=$build/sysroot
log=$build/configure.log

tools/setup.sh tools/packages-aarch64.txt
tools/sysroot_arm64.sh "$sysroot" libc6-dev liburing-dev libxxhash-dev libcmocka-dev libjansson-dev
cmake -S . -B "$build" -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake -DHEADRACE_SYSROOT="$PWD/$sysroot" \
    -DHEADRACE_TESTS=ON -DCMAKE_C_FLAGS=-Werror >"$log" 2>&1 || { cat "$log"; exit 1; }
cmake --build "$build" --parallel "$(nproc)"

python3 tools/check_hardening.py "$build"
CC="aarch64-linux-gnu-gcc --sysroot=$sysroot" EMULATOR="qemu-aarch64 -L $sysroot" python3 tools/check_abi.py
# The emulator itself dies when a process with threads forks, cannot run a program of its own kind anew, is too slow for
# tests that measure time, and lacks the flags of preadv2, cachestat and statx's word on O_DIRECT, which some test.
left_out='bounds|cold|gpu_gds|in_place|io|load_fork|load_stop|probe|spread_scarce|spread_stream|storage|writer_fork'
[ "${1-}" = --all ] || left_out="$left_out|cast_parts|device_faults|flow|geometry|gpu_cast|gpu_faults|gpu_load|gpu_probe"
[ "${1-}" = --all ] || left_out="$left_out|load_cast|load_faults|load_slices|plan|simulator|spread_end|spread_load|spread_plan|window"
ctest --test-dir "$build" -E "^test_($left_out)\$" --output-on-failure --no-tests=error --parallel "$(nproc)"
