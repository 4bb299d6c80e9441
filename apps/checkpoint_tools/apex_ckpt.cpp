// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// apex_ckpt: looks at checkpoints. Options and assembly.
#include <boost/program_options.hpp>
#include <cstdio>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "commands.hpp"

namespace {

namespace po = boost::program_options;
namespace tools = apex::checkpoint_tools;

constexpr const char* kUsage =
    "Usage: apex_ckpt ls DIR|FILE             step files of a directory; groups and datasets of a file\n"
    "       apex_ckpt verify DIR|FILE...      read everything and check every sum\n"
    "       apex_ckpt show DIR|FILE [OBJECT]  a checkpoint in a page, or one group or dataset\n"
    "       apex_ckpt diff A B                which groups hold the same bits\n\n"
    "For show and diff a directory means its newest good checkpoint.\n"
    "Exit codes: 0; 1 diff: a group other than /metrics and /config differs; 2 wrong usage; 3 nothing to read;\n"
    "5 damaged.\n";

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

int run(const std::string& command, const std::vector<std::string>& arguments) {
  const auto expect = [&](std::size_t least, std::size_t most) {
    if (arguments.size() < least) throw UsageError(command + ": an argument is missing");
    if (arguments.size() > most) throw UsageError(command + ": too many arguments");
  };
  if (command == "ls") {
    expect(1, 1);
    return tools::list(arguments[0]);
  }
  if (command == "verify") {
    expect(1, static_cast<std::size_t>(-1));
    return tools::verify({arguments.begin(), arguments.end()});
  }
  if (command == "show") {
    expect(1, 2);
    return tools::show(arguments[0], arguments.size() > 1 ? arguments[1] : "");
  }
  if (command == "diff") {
    expect(2, 2);
    return tools::diff(arguments[0], arguments[1]);
  }
  throw UsageError("unknown command '" + command + "'; there are ls, verify, show and diff");
}

int run(int argc, char** argv) {
  std::vector<std::string> words;
  po::options_description visible("Options");
  visible.add_options()("help,h", "show this text");
  po::options_description all;
  all.add(visible).add_options()("words", po::value(&words));
  po::positional_options_description positional;
  positional.add("words", -1);
  using Style = po::command_line_style::style_t;
  const auto parsed = po::command_line_parser(argc, argv)
                          .options(all)
                          .positional(positional)
                          .style(Style::unix_style & ~Style::allow_guessing)
                          .run();
  po::variables_map values;
  po::store(parsed, values);
  po::notify(values);
  if (values.count("help")) {
    std::cout << kUsage;
    return apex::exit_code::kOk;
  }
  if (words.empty()) throw UsageError("a command is missing: ls, verify, show or diff");
  return run(words[0], {words.begin() + 1, words.end()});
}

int report(int code, const std::string& message) {
  std::cout.flush();
  std::fprintf(stderr, "apex_ckpt: %s\n", message.c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const UsageError& e) {
    return report(apex::exit_code::kUsage, std::string(e.what()) + "; see apex_ckpt --help");
  } catch (const po::error& e) {
    return report(apex::exit_code::kUsage, std::string(e.what()) + "; see apex_ckpt --help");
  } catch (const apex::Error& e) {
    return report(apex::exit_code_of(e.kind()), e.what());
  } catch (const std::bad_alloc&) {
    return report(apex::exit_code::kMemory, "out of memory");
  } catch (const std::exception& e) {
    return report(apex::exit_code::kInternal, e.what());
  }
}
