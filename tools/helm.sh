#!/bin/sh
# Puts helm VERSION at TARGET: built by GO, if there is one, else the project's own binary, checked against its sum.
set -eu
version=$1 target=$2 go=$3
folder=$(cd "$(dirname "$target")" && pwd)
if [ -n "$go" ]; then
    echo "building helm $version with $go"
    GOBIN=$folder CGO_ENABLED=0 GOFLAGS=-mod=mod "$go" install "helm.sh/helm/v3/cmd/helm@$version"
    exit
fi
system=$(uname -s | tr '[:upper:]' '[:lower:]')
case $(uname -m) in
    x86_64 | amd64) machine=amd64 ;;
    aarch64 | arm64) machine=arm64 ;;
    *) echo "there is neither Go nor a helm for $(uname -m)" >&2; exit 1 ;;
esac
archive=helm-$version-$system-$machine.tar.gz
echo "there is no Go: fetching $archive"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
fetch() { python3 -c 'import sys, urllib.request as r; r.urlretrieve(sys.argv[1], sys.argv[2])' "https://get.helm.sh/$1" "$1"; }
fetch "$archive"
fetch "$archive.sha256sum"
if command -v sha256sum > /dev/null; then sha256sum --check --quiet "$archive.sha256sum"; else shasum -a 256 -c "$archive.sha256sum"; fi
tar -xzf "$archive"
mv "$system-$machine/helm" "$folder/helm"
