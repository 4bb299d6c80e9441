// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "suite.hpp"

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "apex/core/error.hpp"
#include "apex/core/profile.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/matmul.hpp"
#include "torch_scripts.hpp"

namespace bench {

using apex::ConstView;
using apex::Tensor;

Suite::Suite(std::string command, const SuiteOptions& options)
    : command_(std::move(command)), options_(options), stopwatch_(options.device, options.runs) {
  if (options.list) return;
  if (options.peer) {
    torch_ = std::make_unique<TorchProcess>(
        options.python, kTorchOps,
        std::vector<std::string>{options.device.is_cuda() ? apex::concat("cuda:", options.device.index) : "cpu",
                                 std::to_string(options.runs)});
  }
  const std::string versions = device_versions(options.device);
  std::printf("apex_bench %s on %s%s%s, median of %d runs, caches cold%s%s\n", command_.c_str(),
              device_name(options.device).c_str(), versions.empty() ? "" : ", ", versions.c_str(), options.runs,
              torch_ ? ", beside PyTorch " : "", torch_ ? torch_->greeting().c_str() : "");
  std::printf("%-58s %10s %9s %-8s %7s %10s %8s\n", "row", "ms", "rate", "", "% limit", "peer ms", "speed-up");
  std::fflush(stdout);
}

Suite::~Suite() = default;

bool Suite::wants(const std::string& title) const {
  if (!options_.skip.empty() && title.find(options_.skip) != std::string::npos) return false;
  return options_.only.empty() || title.find(options_.only) != std::string::npos;
}

double Suite::ask_peer(const std::string& request, std::string& note) {
  if (!torch_) return 0;
  if (request.empty()) {
    note = "no such op";
    return 0;
  }
  std::istringstream answer(torch_->ask(request));
  std::string word;
  double ms = 0;
  answer >> word;
  if (word == "ms" && answer >> ms && ms > 0) return ms;
  std::getline(answer >> std::ws, note);
  return 0;
}

void Suite::row(const std::string& title, const std::string& peer, const std::function<Work()>& make,
                const std::vector<apex::Op>& ops) {
  if (wants(title)) sum_row(title, {{1, peer, make}}, ops);
}

void Suite::sum_row(const std::string& title, const std::vector<Part>& parts, const std::vector<apex::Op>& ops) {
  if (!wants(title)) return;
  if (listing()) {
    std::printf("%s\t", title.c_str());
    const char* separator = "";
    for (const apex::Op op : ops) {
      std::printf("%s%s", separator, apex::row_of(op).name);
      separator = ",";
    }
    std::printf("\n");
    return;
  }
  Row row{title, Unit::bytes, 0, 0, 0, {}, {}, 0};
  bool peer_complete = torch_ != nullptr;
  for (const Part& part : parts) {
    {
      const apex::ProfileRange range("apex_bench row");
      const Work work = part.make();
      row.unit = work.unit;
      row.ms += part.count * stopwatch_.time(work.run);
      row.amount += part.count * work.amount;
      Check check;
      work.check(check);
      row.compared += check.compared();
      if (row.problem.empty()) row.problem = check.compared() == 0 ? "nothing was compared" : check.problem();
    }
    if (!peer_complete) continue;
    const double ms = ask_peer(part.peer, row.peer_note);
    row.peer_ms += part.count * ms;
    peer_complete = ms > 0;
  }
  if (!peer_complete) row.peer_ms = 0;
  add(std::move(row));
}

void Suite::add(Row row) {
  print(row);
  rows_.push_back(std::move(row));
}

void Suite::print(const Row& row) const {
  const double rate = row.amount / (row.ms * 1e-3);
  const bool memory = row.unit == Unit::bytes;
  std::string share = "-", peer = "-", ratio = "-";
  const auto fixed = [](const char* format, double value) {
    char text[32];
    std::snprintf(text, sizeof text, format, value);
    return std::string(text);
  };
  if (limit(row.unit) > 0) share = fixed("%.1f", 100 * rate / limit(row.unit));
  if (row.peer_ms > 0) {
    peer = fixed("%.4f", row.peer_ms);
    ratio = fixed("%.2f", row.peer_ms / row.ms);
  }
  std::printf("%-58s %10.4f %9.*f %-8s %7s %10s %8s", row.title.c_str(), row.ms, memory || !on_cuda() ? 0 : 1,
              rate / (memory || !on_cuda() ? 1e9 : 1e12),
              memory      ? "GB/s"
              : on_cuda() ? "TFLOP/s"
                          : "GFLOP/s",
              share.c_str(), peer.c_str(), ratio.c_str());
  if (!row.peer_note.empty() && row.peer_ms == 0) std::printf("  (peer: %s)", row.peer_note.c_str());
  if (!row.problem.empty()) std::printf("  WRONG: %s", row.problem.c_str());
  std::printf("\n");
  std::fflush(stdout);
}

void Suite::measure_limits() {
  // Measured first and by the same clock, whatever rows were asked for: every share of the limit refers to them.
  const std::string only = std::exchange(options_.only, {}), skip = std::exchange(options_.skip, {});
  const std::int64_t bytes = on_cuda() ? std::int64_t{2} << 30 : std::int64_t{256} << 20;
  row(apex::concat("copy ", bytes >> 20, " MiB"), apex::concat("copy ", bytes), [&] {
    const Tensor from = uniform({bytes / 4}, apex::DType::f32, device(), 1), to = apex::empty_like(from);
    return Work{Unit::bytes, 2.0 * static_cast<double>(bytes),
                [=] { apex::kernels::copy(to.context(), to.view(), ConstView(from.view())); },
                [=](Check& check) {
                  for (const std::int64_t at : {std::int64_t{0}, bytes / 8 + 3, bytes / 4 - 1})
                    check.near("copy", at, values_of(apex::views::narrow(to, 0, at, 1))[0],
                               values_of(apex::views::narrow(from, 0, at, 1))[0], 0, 0);
                }};
  });
  if (!listing()) bytes_per_s_ = rows_.back().amount / (rows_.back().ms * 1e-3);
  const std::int64_t n = on_cuda() ? 8192 : 1024;
  const apex::DType dtype = on_cuda() ? apex::DType::bf16 : apex::DType::f32;
  row(apex::concat("matmul ", n, "^3 ", dtype), apex::concat("matmul ", n, ' ', n, ' ', n, ' ', dtype),
      [&] {
        const Tensor a = uniform({n, n}, dtype, device(), 2), b = uniform({n, n}, dtype, device(), 3);
        const Tensor c = apex::empty({n, n}, dtype, device());
        return Work{Unit::flops, 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n),
                    [=] { apex::kernels::matmul(c.context(), c.view(), ConstView(a.view()), ConstView(b.view())); },
                    [=](Check& check) {
                      for (const std::int64_t i : {std::int64_t{0}, n / 3, n - 1}) {
                        const auto row = values_of(apex::views::narrow(a, 0, i, 1));
                        const auto column = values_of(apex::views::narrow(b, 1, n - 1 - i, 1));
                        double want = 0;
                        for (std::size_t k = 0; k < row.size(); ++k) want += row[k] * column[k];
                        const auto got =
                            values_of(apex::views::narrow(apex::views::narrow(c, 0, i, 1), 1, n - 1 - i, 1));
                        check.near("matmul", i, got[0], want, rounding_of(dtype), 1e-2);
                      }
                    }};
      },
      {apex::Op::matmul});
  if (!listing()) flops_per_s_ = rows_.back().amount / (rows_.back().ms * 1e-3);
  options_.only = only;
  options_.skip = skip;
}

