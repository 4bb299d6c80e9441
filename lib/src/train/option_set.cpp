// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/option_set.hpp"

#include <algorithm>
#include <boost/program_options.hpp>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "apex/core/error.hpp"
#include "apex/core/program.hpp"

extern char** environ;

namespace apex::train {
namespace po = boost::program_options;
namespace {

constexpr const char* kEnvironmentPrefix = "APEX_OPT_";

struct Option {
  std::string name;
  std::string value;  // printable, kept in step with the target
  std::string origin = "default";
  std::function<std::string(const std::string&)> assign;  // sets the target, returns the printable value
};

std::string dashed(std::string text) {
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

std::string printable(double value) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return error == std::errc{} ? std::string(buffer, end) : "nan";
}

template <class T>
T parse_whole(const std::string& text, const char* what) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) throw UsageError(concat("'", text, "' is not ", what));
  return value;
}

bool parse_bool(const std::string& text) {
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower == "1" || lower == "true" || lower == "yes" || lower == "on") return true;
  if (lower == "0" || lower == "false" || lower == "no" || lower == "off") return false;
  throw UsageError(concat("'", text, "' is neither true nor false"));
}

constexpr const char* kBlank = " \t\r";

bool is_quote(char c) { return c == '"' || c == '\''; }

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(kBlank);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

/// A line "name = value # comment" without its comment. A value in quotes may hold '#'.
std::string without_comment(const std::string& line) {
  std::size_t from = 0;
  const auto equals = line.find('=');
  if (equals != std::string::npos && line.find('#') > equals) {
    const auto first = line.find_first_not_of(kBlank, equals + 1);
    const auto close = first != std::string::npos && is_quote(line[first]) ? line.find(line[first], first + 1) : first;
    if (close != std::string::npos) from = close;
  }
  return line.substr(0, line.find('#', from));
}

/// 'text' or "text" without the quotes around it; anything else as it is.
std::string unquoted(const std::string& text) {
  const bool quoted = text.size() >= 2 && is_quote(text[0]) && text.back() == text[0];
  return quoted ? text.substr(1, text.size() - 2) : text;
}

}  // namespace

struct OptionSet::Impl {
  std::string program, summary;
  std::vector<std::unique_ptr<po::options_description>> sections;
  std::vector<Option> options;
  std::map<std::string, std::string> aliases;  // any long name to the canonical one
  std::string positional_name, positional_help;
  std::string config_file;
  bool help = false, version = false;

  Option& find(const std::string& name) {
    return *std::find_if(options.begin(), options.end(), [&](const Option& o) { return o.name == name; });
  }
  po::options_description& section() { return *sections.back(); }

  void add(const std::string& names, bool takes_value, const std::string& help_text, std::string value,
           std::function<std::string(const std::string&)> assign) {
    const auto comma = names.find(',');
    const std::string short_form = comma == std::string::npos ? "" : names.substr(comma);
    std::istringstream longs(names.substr(0, comma));
    std::string name, alias, also;
    std::getline(longs, name, '|');
    aliases[name] = name;
    while (std::getline(longs, alias, '|')) {
      aliases[dashed(alias)] = name;
      also += also.empty() ? " (also --" + alias : ", --" + alias;
    }
    if (!also.empty()) also += ')';
    auto* semantic = po::value<std::string>();
    if (!takes_value) semantic->zero_tokens()->implicit_value("true", "");
    semantic->value_name(takes_value ? (value.empty() ? "ARG" : "ARG (" + value + ")") : "");
    section().add_options()((name + short_form).c_str(), semantic, (help_text + also).c_str());
    options.push_back({name, std::move(value), "default", std::move(assign)});
  }

  std::string canonical(const std::string& name) const {
    const auto found = aliases.find(dashed(name));
    return found == aliases.end() ? dashed(name) : found->second;
  }

  po::options_description all() const {
    po::options_description out;
    for (const auto& s : sections) out.add(*s);
    return out;
  }

