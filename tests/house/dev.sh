#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# dev.sh ROOT: the command line of ./dev and its install step, with stand-ins for the package tools.
set -uo pipefail
root=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

expect() {  # CODE TEXT ARGUMENT...
  local code=$1 text=$2 output status
  shift 2
  output=$(cd / && "$root/dev" "$@" 2>&1 </dev/null)
  status=$?
  if [[ $status -ne $code || $output != *"$text"* ]]; then
    printf './dev %s: exit code %d (wanted %d), wanted "%s" in:\n%s\n' "$*" "$status" "$code" "$text" "$output"
    failures=$((failures + 1))
  fi
}
wants_log() { grep -qF -- "$1" "$folder/log" || { printf 'wanted "%s" in the log:\n%s\n' "$1" "$(cat "$folder/log")"; failures=$((failures + 1)); }; }

expect 0 'usage: ./dev COMMAND' help
expect 0 'usage: ./dev COMMAND'
expect 2 "no command 'trian'" trian
expect 2 "wants a number of ranks, not 'two'" train -n two
expect 2 'wants a number of ranks' train -n
expect 2 "no preset 'release' with tests" test release
expect 2 "format takes --check or nothing" format --chekc
expect 2 'install takes' install everything
expect 2 "docs takes no arguments, not 'here'" docs here
expect 2 "bench takes kernels or step, not 'all-of-it'" bench all-of-it
expect 2 'pack takes the name of a .tar.gz or .tar.xz file' pack here
APEX_PRESET=fast expect 2 "APEX_PRESET is dev or cuda, not 'fast'" test

# A machine where two packages are missing, then one without apt-get.
mkdir "$folder/bin"
cat >"$folder/bin/dpkg-query" <<'X'
#!/bin/bash
case ${!#} in libdnnl-dev | ninja-build) exit 1 ;; esac
printf 'install ok installed'
X
cat >"$folder/bin/apt-get" <<'X'
#!/bin/bash
echo "apt-get $* ($DEBIAN_FRONTEND)" >>"$LOG"
[[ $* != *install* ]] || exit "${APT:-0}"
X
cat >"$folder/bin/sudo" <<'X'
#!/bin/bash
exec "$@"
X
chmod +x "$folder"/bin/*
export LOG=$folder/log
: >"$LOG"
PATH=$folder/bin:$PATH expect 0 'installing ninja-build libdnnl-dev' install build
wants_log 'update (noninteractive)'
wants_log '--no-install-recommends ninja-build libdnnl-dev (noninteractive)'
APT=100 PATH=$folder/bin:$PATH expect 3 'apt-get could not install: ninja-build libdnnl-dev' install build
: >"$LOG"
APEX_NO_INSTALL=1 PATH=$folder/bin:$PATH expect 0 '' install build
[[ ! -s $LOG ]] || { echo "APEX_NO_INSTALL=1 installed something"; failures=$((failures + 1)); }

# The headers of cudnn-frontend: a download that is not the pinned file, one that fails, and nothing to download with.
mkdir -p "$folder/tree" "$folder/few"
cp "$root/dev" "$folder/tree/dev"
for tool in bash dirname readlink cat rm mkdir sha256sum; do ln -s "$(command -v "$tool")" "$folder/few/$tool"; done
for tool in dpkg-query apt-get; do printf '#!/bin/bash\nprintf "install ok installed"\n' >"$folder/few/$tool"; done
cat >"$folder/few/python3" <<'X'
#!/bin/bash
[[ -n ${WHEEL-} ]] || exit 1
while (($#)); do
  [[ $1 != --dest ]] || printf '%s' "$WHEEL" >"$2/nvidia_cudnn_frontend-1.23.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"
  shift
done
X
chmod +x "$folder"/few/*
expect_install_cuda() {  # CODE TEXT
  local output status
  output=$(env -u CUDNNFrontend_ROOT -u EBROOTCUDNNMINFRONTEND -u CONDA_PREFIX PATH="$folder/few" \
    bash "$folder/tree/dev" install cuda 2>&1 </dev/null)
  status=$?
  if [[ $status -ne $1 || $output != *"$2"* || -e $folder/tree/build/deps/cudnn-frontend ]]; then
    printf './dev install cuda: exit code %d (wanted %d), wanted "%s" in:\n%s\n' "$status" "$1" "$2" "$output"
    failures=$((failures + 1))
  fi
}
WHEEL='something else' expect_install_cuda 3 'sha256 differs'
expect_install_cuda 3 'takes pip (Debian: python3-pip) or curl'
APEX_NO_INSTALL=1 expect_install_cuda 3 'set CUDNNFrontend_ROOT'
printf '#!/bin/bash\nexit 22\n' >"$folder/few/curl"
for tool in grep head; do ln -s "$(command -v "$tool")" "$folder/few/$tool"; done
chmod +x "$folder/few/curl"
expect_install_cuda 3 'could not fetch'


# nvJPEG comes after them, and a build does without it; but a file that is not the pinned one is an error.
mkdir -p "$folder/tree/build/deps/cudnn-frontend"
sed -n 's/^frontend_version=//p' "$root/dev" >"$folder/tree/build/deps/cudnn-frontend/version"
ln -s "$(command -v uname)" "$folder/few/uname"
expect_nvjpeg() {  # CODE TEXT
  local output status
  output=$(env -u NVJPEG_ROOT -u EBROOTNVJPEG -u CUDA_HOME -u CUDA_PATH -u EBROOTCUDA -u CONDA_PREFIX \
    -u CUDNNFrontend_ROOT -u EBROOTCUDNNMINFRONTEND PATH="$folder/few" bash "$folder/tree/dev" install cuda 2>&1 </dev/null)
  status=$?
  [[ -f /usr/local/cuda/include/nvjpeg.h || $(uname -m) != x86_64 ]] && set -- 0 ''
  if [[ $status -ne $1 || $output != *"$2"* || -e $folder/tree/build/deps/nvjpeg ]]; then
    printf './dev install cuda: exit code %d (wanted %d), wanted "%s" in:\n%s\n' "$status" "$1" "$2" "$output"
    failures=$((failures + 1))
  fi
}
expect_nvjpeg 0 'JPEG files will be decoded by the CPU'
APEX_NO_INSTALL=1 expect_nvjpeg 0 ''
sed -i 's/nvidia_cudnn_frontend-[^"]*/'"$(sed -n 's/^nvjpeg_wheel=//p' "$root/dev")/" "$folder/few/python3"
WHEEL='something else' expect_nvjpeg 3 'sha256 differs'

mkdir "$folder/bare"
for tool in bash dirname readlink; do ln -s "$(command -v "$tool")" "$folder/bare/$tool"; done
PATH=$folder/bare expect 3 'neither Debian nor Ubuntu' install build
if [[ $EUID -eq 0 ]] && command -v setpriv >/dev/null; then
  rm "$folder/bin/sudo"
  for tool in bash dirname readlink env; do ln -s "$(command -v "$tool")" "$folder/bin/$tool"; done
  cp "$root/dev" "$folder/dev"  # the tree itself may lie where nobody else can read
  chmod -R a+rX "$folder"
  output=$(cd / && setpriv --reuid=65534 --clear-groups env PATH="$folder/bin" bash "$folder/dev" install build 2>&1)
  if [[ $output != *'neither root nor a user with sudo; as root: apt-get install ninja-build libdnnl-dev'* ]]; then
    printf 'without root and sudo it should say what to install, but said:\n%s\n' "$output"
    failures=$((failures + 1))
  fi
fi

printf './dev: %d failures\n' "$failures"
[[ $failures -eq 0 ]]
