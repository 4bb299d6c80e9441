// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// apex_ckpt: looks at checkpoints. Options and assembly.
#include <boost/program_options.hpp>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "apex/core/program.hpp"
#include "apex/core/standard_streams.hpp"
#include "commands.hpp"

namespace {

namespace po = boost::program_options;
namespace tools = apex::checkpoint_tools;

constexpr const char* kUsage =
    "Usage: apex_ckpt ls DIR|FILE             step files of a directory; groups and datasets of a file\n"
    "       apex_ckpt show DIR|FILE [OBJECT]  a checkpoint in a page; one group, or one dataset with its values\n"
    "           --group PATH                  every dataset at or below PATH: type, shape, hash\n"
    "           --stats                       the same with least, largest and mean value\n"
    "       apex_ckpt verify DIR|FILE...      read everything and check every sum\n"
    "           --all                         name every damaged dataset, not only the first of a file\n"
    "       apex_ckpt diff A B                what is missing, of another shape or type, or has other values\n"
    "           --atol X --rtol X             values may differ by X + X * |B's value|; else bits must be the same\n"
    "           --ignore PATH                 pass over a group or dataset, '/': the root's attributes; repeatable\n\n"
    "--json prints one JSON document instead of text. For show and diff a directory means its newest checkpoint\n"
    "whose data match their sums (of a FILE, show checks only what it reads), and DIR/LATEST or DIR/BEST the one named "
    "there. diff expects /metrics and /config to differ.\n"
    "Exit codes: 0; 1 diff: something else differs; 2 wrong usage; 3 nothing to read; 5 damaged; 6 the output\n"
    "cannot be written.\n";

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Options {
  std::vector<std::string> words;
  tools::ShowOptions show;
  tools::VerifyOptions verify;
  tools::DiffOptions diff;
  bool json = false;
};

int run(const Options& o) {
  const std::string& command = o.words[0];
  const auto arguments = [&](std::size_t least, std::size_t most) {
    if (o.words.size() - 1 < least) throw UsageError(command + ": an argument is missing");
    if (o.words.size() - 1 > most) throw UsageError(command + ": too many arguments");
  };
  if (command == "ls") {
    arguments(1, 1);
    return tools::list(o.words[1], o.json);
  }
  if (command == "verify") {
    arguments(1, static_cast<std::size_t>(-1));
    return tools::verify({o.words.begin() + 1, o.words.end()}, o.verify);
  }
  if (command == "show") {
    arguments(1, o.show.list ? 1 : 2);
    auto show = o.show;
    if (o.words.size() > 2) show.object = o.words[2];
    return tools::show(o.words[1], show);
  }
  arguments(2, 2);
  return tools::diff(o.words[1], o.words[2], o.diff);
}

/// An option of another command is a mistake, not noise.
void check_options(const po::variables_map& values, const std::string& command) {
  static const std::map<std::string, std::string> kCommandOf = {
      {"group", "show"}, {"stats", "show"}, {"all", "verify"}, {"atol", "diff"}, {"rtol", "diff"}, {"ignore", "diff"}};
  static const std::set<std::string> kCommands = {"ls", "show", "verify", "diff"};
  if (!kCommands.contains(command))
    throw UsageError("unknown command '" + command + "'; there are ls, verify, show and diff");
  for (const auto& [option, owner] : kCommandOf)
    if (values.count(option) && owner != command) throw UsageError("--" + option + " is an option of " + owner);
  for (const char* option : {"atol", "rtol"})
    if (values.count(option) && !(values[option].as<double>() >= 0 && std::isfinite(values[option].as<double>())))
      throw UsageError(std::string("--") + option + " must be a number of at least 0");
}

int run(int argc, char** argv) {
  Options o;
  po::options_description all;
  all.add_options()("help,h", "")("version", "")("json", "")("group", po::value<std::string>())("stats", "")("all", "")(
      "atol", po::value<double>())("rtol", po::value<double>())("ignore", po::value(&o.diff.ignored))(
      "words", po::value(&o.words));
  po::positional_options_description positional;
  positional.add("words", -1);
  using Style = po::command_line_style::style_t;
  po::variables_map values;
  po::store(po::command_line_parser(argc, argv)
                .options(all)
                .positional(positional)
                .style(Style::unix_style & ~Style::allow_guessing)
                .run(),
            values);
  po::notify(values);
  if (values.count("help")) {
    std::cout << kUsage;
    return apex::exit_code::kOk;
  }
  if (values.count("version")) {
    std::cout << apex::version_text("apex_ckpt");
    return apex::exit_code::kOk;
  }
  if (o.words.empty()) throw UsageError("a command is missing: ls, verify, show or diff");
  check_options(values, o.words[0]);
  o.json = o.show.json = o.verify.json = o.diff.json = values.count("json") > 0;
  o.show.list = values.count("group") > 0;
  if (o.show.list) o.show.object = values["group"].as<std::string>();
  o.show.stats = values.count("stats") > 0;
  o.verify.all = values.count("all") > 0;
  if (values.count("atol")) o.diff.atol = values["atol"].as<double>();
  if (values.count("rtol")) o.diff.rtol = values["rtol"].as<double>();
  return run(o);
}

int report(int code, const std::string& message) {
  std::cout.flush();
  std::fprintf(stderr, "apex_ckpt: %s\n", message.c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  apex::fill_standard_streams();
  try {
    return apex::finish_output("apex_ckpt", run(argc, argv));
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