void Suite::finish() {
  if (listing()) return;
  std::size_t wrong = 0;
  for (const Row& row : rows_) wrong += !row.problem.empty();
  std::printf("%zu rows, %zu wrong\n", rows_.size(), wrong);
  if (!options_.json.empty()) {
    nlohmann::json out;
    out["command"] = command_;
    out["device"] = device_name(options_.device);
    out["versions"] = device_versions(options_.device);
    out["runs"] = options_.runs;
    if (torch_) out["peer"] = torch_->greeting();
    out["rows"] = nlohmann::json::array();
    for (const Row& row : rows_) {
      nlohmann::json r{{"title", row.title}, {"ms", row.ms}, {"compared", row.compared}};
      r[row.unit == Unit::bytes ? "bytes" : "flops"] = row.amount;
      r["rate"] = row.amount / (row.ms * 1e-3);
      if (limit(row.unit) > 0) r["share_of_limit"] = row.amount / (row.ms * 1e-3) / limit(row.unit);
      if (row.peer_ms > 0) r["peer_ms"] = row.peer_ms;
      if (!row.problem.empty()) r["problem"] = row.problem;
      out["rows"].push_back(std::move(r));
    }
    std::ofstream file(options_.json);
    file << out.dump(1) << '\n';
    if (!file.flush()) apex::fail(apex::Kind::data, apex::concat("cannot write ", options_.json));
  }
  constexpr std::size_t kLimits = 2;  // the rows of measure_limits
  if (rows_.size() <= kLimits)
    apex::fail(apex::Kind::argument, apex::concat("no row is left: --only '", options_.only, "' --skip '",
                                                  options_.skip, "' fit none of the titles"));
  if (wrong > 0)
    apex::fail(apex::Kind::numerical, apex::concat(wrong, " rows had wrong results: their times are void"));
}

}  // namespace bench
