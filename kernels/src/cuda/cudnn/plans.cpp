// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "plans.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "../../backend_impl.hpp"
#include "../handles.hpp"

#include <cudnn_frontend_version.h>

namespace apex::kernels::cuda {
namespace cudnn {
namespace {

using SharedPlan = std::shared_ptr<const Plan>;

struct Entry {
  SharedPlan plan;  ///< null: cuDNN has none
  bool timed = false;
  std::size_t limit = workspace_limit();  ///< it was chosen under

  /// Whether the choice holds under the present limit: it fits, or none was found with at least as much room.
  bool stands() const { return plan == nullptr ? workspace_limit() <= limit : plan->workspace() <= workspace_limit(); }
};

struct Imported {
  std::string text;
  bool timed = false;
};

struct Store {
  std::mutex guard;
  std::map<ConvKey, Entry> plans;
  std::map<ConvKey, Imported> imported;           ///< not yet used; device is 0 in these keys
  std::map<ConvKey, bool> stems, imported_stems;  ///< plain_stem_is_faster; device is 0 in the imported ones' keys
  std::string imported_device;
  std::size_t chosen = 0;
  std::mutex choosing;  ///< one thread chooses at a time
};

Store& store() {
  static auto& the = *new Store;
  return the;
}

ConvKey without_device(ConvKey key) {
  key.device = 0;
  return key;
}

const std::string& device_name(int index) {
  static auto& guard = *new std::mutex;
  static auto& names = *new std::map<int, std::string>;  // asking the driver takes milliseconds
  const std::lock_guard lock(guard);
  auto& name = names[index];
  if (name.empty()) {
    cudaDeviceProp properties{};
    APEX_CHECK(cudaGetDeviceProperties(&properties, index));
    name = properties.name;
  }
  return name;
}

void run(const Context& ctx, cudnnHandle_t handle, const Plan& plan, const Buffers& buffers) {
  const Workspace workspace = ctx.workspace(plan.workspace());
  plan.run(handle, buffers, workspace.data());
}

/// Milliseconds of one run, the first not counted.
double time_of(const Context& ctx, cudnnHandle_t handle, const Plan& plan, const Buffers& buffers) {
  constexpr int kRuns = 4;
  const Workspace workspace = ctx.workspace(plan.workspace());
  plan.run(handle, buffers, workspace.data());
  apex::cuda::Event start(true), end(true);
  start.record(ctx);
  for (int i = 0; i < kRuns; ++i) plan.run(handle, buffers, workspace.data());
  end.record(ctx);
  end.synchronize();
  return start.milliseconds_to(end) / kRuns;
}

/// A plan that fails in cuDNN, or for whose scratch there is no room, is passed over; anything else is an error.
bool passed_over(const Error& e) { return e.domain() == Domain::cudnn || e.kind() == Kind::exhausted; }

/// What a search found, and the error of a candidate for whose scratch there was no room.
struct Choice {
  Entry entry;
  std::exception_ptr starved;

