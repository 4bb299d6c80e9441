// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// main() of test programs whose cases run on the device that APEX_TEST_DEVICE names. Without such a device the program
// ends with 77, which CTest reads as skipped; with APEX_REQUIRE_CUDA=1 that is a failure, so that a GPU job cannot pass
// by testing nothing.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "apex/core/device.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const char* name = std::getenv("APEX_TEST_DEVICE");
  const char* required = std::getenv("APEX_REQUIRE_CUDA");
  const bool must = required != nullptr && std::string(required) == "1";
  int devices = 0;
#ifdef APEX_HAS_CUDA
  devices = apex::cuda::device_count();
#endif
  const auto wanted = apex::parse_device(name == nullptr ? "cpu" : name);
  if (must && devices == 0) {
    std::fprintf(stderr, "APEX_REQUIRE_CUDA=1, but there is no CUDA device here or no CUDA backend in this build\n");
    return 1;
  }
  if (wanted && wanted->is_cuda() && devices == 0) {
    std::printf("no CUDA device: skipped\n");
    return 77;
  }
  return RUN_ALL_TESTS();
}
