// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "options.hpp"

#include <algorithm>

#include "apex/core/error.hpp"
#include "apex/models/resnet.hpp"
#include "apex/schedules.hpp"
#include "apex/train/prefetch.hpp"

namespace imagenet {
using apex::concat;
using apex::train::UsageError;

void declare(apex::train::OptionSet& set, Options& o) {
  set.heading("Model");
  set.text("arch,a", o.arch, "architecture; --list-archs names them");
  set.flag("list-archs", o.list_archs, "print the architectures and end");
  set.text("pretrained", o.pretrained, "start from the model of this checkpoint");
  set.flag("zero-init-residual", o.zero_init_residual, "blocks start as the identity");
  set.flag("freeze-bn", o.freeze_bn, "batch norm uses its running statistics in training too");
  set.flag("channels-last", o.channels_last, "NHWC activations (the default)");
  set.flag("contiguous", o.contiguous, "NCHW activations");

  set.heading("Recipe");
  set.choice(
      "optimizer", o.optimizer,
      {"sgd", "adam", "adamw", "lamb", "novograd", "adagrad", "larc-sgd", "zero-adam", "zero-adamw", "zero-lamb"},
      "the optimizer; adam adds weight decay to the gradient, adamw keeps it apart; zero-*: the same with state "
      "and update spread over the ranks");
  set.flag("nesterov", o.nesterov, "Nesterov momentum (sgd, larc-sgd)");
  set.number("beta1", o.beta1, "decay of the first moment (adam, adamw, lamb, novograd)", 0, 1);
  set.number("beta2", o.beta2, "decay of the second moment (the same)", 0, 1);
  set.number("eps", o.eps, "added to denominators (all but sgd); -1: the optimizer's own", -1);
  set.flag("no-bias-correction", o.no_bias_correction, "moments as they are (adam, adamw, lamb, novograd)");
  set.number("trust-coefficient", o.trust_coefficient, "of layer-wise rate control (larc-sgd)", 0);
  set.number("clip-grad", o.clip_grad,
             "largest 2-norm of all gradients together; 0: no clipping; -1: 1 for lamb and zero-lamb, no clipping for "
             "the others",
             -1);
  set.choice("lr-schedule", o.lr_schedule, apex::schedules::list(), "learning rate over time");
  set.number("warmup-epochs", o.warmup_epochs,
             "linear warm-up (cosine and constant; step and one-cycle have their own)", 0);
  set.flag("no-norm-decay", o.no_norm_decay, "no weight decay on batch norm and biases");
  set.number("label-smoothing", o.label_smoothing, "of the training loss", 0, 1);

  set.heading("Images");
  set.integer("image-size", o.image_size, "side of the network's input; 0: the data's own up to 64, else the model's",
              0, 8192);
  set.integer("channels", o.channels, "1 or 3; 0: the data's own", 0, 3);
  set.choice("augment", o.augment, {"auto", "photo", "small", "none"},
             "random resized crop and flip, padded crop and flip, or nothing");
  set.choice("decode", o.decode, {"cpu", "gpu"}, "who decodes, crops and resizes JPEG files; gpu: by nvJPEG");
  set.number("val-split", o.val_split, "part set aside for validation when DIR has no val/", 0, 0.9999);
  set.integer("synthetic-size", o.synthetic_size, "training samples of 'synthetic'", 1, 1'000'000'000);
  set.integer("synthetic-classes", o.synthetic_classes, "classes of 'synthetic'", 1, 1'000'000);

  apex::train::declare(set, o.train);
  set.positional("DIR", o.data, "folder with train/ and val/ class folders, IDX files, a pack (HDF5), or 'synthetic'");
}

namespace {

/// An option that the chosen optimizer has not would be passed over in silence.
void check_optimizer(const apex::train::OptionSet& set, const Options& o) {
  const std::vector<std::string> momentum = {"sgd", "larc-sgd"},
                                 moments = {"adam",      "adamw",      "lamb",     "novograd",
                                            "zero-adam", "zero-adamw", "zero-lamb"};
  std::vector<std::string> with_eps = moments;
  with_eps.insert(with_eps.end(), {"adagrad", "larc-sgd"});
  const std::vector<std::pair<std::string, std::vector<std::string>>> users = {{"momentum", momentum},
                                                                               {"nesterov", momentum},
                                                                               {"beta1", moments},
                                                                               {"beta2", moments},
                                                                               {"no-bias-correction", moments},
                                                                               {"eps", with_eps},
                                                                               {"trust-coefficient", {"larc-sgd"}}};
  for (const auto& [option, optimizers] : users) {
    if (!set.was_given(option) || std::find(optimizers.begin(), optimizers.end(), o.optimizer) != optimizers.end())
      continue;
    std::string names;
    for (const auto& name : optimizers) names += (names.empty() ? "" : ", ") + name;
    throw UsageError(concat("--", option, " is for --optimizer ", names, "; ", o.optimizer, " has none"));
  }
  for (const auto& [name, value] : {std::pair("beta1", o.beta1), std::pair("beta2", o.beta2)})
    if (value >= 1) throw UsageError(concat("--", name, ": ", value, " is not below 1"));
  if (o.eps < 0 && o.eps != -1) throw UsageError(concat("--eps: ", o.eps, " is below 0"));
  if (o.clip_grad < 0 && o.clip_grad != -1) throw UsageError(concat("--clip-grad: ", o.clip_grad, " is below 0"));
}

}  // namespace

void check(const apex::train::OptionSet& set, const Options& o) {
  if (o.data.empty()) throw UsageError("DIR is missing: a folder of images, a pack, or 'synthetic'");
  const auto archs = apex::models::list();
  if (std::find(archs.begin(), archs.end(), o.arch) == archs.end())
    throw UsageError(concat("--arch: '", o.arch, "' is not known; --list-archs names those that are"));
  if (o.channels == 2) throw UsageError("--channels: 2 is neither 1 nor 3");
  if (o.channels_last && o.contiguous) throw UsageError("--channels-last and --contiguous exclude each other");
  if (o.warmup_epochs > 0 && (o.lr_schedule == "step" || o.lr_schedule == "one-cycle"))
    throw UsageError(concat("--warmup-epochs: the ", o.lr_schedule, " schedule has a warm-up of its own"));
  check_optimizer(set, o);
  if (o.nesterov && o.train.momentum == 0) throw UsageError("--nesterov needs --momentum above 0");
  if (o.decode == "gpu" && apex::train::gpu_decoder().empty())
    throw UsageError("--decode gpu: this build has no nvJPEG; use cpu");
  if (o.decode == "gpu" && o.train.device == "cpu") throw UsageError("--decode gpu needs a GPU; --device cpu has none");
  if (set.was_given("pretrained") && o.pretrained.empty())
    throw UsageError("--pretrained: the value is empty; leave the option out for random weights");
  if (!o.pretrained.empty() && !o.train.resume.empty())
    throw UsageError("--pretrained starts anew and --resume goes on: give one of them");
  apex::train::check(set, o.train);
}

}  // namespace imagenet
