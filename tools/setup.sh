#!/bin/sh
# Installs the Debian packages of packages.txt, or of the list that is given, that are missing; does nothing, quickly,
# when none is.
# With --check it installs nothing: it says what a plain `make` lacks and the one command that brings it.
set -eu
cd "$(dirname "$0")/.."

has_header() {
    printf '#include <%s>\n' "$1" | "${CC:-cc}" -E - >/dev/null 2>&1
}

check() {
    missing=
    command -v "${CC:-cc}" >/dev/null || missing="$missing gcc libc6-dev"
    command -v cmake >/dev/null || missing="$missing cmake"
    has_header liburing.h || missing="$missing liburing-dev"
    has_header xxhash.h || missing="$missing libxxhash-dev"
    [ -z "$missing" ] && exit 0
    echo "To build headrace, these are missing:$missing. On Debian 12 and 13 this installs them:" >&2
    echo "    sudo apt-get update && sudo apt-get install -y --no-install-recommends$missing" >&2
    exit 1
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        env DEBIAN_FRONTEND=noninteractive "$@"
    elif ! command -v sudo >/dev/null; then
        echo "This needs root or sudo to install:$missing" >&2
        exit 1
    else
        sudo env DEBIAN_FRONTEND=noninteractive "$@"
    fi
}

[ "${1-}" = --check ] && check

wanted=$(sed 's/#.*//' "${1:-packages.txt}")
missing=
for package in $wanted; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

if ! command -v apt-get >/dev/null; then
    echo "This needs Debian 12 or 13. Elsewhere install the like of:$missing" >&2
    exit 1
fi
echo "installing:$missing"
as_root apt-get update -qq
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# $missing is a list of words. The log is shown only when the installation fails.
# shellcheck disable=SC2086
if ! as_root apt-get install -y -qq --no-install-recommends $missing </dev/null >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
