#!/bin/bash
# Makes src/device/kernels/place.ptx, the form of the placing kernel that every driver since CUDA 11 translates for
# its GPU: make_ptx.sh; make_ptx.sh --check says whether it is in step, as far as the tools of this machine can tell.
#
# The text is for the oldest GPUs that nvcc 13 knows. Its .version is lowered to what the instructions need, since
# drivers refuse versions that are newer than they are. Other releases of nvcc write other text for the same source,
# so only the release that stands in the file is compared with. The comment on top must not say ".version": tools that
# look for that line take the first one.
set -euo pipefail
cd "$(dirname "$0")/.."
source=src/device/kernels/place.cu
ptx=src/device/kernels/place.ptx
arch=compute_75
version=7.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

release() {
    nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p'
}

# Instructions alone: no comment, no empty line, no blank at an end.
bare() {
    sed -e 's|//.*||' -e 's/[ \t]*$//' -e '/^$/d' "$1"
}

make_ptx() {
    nvcc -ptx -O3 -arch=$arch -Isrc -o "$work/raw.ptx" $source
    {
        echo "// Made from place.cu by tools/make_ptx.sh with nvcc of CUDA $(release): nvcc -ptx -O3 -arch=$arch -Isrc"
        echo "// and the version lowered to $version. Not to be edited."
        bare "$work/raw.ptx" | sed "s/^\.version .*/.version $version/"
    } >"$1"
}

# What ptxas does not know any more, it names; that is no fault of the file.
assemble() {
    local gpu known
    known=$(ptxas --help)
    for gpu in sm_75 sm_80 sm_90 sm_100; do
        if grep -q "'$gpu'" <<<"$known"; then
            ptxas -arch=$gpu -o "$work/$gpu.cubin" $ptx
        fi
    done
}

check() {
    if command -v ptxas >/dev/null; then
        assemble
    else
        echo "check-kernel: no ptxas here: $ptx was not assembled"
    fi
    if ! command -v nvcc >/dev/null; then
        echo "check-kernel: no nvcc here: $ptx was not compared with its source"
    elif ! grep -q "CUDA $(release):" $ptx; then
        echo "check-kernel: nvcc of CUDA $(release) is not the one that made $ptx: not compared with its source"
    else
        make_ptx "$work/place.ptx"
        diff <(bare $ptx) <(bare "$work/place.ptx") >"$work/difference" || {
            echo "$ptx is not what $source gives: run tools/make_ptx.sh" >&2
            head -20 "$work/difference" >&2
            exit 1
        }
    fi
}

if [[ ${1-} == --check ]]; then
    check
else
    make_ptx $ptx
fi
