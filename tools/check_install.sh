#!/bin/bash
# Checks `make install`: what lies where, that the tree can be moved, that the examples build against it by pkg-config
# and by find_package, shared and static, and say what they must; that `make uninstall` leaves nothing:
# check_install.sh BUILD
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
examples='load_to_memory.c load_to_gpu.c stream.c slices.c load_gguf.c nccl_load.c raii_dlpack.cpp'

fail() {
    echo "check_install: $*" >&2
    exit 1
}

# A file of three tensors, and what the examples must say about it.
make_file() {
    python3 - "$work" <<'PYTHON'
import json, struct, sys
from pathlib import Path

work = Path(sys.argv[1])
tensors = {"a": ("BF16", [6, 5], 2), "b": ("F32", [3], 4), "c": ("U8", [300, 700], 1)}
header, data = {}, bytearray()
for number, (name, (dtype, shape, width)) in enumerate(tensors.items()):
    count = width * (shape[0] * shape[1] if len(shape) == 2 else shape[0])
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + count]}
    data += bytes((number * 97 + i * 31 + i // 251) % 256 for i in range(count))
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
(work / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)

pieces = {name: data[entry["data_offsets"][0]:entry["data_offsets"][1]] for name, entry in header.items()}
lines = {"load_to_memory": [], "load_to_gpu": [], "stream": [], "raii_dlpack": []}
for name, piece in pieces.items():
    dtype, shape, _ = tensors[name]
    lines["load_to_memory"].append(f"{name} {dtype} [{','.join(map(str, shape))}] {len(piece)} bytes, "
                                   f"sum of bytes {sum(piece)}")
    lines["load_to_gpu"].append(f"{name} {dtype} [{','.join(map(str, shape))}] {len(piece)} bytes at ADDRESS")
    lines["stream"].append(f"{name} {len(piece)} bytes")
    lines["raii_dlpack"].append(f"{name} {len(piece)} bytes, sum of bytes {sum(piece)}")
lines["slices"] = [f"row {row}: 10 bytes, sum of bytes {sum(pieces['a'][row * 10:row * 10 + 10])}" for row in (2, 3)]
for example, expected in lines.items():
    (work / f"{example}.expected").write_text("\n".join(sorted(expected)) + "\n")
PYTHON
}

run_examples() {
    local folder=$1 model=$work/model.safetensors name
    for name in load_to_memory load_to_gpu stream slices raii_dlpack; do
        case $name in
        load_to_gpu) set -- cpu "$model" ;;
        stream) set -- 1000 "$model" ;;
        slices) set -- "$model" a 1 3 ;;
        *) set -- "$model" ;;
        esac
        "$folder/$name" "$@" 2>"$folder/$name.log" | sed 's/ 0x[0-9a-f]*$/ ADDRESS/' |
            LC_ALL=C sort >"$folder/$name.out" ||
            fail "$folder/$name: $(cat "$folder/$name.log")"
        diff "$work/$name.expected" "$folder/$name.out" || fail "$folder/$name says something else than expected"
        if "$folder/$name" "${@/$model/$work/missing}" >/dev/null 2>&1; then
            fail "$name takes a missing file for success"
        fi
    done
}

needed() {
    readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'
}

build_by_pkg_config() {
    local folder=$1 source compiler
    shift
    mkdir "$folder"
    for source in $examples; do
        compiler="${CC:-cc} -std=c99"
        [[ $source == *.cpp ]] && compiler="${CXX:-c++} -std=c++11"
        # shellcheck disable=SC2046,SC2086
        $compiler -Wall -Wextra -Werror $(pkg-config --cflags headrace) "examples/$source" -o "$folder/${source%.*}" \
            $(pkg-config --libs "$@" headrace) ${static:+-static}
    done
}

build_by_cmake() {
    cmake -S examples -B "$1" -DCMAKE_PREFIX_PATH="$work/prefix" "-DSTATIC=$2" >"$work/cmake.log" 2>&1 &&
        cmake --build "$1" >>"$work/cmake.log" 2>&1 || fail "find_package: $(cat "$work/cmake.log")"
}

check_staging() {
    local file files
    make --no-print-directory install BUILD="$build" DESTDIR="$work/stage" PREFIX=/opt/x >/dev/null
    files=$(cd "$work/stage" && find . -type f -o -type l | LC_ALL=C sort)
    for file in include/headrace/headrace.h lib/libheadrace.so lib/libheadrace.so.0 lib/libheadrace.so.0.1.0 \
        lib/libheadrace.a lib/pkgconfig/headrace.pc lib/cmake/headrace/headraceConfig.cmake \
        lib/cmake/headrace/headraceConfigVersion.cmake bin/headrace share/man/man1/headrace.1 \
        share/man/man1/headrace-load.1 share/man/man3/headrace.3 share/zsh/site-functions/_headrace \
        share/bash-completion/completions/headrace; do
        grep -qx "./opt/x/$file" <<<"$files" || fail "not installed: $file"
    done
    if grep -rIlF -e "$PWD" -e "$work" -e /opt/x "$work/stage"; then
        fail "these installed files hold a path of this machine"
    fi
    make --no-print-directory uninstall BUILD="$build" DESTDIR="$work/stage"
    files=$(find "$work/stage" -not -type d -o -name headrace)
    [[ -z $files ]] || fail "left by make uninstall: $files"
}

main() {
    local static= version
    make_file
    check_staging
    make --no-print-directory install BUILD="$build" PREFIX="$work/elsewhere" >/dev/null
    mv "$work/elsewhere" "$work/prefix"
    export PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig LD_LIBRARY_PATH=$work/prefix/lib

    version=$("$work/prefix/bin/headrace" --version)
    [[ "headrace $(pkg-config --modversion headrace)" == "$version" ]] || fail "headrace.pc and $version disagree"
    build_by_pkg_config "$work/shared"
    run_examples "$work/shared"
    needed "$work/shared/stream" | grep -qx libheadrace.so.0 || fail "programs do not ask for libheadrace.so.0"
    if needed "$work/prefix/lib/libheadrace.so" | grep -v '^\(libc\|ld-linux.*\)\.so'; then
        fail "the shared library needs more than the C library"
    fi
    build_by_cmake "$work/shared-cmake" OFF
    run_examples "$work/shared-cmake"

    unset LD_LIBRARY_PATH
    static=1 build_by_pkg_config "$work/static" --static
    run_examples "$work/static"
    build_by_cmake "$work/static-cmake" ON
    run_examples "$work/static-cmake"
    if needed "$work/static-cmake/stream" | grep headrace; then
        fail "headrace::static still needs the shared library"
    fi
}

main
