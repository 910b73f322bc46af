#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds all images with buildah where no registry is reached: the base is a root of Debian 12 that
# debootstrap makes, once. As root. Where the images go says CONTAINERS_STORAGE_CONF, as always.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
readonly base=localhost/debian:bookworm-slim

print_help() {
  cat <<'HELP'
Usage: deploy/images/build.sh [OPTIONS]

  --from-package   takes the tar of ./dev package instead of building from source
  --root DIR       a root of Debian 12 that is there already, instead of debootstrap's
  --mirror URL     where Debian comes from; what debootstrap takes by itself
  --apt-conf FILE  configuration of apt while the images are built (a proxy, say); in no image
HELP
}

programs=from-source
debian_root=""
mirror=()
volumes=()
while (($# > 0)); do
  case $1 in
    --from-package) programs=from-package ;;
    --root) debian_root=${2:?--root needs a folder} && shift ;;
    --mirror) mirror=("${2:?--mirror needs a URL}") && shift ;;
    --apt-conf)
      volumes+=(--volume "$(readlink -f "${2:?--apt-conf needs a file}"):/etc/apt/apt.conf.d/99build:ro")
      shift
      ;;
    --help | -h)
      print_help
      exit 0
      ;;
    *)
      printf "build.sh: unknown option '%s'\n" "$1" >&2
      print_help >&2
      exit 2
      ;;
  esac
  shift
done
version=$(sed -n 's/^project(moebius VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
  if [[ -z $debian_root ]]; then
    debian_root=$scratch/root
    debootstrap --variant=minbase bookworm "$debian_root" "${mirror[@]}"
  fi
  tar -C "$debian_root" --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' \
    --exclude='./var/cache/apt/*.bin' --exclude='./var/cache/apt/archives/*.deb' \
    -cf "$scratch/root.tar" .
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$scratch/root.tar" /
  buildah config --cmd /bin/sh "$container"
  buildah commit --quiet --rm "$container" "$base"
fi

# The stages that all have in common are built for the first and found by the others.
for target in moebius router expert attention; do
  name=moebius-$target
  if [[ $target == moebius ]]; then name=moebius; fi
  buildah build --layers --isolation chroot --pull-never --network host "${volumes[@]}" \
    --build-arg DEBIAN="$base" --build-arg RUNTIME="$base" --build-arg PROGRAMS="$programs" \
    --file deploy/images/Dockerfile --target "$target" --tag "localhost/$name:$version" .
done
