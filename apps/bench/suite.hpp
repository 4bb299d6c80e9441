// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apex/autograd/ops.hpp"
#include "measure.hpp"
#include "peer.hpp"

namespace bench {

struct SuiteOptions {
  apex::Device device{};
  int runs = 20;
  std::string skip;   ///< rows whose title contains it are left out; empty: none
  std::string only;   ///< rows whose title contains it; empty: all
  bool peer = false;  ///< time the same in PyTorch, row by row
  std::string python = "python3";
  std::string json;   ///< file for the rows; empty: none
  bool list = false;  ///< only print each row's title and the ops of the table that it is for
};

/// What a row's result is counted in.
enum class Unit { bytes, flops };

/// One piece of work: its least memory traffic or its operations, how to run it once, and how to check what it left.
struct Work {
  Unit unit = Unit::bytes;
  double amount = 0;  ///< bytes (each input read once, each output written once) or operations
  std::function<void()> run;
  std::function<void(Check&)> check;
};

/// Times rows, checks their results, compares with a peer and prints them as they come.
class Suite {
 public:
  Suite(std::string command, const SuiteOptions& options);
  ~Suite();

  apex::Device device() const noexcept { return options_.device; }
  bool on_cuda() const noexcept { return options_.device.is_cuda(); }
  bool listing() const noexcept { return options_.list; }
  /// What the CPU gets: everything `by` times smaller.
  std::int64_t scaled(std::int64_t n, std::int64_t by) const {
    return on_cuda() ? n : std::max<std::int64_t>(1, n / by);
  }

  /// Whether a row of this title was asked for.
  bool wants(const std::string& title) const;
  /// Makes the work, times it, checks it, drops it. `peer` is the request to the PyTorch side (see torch_ops.py);
  /// empty: no such row there. `ops`: the functional ops whose work it is; each op of the table has a row somewhere.
  void row(const std::string& title, const std::string& peer, const std::function<Work()>& make,
           const std::vector<apex::Op>& ops = {});
  /// A row made of many: title, unit and amounts are summed with their counts.
  struct Part {
    int count = 1;
    std::string peer;
    std::function<Work()> make;
  };
  void sum_row(const std::string& title, const std::vector<Part>& parts, const std::vector<apex::Op>& ops = {});

  /// The measured ceilings of this device: a large copy and a large matrix product. Rows of their own.
  void measure_limits();

  /// Prints the last line and writes the JSON file. @throws Kind::numerical when a row's result was wrong
  void finish();

 private:
  struct Row {
    std::string title;
    Unit unit;
    double amount, ms;
    double peer_ms;  ///< 0: none
    std::string peer_note, problem;
    int compared;
  };
  double ask_peer(const std::string& request, std::string& note);
  void print(const Row& row) const;
  void add(Row row);
  double limit(Unit unit) const { return unit == Unit::bytes ? bytes_per_s_ : flops_per_s_; }

  std::string command_;
  SuiteOptions options_;
  Stopwatch stopwatch_;
  std::unique_ptr<TorchProcess> torch_;
  std::vector<Row> rows_;
  double bytes_per_s_ = 0, flops_per_s_ = 0;
};

}  // namespace bench
