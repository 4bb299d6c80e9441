// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <string>

#include "support/subprocess.hpp"

namespace apex {
namespace {

// PAR-15.10: the job ends with an error that names the weight, and nobody hangs.
TEST(DdpFaults, AMissingGradientEndsTheJob) {
  for (const char* where : {"all", "one"}) {
    const test::TemporaryFolder shm("/dev/shm");  // what an aborted MPI leaves is ours to remove
    test::Subprocess job({APEX_MPIEXEC, "-n", "2", APEX_PROBE, where},
                         {"OMPI_MCA_btl_vader_backing_directory=" + shm.path().string()});
    ASSERT_TRUE(job.finish(15)) << job.output();
    EXPECT_EQ(job.exit_code(), 1) << job.output();
    EXPECT_NE(job.output().find("no gradient for head.weight, head.bias"), std::string::npos) << job.output();
    EXPECT_EQ(job.output().find("gave up after"), std::string::npos) << "long before the watchdog\n" << job.output();
  }
}

}  // namespace
}  // namespace apex
