// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace apex::train {

/// The effective value of one option and where it came from: "default", "command line", "environment" or the file's
/// name.
struct EffectiveOption {
  std::string name;
  std::string value;
  std::string origin;
};

/// What is wrong with a command line, an environment variable or a configuration file. Programs print it with a hint at
/// --help and end with exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Options of one program, read by Boost.Program_options from the command line, then the environment
/// (APEX_OPT_<NAME>), then `--config FILE`; the first that names an option wins. `_` and `-` in long names are alike,
/// names are never guessed from a prefix, and what nobody declared is an error, wherever it stands.
class OptionSet {
 public:
  OptionSet(std::string program, std::string summary);
  OptionSet(OptionSet&&) noexcept;
  OptionSet& operator=(OptionSet&&) noexcept;
  ~OptionSet();

  /// Options added from here on are listed under this title by help().
  void heading(const std::string& title);

  /// `names` is "long", "long,s" (one-letter form) or "long|alias|alias,s". The target keeps its value as the default.
  void flag(const std::string& names, bool& target, const std::string& help);
  void integer(const std::string& names, std::int64_t& target, const std::string& help,
               std::int64_t least = std::numeric_limits<std::int64_t>::min(),
               std::int64_t most = std::numeric_limits<std::int64_t>::max());
  void number(const std::string& names, double& target, const std::string& help,
              double least = std::numeric_limits<double>::lowest(), double most = std::numeric_limits<double>::max());
  void text(const std::string& names, std::string& target, const std::string& help);
  void choice(const std::string& names, std::string& target, const std::vector<std::string>& allowed,
              const std::string& help);
  /// The one argument without a name; help shows `placeholder`.
  void positional(const std::string& placeholder, std::string& target, const std::string& help);

  /// Reads all sources and sets the targets; the command line only where it asks for help or the version. Declares
  /// --help, --version and --config itself.
  /// @throws UsageError
  void parse(int argc, const char* const* argv);
  bool help_wanted() const noexcept;
  /// What --help or --version is to print; empty where neither was given.
  std::string text_wanted() const;
  std::string help() const;

  bool was_given(const std::string& long_name) const;
  /// All options in the order they were declared, after parse().
  std::vector<EffectiveOption> effective() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace apex::train
