#!/bin/sh
# Fuzzes one target (header, json, index, slice, plan, table): builds it into build-fuzz with clang, starts from seeds,
# the kept corpus and what earlier runs found, and reports. What it finds lies in build-fuzz/found/TARGET; an input that
# breaks a promise in build-fuzz/TARGET-crash-..., and the exit status is not 0.
# usage: tools/fuzz.sh TARGET SECONDS    run
#        tools/fuzz.sh TARGET keep       make fuzz/corpus/TARGET the smallest set that reaches as much code
set -eu
cd "$(dirname "$0")/.."

if [ $# -ne 2 ]; then
    sed -n '2,/^set/s/^# //p' "$0" >&2
    exit 2
fi
target=$1
build=build-fuzz
found=$build/found/$target
kept=fuzz/corpus/$target
program=$build/fuzz/fuzz_$target

# Longest input worth trying, and the words that help.
case $target in
    header) longest=4096 words=json ;;
    index) longest=2048 words=json ;;
    json) longest=1024 words=json ;;
    slice) longest=160 words=slice ;;
    plan) longest=400 words= ;;
    table) longest=400 words= ;;
    *) echo "no such target: $target" >&2 && exit 2 ;;
esac

mkdir -p "$build" "$found" "$kept"
[ -f $build/CMakeCache.txt ] || cmake -S . -B $build -DCMAKE_C_COMPILER=clang -DHEADRACE_FUZZ=ON -DHEADRACE_CLI=OFF \
    "$(command -v ninja >/dev/null && echo -GNinja || echo -Wno-dev)" >$build/configure.log 2>&1 ||
    { cat $build/configure.log && exit 1; }
cmake --build $build --target "fuzz_$target" >$build/build.log 2>&1 || { cat $build/build.log && exit 1; }
rm -rf "$build/seeds/$target"
python3 fuzz/make_seeds.py "$target" "$build/seeds/$target"

if [ "$2" = keep ]; then
    smallest=$(mktemp -d)
    trap 'rm -rf "$smallest"' EXIT
    "$program" -merge=1 -max_len="$longest" "$smallest" "$found" "$kept" "$build/seeds/$target" \
        >$build/merge.log 2>&1 || { tail -n 20 $build/merge.log && exit 1; }
    rm -f "$kept"/*
    for input in "$smallest"/* "$build/seeds/$target"/case-*; do
        [ -f "$input" ] || continue
        cp "$input" "$kept/$target-$(sha1sum <"$input" | cut -c 1-12)"
    done
    echo "$target: $(ls "$kept" | wc -l) inputs, $(cat "$kept"/* | wc -c) bytes kept"
    exit 0
fi

log=$build/$target.log
status=0
"$program" -max_total_time="$2" -max_len="$longest" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$build/$target-" ${words:+-dict=fuzz/dict/$words.dict} \
    "$found" "$kept" "$build/seeds/$target" >"$log" 2>&1 || status=$?
if [ $status -ne 0 ]; then
    tail -n 60 "$log"
    echo "$target: broken; replay with $program FILE" >&2
    exit 1
fi
awk -v target="$target" '/DONE +cov: / { reached = $0; sub(/.*cov: /, "", reached); sub(/ .*/, "", reached) }
    /number_of_executed_units/ { count = $2 } /average_exec_per_sec/ { rate = $2 } /new_units_added/ { added = $2 }
    END { printf "%s: %d inputs, %d a second, %d edges reached, %d inputs new, nothing broken\n",
          target, count, rate, reached, added }' "$log"
