// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Training in which a Linear gets no gradient from the second iteration on: on all ranks ("all"), or on rank 1 alone
// ("one"). Started under mpiexec by fault_test.cpp.
#include <string>

#include "apex/autograd.hpp"
#include "apex/collectives/session.hpp"
#include "apex/nn/functional.hpp"
#include "apex/nn/layers.hpp"
#include "apex/parallel/distributed_data_parallel.hpp"
#include "apex/tensor_ops.hpp"
#include "support/session_device.hpp"

namespace {

using namespace apex;

class Net : public nn::Module {
 public:
  Net() : body_(std::make_shared<nn::Linear>(4, 4)), head_(std::make_shared<nn::Linear>(4, 4)) {
    register_module("body", body_);
    register_module("head", head_);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor h = body_->forward(x);
    return nn::functional::sum(use_head ? head_->forward(h) : h);
  }
  bool use_head = true;

 private:
  std::shared_ptr<nn::Linear> body_, head_;
};

}  // namespace

int main(int argc, char** argv) {
  return dist::run_main([&] {
    dist::Session session(argc, argv, {.timeout_s = 20, .device = test::session_device()});
    const auto net = std::make_shared<Net>();
    net->to(session.device());
    parallel::DistributedDataParallel ddp(net, session.world(), {.message_size = 1});
    const bool all = argc > 1 && std::string(argv[1]) == "all";
    for (int i = 0; i < 3; ++i) {
      net->use_head = i == 0 || (!all && session.rank() != 1);
      ddp.zero_grad();
      backward(ddp.forward(ones({2, 4}, DType::f32, session.device())));
    }
    return 0;
  });
}