  /// Takes over what one source says of options that no earlier source has named.
  void take(const po::parsed_options& parsed, const std::string& origin) {
    std::map<std::string, std::string> here;
    for (const auto& entry : parsed.options) {
      if (entry.value.empty() && entry.string_key.empty()) continue;
      const std::string value = entry.value.empty() ? "true" : entry.value.back();
      if (!here.emplace(entry.string_key, value).second)
        throw UsageError(concat("--", entry.string_key, " is given twice (", origin, ")"));
    }
    for (const auto& [name, value] : here) {
      Option& option = find(name);
      if (option.origin != "default") continue;
      try {
        option.value = option.assign(value);
      } catch (const UsageError& error) {
        const std::string shown = name == positional_name ? name : "--" + name;
        throw UsageError(concat(shown, ": ", error.what(), " (", origin, ")"));
      }
      option.origin = origin;
    }
  }

  po::parsed_options from_command_line(int argc, const char* const* argv) {
    std::vector<std::string> arguments;
    bool only_positional = false;
    for (int i = 1; i < argc; ++i) {
      std::string word = argv[i];
      if (!only_positional && word.size() > 2 && word.starts_with("--")) {
        const auto equals = word.find('=');
        const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
        word = "--" + canonical(name) + (equals == std::string::npos ? "" : word.substr(equals));
      }
      only_positional |= word == "--";
      arguments.push_back(std::move(word));
    }
    const int style = (po::command_line_style::unix_style & ~po::command_line_style::allow_guessing);
    po::options_description described = all();
    po::positional_options_description positions;
    if (!positional_name.empty()) {
      positions.add(positional_name.c_str(), 1);
    }
    po::command_line_parser parser(arguments);
    return parser.options(described).positional(positions).style(style).run();
  }

  po::parsed_options from_environment() const {
    const po::options_description described = all();
    po::parsed_options out(&described);
    out.description = nullptr;
    const std::string prefix = kEnvironmentPrefix;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string line = *entry;
      const auto equals = line.find('=');
      if (!line.starts_with(prefix) || equals == std::string::npos) continue;
      std::string name = line.substr(prefix.size(), equals - prefix.size());
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      name = canonical(name);
      if (std::none_of(options.begin(), options.end(), [&](const Option& o) { return o.name == name; }))
        throw UsageError(concat("environment variable ", line.substr(0, equals), " names no option of ", program));
      out.options.emplace_back(name, std::vector<std::string>{line.substr(equals + 1)});
    }
    return out;
  }

  po::parsed_options from_file(const std::string& path) const {
    std::ifstream file(path);
    if (!file || std::filesystem::is_directory(path)) throw UsageError(concat("--config: cannot read '", path, "'"));
    const po::options_description described = all();
    po::parsed_options out(&described);
    out.description = nullptr;
    if (file.peek() == 0xef) file.ignore(3);  // a byte order mark
    std::int64_t number = 0;
    for (std::string line; std::getline(file, line);) {
      const auto where = concat(path, ':', ++number, ": ");
      line = trimmed(without_comment(line));
      if (line.empty()) continue;
      const auto equals = line.find('=');
      if (equals == std::string::npos || equals == 0)
        throw UsageError(concat(where, "'", line, "' is not of the form name = value"));
      if (line[0] == '-') throw UsageError(concat(where, "'", line, "': names stand without dashes here"));
      const std::string name = canonical(trimmed(line.substr(0, equals)));
      if (name == "config" || name == "help" || name == "version")
        throw UsageError(concat(where, "--", name, " can only stand on the command line"));
      if (std::none_of(options.begin(), options.end(), [&](const Option& o) { return o.name == name; }))
        throw UsageError(concat(where, "--", name, " is no option of ", program));
      out.options.emplace_back(name, std::vector<std::string>{unquoted(trimmed(line.substr(equals + 1)))});
    }
    return out;
  }
};

OptionSet::OptionSet(std::string program, std::string summary) : impl_(std::make_unique<Impl>()) {
  impl_->program = std::move(program);
  impl_->summary = std::move(summary);
  heading("General");
  flag("help,h", impl_->help, "print this text and end");
  flag("version", impl_->version, "print the version and end");
  text("config", impl_->config_file, "read options from FILE, one 'name = value' a line");
}
OptionSet::OptionSet(OptionSet&&) noexcept = default;
OptionSet& OptionSet::operator=(OptionSet&&) noexcept = default;
OptionSet::~OptionSet() = default;

void OptionSet::heading(const std::string& title) {
  impl_->sections.push_back(std::make_unique<po::options_description>(title, 110, 60));
}

