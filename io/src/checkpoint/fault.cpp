// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "fault.hpp"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "apex/core/error.hpp"

namespace apex::io::fault {
namespace {

struct Plan {
  std::string action = "kill";
  std::string point;
  int rank = 0;  // -1: all
  int nth = 1;
};

int number(std::string_view text, const char* all) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size())
    fail(Kind::argument, concat("APEX_FAULT=", all, ": expected [action@]point[:rank][#n]"));
  return value;
}

std::optional<Plan> parse() {
  const char* text = std::getenv("APEX_FAULT");
  if (!text || !*text) return std::nullopt;
  std::string_view rest = text;
  Plan plan;
  if (const auto at = rest.find('@'); at != rest.npos) {
    plan.action = rest.substr(0, at);
    rest.remove_prefix(at + 1);
  }
  if (const auto hash = rest.find('#'); hash != rest.npos) {
    plan.nth = number(rest.substr(hash + 1), text);
    rest = rest.substr(0, hash);
  }
  if (const auto colon = rest.find(':'); colon != rest.npos) {
    const auto rank = rest.substr(colon + 1);
    plan.rank = rank == "*" ? -1 : number(rank, text);
    rest = rest.substr(0, colon);
  }
  plan.point = rest;
  return plan;
}

std::atomic<int> due_error{0};
std::atomic<bool> due_short{false};

void act(const std::string& action) {
  if (action == "kill") {
    kill(getpid(), SIGKILL);
    pause();
  } else if (action == "stop") {
    raise(SIGSTOP);
  } else if (action == "eio") {
    due_error = EIO;
  } else if (action == "enospc") {
    due_error = ENOSPC;
  } else if (action == "short") {
    due_error = ENOSPC;
    due_short = true;
  } else {
    fail(Kind::argument, concat("APEX_FAULT: unknown action '", action, "'; use kill, stop, eio, enospc or short"));
  }
}

}  // namespace

void point(const char* name, int rank) {
  static const std::optional<Plan> plan = parse();
  static std::atomic<int> passed{0};
  if (!plan || plan->point != name || (plan->rank >= 0 && plan->rank != rank)) return;
  if (++passed == plan->nth) act(plan->action);
}

Injected take() {
  if (due_error.load(std::memory_order_relaxed) == 0) return {};
  return {due_error.exchange(0), due_short.exchange(false)};
}

}  // namespace apex::io::fault
