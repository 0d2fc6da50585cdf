#!/bin/bash
# Makes src/device/kernels/*.ptx, the form of the GPU kernels that every driver since CUDA 11 translates for
# its GPU: make_ptx.sh; make_ptx.sh --check says whether it is in step, as far as the tools of this machine can tell.
#
# The text is for the oldest GPUs that nvcc 13 knows. Its .version is lowered to what the instructions need, since
# drivers refuse versions that are newer than they are. Other releases of nvcc write other text for the same source,
# so only the release that stands in the file is compared with. The comment on top must not say ".version": tools that
# look for that line take the first one. Conversions must give the bits that processors give: no multiply-add is made of
# two operations.
set -euo pipefail
cd "$(dirname "$0")/.."
kernels="place cast"
folder=src/device/kernels
arch=compute_75
version=7.0
options="-ptx -O3 -fmad=false -arch=$arch -Isrc -Iinclude"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

release() {
    nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p'
}

# Instructions alone: no comment, no empty line, no blank at an end.
bare() {
    sed -e 's|//.*||' -e 's/[ \t]*$//' -e '/^$/d' "$1"
}

# make_ptx KERNEL TARGET
make_ptx() {
    # shellcheck disable=SC2086  # words
    nvcc $options -o "$work/raw.ptx" $folder/"$1".cu
    {
        echo "// Made from $1.cu by tools/make_ptx.sh with nvcc of CUDA $(release): nvcc $options"
        echo "// and the version lowered to $version. Not to be edited."
        bare "$work/raw.ptx" | sed "s/^\.version .*/.version $version/"
    } >"$2"
}

# What ptxas does not know any more, it names; that is no fault of the file.
assemble() {
    local gpu known
    known=$(ptxas --help)
    for gpu in sm_75 sm_80 sm_90 sm_100; do
        if grep -q "'$gpu'" <<<"$known"; then
            ptxas -arch=$gpu -o "$work/$gpu.cubin" "$1"
        fi
    done
}

check() {
    local ptx=$folder/$1.ptx
    if command -v ptxas >/dev/null; then
        assemble "$ptx"
    else
        echo "check-kernel: no ptxas here: $ptx was not assembled"
    fi
    if ! command -v nvcc >/dev/null; then
        echo "check-kernel: no nvcc here: $ptx was not compared with its source"
    elif ! grep -q "CUDA $(release):" "$ptx"; then
        echo "check-kernel: nvcc of CUDA $(release) is not the one that made $ptx: not compared with its source"
    else
        make_ptx "$1" "$work/made.ptx"
        diff <(bare "$ptx") <(bare "$work/made.ptx") >"$work/difference" || {
            echo "$ptx is not what $1.cu gives: run tools/make_ptx.sh" >&2
            head -20 "$work/difference" >&2
            exit 1
        }
    fi
}

for kernel in $kernels; do
    if [[ ${1-} == --check ]]; then
        check "$kernel"
    else
        make_ptx "$kernel" "$folder/$kernel.ptx"
    fi
done
