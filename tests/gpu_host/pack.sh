#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# Puts the programs and tests of a CUDA build into one file for a GPU host that has a driver, CUDA, cuDNN and NCCL (those
# of a python3 with PyTorch will do), but neither a compiler nor MPI, HDF5 and the like.
#
#   pack.sh BUILD FILE.tar.gz|FILE.tar.xz [--partial] [--with FILE_OR_FOLDER]...
#     --partial  leave out tests that are not built, with a warning for each
#     --with     take this along as data/NAME
#
# On the GPU host:   tar xf FILE && apex-gpu-host/run.sh
set -euo pipefail
export LC_ALL=C  # one order for sort and comm
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd -P)
source_dir=$(cd "$here/../.." && pwd -P)
most_bytes=$((60 << 20))

die() { printf 'pack.sh: %s\n' "$*" >&2; exit 2; }
[[ $# -ge 2 && -d $1 && $2 == *.tar.[gx]z ]] || die "usage: pack.sh BUILD FILE.tar.gz|FILE.tar.xz [--partial] [--with FILE_OR_FOLDER]..."
build=$(cd "$1" && pwd -P) out=$2
shift 2
library=$(find "$build" -maxdepth 2 -name 'libapex.so' | head -n 1)
[[ -n $library ]] || die "$build holds no libapex.so; build the preset cuda"

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
root=$stage/apex-gpu-host
mkdir -p "$root"/{bin,lib,plugins,share,etc,build,source,data}
partial=OFF
while (($#)); do
  if [[ $1 == --partial ]]; then
    partial=ON
    shift
    continue
  fi
  [[ $1 == --with && -e ${2:-} ]] || die "no such option or file: $*"
  cp -rL "$2" "$root/data/"
  shift 2
done

# The programs, and what the tests' commands name, at their places in the build and the source folder.
cmake -D BUILD="$build" -D PARTIAL="$partial" -D OUT="$root/tests.tsv" -P "$here/manifest.cmake"
{
  find "$build/apps" -maxdepth 1 -type f -executable
  # Not those of files alone, nor the one that holds a library of its own.
  find "$build/tests" -type f -executable ! -name '*.so*' ! -path '*/CMakeFiles/*' ! -path '*/tests/io_*' ! -name '*.mutations'
  find "$build/tests" -maxdepth 3 -type f -name '*_tests.cmake'
} | sort -u | while IFS= read -r file; do
  mkdir -p "$root/build/$(dirname "${file#"$build"/}")"
  cp -L "$file" "$root/build/${file#"$build"/}"
done
cp -L "$library" "$root/lib/"
[[ ! -e $build/lib/libapex_probe.so ]] || cp -L "$build/lib/libapex_probe.so" "$root/lib/"
(cd "$source_dir" && find tests \( -path '*/data/*' -o -path '*/fixtures/*' -o -name '*.sh' \) -type f -print0 |
  xargs -0 cp --parents -t "$root/source")
cp "$here/run.sh" "$here/images.py" "$root/"

# MPI: the launcher and what one host needs; no stack of an interconnect, no resource manager.
command -v ompi_info >/dev/null || die "no ompi_info: only Open MPI can be packed"
ompi_path() { ompi_info --parsable --path "$1" | cut -d: -f3; }
for tool in mpirun orted h5dump h5ls h5diff; do
  [[ -z $(command -v "$tool") ]] || cp -L "$(command -v "$tool")" "$root/bin/$tool"
done
ln -s mpirun "$root/bin/mpiexec"
for plugin in "$(ompi_path pkglibdir)"/mca_*.so; do
  case ${plugin##*/} in
    *ucx* | *ofi* | *verbs* | *openib* | *psm* | *portals* | *usnic* | *gpfs* | *lustre* | *ugni* | *slurm* | *tm* | *loadleveler*) ;;
    *) cp -L "$plugin" "$root/plugins/" ;;
  esac
done
cp -rL "$(ompi_path pkgdatadir)"/. "$root/share/"
cp -rL /etc/openmpi/. "$root/etc/" 2>/dev/null || true
cp -L "$(ompi_path libdir)"/libmca_common_{sm,monitoring,ompio}.so* "$root/lib/" 2>/dev/null || true

# Every library they need, less what the GPU host has: libc, libstdc++ and NVIDIA's, of which nvJPEG alone often lacks.
find "$root" -type f \( -perm -u+x -o -name '*.so*' \) ! -name '*.sh' -print0 | xargs -0 -n 16 ldd 2>/dev/null |
  awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
  grep -Ev '/(libc|libm|libdl|librt|libpthread|libresolv|libutil|ld-linux[^/]*|libstdc\+\+|libgcc_s)\.so' |
  grep -Ev '/lib(cuda|cudart|cublas|cublasLt|cudnn|nccl|cupti|nvrtc|nvidia|nvToolsExt|apex)[^/]*\.so' |
  while IFS= read -r lib; do cp -L "$lib" "$root/lib/"; done

# The names of libapex's kernels as the fat binary registers them: the mangled functions among its constants.
objcopy -O binary --only-section=.rodata "$root/lib/libapex.so" "$stage/rodata"
strings -n 6 "$stage/rodata" | grep -E '^_Z[A-Za-z0-9_]+$' | sort -u |
  while IFS= read -r name; do [[ $(c++filt "$name") == *'('* ]] && printf '%s\n' "$name"; done >"$root/kernels.txt" || true
[[ -s $root/kernels.txt ]] || die "found no kernels in $library"
find "$root" -type f \( -perm -u+x -o -name '*.so*' \) ! -name '*.sh' ! -name 'libnvjpeg*' -exec strip --strip-unneeded {} + 2>/dev/null || true

cat >"$root/env.sh" <<'ENV'
# Source this. It finds the bundle by its own place, and NVIDIA's libraries in python3's packages or in CUDA's folder.
_b=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
export APEX_BUILD=$_b/build APEX_SOURCE=$_b/source
export PATH="$_b/bin:$_b/build/apps:$PATH" OPAL_PREFIX="$_b" OPAL_LIBDIR="$_b/lib" OPAL_PKGLIBDIR="$_b/plugins" \
  OPAL_PKGDATADIR="$_b/share" OPAL_DATADIR="$_b/share" OPAL_SYSCONFDIR="$_b/etc" OPAL_BINDIR="$_b/bin" \
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_pml=ob1 \
  OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_rmaps_base_oversubscribe=1 \
  OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mca_base_component_show_load_errors=0 HDF5_USE_FILE_LOCKING=FALSE
_n=$(python3 - <<'PY' 2>/dev/null
import glob, os, site, sys
roots = {p for p in site.getsitepackages() + sys.path if p.endswith(("site-packages", "dist-packages"))}
print(":".join(sorted({d for r in roots for d in glob.glob(r + "/nvidia/*/lib") if os.path.isdir(d)})))
PY
)
_c=${CUDA_HOME:-/usr/local/cuda}
export LD_LIBRARY_PATH="$_b/lib:${_n:+$_n:}$_c/lib64:$_c/extras/CUPTI/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
ENV

mkdir -p "$(dirname "$out")"
compress=(gzip -6)
[[ $out != *.xz ]] || compress=(xz -4 -T2)  # a third smaller, six times as slow
tar -C "$stage" -cf - apex-gpu-host | "${compress[@]}" >"$out.part"
mv "$out.part" "$out"
bytes=$(stat -c %s "$out")
printf '%s: %d MiB, %d tests for GPUs, %d kernels\n' "$out" $((bytes >> 20)) "$(grep -c '^test' "$root/tests.tsv")" \
  "$(wc -l <"$root/kernels.txt")"
((bytes <= most_bytes)) || die "$out is larger than $((most_bytes >> 20)) MiB"
