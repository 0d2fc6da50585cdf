#!/bin/sh
# Removes what the last `make install` of a build folder put down: uninstall.sh BUILD [DESTDIR]
set -eu
manifest=$1/install_manifest_headrace.txt
root=${2-}
if [ ! -f "$manifest" ]; then
    echo "There is no $manifest: nothing was installed from $1." >&2
    exit 1
fi
while IFS= read -r file || [ -n "$file" ]; do
    rm -f "$root$file"
    # Only the folders that are headrace's own; the others were there before.
    case $file in
    */headrace/*) rmdir --ignore-fail-on-non-empty "$(dirname "$root$file")" 2>/dev/null || true ;;
    esac
done <"$manifest"
rm "$manifest"