void OptionSet::flag(const std::string& names, bool& target, const std::string& help) {
  impl_->add(names, false, help, target ? "true" : "false", [&target](const std::string& text) {
    target = parse_bool(text);
    return std::string(target ? "true" : "false");
  });
}

void OptionSet::integer(const std::string& names, std::int64_t& target, const std::string& help, std::int64_t least,
                        std::int64_t most) {
  impl_->add(names, true, help, std::to_string(target), [&target, least, most](const std::string& text) {
    const auto value = parse_whole<std::int64_t>(text, "a whole number");
    if (value < least || value > most) {
      if (most == std::numeric_limits<std::int64_t>::max()) throw UsageError(concat(value, " is less than ", least));
      throw UsageError(concat(value, " is not within ", least, " to ", most));
    }
    target = value;
    return std::to_string(value);
  });
}

void OptionSet::number(const std::string& names, double& target, const std::string& help, double least, double most) {
  impl_->add(names, true, help, printable(target), [&target, least, most](const std::string& text) {
    const auto value = parse_whole<double>(text, "a number");
    if (!std::isfinite(value)) throw UsageError(concat("'", text, "' is not finite"));
    if (value < least || value > most) {
      if (most == std::numeric_limits<double>::max()) throw UsageError(concat(value, " is less than ", least));
      throw UsageError(concat(value, " is not within ", least, " to ", most));
    }
    target = value;
    return printable(value);
  });
}

void OptionSet::text(const std::string& names, std::string& target, const std::string& help) {
  impl_->add(names, true, help, target, [&target](const std::string& text) {
    target = text;
    return text;
  });
}

void OptionSet::choice(const std::string& names, std::string& target, const std::vector<std::string>& allowed,
                       const std::string& help) {
  std::string list;
  for (const auto& word : allowed) list += (list.empty() ? "" : "|") + word;
  impl_->add(names, true, list + ": " + help, target, [&target, allowed, list](const std::string& text) {
    if (std::find(allowed.begin(), allowed.end(), text) == allowed.end())
      throw UsageError(concat("'", text, "' is none of ", list));
    target = text;
    return text;
  });
}

void OptionSet::positional(const std::string& placeholder, std::string& target, const std::string& help) {
  impl_->positional_name = placeholder;
  impl_->positional_help = help;
  std::string lower = placeholder;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  impl_->aliases[lower] = placeholder;
  heading("");  // declared like an option, so that environment and file may give it; listed apart by help()
  impl_->add(placeholder, true, help, target, [&target](const std::string& text) {
    target = text;
    return text;
  });
}

void OptionSet::parse(int argc, const char* const* argv) {
  try {
    impl_->take(impl_->from_command_line(argc, argv), "command line");
    if (impl_->help || impl_->version) return;
    impl_->take(impl_->from_environment(), "environment");
    if (!impl_->config_file.empty()) impl_->take(impl_->from_file(impl_->config_file), impl_->config_file);
  } catch (const po::error& error) {
    throw UsageError(error.what());
  }
}

bool OptionSet::help_wanted() const noexcept { return impl_->help; }

std::string OptionSet::text_wanted() const {
  if (impl_->help) return help();
  return impl_->version ? version_text(impl_->program) : std::string();
}

std::string OptionSet::help() const {
  std::ostringstream out;
  out << "Usage: " << impl_->program << " [options]";
  if (!impl_->positional_name.empty()) out << ' ' << impl_->positional_name;
  out << '\n' << impl_->summary << '\n';
  if (!impl_->positional_name.empty())
    out << "\n  " << impl_->positional_name << "  " << impl_->positional_help << '\n';
  for (const auto& section : impl_->sections) {
    const bool is_positional = !impl_->positional_name.empty() && section->find_nothrow(impl_->positional_name, false);
    if (!is_positional && !section->options().empty()) out << '\n' << *section;
  }
  out << "\nAn option may also stand in the environment (" << kEnvironmentPrefix
      << "BATCH_SIZE=64) or in the file of --config (batch-size = 64).\n";
  return out.str();
}

bool OptionSet::was_given(const std::string& long_name) const { return impl_->find(long_name).origin != "default"; }

std::vector<EffectiveOption> OptionSet::effective() const {
  std::vector<EffectiveOption> out;
  for (const auto& o : impl_->options)
    if (o.name != "help" && o.name != "version") out.push_back({o.name, o.value, o.origin});
  return out;
}

}  // namespace apex::train
