// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <link.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <sstream>

#include "apex/train/runtime.hpp"

namespace apex::train {
namespace {

constexpr std::size_t kRanksListed = 8;

std::string as_lines(const Facts& facts) {
  std::string out;
  for (const auto& [name, value] : facts) {
    std::string line = name + '=' + value;
    std::replace(line.begin(), line.end(), '\n', ' ');
    out += line + '\n';
  }
  return out;
}

/// "0", "1, 2, 5", "1, 2, ... (250 of them)"
std::string list_ranks(const std::vector<std::size_t>& ranks) {
  std::string out = concat(ranks.size() == 1 ? "rank " : "ranks ", ranks.front());
  for (std::size_t i = 1; i < std::min(ranks.size(), kRanksListed); ++i) out += concat(", ", ranks[i]);
  if (ranks.size() > kRanksListed) out += concat(", ... (", ranks.size(), " of them)");
  return out;
}

/// What differs, by name: "lr is 0.1 on rank 0, 0.2 on ranks 1, 2; seed is ...".
std::string difference(const std::vector<std::string>& by_rank) {
  std::map<std::string, std::vector<std::string>> values;  // by name and rank; not there: none
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    std::istringstream lines(by_rank[r]);
    for (std::string line; std::getline(lines, line);) {
      const auto equals = line.find('=');
      auto& list = values[line.substr(0, equals)];
      list.resize(by_rank.size(), "missing");
      list[r] = line.substr(equals + 1);
    }
  }
  std::string out;
  for (const auto& [name, list] : values) {
    std::vector<std::pair<std::string, std::vector<std::size_t>>> who;
    for (std::size_t r = 0; r < list.size(); ++r) {
      const auto same = std::find_if(who.begin(), who.end(), [&](const auto& w) { return w.first == list[r]; });
      if (same == who.end())
        who.push_back({list[r], {r}});
      else
        same->second.push_back(r);
    }
    if (who.size() == 1) continue;
    out += out.empty() ? "" : "; ";
    for (std::size_t i = 0; i < who.size(); ++i)
      out += concat(i == 0 ? name + " is " : ", ", who[i].first.empty() ? "\"\"" : who[i].first, " on ",
                    list_ranks(who[i].second));
  }
  return out;
}

/// The build id that the linker left in the object with `address` in it (null: the program); "none" without one.
std::string build_id(const void* address) {
  struct Search {
    const void* address;
    std::string found = "none";
  } search{address};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        const auto at = reinterpret_cast<std::uintptr_t>(wanted.address);
        const std::span headers(info->dlpi_phdr, info->dlpi_phnum);
        const bool here = at == 0 || std::any_of(headers.begin(), headers.end(), [&](const auto& h) {
                            const auto begin = info->dlpi_addr + h.p_vaddr;
                            return h.p_type == PT_LOAD && at >= begin && at - begin < h.p_memsz;
                          });
        if (!here) return 0;
        for (const auto& h : headers) {
          if (h.p_type != PT_NOTE) continue;
          const auto* note = reinterpret_cast<const unsigned char*>(info->dlpi_addr + h.p_vaddr);
          for (const auto* end = note + h.p_memsz; note + sizeof(ElfW(Nhdr)) <= end;) {
            ElfW(Nhdr) header;
            std::memcpy(&header, note, sizeof header);
            const auto* name = note + sizeof header;
            const auto* id = name + (header.n_namesz + 3) / 4 * 4;
            if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
              wanted.found.clear();
              for (std::size_t i = 0; i < header.n_descsz; ++i) {
                constexpr char kDigits[] = "0123456789abcdef";
                wanted.found += kDigits[id[i] >> 4];
                wanted.found += kDigits[id[i] & 15];
              }
              return 1;
            }
            note = id + (header.n_descsz + 3) / 4 * 4;
          }
        }
        return 1;  // the program is the first, and an address lies in one object
      },
      &search);
  return search.found;
}

}  // namespace

Facts program_facts() {
  const std::string program = build_id(nullptr), library = build_id(reinterpret_cast<const void*>(&program_facts));
  if (library == program) return {{"program", program}};  // the one is a part of the other
  return {{"program", program}, {"libapex", library}};
}

void check_same(const dist::ProcessGroup& world, std::string_view what, const Facts& facts, Kind kind) {
  const std::string own = as_lines(facts);
  const auto hash = static_cast<std::int64_t>(std::hash<std::string>{}(own));
  std::array<std::int64_t, 2> least = {hash, ~hash};
  world.all_reduce(std::span(least), dist::ReduceOp::min, dist::Label(what));
  if (least[0] == ~least[1]) return;
  // Programs that differ may hash differently: what counts is the text.
  const std::string differing = difference(world.all_gather(own, dist::Label(what)));
  world.agree(differing.empty(), concat(what, ": ", differing), kind, dist::Label(what));
}

}  // namespace apex::train
