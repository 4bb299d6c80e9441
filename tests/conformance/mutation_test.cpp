// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// The replay must notice every change of a recorded case: a value moved by three tolerances, another attribute, a
// dataset too many or too few, and (flip.cpp) a gradient of the wrong sign anywhere in the network. Most changes are
// made to a smaller case of the same kind that the test records itself, so that this takes seconds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "apex/core/error.hpp"
#include "conformance/flip.hpp"
#include "conformance/hdf5_edit.hpp"
#include "ops.hpp"
#include "resnet_run.hpp"

namespace {

using namespace apex;

const std::string kGolden = APEX_GOLDENS "/resnet_training.h5";
const std::string kCase = "/resnet18_64";

/// Writes the case to a new file: the network and optimizer of the recorded one, with smaller pictures and fewer steps.
void record_small_case(const std::string& path) {
  const conformance::ResnetRecipe recipe{.arch = "resnet18",
                                         .classes = 10,
                                         .image = 40,
                                         .batch = 4,
                                         .steps = 2,
                                         .lr = 0.002,
                                         .momentum = 0.9,
                                         .weight_decay = 1e-4,
                                         .bn_momentum = 0.9};
  conformance::ResnetRun run(recipe, kCpu, DType::f64, MemoryFormat::contiguous, conformance::Weights::exact);
  run.first_step();
  run.remaining_steps();
  test::edit_file(path, true, [&](hid_t file) {
    test::put_attribute(file, "/", "op", std::string("resnet_training"));
    for (const auto& [name, values] : run.results()) {
      std::vector<hsize_t> sizes = {values.size()};
      if (name == "grad_first8_step0") sizes = {values.size() / 8, 8};
      if (name.starts_with("logits")) sizes = {4, 10};
      test::put_dataset(file, (kCase + "/" + name).c_str(), H5T_IEEE_F64LE, sizes, values);
    }
    test::put_strings(file, (kCase + "/parameter_names").c_str(), run.parameter_names());
    test::put_strings(file, (kCase + "/buffer_names").c_str(), run.buffer_names());
    const char* object = kCase.c_str();
    test::put_attribute(file, object, "arch", recipe.arch);
    test::put_attribute(file, object, "source", std::string("torch64 torchvision"));
    test::put_attribute(file, object, "classes", recipe.classes);
    test::put_attribute(file, object, "image", recipe.image);
    test::put_attribute(file, object, "batch", recipe.batch);
    test::put_attribute(file, object, "steps", recipe.steps);
    test::put_attribute(file, object, "label_smoothing", recipe.label_smoothing);
    test::put_attribute(file, object, "lr", recipe.lr);
    test::put_attribute(file, object, "momentum", recipe.momentum);
    test::put_attribute(file, object, "weight_decay", recipe.weight_decay);
    test::put_attribute(file, object, "bn_momentum", recipe.bn_momentum);
  });
}

/// Empty when the case passes in f64, else what was found.
std::string replay(const std::string& path) {
  try {
    for (const auto& recorded : conformance::read_golden(path).cases) {
      if ("/" + recorded.name != kCase) continue;
      const conformance::Op* op = conformance::find_op(recorded.op);
      if (op == nullptr) return "unknown op";
      conformance::Comparison comparison;
      op->run(recorded, kCpu, DType::f64, comparison);
      return comparison.passed() ? "" : comparison.summary();
    }
    return "no such case";
  } catch (const Error& error) {
    return error.what();
  }
}

class Mutation : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    suite_folder_ = std::make_unique<test::TempDir>();
    record_small_case(small_case());
  }
  static void TearDownTestSuite() { suite_folder_.reset(); }
  static std::string small_case() { return suite_folder_->file("small.h5"); }

  /// A copy of the case after `edit`, replayed.
  std::string after(const std::function<void(hid_t)>& edit, const std::string& original = small_case()) {
    const std::string copy = folder_.file("copy.h5");
    std::filesystem::copy_file(original, copy, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::permissions(copy, std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
    test::edit_file(copy, false, edit);
    return replay(copy);
  }

  void expect_noticed(const std::string& part, const std::function<void(hid_t)>& edit,
                      const std::string& original = small_case()) {
    const std::string said = after(edit, original);
    EXPECT_NE(said.find(part), std::string::npos) << "wanted '" << part << "', said '" << said << "'";
  }

  /// Moves one element by three times what it is allowed.
  void expect_value_noticed(const std::string& dataset, double tolerance, const std::string& original = small_case()) {
    SCOPED_TRACE(dataset);
    const auto move_one = [&](hid_t file) {
      const std::string path = kCase + "/" + dataset;
      auto values = test::get_dataset(file, path.c_str());
      double largest = 0;
      for (const double v : values) largest = std::max(largest, std::abs(v));
      const double scale = largest == 0 ? 1 : std::min(1.0, largest);
      double& value = values[values.size() / 2];
      value += 3 * tolerance * std::max(std::abs(value), scale);
      test::set_dataset(file, path.c_str(), values);
    };
    expect_noticed(dataset + "[", move_one, original);
  }

 private:
  static inline std::unique_ptr<test::TempDir> suite_folder_;
  test::TempDir folder_;
};

TEST_F(Mutation, AnUntouchedCopyPasses) {
  EXPECT_EQ(after([](hid_t) {}), "");
}

TEST_F(Mutation, AValueMovedByThreeTolerances) {
  for (const char* dataset : {"logits_train_step0", "grad_norm_step0", "grad_first8_step0", "losses", "param_sum_end",
                              "param_abs_sum_end", "buffer_sum_end"})
    expect_value_noticed(dataset, 1e-9);
  expect_value_noticed("logits_eval_end", 1e-6);
  expect_value_noticed("losses", 1e-9, kGolden);
}

TEST_F(Mutation, ANumberThatTheRunDependsOn) {
  // The smallest change one would make by hand; each shows in results of its own.
  const auto number = [&](const char* name, double value, const std::string& part) {
    SCOPED_TRACE(name);
    expect_noticed(part, [&](hid_t file) { test::put_attribute(file, kCase.c_str(), name, value); });
  };
  number("lr", 0.00201, "outside");
  number("momentum", 0.901, "outside");
  number("weight_decay", 1.1e-4, "outside");
  number("bn_momentum", 0.899, "outside");
  number("label_smoothing", 1e-4, "outside");
}

TEST_F(Mutation, AnAttributeThatSizesDependOn) {
  const auto count = [&](const char* name, std::int64_t value, const std::string& part) {
    SCOPED_TRACE(name);
    expect_noticed(part, [&](hid_t file) { test::put_attribute(file, kCase.c_str(), name, value); });
  };
  count("batch", 3, "should hold numbers [3, 10]");
  count("classes", 11, "should hold numbers [4, 11]");
  count("steps", 3, "should hold numbers [3]");
  count("steps", 0, "steps is 0");
  count("image", 41, "outside");
}

TEST_F(Mutation, AnAttributeOfText) {
  const auto text = [&](const char* object, const char* name, const std::string& value, const std::string& part) {
    SCOPED_TRACE(name);
    expect_noticed(part, [&](hid_t file) { test::put_attribute(file, object, name, value); });
  };
  text(kCase.c_str(), "arch", "resnet34", "parameter_names[");
  text(kCase.c_str(), "arch", "resnet18b", "no architecture 'resnet18b'");
  text(kCase.c_str(), "source", "numpy", "recorded from 'numpy'");
  text("/", "op", "resnet_trainings", "unknown op");
  text(kCase.c_str(), "lr", "0.002", "lr is not a number");
}

TEST_F(Mutation, SomethingTooMany) {
  expect_noticed("does not know attribute nesterov",
                 [](hid_t f) { test::put_attribute(f, kCase.c_str(), "nesterov", std::int64_t{0}); });
  expect_noticed("does not know dataset grad_last8_step0", [](hid_t f) {
    test::put_dataset(f, (kCase + "/grad_last8_step0").c_str(), H5T_IEEE_F64LE, {2}, {0, 0});
  });
  expect_noticed("does not know dataset inputs/x", [](hid_t f) {
    test::put_dataset(f, (kCase + "/inputs/x").c_str(), H5T_IEEE_F64LE, {2}, {0, 0});
  });
}

TEST_F(Mutation, SomethingTooFew) {
  for (const char* name : {"losses", "parameter_names", "buffer_sum_end"}) {
    expect_noticed(std::string("lacks the dataset ") + name,
                   [&](hid_t f) { test::done(H5Ldelete(f, (kCase + "/" + name).c_str(), H5P_DEFAULT)); });
  }
  for (const char* name : {"lr", "arch", "source", "bn_momentum"}) {
    expect_noticed(std::string("lacks the attribute ") + name,
                   [&](hid_t f) { test::done(H5Adelete_by_name(f, kCase.c_str(), name, H5P_DEFAULT)); });
  }
}

TEST_F(Mutation, AGradientOfTheWrongSign) {
  // Every output of every backward that a ResNet uses, at its first call and at a later one.
  const std::vector<test::Flip> flips = {
      {"cross_entropy_backward.dlogits", 0},  {"linear_backward_data.dx", 0},
      {"linear_backward_weight.dw", 0},       {"linear_backward_weight.db", 0},
      {"adaptive_avg_pool2d_backward.dx", 0}, {"max_pool2d_backward.dx", 0},
      {"batch_norm_backward.dx", 0},          {"batch_norm_backward.dx", 19},  // the stem's
      {"batch_norm_backward.dresidual", 0},   {"batch_norm_backward.dweight", 0},
      {"batch_norm_backward.dweight", 19},    {"batch_norm_backward.dbias", 0},
      {"batch_norm_backward.dbias", 11},      {"conv2d_backward_data.dx", 0},
      {"conv2d_backward_data.dx", 10},        {"conv2d_backward_weight.dw", 0},
      {"conv2d_backward_weight.dw", 19},
  };
  for (const auto& flip : flips) {
    SCOPED_TRACE(flip.output + " at call " + std::to_string(flip.call));
    const test::FlipGuard guard(flip);
    const std::string said = replay(kGolden);
    EXPECT_TRUE(guard.happened()) << "that backward was not called so often; the test must follow the network";
    EXPECT_NE(said.find("outside"), std::string::npos) << said;
  }
}

}  // namespace
