// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

/// \file
/// Training state to and from checkpoint files. The file format and the write protocol are apex/io/checkpoint.hpp's.
///
/// Schema (format_version 1):
/// ```
/// /                 step, epoch, class_names, and what io adds: format, library_version, world_size, complete
/// /model            attribute arch; one dataset per parameter and buffer under its state_dict name, in logical
///                   order, dtype of state_dict(); attributes kind="parameter"|"buffer", requires_grad
/// /optimizer/<i>    attribute type, and wrapper where there is one; groups/<g>: hyper-parameters as attributes,
///                   dataset params (names);
///                   state/<name>/<key>
/// /rng              seed, offset
/// /amp /scheduler /sampler /ddp /metrics /config    Sections that the caller fills
/// ```
/// Parameters are called by the model's names (a leading "module." is dropped), those of no model `param_<g>_<i>`.
/// Several models: `/model/<label>.<path>`. All groups but /metrics and /config are bit-identical between equal runs,
/// so times and paths belong there.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apex/collectives/process_group.hpp"
#include "apex/io/checkpoint.hpp"
#include "apex/nn/module.hpp"
#include "apex/optimizers/optimizer.hpp"
#include "apex/random.hpp"

namespace apex::checkpoint {

/// A group of a file that belongs to the caller: attributes, groups below it, and datasets, by relative path.
struct Section {
  io::Attributes attributes = {};
  std::map<std::string, io::Attributes> groups = {};
  std::map<std::string, Tensor> tensors = {};
  std::map<std::string, std::vector<std::string>> strings = {};
};

/// A model beside others, under its label.
using LabelledModel = std::pair<std::string, std::shared_ptr<nn::Module>>;

/// What is saved. Everything may be left out.
struct Contents {
  std::shared_ptr<nn::Module> model = {};
  const optimizers::Optimizer* optimizer = nullptr;           ///< /optimizer/0
  std::vector<LabelledModel> models = {};                     ///< instead of `model`
  std::vector<const optimizers::Optimizer*> optimizers = {};  ///< instead of `optimizer`
  Section amp = {}, scheduler = {}, sampler = {}, ddp = {}, metrics = {}, config = {};
  const Generator* rng = nullptr;  ///< null: default_generator()
  std::string arch = {};           ///< what the model is called, for messages: "resnet50"
  std::vector<std::string> class_names = {};
  std::int64_t step = 0;
  std::int64_t epoch = 0;
};

struct SaveOptions {
  io::Verify verify = io::Verify::sample;
  int keep = 0;  ///< as io::CheckpointWriteOptions
  bool best = false;
  std::filesystem::path loaded_from = {};
  dist::ProcessGroup group = {};  ///< null: world
  double timeout_s = 0;           ///< limit of the whole write; 0: the Session's. Passed: exit code 7
};

/// Writes directory/step_%08d.h5 on all ranks of the group together; see io::write_checkpoint for what it promises.
/// Ranks hold the same state (data parallel), or parts of it where an optimizer is in_parts(): then the group is the
/// one that it works over. Needs a Session. Collective, blocking.
/// @throws Kind::argument both model and models (or optimizer and optimizers), a bad or used label; the rest as
///         io::write_checkpoint, on every rank
io::CheckpointWriteResult save(const std::filesystem::path& directory, const Contents& contents,
                               const SaveOptions& options = {});

/// What is restored in place. Everything may be left out; what is left out is not read.
struct Targets {
  std::shared_ptr<nn::Module> model = {};
  optimizers::Optimizer* optimizer = nullptr;
  std::vector<LabelledModel> models = {};
  std::vector<optimizers::Optimizer*> optimizers = {};
  Generator* rng = nullptr;  ///< null: default_generator() is left alone
  std::string arch = {};     ///< when set and the file names another one, that is an error
};

struct LoadOptions {
  dist::ProcessGroup group = {};  ///< null: world
  double timeout_s = 0;           ///< as SaveOptions
};

struct Loaded {
  std::filesystem::path path;
  std::int64_t step = 0, epoch = 0, world_size = 0;
  std::string arch;
  std::vector<std::string> class_names;
  Section amp, scheduler, sampler, ddp, metrics, config;
};

/// Restores what `targets` names from a file, or from the newest good file of a directory (rank 0 chooses, warns of any
/// it passes over, and tells the others). Any number of ranks reads what any other wrote. Values are converted to the
/// dtype, device and layout of the target; optimizer state to the dtype the optimizer keeps it in. Everything is read
/// and checked before anything changes: after an exception the targets are as they were, on every rank. Collective.
/// @throws Kind::data the file is missing; another architecture (naming both and the first name that is missing,
///         unexpected or of other sizes); an optimizer of another type or wrapper, or a group with other parameters
/// @throws Kind::damaged as io::CheckpointFile
Loaded load(const std::filesystem::path& path, const Targets& targets, const LoadOptions& options = {});

struct ModelLoadOptions {
  std::string arch = {};  ///< as Targets
  bool strict = true;     ///< names that are missing or unexpected are an error; sizes that differ always are
};

/// The model of a checkpoint alone, on this rank alone: for --pretrained and for inference. Not collective, needs no
/// Session. `path` as in load().
/// @throws as load
nn::LoadReport load_model(const std::filesystem::path& path, nn::Module& model, const ModelLoadOptions& options = {});

}  // namespace apex::checkpoint
