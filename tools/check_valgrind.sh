#!/bin/sh
# Memcheck over a few C tests and the command: reads of what nobody wrote, which the sanitizers do not see, and leaks.
# The fake driver (tests/fake_cuda) takes part. Without io_uring, because memcheck does not see what the kernel writes
# there. Stacks that the C library keeps for the next thread look possibly lost, so that only definite and indirect losses
# count.
#   check_valgrind.sh BUILD
set -eu
build=$(realpath "$1")
files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT

header='{"a":{"dtype":"F32","shape":[50,20],"data_offsets":[0,4000]},"b":{"dtype":"U8","shape":[3],"data_offsets":[4000,4003]}}'
model="$files/model.safetensors"
{
    printf "\\$(printf '%03o' ${#header})\\0\\0\\0\\0\\0\\0\\0"
    printf '%s' "$header"
    head -c 4003 /dev/urandom
} >"$model"

# One line a run: the seconds it took and its status; its output only when it failed.
cat >"$files/run" <<'EOF'
log=$(mktemp)
began=$(date +%s)
LD_LIBRARY_PATH=$1/fake_cuda timeout 240 "$1/no_io_uring" EPERM valgrind -q --leak-check=full --show-leak-kinds=definite,indirect \
    --errors-for-leak-kinds=definite,indirect --error-exitcode=99 "$1"/$2 >"$log" 2>&1 && status=0 || status=$?
echo "$2: $status ($(($(date +%s) - began)) s)"
[ $status -eq 0 ] || cat "$log"
rm -f "$log"
exit $status
EOF

printf '%s\n' "test_dlpack" "test_io" "test_files" "test_slice" "test_index" "test_simulator 1 40" \
    "headrace ls $model" "headrace check --json $model" "headrace hash --device cpu $model" \
    "headrace hash --device cuda $model" "headrace diff --device cpu $model $model" \
    "headrace convert --dtype BF16 --align 4096 --check $model $files/converted" \
    "headrace load --device cpu --slice a=[::3,2:9] --json $model" "headrace plan $model" "headrace doctor" |
    tr '\n' '\0' | xargs -0 -P "$(nproc)" -I '{}' sh "$files/run" "$build" '{}'
