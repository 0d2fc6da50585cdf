#!/bin/bash
# Makes a folder that is an arm64 Debian as far as building and running need it: sysroot_arm64.sh DIR PACKAGE...
# apt gets a state of its own there, so this machine's packages and architectures stay as they are; root is not needed.
set -euo pipefail
folder=$(mkdir -p "$1" && cd "$1" && pwd)
shift
[[ -f $folder/stamp && $(<"$folder/stamp") == "$*" ]] && exit 0

state=$folder/.apt
mkdir -p "$state"/{lists/partial,archives/partial} "$folder"/usr/{bin,sbin,lib}
: >"$state/status"
for name in bin sbin lib; do
    [[ -e $folder/$name ]] || ln -s "usr/$name" "$folder/$name"
done

apt() {
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$state" \
        -o Dir::State::status="$state/status" -o Dir::Cache="$state" -o APT::Sandbox::User= -o Debug::NoLocking=1 "$@"
}

if ! { apt update && apt install --download-only -y --no-install-recommends "$@"; } </dev/null >"$state/log" 2>&1; then
    cat "$state/log" >&2
    exit 1
fi
for package in "$state"/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$folder" --keep-directory-symlink --no-same-owner
done
rm -rf "$state"
echo "$*" >"$folder/stamp"
