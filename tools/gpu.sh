#!/bin/bash
# Everything that wants a GPU machine, in parts of a few minutes each: gpu.sh PART [OPTION]...
#
#   build     here, GPU or not: the tests, benchmarks and the wheel, put into a folder that can be carried
#   test      the unit tests on the driver of this machine, under compute-sanitizer where it is, and the Python tests
#   bitwise   generated and real checkpoints to the GPU, bit for bit against the safetensors package
#   bench     page cache to GPU against the fastest bare program: whose memory, new loaders, a small model
#   threads   the same with 4 to 128 readers asked for
#   cores     the same on 2, 4 and 8 cores
#   small     20,000 small tensors against few large ones (31 GB more on the disk)
#   cast      dtypes converted on the way, each against the plain load of the same file (as much on the disk again)
#   group-test   two GPUs, a process each: the tests of process groups over NCCL
#   group-bench  two GPUs: shards by rows and columns, and whole tensors on both, against bare programs on both at once
#   peers     other loaders in PyTorch, taking turns
#   transformers  from_pretrained with and without headrace, a dense model and a mixture of experts (11 GB on the disk)
#   cold      from the drive to host memory and to the GPU against a raw reader; cold-half: half and all of it in the
#             page cache; cold-peers: the processor time of safetensors for the same; ahead: what reading ahead gains
#
#   --from DIR       what `build` made (build-gpu)
#   --out DIR        results, PART.json each (build-gpu/results)
#   --scratch DIR    for checkpoints (/tmp): 17 GB, and as much page cache
#   --gib N          size of the large checkpoint (16)
#   --pairs N        rounds (11)
#   --seconds N      cold, cold-half: bound of the loads (none)
#   --python X.Y     build: of the machine it is carried to (this one's)
#   --models DIR     bitwise: real checkpoints, files or folders (.demo)
#
# The machine needs a driver and python3 with PyTorch and safetensors, neither compilers nor the CUDA toolkit. Results of
# benchmarks are joined and kept by `bench/run.py NAME --join build-gpu/results/{bench,threads,...}.json`.
set -euo pipefail
cd "$(dirname "$0")/.."

part=${1:?"gpu.sh PART [OPTION]..., see its first lines"}
shift
from=build-gpu out= scratch=/tmp gib=16 pairs=11 seconds=0 models=.demo python_version=
while [[ $# -gt 0 ]]; do
    case $1 in
    --from) from=$2 ;;
    --out) out=$2 ;;
    --scratch) scratch=$2 ;;
    --gib) gib=$2 ;;
    --pairs) pairs=$2 ;;
    --seconds) seconds=$2 ;;
    --models) models=$2 ;;
    --python) python_version=$2 ;;
    *)
        echo "gpu.sh: no such option: $1" >&2
        exit 2
        ;;
    esac
    shift 2
done
from=$(realpath -m "$from")
out=$(realpath -m "${out:-$from/results}")

build() {
    local work=build-gpu-work generator=() tests=() source
    local benchmarks=(bench_gpu bench_ruler bench_host bench_header bench_cold)
    make --no-print-directory .venv/stamp
    command -v ninja >/dev/null && generator=(-G Ninja)
    for source in tests/unit/test_{device,gpu,spread_end,spread_load}*.c; do
        # a test of the fake driver alone
        [[ $source != */test_device_fake.c ]] && tests+=("$(basename "$source" .c)")
    done
    cmake -S . -B "$work" "${generator[@]}" -DHEADRACE_TESTS=ON -DHEADRACE_BENCH=ON >/dev/null
    cmake --build "$work" --parallel --target headrace_cli fake_cufile "${benchmarks[@]}" "${tests[@]}" \
        >"$work/log" ||
        { cat "$work/log" && exit 1; }
    rm -rf "$from/bin" "$from/lib" "$from/cufile"
    mkdir -p "$from/bin" "$from/lib" "$from/cufile" "$from/wheels"
    (cd "$work" && cp headrace "${benchmarks[@]}" "${tests[@]}" "$from/bin")
    cp "$work/fake_cufile/libcufile.so.0" "$from/cufile"
    # of the libraries that these want, the one that a machine without compilers lacks
    ldd "${tests[@]/#/$from/bin/}" | awk '/cmocka/ {print $3}' | sort -u | xargs -r cp -L -t "$from/lib"
    rm -f "$from"/wheels/headrace-*.whl
    .venv/bin/python -m pip wheel -q --no-deps --no-build-isolation --no-cache-dir --disable-pip-version-check \
        -w "$from/wheels" .
    fetch_wheels
}

# Where nothing can be fetched, what the machine has must do.
fetch_wheels() {
    local target=()
    if [[ -n $python_version ]]; then
        target=(--python-version "$python_version" --implementation cp)
        for tag in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014; do
            target+=(--platform "${tag}_x86_64")
        done
    fi
    .venv/bin/python -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: \
        ${target[@]+"${target[@]}"} -d "$from/wheels" -r tools/requirements-gpu.txt ||
        echo "gpu.sh: not all wheels of tools/requirements-gpu.txt could be fetched" >&2
}

# The wheels, each that suits this Python, into a folder of their own: nothing of the machine is changed.
use_wheels() {
    local site wheel
    site=$(mktemp -d)
    # shellcheck disable=SC2064 # the folder of now
    trap "rm -rf '$site'" EXIT
    for wheel in "$from"/wheels/*.whl; do
        python3 -m pip install -q --disable-pip-version-check --no-index --no-deps --no-compile --no-cache-dir \
            --upgrade --target "$site" "$wheel" || echo "gpu.sh: $wheel does not suit this machine" >&2
    done
    export PYTHONPATH=$site HEADRACE_BIN=$from/bin/headrace
    use_programs
}

use_programs() {
    export LD_LIBRARY_PATH=$from/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    mkdir -p "$out"
    chmod +x "$from"/bin/*
}

# run.py SECTION, kept as PART.json
benchmark() {
    python3 bench/run.py "$part" --build "$from/bin" --out "$out" --scratch "$scratch" --gib "$gib" \
        --pairs "$pairs" --seconds "$seconds" --only "$1"
}

case $part in
build) build ;;
test) use_wheels && python3 tools/gpu_tests.py "$from/bin" --json "$out/test.json" ;;
bitwise)
    use_wheels
    python3 tools/gpu_bitwise.py --models "$models" --scratch "$scratch" --json "$out/bitwise.json"
    ;;
bench) use_wheels && benchmark gpu-hot ;;
threads | cores | small | cast) use_wheels && benchmark "gpu-$part" ;;
group-test)
    use_wheels
    python3 -m pytest -q -rs tests/python/test_group_nccl.py
    ;;
group-bench) use_wheels && benchmark group ;;
peers | transformers) use_wheels && benchmark "$part" ;;
cold | cold-half) use_programs && benchmark "$part" ;;
ahead | cold-peers) use_wheels && benchmark "$part" ;;
*)
    echo "gpu.sh: no such part: $part" >&2
    exit 2
    ;;
esac
