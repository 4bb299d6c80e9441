// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/io/data/dataset.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>

#include "apex/core/error.hpp"

namespace apex::io {
namespace {

class Subset final : public Dataset {
 public:
  Subset(std::shared_ptr<const Dataset> base, std::vector<std::int64_t> indices)
      : base_(std::move(base)), indices_(std::move(indices)) {
    for (const auto i : indices_)
      if (i < 0 || i >= base_->size()) fail(Kind::argument, concat("subset: no sample ", i, " of ", base_->size()));
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  int channels() const override { return base_->channels(); }
  const std::vector<std::string>& class_names() const override { return base_->class_names(); }
  std::int64_t label(std::int64_t i) const override { return base_->label(at(i)); }
  std::string sample_name(std::int64_t i) const override { return base_->sample_name(at(i)); }
  std::string sample_key(std::int64_t i) const override { return base_->sample_key(at(i)); }
  Image load(std::int64_t i) const override { return base_->load(at(i)); }
  ImagePart load_part(std::int64_t i, const ChooseBox& choose) const override {
    return base_->load_part(at(i), choose);
  }
  std::optional<std::vector<std::uint8_t>> encoded(std::int64_t i) const override { return base_->encoded(at(i)); }
  std::optional<Size> fixed_size() const override { return base_->fixed_size(); }

 private:
  std::int64_t at(std::int64_t i) const { return indices_.at(static_cast<std::size_t>(i)); }

  std::shared_ptr<const Dataset> base_;
  std::vector<std::int64_t> indices_;
};

/// A chain of xxh64: each part's hash is the next one's seed.
std::uint64_t add(std::uint64_t hash, std::int64_t value) { return XXH64(&value, sizeof value, hash); }
std::uint64_t add(std::uint64_t hash, const std::string& text) { return XXH64(text.data(), text.size(), hash); }

}  // namespace

ImagePart Dataset::load_part(std::int64_t i, const ChooseBox&) const { return whole(load(i)); }

std::optional<std::vector<std::uint8_t>> Dataset::encoded(std::int64_t) const { return std::nullopt; }

Normalization photo_normalization(int channels) {
  if (channels == 1) return {{0.449}, {0.226}};
  if (channels == 3) return {{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}};
  fail(Kind::argument, concat("photo_normalization: ", channels, " channels, takes 1 or 3"));
}

std::shared_ptr<const Dataset> subset(std::shared_ptr<const Dataset> base, std::vector<std::int64_t> indices) {
  return std::make_shared<Subset>(std::move(base), std::move(indices));
}

DatasetPair split_dataset(std::shared_ptr<const Dataset> base, double fraction, std::uint64_t seed) {
  if (!(fraction > 0 && fraction < 1))
    fail(Kind::argument, concat("val_split is ", fraction, ", must lie between 0 and 1"));
  struct Member {
    std::uint64_t hash;
    std::int64_t index;
  };
  std::vector<std::vector<Member>> classes(base->class_names().size());
  for (std::int64_t i = 0; i < base->size(); ++i) {
    const std::string key = base->sample_key(i);
    classes.at(static_cast<std::size_t>(base->label(i))).push_back({XXH64(key.data(), key.size(), seed), i});
  }
  std::vector<std::int64_t> train, validation;
  for (auto& members : classes) {
    std::sort(members.begin(), members.end(),
              [](const Member& a, const Member& b) { return a.hash != b.hash ? a.hash < b.hash : a.index < b.index; });
    const auto n = static_cast<std::int64_t>(members.size());
    const auto wanted = static_cast<std::int64_t>(std::floor(static_cast<double>(n) * fraction + 0.5));
    const auto taken = std::min(wanted, n - 1);
    for (std::int64_t k = 0; k < n; ++k)
      (k < taken ? validation : train).push_back(members[static_cast<std::size_t>(k)].index);
  }
  if (train.empty() || validation.empty())
    fail(Kind::data, concat("val_split ", fraction, " leaves no ", train.empty() ? "training" : "validation",
                            " samples of ", base->size()));
  std::sort(train.begin(), train.end());
  std::sort(validation.begin(), validation.end());
  DatasetPair pair;
  pair.train = subset(base, std::move(train));
  pair.validation = subset(base, std::move(validation));
  return pair;
}

std::uint64_t fingerprint(const Dataset& dataset) {
  std::uint64_t hash = add(add(0, dataset.size()), dataset.channels());
  for (const auto& name : dataset.class_names()) hash = add(hash, name);
  for (std::int64_t i = 0; i < dataset.size(); ++i) hash = add(add(hash, dataset.label(i)), dataset.sample_key(i));
  return hash;
}

}  // namespace apex::io