  /// To be called in a handler of e.
  void pass_over(const Error& e) {
    if (!passed_over(e)) throw;
    if (e.kind() == Kind::exhausted) starved = std::current_exception();
  }
};

/// The first suggestion that builds, fits the workspace limit and runs.
Choice choose_first(const Context& ctx, cudnnHandle_t handle, const ConvKey& key, const Buffers& buffers) {
  Choice choice;
  const Suggestions suggestions(handle, key, false);
  for (std::size_t i = 0; i < suggestions.size(); ++i) {
    SharedPlan plan = suggestions.build(i);
    if (plan == nullptr || plan->workspace() > workspace_limit()) continue;
    try {
      run(ctx, handle, *plan, buffers);
    } catch (const Error& e) {
      choice.pass_over(e);
      continue;
    }
    choice.entry = {plan, false};
    break;
  }
  return choice;
}

/// The fastest of the first dozen. Building stops early when it takes long: engines that are compiled now cost up to a
/// second each. An engine whose bits vary must be clearly faster.
Choice choose_fastest(const Context& ctx, cudnnHandle_t handle, const ConvKey& key, const Buffers& buffers) {
  constexpr int kMost = 12, kMostCompiled = 4;
  constexpr double kHandicap = 1.03;
  constexpr auto kPatience = std::chrono::milliseconds(600);
  const auto start = std::chrono::steady_clock::now();
  const Suggestions suggestions(handle, key, true);
  Choice choice{{nullptr, true}, nullptr};
  Entry& best = choice.entry;
  double best_time = 0;
  int tried = 0, compiled = 0;
  for (std::size_t i = 0; i < suggestions.size() && tried < kMost; ++i) {
    if (suggestions.compiles(i) && ++compiled > kMostCompiled) continue;
    if (best.plan != nullptr && std::chrono::steady_clock::now() - start > kPatience) break;
    SharedPlan plan = suggestions.build(i);
    if (plan == nullptr || plan->workspace() > workspace_limit()) continue;
    ++tried;
    try {
      const double time = time_of(ctx, handle, *plan, buffers) * (plan->deterministic() ? 1.0 : kHandicap);
      if (best.plan != nullptr && time >= best_time) continue;
      best.plan = plan;
      best_time = time;
    } catch (const Error& e) {
      choice.pass_over(e);
    }
  }
  // The last candidate wrote last: all give the result, but the winner's is the one later steps repeat.
  if (best.plan != nullptr) run(ctx, handle, *best.plan, buffers);
  return choice;
}

/// What was chosen for the key, if that still stands.
std::optional<Entry> find(const ConvKey& key) {
  Store& s = store();
  const std::lock_guard lock(s.guard);
  const auto at = s.plans.find(key);
  if (at == s.plans.end() || !at->second.stands()) return std::nullopt;
  return at->second;
}

void put(const ConvKey& key, const Entry& entry, bool chosen) {
  Store& s = store();
  const std::lock_guard lock(s.guard);
  s.plans[key] = entry;
  if (chosen && entry.plan != nullptr) ++s.chosen;
}

/// An imported plan for the key, built.
std::optional<Entry> take_imported(const ConvKey& key, cudnnHandle_t handle) {
  Store& s = store();
  Imported found;
  {
    const std::lock_guard lock(s.guard);
    const auto at = s.imported.find(without_device(key));
    if (at == s.imported.end() || s.imported_device != device_name(static_cast<int>(key.device))) return std::nullopt;
    found = at->second;
  }
  SharedPlan plan = Plan::load(handle, key, found.text);
  if (plan == nullptr || plan->workspace() > workspace_limit()) return std::nullopt;
  return Entry{plan, found.timed};
}

}  // namespace

bool known_missing(const ConvKey& key) {
  const auto entry = find(key);
  return entry && entry->plan == nullptr;
}

std::optional<bool> plain_stem_is_faster(const Context& ctx, const ConvKey& key) {
  Store& s = store();
  const std::lock_guard lock(s.guard);
  if (const auto at = s.stems.find(key); at != s.stems.end()) return at->second;
  if (s.imported_device != device_name(ctx.device.index)) return std::nullopt;
  const auto at = s.imported_stems.find(without_device(key));
  return at == s.imported_stems.end() ? std::nullopt : std::optional(at->second);
}

void keep_plain_stem_is_faster(const ConvKey& key, bool is) {
  Store& s = store();
  const std::lock_guard lock(s.guard);
  s.stems[key] = is;
  ++s.chosen;
}

bool run_conv(const Context& ctx, const ConvKey& key, const Buffers& buffers) {
  const auto settled = [&](const Entry& e) {
    return e.plan == nullptr || e.timed || plan_choice() == PlanChoice::heuristic || apex::cuda::capturing(ctx);
  };
  auto entry = find(key);
  if (!entry || !settled(*entry)) {
    const std::lock_guard lock(store().choosing);
    entry = find(key);  // another thread may have chosen meanwhile
    if (!entry || !settled(*entry)) {
      const CudnnHandle handle(ctx);
      const OutsideCapture outside;
      if (!entry) {
        entry = take_imported(key, handle.get());
        if (entry) put(key, *entry, false);
      }
      if (!entry || !settled(*entry)) {
        const bool timed = plan_choice() == PlanChoice::timed && !apex::cuda::capturing(ctx);
        const Choice choice =
            timed ? choose_fastest(ctx, handle.get(), key, buffers) : choose_first(ctx, handle.get(), key, buffers);
        const Entry& chosen = choice.entry;
        // Out of memory now is no reason to do without a plan for good.
        if (chosen.plan == nullptr && !entry && choice.starved) std::rethrow_exception(choice.starved);
        if (chosen.plan != nullptr || !entry) {
          put(key, chosen, true);
          return chosen.plan != nullptr;
        }
        entry->timed = true;  // nothing could be timed, for lack of memory say: what worked so far goes on
        put(key, *entry, false);
      }
    }
  }
  if (entry->plan == nullptr) return false;
  const CudnnHandle handle(ctx);
  run(ctx, handle.get(), *entry->plan, buffers);
  return true;
}

}  // namespace cudnn

namespace {

// Layout of exported plans: magic, versions and device as one line of text, then for each plan its key, what it is, and
// the length and bytes of cuDNN's text (none for a verdict on a first layer); at the end a checksum over all before it.

constexpr std::string_view kMagic = "apex-plans-2";
enum class Record : std::int64_t { guessed_plan, timed_plan, folded_stem, plain_stem };

std::string header(const std::string& device) {
  return concat(kMagic, " cudnn ", cudnnGetVersion(), " frontend ", CUDNN_FRONTEND_MAJOR_VERSION, '.',
                CUDNN_FRONTEND_MINOR_VERSION, '.', CUDNN_FRONTEND_PATCH_VERSION, " runtime ", cudnnGetCudartVersion(),
                " key ", sizeof(cudnn::ConvKey), " device ", device, '\n');
}

/// FNV-1a.
std::uint64_t checksum(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

template <class T>
void append(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Takes a T off the front; false when there are too few bytes.
template <class T>
bool take(std::string_view& in, T& value) {
  if (in.size() < sizeof value) return false;
  std::memcpy(&value, in.data(), sizeof value);
  in.remove_prefix(sizeof value);
  return true;
}

int current_device() {
  int device = 0;
  APEX_CHECK(cudaGetDevice(&device));
  return device;
}

}  // namespace

std::string export_plans() {
  if (apex::cuda::device_count() == 0) return {};
  cudnn::Store& s = cudnn::store();
  const int device = current_device();
  const std::string name = cudnn::device_name(device);
  std::string out = header(name);
  const auto add = [&](const cudnn::ConvKey& key, Record what, const std::string& text) {
    append(out, cudnn::without_device(key));
    append(out, what);
    append(out, static_cast<std::int64_t>(text.size()));
    out += text;
  };
  const auto add_plan = [&](const cudnn::ConvKey& key, bool timed, const std::string& text) {
    if (!text.empty()) add(key, timed ? Record::timed_plan : Record::guessed_plan, text);
  };
  const std::lock_guard lock(s.guard);
  std::set<cudnn::ConvKey> written;
  for (const auto& [key, entry] : s.plans) {
    if (entry.plan == nullptr || cudnn::device_name(static_cast<int>(key.device)) != name) continue;
    if (written.insert(cudnn::without_device(key)).second) add_plan(key, entry.timed, entry.plan->serialized());
  }
  auto stems = s.imported_device == name ? s.imported_stems : std::map<cudnn::ConvKey, bool>();
  for (const auto& [key, plain] : s.stems)
    if (cudnn::device_name(static_cast<int>(key.device)) == name) stems[cudnn::without_device(key)] = plain;
  for (const auto& [key, plain] : stems) add(key, plain ? Record::plain_stem : Record::folded_stem, {});
  if (s.imported_device == name)
    for (const auto& [key, plan] : s.imported)
      if (!written.contains(key)) add_plan(key, plan.timed, plan.text);
  append(out, checksum(out));
  return out;
}

std::size_t import_plans(std::string_view bytes) {
  if (apex::cuda::device_count() == 0 || bytes.size() < sizeof(std::uint64_t)) return 0;
  std::string_view tail = bytes.substr(bytes.size() - sizeof(std::uint64_t)),
                   body = bytes.substr(0, bytes.size() - sizeof(std::uint64_t));
  std::uint64_t sum = 0;
  take(tail, sum);
  if (sum != checksum(body)) return 0;
  const std::string name = cudnn::device_name(current_device()), wanted = header(name);
  if (body.substr(0, wanted.size()) != wanted) return 0;
  body.remove_prefix(wanted.size());
  std::map<cudnn::ConvKey, cudnn::Imported> found;
  std::map<cudnn::ConvKey, bool> stems;
  while (!body.empty()) {
    cudnn::ConvKey key;
    Record what{};
    std::int64_t length = 0;
    if (!take(body, key) || !take(body, what) || !take(body, length) || length < 0 ||
        static_cast<std::uint64_t>(length) > body.size())
      return 0;
    if (what == Record::folded_stem || what == Record::plain_stem)
      stems[key] = what == Record::plain_stem;
    else
      found[key] = {std::string(body.substr(0, static_cast<std::size_t>(length))), what == Record::timed_plan};
    body.remove_prefix(static_cast<std::size_t>(length));
  }
  cudnn::Store& s = cudnn::store();
  const std::lock_guard lock(s.guard);
  s.imported = std::move(found);
  s.imported_stems = std::move(stems);
  s.imported_device = name;
  return s.imported.size();
}

std::size_t plans_chosen() noexcept {
  cudnn::Store& s = cudnn::store();
  const std::lock_guard lock(s.guard);
  return s.chosen;
}

void clear_plans() noexcept {
  cudnn::Store& s = cudnn::store();
  const std::lock_guard lock(s.guard);
  s.plans.clear();
  s.imported.clear();
  s.stems.clear();
  s.imported_stems.clear();
}

}  // namespace apex::kernels::cuda
