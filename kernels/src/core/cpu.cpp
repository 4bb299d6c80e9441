// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/core/cpu.hpp"

#include <unistd.h>

#include "apex/core/error.hpp"

// Nothing here may use the instructions it asks about, so the functions are compiled for the oldest machine and print
// with write().
#if defined(__x86_64__) && defined(__GNUC__)
#define APEX_ANY_CPU __attribute__((target("arch=x86-64")))
#else
#define APEX_ANY_CPU
#endif

namespace apex {

APEX_ANY_CPU const char* missing_cpu_feature() noexcept {
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
#ifdef __AVX__
  if (!__builtin_cpu_supports("avx")) return "AVX";
#endif
#ifdef __AVX2__
  if (!__builtin_cpu_supports("avx2")) return "AVX2";
#endif
#ifdef __FMA__
  if (!__builtin_cpu_supports("fma")) return "FMA";
#endif
#ifdef __BMI2__
  if (!__builtin_cpu_supports("bmi2")) return "BMI2";
#endif
#ifdef __AVX512F__
  if (!__builtin_cpu_supports("avx512f")) return "AVX-512";
#endif
#endif
  return nullptr;
}

namespace {

APEX_ANY_CPU void print(const char* text) {
  std::size_t n = 0;
  while (text[n] != '\0') ++n;
  if (::write(2, text, n) < 0) return;
}

/// Before every other constructor: those may already use what is missing.
__attribute__((constructor(101))) APEX_ANY_CPU void check_cpu_at_start() {
  const char* missing = missing_cpu_feature();
  if (missing == nullptr) return;
  print("apex: this machine lacks ");
  print(missing);
  print(", for which apex was compiled; configure with -DAPEX_MARCH=x86-64 (or another value of -march)\n");
  ::_exit(exit_code::kInternal);
}

}  // namespace
}  // namespace apex
