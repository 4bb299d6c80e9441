// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// outside CHECKPOINTS: trains a small network for two steps, saves it, and loads it into another.
#include <apex/apex.hpp>
#include <apex/checkpoint.hpp>
#include <iostream>

int main(int argc, char** argv) {
  return apex::dist::run_main([&] {
    apex::dist::Session session(argc, argv, {.device = apex::DeviceKind::cpu});
    const auto make = [] { return apex::models::resnet20({.num_classes = 4, .in_channels = 1}); };
    const auto model = make();
    apex::optimizers::FusedSGD optimizer(model->parameters(), {.lr = 0.1, .momentum = 0.9});
    apex::parallel::DistributedDataParallel ddp(model, session.world());
    const auto images = apex::full({4, 1, 16, 16}, 1.0 + session.rank());
    const auto labels = apex::from_values<std::int64_t>({4}, {0, 1, 2, 3});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      apex::backward(apex::nn::functional::cross_entropy(ddp(images), labels));
      optimizer.step();
    }
    const auto written = apex::checkpoint::save(argv[1], {.model = model, .optimizer = &optimizer, .step = 2});

    const auto again = make();
    apex::checkpoint::load_model(written.path, *again, {});
    const auto a = model->parameters(), b = again->parameters();
    for (std::size_t i = 0; i < a.size(); ++i)
      for (std::int64_t k = 0; k < a[i].numel(); ++k)
        if (a[i].data<float>()[k] != b[i].data<float>()[k]) apex::fail(apex::Kind::state, "the weights differ");
    if (session.rank() == 0) std::cout << session.size() << " ranks, " << written.path.string() << std::endl;
    return 0;
  });
}
