// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "data.hpp"

#include "apex/core/error.hpp"
#include "apex/models/resnet.hpp"
#include "apex/train/prefetch.hpp"
#include "apex/train/runtime.hpp"

namespace imagenet {
namespace io = apex::io;
namespace {

constexpr int kSmall = 64;  // pictures up to this side are used at their own size

int wanted_side(const Options& options) {
  return options.image_size > 0 ? static_cast<int>(options.image_size) : apex::models::default_image_size(options.arch);
}

void choose_transforms(Data& data, const Options& options) {
  const auto seed = static_cast<std::uint64_t>(options.train.seed);
  const auto size = data.sets.train->fixed_size();
  const bool small = size && size->height <= kSmall && size->width <= kSmall && options.image_size == 0;
  const int height = small ? size->height : wanted_side(options), width = small ? size->width : wanted_side(options);
  std::string augment = options.augment;
  if (augment == "auto") augment = data.sets.kind == "synthetic" ? "none" : small ? "small" : "photo";

  if (augment == "photo") data.train_transform = io::train_transform(height, seed);
  if (augment == "small")
    data.train_transform = io::small_train_transform(height, width, std::max(1, height / 14), seed);
  if (augment == "none") data.train_transform = io::small_eval_transform(height, width);
  const bool whole = small || data.sets.kind == "synthetic";
  data.eval_transform = whole ? io::small_eval_transform(height, width) : io::eval_transform(height);
}

io::LoaderOptions loader_options(const Options& options, bool look_ahead, apex::Device device) {
  io::LoaderOptions out;
  out.workers = static_cast<int>(options.train.workers);
  out.bad_sample = *io::parse_bad_sample(options.train.bad_sample);
  out.look_ahead = look_ahead;
  out.memory = apex::train::batch_memory(device);
  if (options.decode == "gpu") out.leaves_encoded = apex::train::gpu_decodes(device);
  return out;
}

}  // namespace

Data open_data(const Options& options, const apex::dist::Session& session) {
  Data data;
  session.world().together(
      [&] {
        io::DatasetOptions wanted;
        wanted.channels = static_cast<int>(options.channels);
        wanted.val_split = options.val_split;
        wanted.seed = static_cast<std::uint64_t>(options.train.seed);
        wanted.require_validation = options.train.evaluate;
        wanted.synthetic = {
            .train_size = options.synthetic_size,
            .validation_size = std::max<std::int64_t>(options.synthetic_size / 4, options.synthetic_classes),
            .classes = static_cast<int>(options.synthetic_classes),
            .height = wanted_side(options),
            .width = wanted_side(options)};
        data.sets = io::open_dataset(options.data, wanted);
      },
      "opening the data set");
  const auto facts = [](const std::string& part, const io::Dataset& set) -> apex::train::Facts {
    return {{part + " classes", std::to_string(set.class_names().size())},
            {part + " samples", std::to_string(set.size())},
            {part + " fingerprint", std::to_string(io::fingerprint(set))}};
  };
  auto all = facts("training", *data.sets.train);
  const apex::train::Facts rest =
      data.sets.validation ? facts("validation", *data.sets.validation) : apex::train::Facts{{"validation", "none"}};
  all.insert(all.end(), rest.begin(), rest.end());
  apex::train::check_same(session.world(), apex::concat("ranks see different data at '", options.data, "'"), all,
                          apex::Kind::data);
  if (session.rank() == 0 && !data.sets.warning.empty()) apex::log_warning(data.sets.warning);
  data.channels = data.sets.train->channels();
  choose_transforms(data, options);
  return data;
}

std::unique_ptr<io::Loader> train_loader(const Data& data, const Options& options, std::int64_t batch_size,
                                         const apex::dist::Session& session) {
  const io::Sampler sampler({.size = data.sets.train->size(),
                             .batch = batch_size,
                             .world = session.size(),
                             .rank = session.rank(),
                             .seed = static_cast<std::uint64_t>(options.train.seed),
                             .shuffle = true,
                             .drop_last = true});
  return std::make_unique<io::Loader>(data.sets.train, io::Transform(data.train_transform), sampler,
                                      loader_options(options, true, session.device()));
}

std::unique_ptr<io::Loader> validation_loader(const Data& data, const Options& options, std::int64_t batch_size,
                                              const apex::dist::Session& session) {
  if (!data.sets.validation) return nullptr;
  const io::Sampler sampler({.size = data.sets.validation->size(),
                             .batch = batch_size,
                             .world = session.size(),
                             .rank = session.rank(),
                             .seed = 0,
                             .shuffle = false,
                             .drop_last = false});
  return std::make_unique<io::Loader>(data.sets.validation, io::Transform(data.eval_transform), sampler,
                                      loader_options(options, false, session.device()));
}

}  // namespace imagenet
