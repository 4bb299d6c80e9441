// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// apex_info with and without MPI, with and without a GPU.
#include <gtest/gtest.h>

#include <string>

#include "apex/core/device.hpp"
#include "apex/core/error.hpp"
#include "apex/train/prefetch.hpp"
#include "support/subprocess.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif

namespace apex::test {
namespace {

std::string output_of(const std::vector<std::string>& command, int code = 0) {
  Subprocess process(command);
  EXPECT_TRUE(process.finish(60));
  EXPECT_EQ(process.exit_code(), code) << process.output();
  return process.output();
}

void expect_facts(const std::string& text) {
  for (const char* title : {"versions\n", "built in\n", "devices\n", "MPI\n"})
    EXPECT_NE(text.find(title), std::string::npos) << title << text;
  EXPECT_NE(text.find(APEX_INFO_VERSION), std::string::npos) << text;
  EXPECT_EQ(text.find("cuDNN") != std::string::npos, has_cuda) << text;
  const auto decoder = train::gpu_decoder();
  EXPECT_EQ(text.find("JPEG on the GPU") != std::string::npos, has_cuda) << text;
  EXPECT_NE(text.find(decoder), std::string::npos) << "nothing of " << decoder << " in " << text;
}

TEST(ApexInfo, WorksAloneAndWithoutMpi) {
  const auto text = output_of({APEX_INFO});
  expect_facts(text);
  EXPECT_NE(text.find("1 rank on 1 node"), std::string::npos) << text;
  const auto without = output_of({APEX_INFO, "--no-mpi"});
  expect_facts(without);
  EXPECT_EQ(without.find("thread level"), std::string::npos) << without;
}

TEST(ApexInfo, OneRankSpeaksForTheJob) {
  const auto text = output_of({APEX_MPIEXEC, "-n", "2", APEX_INFO});
  expect_facts(text);
  EXPECT_NE(text.find("2 ranks on 1 node, 2 on this one"), std::string::npos) << text;
  EXPECT_EQ(text.find("versions\n"), text.rfind("versions\n")) << "printed twice";
}

TEST(ApexInfo, NamesEveryDevice) {
  const auto text = output_of({APEX_INFO, "--no-mpi"});
  int devices = 0;
#ifdef APEX_HAS_CUDA
  devices = cuda::device_count();
#endif
  for (int i = 0; i < devices; ++i) EXPECT_NE(text.find("cuda:" + std::to_string(i)), std::string::npos) << text;
  EXPECT_EQ(text.find("GPU-") != std::string::npos, devices > 0) << "UUIDs:\n" << text;
  EXPECT_EQ(text.find("links between devices") != std::string::npos, devices > 1) << text;
}

TEST(ApexInfo, RefusesWhatItDoesNotKnow) {
  EXPECT_NE(output_of({APEX_INFO, "--gpus"}, 2).find("--gpus"), std::string::npos);
  EXPECT_NE(output_of({APEX_INFO, "--help"}).find("--no-mpi"), std::string::npos);
  EXPECT_EQ(output_of({APEX_INFO, "--version"}), std::string("apex_info ") + APEX_INFO_VERSION + " (apex)\n");
}

TEST(ApexInfo, HelpOfOneRankEndsTheJobInOrder) {
  for (const bool first : {true, false}) {
    const std::vector<std::string> asked = {"-n", "1", APEX_INFO, "--help"}, plain = {"-n", "1", APEX_INFO};
    std::vector<std::string> command = {APEX_MPIEXEC};
    command.insert(command.end(), first ? asked.begin() : plain.begin(), first ? asked.end() : plain.end());
    command.emplace_back(":");
    command.insert(command.end(), first ? plain.begin() : asked.begin(), first ? plain.end() : asked.end());
    const auto text = output_of(command);
    EXPECT_NE(text.find("apex_info [--no-mpi]"), std::string::npos) << text;
    EXPECT_EQ(text.find("versions\n"), std::string::npos) << text;
  }
}

TEST(ApexInfo, AnOutputThatCannotBeWrittenIsAnError) {
  for (const char* option : {"--no-mpi", "--help", "--version"})
    output_of({"sh", "-c", std::string(APEX_INFO) + ' ' + option + " >/dev/full"}, exit_code::kMemory);
  output_of({"sh", "-c", std::string(APEX_INFO) + " --no-mpi >&-"});
}

}  // namespace
}  // namespace apex::test
