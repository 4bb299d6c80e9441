// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/io/data/sampler.hpp"

#include <numeric>
#include <utility>

#include "apex/core/error.hpp"
#include "random.hpp"

namespace apex::io {

std::vector<std::int64_t> epoch_permutation(std::int64_t n, std::uint64_t seed, std::int64_t epoch) {
  if (n < 0) fail(Kind::argument, concat("epoch_permutation: n is ", n, ", must not be negative"));
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::int64_t i = n - 1; i > 0; --i) {
    const auto words = draw(seed, Draw::permutation, static_cast<std::uint64_t>(epoch), static_cast<std::uint64_t>(i));
    const std::uint64_t random = std::uint64_t{words[0]} << 32 | words[1];
    // The high half of the product: below i + 1, with a bias under 2^-32 even for 2^32 samples.
    const auto j =
        static_cast<std::int64_t>((static_cast<unsigned __int128>(random) * static_cast<std::uint64_t>(i + 1)) >> 64);
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(j)]);
  }
  return order;
}

struct Sampler::Cache {
  std::mutex mutex;
  std::pair<std::int64_t, Order> newest{-1, nullptr}, older{-1, nullptr};
};

Sampler::Sampler(const SamplerOptions& options) : options_(options), cache_(std::make_shared<Cache>()) {
  const auto& o = options_;
  if (o.size < 1) fail(Kind::argument, concat("Sampler: size is ", o.size, ", must be at least 1"));
  if (o.batch < 1) fail(Kind::argument, concat("Sampler: batch is ", o.batch, ", must be at least 1"));
  if (o.world < 1 || o.rank < 0 || o.rank >= o.world)
    fail(Kind::argument, concat("Sampler: rank ", o.rank, " of ", o.world, " does not exist"));
  const std::int64_t all = global_batch();
  steps_ = o.drop_last ? o.size / all : (o.size + all - 1) / all;
  if (steps_ == 0)
    fail(Kind::data, concat("the data set has ", o.size, " samples, but one step of ", o.world, " ranks takes ",
                            o.batch, " each (", all, "): use a smaller batch or fewer ranks"));
}

Sampler::Order Sampler::order(std::int64_t epoch) const {
  const std::lock_guard lock(cache_->mutex);
  auto& newest = cache_->newest;
  auto& older = cache_->older;
  if (newest.first == epoch) return newest.second;
  if (older.first == epoch) return older.second;
  older = std::move(newest);
  newest = {epoch,
            std::make_shared<const std::vector<std::int64_t>>(epoch_permutation(options_.size, options_.seed, epoch))};
  return newest.second;
}

SampleSlice Sampler::slice(std::int64_t epoch, std::int64_t step) const {
  if (epoch < 0) fail(Kind::argument, concat("Sampler: epoch is ", epoch, ", must not be negative"));
  if (step < 0 || step >= steps_)
    fail(Kind::argument, concat("Sampler: step ", step, " is not one of the ", steps_, " of an epoch"));
  const Order permutation = options_.shuffle ? order(epoch) : nullptr;
  SampleSlice out;
  out.ids.assign(static_cast<std::size_t>(options_.batch), -1);
  for (std::int64_t i = 0; i < options_.batch; ++i) {
    const std::int64_t position = step * global_batch() + i * options_.world + options_.rank;
    if (position >= options_.size) break;
    out.ids[static_cast<std::size_t>(i)] = permutation ? (*permutation)[static_cast<std::size_t>(position)] : position;
    out.valid = i + 1;
  }
  return out;
}

}  // namespace apex::io
