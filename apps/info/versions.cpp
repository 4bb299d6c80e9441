// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <dnnl.h>
#include <hdf5.h>
#include <mpi.h>

#include <algorithm>
#include <boost/version.hpp>

#include "apex/core/error.hpp"
#include "apex/train/prefetch.hpp"
#include "facts.hpp"
#ifdef APEX_HAS_CUDA
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <nccl.h>
#endif

namespace info {
using apex::concat;
namespace {

std::string both(const std::string& compiled, const std::string& running) {
  return compiled == running ? running : concat(running, "  (compiled against ", compiled, ')');
}

#ifdef APEX_HAS_CUDA
/// 13020 -> "13.2"
std::string cuda_version(int number) { return number == 0 ? "none" : concat(number / 1000, '.', number % 1000 / 10); }
std::string nccl_version(int number) { return concat(number / 10000, '.', number / 100 % 100, '.', number % 100); }
/// cuDNN counts 9.19.0 as 91900, cuBLAS 13.1.0 as 130100.
std::string dotted(std::size_t number) { return concat(number / 10000, '.', number / 100 % 100, '.', number % 100); }

void add_cuda_versions(Section& out) {
  int runtime = 0, driver = 0, nccl = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  ncclGetVersion(&nccl);
  out.facts.emplace_back("CUDA runtime", both(cuda_version(CUDART_VERSION), cuda_version(runtime)));
  out.facts.emplace_back("CUDA of the driver", driver == 0 ? "no driver" : cuda_version(driver));
  out.facts.emplace_back("cuDNN", both(dotted(CUDNN_VERSION), dotted(cudnnGetVersion())));
  out.facts.emplace_back("cuBLASLt", dotted(cublasLtGetVersion()));
  out.facts.emplace_back("NCCL", both(nccl_version(NCCL_VERSION_CODE), nccl_version(nccl)));
}
#endif

std::string first_line(std::string text) {
  text.resize(std::min(text.size(), text.find_first_of("\r\n")));
  return text;
}

const char* thread_level(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE: return "single";
    case MPI_THREAD_FUNNELED: return "funneled";
    case MPI_THREAD_SERIALIZED: return "serialized (gradients do not travel beside the backward pass)";
    default: return "multiple";
  }
}

}  // namespace

Section versions() {
  Section out{"versions", {}};
  out.facts.emplace_back("apex", APEX_INFO_VERSION);
  out.facts.emplace_back("compiler",
#ifdef __clang__
                         concat("clang ", __clang_version__));
#else
                         concat("g++ ", __VERSION__));
#endif
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  out.facts.emplace_back("HDF5", both(concat(H5_VERS_MAJOR, '.', H5_VERS_MINOR, '.', H5_VERS_RELEASE),
                                      concat(major, '.', minor, '.', release)));
  const auto* dnnl = dnnl_version();
  out.facts.emplace_back("oneDNN", concat(dnnl->major, '.', dnnl->minor, '.', dnnl->patch));
  out.facts.emplace_back("Boost",
                         concat(BOOST_VERSION / 100000, '.', BOOST_VERSION / 100 % 1000, '.', BOOST_VERSION % 100));
#ifdef APEX_HAS_CUDA
  add_cuda_versions(out);
#endif
  return out;
}

#ifdef APEX_HAS_CUDA
namespace {

std::string jpeg_decoder() {
  const std::string found = apex::train::gpu_decoder();
  return found.empty() ? "no: JPEG files are decoded by the CPU" : found;
}

}  // namespace
#endif

Section built_in() {
  Section out{"built in", {}};
  out.facts.emplace_back("build type", APEX_INFO_BUILD);
  out.facts.emplace_back("instruction set", std::string(APEX_INFO_MARCH).empty() ? "the compiler's" : APEX_INFO_MARCH);
#ifdef APEX_HAS_CUDA
  out.facts.emplace_back("CUDA backend", concat("yes, compiled for sm ", APEX_INFO_ARCHITECTURES));
  out.facts.emplace_back("JPEG on the GPU", jpeg_decoder());
#else
  out.facts.emplace_back("CUDA backend", "no");
#endif
#ifdef H5_HAVE_PARALLEL
  out.facts.emplace_back("parallel HDF5", "yes");
#else
  out.facts.emplace_back("parallel HDF5", "no");
#endif
  return out;
}

Section mpi_facts() {
  Section out{"MPI", {}};
  char library[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0, major = 0, minor = 0, level = 0, size = 1;
  MPI_Get_library_version(library, &length);
  MPI_Get_version(&major, &minor);
  MPI_Query_thread(&level);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm node = MPI_COMM_NULL;
  int local = 1, first = 0, nodes = 1;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_size(node, &local);
  MPI_Comm_rank(node, &first);
  first = first == 0 ? 1 : 0;
  MPI_Allreduce(&first, &nodes, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Comm_free(&node);
  out.facts.emplace_back("library", first_line(std::string(library, static_cast<std::size_t>(length))));
  out.facts.emplace_back("standard", concat(major, '.', minor));
  out.facts.emplace_back("thread level", thread_level(level));
  out.facts.emplace_back("this job", concat(size, size == 1 ? " rank on " : " ranks on ", nodes,
                                            nodes == 1 ? " node" : " nodes", ", ", local, " on this one"));
  out.facts.emplace_back("device memory", "never handed to MPI: NCCL carries it");
  return out;
}

}  // namespace info
