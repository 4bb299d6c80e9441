// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <boost/program_options.hpp>
#include <filesystem>
#include <iostream>
#include <optional>

#include "apex/core/error.hpp"
#include "apex/core/program.hpp"
#include "apex/core/standard_streams.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif
#include "ops.hpp"

namespace apex::conformance {
namespace {

namespace po = boost::program_options;
namespace fs = std::filesystem;

struct Settings {
  std::vector<Device> devices;
  std::string op;  // empty: every op
  std::optional<DType> dtype;
  std::vector<std::string> paths;
};

struct Usage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

bool finds_gpu() {
#ifdef APEX_HAS_CUDA
  return cuda::device_count() > 0;
#else
  return false;
#endif
}

std::vector<Device> devices_of(const std::string& text) {
  if (text != "cpu" && text != "cuda" && text != "all") throw Usage("--device is cpu, cuda or all, not '" + text + "'");
  if (text == "cuda" && !has_cuda) throw Usage("--device cuda: this build has no CUDA backend");
  if (text == "cuda" && !finds_gpu()) fail(Kind::unsupported, "--device cuda: no CUDA device was found");
  std::vector<Device> devices;
  if (text != "cuda") devices.push_back(kCpu);
  if (text != "cpu" && finds_gpu()) devices.push_back({DeviceKind::cuda, 0});
  return devices;
}

std::string known_ops() {
  std::string names;
  for (const Op& op : ops()) names += (names.empty() ? "" : ", ") + op.name;
  return names;
}

/// Nothing when only help or the version was wanted.
std::optional<Settings> parse(int argc, char** argv) {
  Settings settings;
  std::string device = "all", dtype;
  po::options_description visible("options"), all;
  visible.add_options()("help,h", "this text")("version", "the version")(
      "device", po::value(&device), "cpu, cuda or all: the CPU, and a GPU where there is one (default)")(
      "op", po::value(&settings.op), ("replay only cases of this op; known: " + known_ops()).c_str())(
      "dtype", po::value(&dtype), "f64 or f32: replay only in this type (default: every type the op knows)");
  all.add(visible).add_options()("path", po::value(&settings.paths));
  po::positional_options_description positional;
  positional.add("path", -1);
  po::variables_map given;
  try {
    const int style = po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
    po::store(po::command_line_parser(argc, argv).options(all).positional(positional).style(style).run(), given);
    po::notify(given);
  } catch (const po::error& error) {
    throw Usage(error.what());
  }
  if (given.count("help") != 0) {
    std::cout
        << "usage: apex_conformance [options] PATH...\n\n"
           "Replays recorded results (HDF5 files, or folders of them) through the public API. Prints a line for\n"
           "each case and ends with 'N passed, N failed'. Exit code 0: all passed; 1: a case failed, or holds an\n"
           "op, parameter or dataset that is not known; 2: wrong usage; 3: nothing to replay.\n\n"
        << visible;
    return std::nullopt;
  }
  if (given.count("version") != 0) {
    std::cout << version_text("apex_conformance");
    return std::nullopt;
  }
  settings.devices = devices_of(device);
  if (!dtype.empty()) {
    settings.dtype = parse_dtype(dtype);
    if (settings.dtype != DType::f64 && settings.dtype != DType::f32)
      throw Usage("--dtype is f64 or f32, not '" + dtype + "'");
  }
  if (!settings.op.empty() && find_op(settings.op) == nullptr)
    throw Usage("--op " + settings.op + " is not known; there are " + known_ops());
  if (settings.paths.empty()) throw Usage("no PATH given");
  return settings;
}

/// Files as they are, folders as the *.h5 in them, by name.
std::vector<std::string> files_of(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const auto& path : paths) {
    if (!fs::exists(path)) fail(Kind::data, concat(path, ": no such file or folder"));
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry : fs::directory_iterator(path))
      if (entry.path().extension() == ".h5") inside.push_back(entry.path().string());
    if (inside.empty()) fail(Kind::data, concat(path, ": no .h5 file in this folder"));
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

struct Tally {
  int passed = 0, failed = 0, skipped = 0;

  void report(int& count, const char* verdict, const std::string& label, const std::string& text) {
    ++count;
    std::cout << verdict << "  " << label << ": " << text << std::endl;
  }
  void fail(const std::string& label, const std::string& text) { report(failed, "FAIL", label, text); }
  void take(const std::string& label, const Comparison& comparison) {
    if (comparison.incomparable())
      report(skipped, "n/a ", label, comparison.summary());
    else if (comparison.passed())
      report(passed, "pass", label, comparison.summary());
    else
      fail(label, comparison.summary());
  }
  std::string total() const {
    return concat(passed, " passed, ", failed, " failed", skipped == 0 ? "" : concat(", ", skipped, " skipped"));
  }
};

void replay(const Op& op, const Case& recorded, Device device, DType dtype, Tally& tally) {
  const std::string label = concat(recorded.op, '/', recorded.name, ' ', device, ' ', dtype);
  try {
    Comparison comparison;
    op.run(recorded, device, dtype, comparison);
    tally.take(label, comparison);
  } catch (const Error& error) {
    tally.fail(label, error.what());
  }
}

void replay_file(const std::string& file, const Settings& settings, Tally& tally) {
  GoldenFile golden;
  try {
    golden = read_golden(file);
  } catch (const Error& error) {
    tally.fail(file, error.what());
    return;
  }
  if (!settings.op.empty() && golden.op != settings.op) return;
  const Op* op = find_op(golden.op);
  for (const Case& recorded : golden.cases) {
    if (op == nullptr) {
      tally.fail(golden.op + '/' + recorded.name, "the op " + golden.op + " is not known");
      continue;
    }
    for (const Device device : settings.devices)
      for (const DType dtype : op->dtypes)
        if (!settings.dtype || *settings.dtype == dtype) replay(*op, recorded, device, dtype, tally);
  }
}

int run(int argc, char** argv) {
  const auto settings = parse(argc, argv);
  if (!settings) return exit_code::kOk;
  Tally tally;
  for (const auto& file : files_of(settings->paths)) replay_file(file, *settings, tally);
  if (tally.passed + tally.failed + tally.skipped == 0)
    fail(Kind::data, concat("no recorded case of ", settings->op, " in the given paths"));
  std::cout << tally.total() << std::endl;
  return tally.failed == 0 && tally.passed > 0 ? exit_code::kOk : exit_code::kInternal;
}

}  // namespace
}  // namespace apex::conformance

int main(int argc, char** argv) {
  apex::fill_standard_streams();
  try {
    return apex::finish_output("apex_conformance", apex::conformance::run(argc, argv));
  } catch (const apex::conformance::Usage& error) {
    std::cerr << "apex_conformance: " << error.what() << "; see --help\n";
    return apex::exit_code::kUsage;
  } catch (const apex::Error& error) {
    std::cerr << "apex_conformance: " << error.what() << '\n';
    return apex::exit_code_of(error.kind());
  } catch (const std::exception& error) {
    std::cerr << "apex_conformance: " << error.what() << '\n';
    return apex::exit_code::kInternal;
  }
}
